"""Reads and scores several sweeps together, and assigns models their roles in the paper's figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from cppo_lab import schema
from cppo_lab.analysis.artifacts import PositionGaps, TokenWindow, read_positions, read_windows
from cppo_lab.analysis.grid import SweepGrid
from cppo_lab.analysis.points import is_result
from cppo_lab.analysis.reader import list_runs, read_sweep
from cppo_lab.analysis.scoring import Scoreboard
from cppo_lab.analysis.statistics.claims import Claim
from cppo_lab.analysis.statistics.verdicts import score_claimed
from cppo_lab.errors import UserError

MAIN = "main"
# The paper's four models in its order: Qwen3-1.7B (post-trained), 1.7B-Base, 8B-Base, 30B-A3B-Base. A study's models
# take these roles in the order in which its main sweep declares them.
ROLES = 4
OURS, COMPARED = "cppo", "dppo"


@dataclass(frozen=True, eq=False)
class StudySweep:
    """One sweep of the study. If `board` is None, nothing of it can be scored, and `absent` says why."""

    grid: SweepGrid
    board: Scoreboard | None
    absent: str = ""


@dataclass(frozen=True, eq=False)
class StudyResults:
    """All data for a study's report. `positions` and `windows` map an MLflow run to its diagnostics, as far as the
    figures need them and the runs have them.
    """

    sweeps: tuple[StudySweep, ...]
    positions: Mapping[str, PositionGaps] = field(default_factory=dict)
    windows: Mapping[str, TokenWindow] = field(default_factory=dict)

    def sweep(self, name: str) -> StudySweep | None:
        """The sweep called `name`; None if the study does not have it."""
        return next((sweep for sweep in self.sweeps if sweep.grid.name == name), None)

    def board(self, name: str) -> Scoreboard | None:
        """The scores of a sweep; None if the study does not have it, or if nothing of it can be scored."""
        return self.boards.get(name)

    def why_absent(self, name: str) -> str:
        """Why `board(name)` is None."""
        sweep = self.sweep(name)
        return f"the study has no sweep {name!r}" if sweep is None else sweep.absent

    @property
    def boards(self) -> dict[str, Scoreboard]:
        """The scored sweeps by name."""
        return {sweep.grid.name: sweep.board for sweep in self.sweeps if sweep.board is not None}

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the main sweep in the order of their roles, as declared; empty without a main sweep."""
        sweep = self.sweep(MAIN)
        return () if sweep is None else tuple(dict.fromkeys(run.model for run in sweep.grid.expected))


def read_study(
    uri: str,
    experiment: str,
    name: str,
    sweeps: Sequence[SweepGrid],
    partial: bool = False,
    claims: Mapping[str, Sequence[Claim]] = MappingProxyType({}),
) -> StudyResults:
    """Read and score every sweep; `claims`: those of a sweep, by its name, for runs that no claim waits for.

    Raises UserError as `read_sweep` and `score_sweep` do for the first incomplete sweep; with `partial`, only if no
    sweep has any score.
    """
    listing, scored = list_runs(uri, experiment), list[StudySweep]()
    for grid in sweeps:
        run_ids = [run.run_id for run in grid.expected if run.run_id is not None]
        # The ablations show scores only; training metrics are read for the main sweep alone.
        wanted = is_result if grid.name == MAIN else _is_validation
        try:
            data = read_sweep(uri, experiment, grid.name, wanted, run_ids, listing)
            board = score_claimed(data, grid.expected, claims.get(grid.name, ()), partial, grid.pairing)
            scored.append(StudySweep(grid, board))
        except UserError as error:
            if not partial:
                raise
            scored.append(StudySweep(grid, None, str(error)))
    if not scored:
        raise UserError(f"study {name!r} has no sweeps: list them under `sweeps:` in its file")
    if all(sweep.board is None for sweep in scored):
        raise UserError(f"study {name!r} has nothing to report: {scored[0].absent}")
    study = StudyResults(tuple(scored))
    if (main := study.board(MAIN)) is None:
        return study
    pair = [run for variant in (OURS, COMPARED) for run in main.runs_of(main.models[0], variant)]
    ours = [run for model in main.models for run in main.runs_of(model, OURS)]
    return replace(
        study,
        positions=read_positions(uri, [run.mlflow_id for run in pair if run.mlflow_id]),
        windows=read_windows(uri, [run.mlflow_id for run in ours if run.mlflow_id]),
    )


def _is_validation(metric: str) -> bool:
    return schema.parse_validation_metric(metric) is not None
