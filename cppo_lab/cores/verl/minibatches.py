"""Which responses are trained in which minibatch, and on which rank: whole groups, in the order of the data.

verl sorts a batch by length and cuts it anywhere, and has no way to leave a group out. Here, as in the embedded core:
minibatch m holds the groups of its own prompts; a group without reward variance is left out and not replaced, so that
its minibatch is smaller; a minibatch with nothing left is no update. verl wants minibatches of one size, so rows that
train nothing (`None`) fill them up.
"""

from collections.abc import Sequence

Arrangement = list[list[list[int | None]]]  # [minibatch][rank][row]: index of a response, or None for padding


def arrange(
    groups: Sequence[int],
    lengths: Sequence[int],
    keep: Sequence[bool],
    *,
    groups_per_minibatch: int,
    ranks: int,
    rows: int,
) -> Arrangement:
    """The responses of every minibatch by rank.

    Args:
        groups: place in the data of each response's prompt, 0-based within the batch.
        lengths: its tokens, prompt included.
        keep: whether its group has a learning signal.
        groups_per_minibatch: prompts per update.
        ranks: data-parallel ranks.
        rows: responses per full minibatch, a multiple of `ranks`.

    Raises:
        ValueError: rows that the ranks cannot share equally, or more responses than a minibatch has rows.
    """
    if rows % ranks:
        raise ValueError(f"a minibatch of {rows} responses cannot be shared equally by {ranks} ranks")
    members: dict[int, list[int]] = {}
    for index, (group, kept) in enumerate(zip(groups, keep, strict=True)):
        if kept:
            members.setdefault(group // groups_per_minibatch, []).append(index)
    return [_balance(members[number], lengths, ranks, rows // ranks) for number in sorted(members)]


def _balance(members: list[int], lengths: Sequence[int], ranks: int, places: int) -> list[list[int | None]]:
    """Share out `members`: longest first, each to the rank with the fewest tokens that has a place left."""
    if len(members) > ranks * places:
        raise ValueError(f"a minibatch has {len(members)} responses, but {ranks} x {places} rows")
    shares: list[list[int | None]] = [[] for _ in range(ranks)]
    tokens = [0] * ranks
    for index in sorted(members, key=lambda member: (-lengths[member], member)):
        rank = min((r for r in range(ranks) if len(shares[r]) < places), key=lambda r: (tokens[r], r))
        shares[rank].append(index)
        tokens[rank] += lengths[index]
    return [share + [None] * (places - len(share)) for share in shares]


def by_rank(arrangement: Arrangement) -> list[int | None]:
    """All rows as verl deals them out: the first part to rank 0, and so on; each its minibatches in order."""
    ranks = len(arrangement[0]) if arrangement else 0
    return [row for rank in range(ranks) for minibatch in arrangement for row in minibatch[rank]]
