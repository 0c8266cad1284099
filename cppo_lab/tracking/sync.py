"""Uploading metrics that never reached the tracking store: after a crash, or from machines that cannot reach it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from cppo_lab.errors import UserError
from cppo_lab.runs.offsets import unsent
from cppo_lab.store.client import STORE_FAULTS, fault_line, open_client
from cppo_lab.tracking.shipping import ship


@dataclass(frozen=True)
class Sent:
    """The result of an upload: runs with unsent metrics, and their points."""

    runs: int = 0
    points: int = 0


def send(
    folders: Iterable[Path], uri: str, report: Callable[[int, int], None] = lambda done, of: None
) -> Sent:
    """Upload the unsent metrics in the folders of runs; a run that is training may be among them.

    `report` is called after each run with how many of how many are done. Raises UserError if the store is offline, or,
    once all others are sent, for runs that it refuses.
    """
    waiting = [folder for folder in folders if unsent(folder, uri)]
    if not waiting:
        return Sent()
    client, points, faults = open_client(uri), 0, list[str]()
    for number, folder in enumerate(waiting, start=1):
        try:
            points += ship(folder, uri, client)
        except (*STORE_FAULTS, UserError) as error:
            faults.append(
                f"run {folder.name} could not be uploaded to the tracking store ({fault_line(error)})"
            )
            client = open_client(
                uri
            )  # raises if the store does not answer: then the remaining runs would fail too
        report(number, len(waiting))
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise UserError(
            f"{faults[0]}{more}: nothing is lost, `cppo sync` uploads the rest once the store accepts it"
        )
    return Sent(len(waiting), points)
