"""Jobs in containers on a real slurmctld: `container_runtime.py` stands in for pyxis and for Apptainer."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cppo_lab.cli import main
from cppo_lab.launch.slurm.submit import launch_slurm
from dev.slurm.cluster import Cluster
from tests.conftest import Command
from tests.launch.slurm import holding
from tests.launch.slurm.containers import PROJECT, RUNTIMES, make_image, overrides, settings, stand_ins
from tests.launch.slurm.jobs import Noted, nothing_queued, slurm_spec
from tests.launch.slurm.test_runs import FATES, LONG, Points, attempts, histories, meet_fates, run_id, states
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
SLURM = "launcher=slurm"


@pytest.fixture(scope="module")
def site(bare_slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cluster with both runtimes: a folder with them, and an image with a space in its name."""
    folder = stand_ins(tmp_path_factory.mktemp("site"))
    make_image(folder / "the image.sqsh", OF_THE_IMAGE="its own", IN_BOTH="the image's")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield folder


@dataclass(frozen=True)
class Looks(Noted):
    """Writes down what it sees of the machine, of each node it is on."""

    @property
    def places(self) -> tuple[Path, ...]:
        return (self.runs,)

    def run(self) -> None:
        import cppo_lab

        seen = {
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "project": str(Path(cppo_lab.__file__).parent.parent),
            "commands": [name for name in ("scontrol", "squeue", "srun") if shutil.which(name)],
            "secret": (self.runs.parent / "secret").exists(),
            "models": [str(path) for path in Path("/models").rglob("*")],
            "root": sorted(str(path) for path in self.runs.parent.iterdir()),
        }
        rank = os.environ["SLURM_PROCID"]
        (self.runs / f"{self.name}-{rank}.json").write_text(json.dumps(seen))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_inside_is_what_the_run_needs_and_nothing_else(
    runtime: str, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, elsewhere, models = tmp_path / "wörk here", tmp_path / "runs of all", tmp_path / "models"
    for folder in (work, elsewhere, models):
        folder.mkdir()
    (models / "weights").touch()
    (tmp_path / "secret").touch()
    (work / "runs").symlink_to(elsewhere)
    monkeypatch.chdir(work)
    for name, value in {"BY_NAME": "a b'$(touch x)", "IN_BOTH": "outside", "OF_THE_IMAGE": "outside"}.items():
        monkeypatch.setenv(name, value)
    container = settings(
        runtime,
        site / "the image.sqsh",
        mounts=(f"{models}:/models:ro",),
        environment=("BY_NAME", "IN_BOTH", "GIVEN=it's $(touch x)", "UNSET_OUTSIDE"),
    )
    jobs = [Looks(elsewhere, "one"), Looks(elsewhere, "two nodes", nodes=2)]
    setup = ("set -e", "export OF_SETUP=1")
    launch_slurm(jobs, slurm_spec(container=container, setup=setup), lambda event: None)
    until("the queue is empty", lambda: nothing_queued(elsewhere))
    for name in ("one-0", "two nodes-0", "two nodes-1"):
        seen = json.loads((elsewhere / f"{name}.json").read_text())
        environment = seen["environment"]
        assert seen["project"] == PROJECT
        assert environment["PYTHONPATH"] == PROJECT  # the image's, though the shell that submitted has one
        assert seen["folder"] == str(work)
        assert seen["commands"] == [] and not seen["secret"]
        assert seen["models"] == ["/models/weights"]
        assert seen["root"] == sorted(map(str, (work, elsewhere)))  # the siblings that are mounted
        assert environment["BY_NAME"] == "a b'$(touch x)"
        assert environment["IN_BOTH"] == "outside"
        assert environment["GIVEN"] == "it's $(touch x)"
        assert environment["OF_SETUP"] == "1"
        assert environment.get("UNSET_OUTSIDE") is None
        # pyxis prefers the image's unless it is told otherwise; Apptainer the other way round.
        assert environment["OF_THE_IMAGE"] == ("its own" if runtime == "pyxis" else "outside")
        assert environment["SLURM_JOB_NUM_NODES"] == ("2" if "nodes" in name else "1")
    assert not list(tmp_path.rglob("x"))


@pytest.fixture(scope="module")
def expected(bare_slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Points]:
    """What unbroken runs outside of any container record."""
    local = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(local)
        seeds = ",".join(map(str, range(len(GO_ON))))
        assert main(["launch", *LONG, f"seed={seeds}", "launcher=inline"]) == 0
        return histories(local)


GO_ON = ("warned", "requeued", "preempted")
WHERE = {fate: FATES[fate] for fate in (*GO_ON, "used up", "cancelled")}


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_run_in_a_container_goes_on_after_whatever_slurm_does_to_it(
    runtime: str,
    site: Path,
    bare_slurm: Cluster,
    expected: dict[str, Points],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sweeps = {fate: [*LONG, f"seed={seed}"] for seed, fate in enumerate(WHERE)}
    ids = {fate: run_id(sweep) for fate, sweep in sweeps.items()}
    inside = [*overrides(runtime, site / "the image.sqsh"), f"launcher.python='python -m {holding.__name__}'"]
    for fate, sweep in sweeps.items():
        assert main(["launch", *sweep, SLURM, *WHERE[fate], *inside]) == 0
    meet_fates(bare_slurm, ids)
    until("the queue is empty", lambda: nothing_queued(tmp_path / "runs"))
    found = {fate: states(sweep)[ids[fate]] for fate, sweep in sweeps.items()}
    recorded = histories(tmp_path)
    for fate in GO_ON:
        assert found[fate].state == "done", found[fate]
        assert len(attempts()[ids[fate]]) == 1
        assert recorded[ids[fate]] == expected[ids[fate]]
    assert found["used up"].state == found["cancelled"].state == "partial"
    assert "(launcher.requeues=0): launch again to resume" in found["used up"].reason
    assert found["cancelled"].reason.startswith("interrupted: terminated by SIGTERM at step")


def test_the_doctor_asks_a_node(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command
) -> None:
    models, image = tmp_path / "the models", site / "the image.sqsh"
    models.mkdir()
    mounts = f"launcher.container.mounts=['{models}:/models:ro']"
    for runtime in RUNTIMES:
        words = [SLURM, *overrides(runtime, image), mounts, "launcher.setup=['echo hello']"]
        said = cppo("doctor", *words).out.splitlines()
        assert f"ok          container's image: {image}" in said
        assert f"ok          container's mount: {models}" in said
        assert any(line.startswith("ok          container's runtime: ") for line in said)
        assert not any("torch" in line for line in said)  # that is in the image
    folders = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(one for one in folders if not Path(one, "apptainer").exists()))
    gone = overrides("apptainer", tmp_path / "gone.sif")
    text = cppo("doctor", SLURM, *gone, code=1).out
    unseen_image = (
        f"container's image: a node does not see {tmp_path}/gone.sif: put it where all nodes see it"
    )
    assert f"missing     {unseen_image}\n" in text
    assert (
        "missing     container's runtime: no apptainer on a node: name its module in launcher.setup, or set "
        in text
    )
    # Where no node is free, or the setup ends the shell, nothing is claimed.
    for unseen in ("launcher.setup=['exit 0']", "resources.constraint=none_such"):
        assert "warning     container: no node was checked: " in cppo("doctor", SLURM, *gone, unseen).out
