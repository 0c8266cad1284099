"""Conformance tests of a core.

They need the core's record, and overrides for a run of a few seconds with at least two validations after step 0:

    from acme_records import ACME
    from cppo_lab.testing import CoreTests

    class TestAcme(CoreTests):
        core = ACME
        overrides = ("model=mini_small_base", "batch.prompts=4", "validation.every=2", "training.t_stop=4")
        refused = {"rollout.staleness=1": "rollout.staleness=1"}

The core must be installed, since the runs are composed from command-line overrides. Each attempt trains in a separate
process, without launcher and store; an attempt is killed by SIGKILL and resumed, and one process trains two runs.
"""

import json
import math
import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partialmethod
from pathlib import Path
from typing import Any, NamedTuple

from cppo_lab import schema
from cppo_lab.core_records import CoreRecord, Resources, core_of
from cppo_lab.errors import UserError
from cppo_lab.runs.recorder import check_file_name
from cppo_lab.spec import RunSpec
from cppo_lab.spec.parse import parse_run
from cppo_lab.sweep.compose import Composed, compose
from cppo_lab.testing import call_all, temporary_folder

TIMED = "perf/"  # metrics that differ between any two runs
EVENTS = "events.jsonl"


class Life(NamedTuple):
    """The events that the sink of a process received: the step of `begin`, the rows in order, the artifacts."""

    begun: tuple[int | None, ...]
    rows: tuple[tuple[int, Mapping[str, float]], ...]
    artifacts: Mapping[str, Any]
    outcome: tuple[str, int] | None  # status and step; None: it was killed
    first: str  # the kind of the first event

    @property
    def numbers(self) -> list[tuple[int, dict[str, str]]]:
        """The rows without times, with values as text, so that NaN equals itself."""
        return [
            (step, {name: repr(value) for name, value in metrics.items() if not name.startswith(TIMED)})
            for step, metrics in self.rows
        ]


def check_core(
    core: CoreRecord, overrides: Sequence[str], refused: Mapping[str, str], seconds: float = 600
) -> None:
    """All tests of `CoreTests`, without pytest; the arguments are its attributes.

    Raises AssertionError.
    """
    call_all(CoreTests, core=core, overrides=overrides, refused=refused, seconds=seconds)


class CoreTests:
    """Tests of `core` with `overrides`.

    refused: invalid overrides -> a part of the expected error message. seconds: the time limit of an attempt.
    """

    core: CoreRecord
    overrides: Sequence[str]
    refused: Mapping[str, str]
    seconds: float = 600

    def test_the_record_is_the_one_that_is_found(self) -> None:
        """The record is found by its name, and what it names can be imported if its packages are installed."""
        assert core_of(self.core.name) == self.core
        assert issubclass(self.core.load("settings"), RunSpec)
        for part in ("train", "datasets", "doctor"):
            assert self.core.load(part) is not None or part == "doctor", f"{part} is missing"
        assert self.core.title and self.core.note, "a title and a note are shown to people"

    def test_a_run_is_read_back_from_its_record(self) -> None:
        """The configuration survives a JSON round trip with the same id, and the id depends on the seed."""
        run = self._composed().run
        text = json.dumps(run.model_dump(mode="json"))
        assert parse_run(json.loads(text), "the record").run_id == run.run_id
        assert self._composed("seed=1").run.run_id != run.run_id

    def test_what_it_cannot_train_is_refused(self) -> None:
        """A UserError is raised when the run is composed, before anything is submitted."""
        for words, said in self.refused.items():
            try:
                self._composed(*words.split())
            except UserError as error:
                assert said in str(error), f"{words}: {error}"
            else:
                raise AssertionError(f"{words} is not refused")

    def test_datasets_are_listed_before_training(self) -> None:
        """Datasets are listed even if their files do not exist."""
        composed = self._composed()
        with temporary_folder() as shared:
            for dataset in self.core.load("datasets")(composed.run, _resources(composed, shared, shared)):
                assert dataset.context in (schema.TRAINING, schema.VALIDATION), dataset
                assert 0 < len(dataset.digest) <= 36, dataset

    def test_a_run_is_recorded_from_its_first_step_to_its_last(self) -> None:
        """Every step has valid names and values; there are scores at step 0 and at each validation."""
        life, run = self._whole, self._composed().run
        assert life.begun == (None,) and life.first == "begin", (
            "begin(None) comes once, before everything else"
        )
        steps = [step for step, _ in life.rows]
        assert life.outcome is not None, "the process ended before train returned"
        status, last = life.outcome
        assert status in schema.FINISHED, status
        assert steps == list(range(last + 1)), f"steps {steps} of a run that ended at {last}"
        assert last == run.training.t_stop or status == schema.COLLAPSED, f"{status} at step {last}"
        for step, metrics in life.rows:
            unknown = [name for name in metrics if not schema.is_known_metric(name)]
            assert not unknown, f"step {step}: {unknown} are not in schema.METRICS"
            assert all(isinstance(value, float | int) for value in metrics.values()), f"step {step}"
            assert step == 0 or 0 <= metrics["train/reward"] <= 1, f"step {step}"
            assert step == 0 or metrics["perf/step_seconds"] > 0, f"step {step}"
            if step % run.validation.every == 0:
                # Every benchmark has a score, a fraction; `mean` is their unweighted mean.
                samples = run.validation.samples
                names = [schema.validation_metric(name, samples) for name in run.data.benchmarks]
                scores = [metrics[name] for name in names]
                assert all(0 <= score <= 1 for score in scores), f"step {step}: {scores}"
                mean = metrics[schema.validation_metric(schema.MEAN, samples)]
                assert math.isclose(mean, sum(scores) / len(scores), rel_tol=1e-9, abs_tol=1e-12), (
                    f"step {step}: {mean}, {scores}"
                )

    def test_killed_it_continues_with_the_same_numbers(self) -> None:
        """A run killed by SIGKILL while it logs its last step, after a checkpoint, has every point of the uninterrupted
        run.
        """
        whole = self._whole
        last = whole.rows[-1][0]
        with temporary_folder() as folder:
            (killed,) = self._train([self._composed()], folder, kill_at=last)
            assert killed.outcome is None and len(killed.rows) == last, (
                "the attempt was not killed at its last step"
            )
            (continued,) = self._train([self._composed()], folder)
        (begun,) = continued.begun
        assert begun is not None and 0 < begun <= last, (
            f"it began at {begun}: nothing was kept of {last} steps"
        )
        kept, expected = dict(killed.numbers), dict(whole.numbers)
        rows = {step: kept[step] for step in kept if step <= begun} | dict(continued.numbers)
        assert continued.outcome == whole.outcome, f"it ended with {continued.outcome}, not {whole.outcome}"
        assert sorted(rows) == [*expected], (
            f"steps {sorted(rows)} of a run that was killed, not {[*expected]}"
        )
        for step, metrics in expected.items():
            assert rows[step] == metrics, f"step {step} of the continued run"
            assert kept.get(step, metrics) == metrics, f"step {step} before the kill"
        assert continued.artifacts == whole.artifacts

    def test_a_run_does_not_depend_on_the_one_before_it(self) -> None:
        """After a run with another seed, in the same process unless the record asks for a fresh one, a run has the
        numbers that it has alone; the other seed gives others.
        """
        runs = [self._composed("seed=1"), self._composed()]
        with temporary_folder() as folder:
            if self.core.fresh_process:
                other, again = (self._train([run], folder)[0] for run in runs)
            else:
                other, again = self._train(runs, folder)
        expected = self._whole.numbers
        assert again.begun == (None,), f"it resumes another run: begin{again.begun}"
        assert again.numbers == expected, "its numbers depend on the run before it"
        assert other.numbers != expected, "the seed changes nothing"

    @cached_property
    def _whole(self) -> Life:
        """An uninterrupted run, trained once for all tests of the same core and overrides."""
        key = (self.core.name, tuple(self.overrides))
        if key not in _WHOLE:
            with temporary_folder() as folder:
                (_WHOLE[key],) = self._train([self._composed()], folder)
        return _WHOLE[key]

    def _composed(self, *more: str) -> Composed:
        return compose([f"core={self.core.name}", *self.overrides, *more])

    def _train(
        self, composed: Sequence[Composed], folder: Path, kill_at: int | None = None
    ) -> tuple[Life, ...]:
        """An attempt of each run, all in one separate process; `kill_at`: the step whose log() kills it."""
        attempts = []
        for composition in composed:
            run_folder = folder / composition.run.run_id
            run_folder.mkdir(exist_ok=True)
            (events := run_folder / EVENTS).unlink(missing_ok=True)
            attempts.append((composition.run, _resources(composition, folder, run_folder), events))
        process = multiprocessing.get_context("spawn").Process(
            target=_attempts, args=(self.core, attempts, kill_at)
        )
        process.start()
        process.join(self.seconds * len(composed))
        if process.is_alive():
            process.kill()
            process.join()
            raise AssertionError(f"an attempt takes more than {self.seconds:g} s")
        if kill_at is None:
            assert process.exitcode == 0, f"the attempt failed with exit code {process.exitcode}: see above"
        return tuple(_read(events) for _, _, events in attempts)


_WHOLE: dict[tuple[str, tuple[str, ...]], Life] = {}


@dataclass
class _FileSink:
    """Writes every event to a file immediately, so that a kill loses nothing."""

    path: Path
    kill_at: int | None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.add("row", step, dict(metrics))

    def artifact(self, name: str, values: Mapping[str, Any]) -> None:
        check_file_name(name)
        self.add("artifact", name, dict(values))

    def file(self, name: str, content: bytes) -> None:
        """Ignored: no answers are requested."""

    def add(self, *event: Any) -> None:
        """Write an event."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def tag(self, name: str, value: str) -> None:
        assert name in schema.TAGS_OF_CORES, f"tag {name!r} is not in schema.TAGS_OF_CORES"

    begin = partialmethod(add, "begin")


def _attempts(
    core: CoreRecord, attempts: Sequence[tuple[RunSpec, Resources, Path]], kill_at: int | None
) -> None:
    for run, resources, events in attempts:
        sink = _FileSink(events, kill_at)
        here = Path.cwd()
        outcome = core.load("train")(run, sink, resources)
        assert Path.cwd() == here, f"it leaves the process in {Path.cwd()}"
        sink.add("outcome", outcome.status, outcome.step)


def _read(path: Path) -> Life:
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Life(
        begun=tuple(rest[0] for kind, *rest in events if kind == "begin"),
        rows=tuple((rest[0], rest[1]) for kind, *rest in events if kind == "row"),
        artifacts={rest[0]: rest[1] for kind, *rest in events if kind == "artifact"},
        outcome=next(((rest[0], rest[1]) for kind, *rest in events if kind == "outcome"), None),
        first=events[0][0] if events else "",
    )


def _resources(composed: Composed, shared: Path, folder: Path) -> Resources:
    return Resources(shared, folder, device="cpu", layout=composed.layout, paths=composed.paths)
