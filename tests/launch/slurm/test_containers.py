"""Jobs in containers on a real slurmctld: `container_runtime.py` stands in for pyxis and for Apptainer."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cppo_lab.cli import main
from dev.slurm.cluster import Cluster
from tests.conftest import Command
from tests.launch.slurm import holding
from tests.launch.slurm.containers import PROJECT, RUNTIMES, make_image, overrides, settings, stand_ins
from tests.launch.slurm.jobs import Looks, submit, wait_until_gone
from tests.launch.slurm.test_runs import (
    FATES,
    SLURM,
    attempts,
    meet_fates,
    run_id,
    states,
    sweep_of,
    unbroken,
)
from tests.recorded import histories

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture(scope="module")
def site(bare_slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cluster with both runtimes: a folder with them, and an image with a space in its name."""
    folder = stand_ins(tmp_path_factory.mktemp("site"))
    make_image(folder / "the image.sqsh", OF_THE_IMAGE="its own", IN_BOTH="the image's")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield folder


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
    submit(jobs, container=container, setup=("set -e", "export OF_SETUP=1"))
    wait_until_gone(elsewhere)
    variables = {
        "PYTHONPATH": PROJECT,  # the image's, though the shell that submitted has one
        "BY_NAME": "a b'$(touch x)",
        "IN_BOTH": "outside",
        "GIVEN": "it's $(touch x)",
        "OF_SETUP": "1",
        "UNSET_OUTSIDE": None,
        # pyxis prefers the image's unless it is told otherwise; Apptainer the other way round.
        "OF_THE_IMAGE": "its own" if runtime == "pyxis" else "outside",
    }
    for name, nodes in {"one-0": "1", "two nodes-0": "2", "two nodes-1": "2"}.items():
        seen = json.loads((elsewhere / f"{name}.json").read_text())
        expected = variables | {"SLURM_JOB_NUM_NODES": nodes}
        environment = seen.pop("environment")
        assert {variable: environment.get(variable) for variable in expected} == expected
        assert seen == {
            "folder": str(work),
            "project": PROJECT,
            "commands": [],
            "models": ["/models/weights"],
            "beside": sorted(map(str, (work, elsewhere))),  # the siblings that are mounted
        }
    assert not list(tmp_path.rglob("x"))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_run_in_a_container_goes_on_after_whatever_slurm_does_to_it(
    runtime: str, site: Path, bare_slurm: Cluster, tmp_path_factory: pytest.TempPathFactory, workspace: Path
) -> None:
    go_on = ("warned", "preempted")
    expected = unbroken(tmp_path_factory.mktemp("local"), go_on)
    ids = {fate: run_id(sweep_of(fate)) for fate in (*go_on, "terminated")}
    inside = [*overrides(runtime, site / "the image.sqsh"), f"launcher.python='python -m {holding.__name__}'"]
    for fate in ids:
        assert main(["launch", *sweep_of(fate), SLURM, *FATES[fate], *inside]) == 0
    meet_fates(bare_slurm, ids)
    wait_until_gone(workspace / "runs")
    found = {fate: states(sweep_of(fate))[ids[fate]] for fate in ids}
    recorded = histories()
    for fate in go_on:
        assert found[fate].state == "done", found[fate]
        assert len(attempts()[ids[fate]]) == 1
        assert recorded[ids[fate]] == expected[ids[fate]]
    assert found["terminated"].state == "partial"  # as it was not preempted, the batch script lets it end
    assert found["terminated"].reason.startswith("interrupted: terminated by SIGTERM at step")


def test_the_doctor_asks_a_node(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command
) -> None:
    models, image = tmp_path / "the models", site / "the image.sqsh"
    models.mkdir()
    mounts = f"launcher.container.mounts=['{models}:/models:ro']"
    for runtime in RUNTIMES:
        words = [SLURM, *overrides(runtime, image), mounts, "launcher.setup=['echo hello']"]
        said = cppo("doctor", *words).out
        assert f"ok          container's image: {image}\n" in said
        assert f"ok          container's mount: {models}\n" in said
        assert "\nok          container's runtime: " in said
        assert "torch" not in said  # that is in the image
    folders = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(one for one in folders if not Path(one, "apptainer").exists()))
    gone = overrides("apptainer", tmp_path / "gone.sif")
    text = cppo("doctor", SLURM, *gone, code=1).out
    unseen = f"a node does not see {tmp_path}/gone.sif: put it where all nodes see it"
    assert f"missing     container's image: {unseen}\n" in text
    no_runtime = "no apptainer on a node: name its module in launcher.setup, or set "
    assert f"missing     container's runtime: {no_runtime}" in text
    # Where no node is free, or the setup ends the shell, nothing is claimed.
    for unseen in ("launcher.setup=['exit 0']", "resources.constraint=none_such"):
        assert "warning     container: no node was checked: " in cppo("doctor", SLURM, *gone, unseen).out
