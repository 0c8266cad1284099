"""Assigns responses to minibatches and ranks: whole groups, in the order of the data.

verl sorts a batch by length, cuts it anywhere, and cannot drop a group. Here, as in the embedded core, minibatch m
holds the groups of its own prompts; a group without reward variance is dropped and not replaced, so that its minibatch
is smaller; an empty minibatch makes no update. verl requires minibatches of equal size, so they are filled up with
padding rows (`None`).
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
        groups: index of each response's prompt within the batch, from 0.
        lengths: number of tokens of each response, prompt included.
        keep: whether the group of each response has a learning signal.
        groups_per_minibatch: prompts per update.
        ranks: data-parallel ranks.
        rows: responses per full minibatch, a multiple of `ranks`.

    Raises:
        ValueError: `rows` is not a multiple of `ranks`, or a minibatch has more responses than rows.
    """
    if rows % ranks:
        raise ValueError(f"a minibatch of {rows} responses cannot be shared equally by {ranks} ranks")
    members: dict[int, list[int]] = {}
    for index, (group, kept) in enumerate(zip(groups, keep, strict=True)):
        if kept:
            members.setdefault(group // groups_per_minibatch, []).append(index)
    return [_balance(members[number], lengths, ranks, rows // ranks) for number in sorted(members)]


def _balance(members: list[int], lengths: Sequence[int], ranks: int, places: int) -> list[list[int | None]]:
    """Distribute `members`, longest first, each to the rank with the fewest tokens that has a free row."""
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
    """All rows in verl's order: first those of rank 0, and so on; within a rank by minibatch."""
    ranks = len(arrangement[0]) if arrangement else 0
    return [row for rank in range(ranks) for minibatch in arrangement for row in minibatch[rank]]
