"""`cppo export` of runs of the embedded core: its transformer as a Qwen3; exports that are killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoTokenizer

from cppo_lab.cli import main
from cppo_lab.cores.base import BEST_MODEL, Resources
from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.tasks.base import make_task
from cppo_lab.cores.mini.trainer import train
from cppo_lab.export.folder import appearing, require_free
from cppo_lab.runs.spool import read_rows
from cppo_lab.spec import MiniRun
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY
from tests.cores.test_mini import ListSink
from tests.cores.verl.exported import loaded, record, sequences

pytestmark = pytest.mark.verl
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[MiniRun, Path]:
    """A run as a kill before its end is recorded leaves it; the folder of all runs."""
    spec = compose([*TINY, "model.architecture.layers=2", "data.spellings=3"]).run
    assert isinstance(spec, MiniRun)
    runs = tmp_path_factory.mktemp("made") / "runs"
    folder = record(runs, spec, ends=False)
    train(spec, ListSink(), Resources(runs, folder, device="cpu"))
    return spec, runs


@pytest.fixture
def run(trained: tuple[MiniRun, Path], workspace: Path) -> MiniRun:
    (workspace / "runs").symlink_to(trained[1])
    return trained[0]


@torch.no_grad()
def test_the_model_says_what_the_embedded_one_says(
    run: MiniRun, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", run.run_id, "--out", "model"]) == 0
    found = capsys.readouterr()
    assert found.out == f"{workspace / 'model'}\n"
    assert found.err.splitlines() == ["cppo: reading best_model.pt", "cppo: writing the model"]
    tokenizer = make_task(run.data).tokenizer
    ours = Transformer(
        run.model.architecture,
        tokenizer.vocabulary,
        run.data.prompt_length + run.rollout.max_response_length,
    )
    state = torch.load(workspace / "runs" / run.run_id / BEST_MODEL, weights_only=True)
    ours.load_state_dict(state["trainer"]["model"])
    tokens = sequences(tokenizer.vocabulary)
    expected = ours(tokens).log_softmax(-1)
    model = loaded(workspace / "model")
    torch.testing.assert_close(model(tokens).logits.log_softmax(-1), expected, rtol=0, atol=1e-5)
    assert float(expected.std()) > 0.3  # a model that says nothing would agree with any other
    assert model.dtype == torch.float32

    theirs = AutoTokenizer.from_pretrained(workspace / "model")
    ids = list(range(tokenizer.pad))
    assert theirs.encode(tokenizer.decode(ids), add_special_tokens=False) == ids
    assert (theirs.eos_token_id, theirs.pad_token_id) == (tokenizer.eos, tokenizer.pad)

    text = (workspace / "model" / "README.md").read_text()
    assert ModelCard(text).data.tags == ["cppo-lab", "reinforcement-learning", "miniature"]
    assert f"The best checkpoint by validation of run `{run.run_id}`" in text
    assert (
        f"| Step of these weights | {state['history'][-1][0]}; the run: 4 of 4, without a recorded end |"
        in text
    )
    assert "trained by the embedded core" in text


def test_a_finished_run(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `cppo launch` leaves it: its best model is there, and no checkpoint."""
    longer = ["training.t_stop=8", "seed=0", "variant=grpo", "launcher=inline"]
    assert main(["launch", "quickstart", *TINY, *longer]) == 0
    [folder] = [path.parent for path in Path("runs").glob("*/config.json")]
    assert not (folder / "checkpoint.pt").exists()
    assert main(["export", folder.name, "--out", "model"]) == 0
    text = Path("model", "README.md").read_text()
    rows = {row.step: row.metrics for row in read_rows(folder)}
    name = next(key for key in rows[0] if key.startswith("val/mean/"))
    scores = {step: row[name] for step, row in rows.items() if step and name in row}
    best = max(scores, key=lambda step: (scores[step], step))
    assert len(scores) == 4
    assert f"| Step of these weights | {best}; the run: 8 of 8, done |" in text
    assert f"| Score of these weights | {scores[best]:.4f} (mean " in text
    capsys.readouterr()
    (folder / BEST_MODEL).unlink()
    assert main(["export", folder.name, "--out", "other"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "has kept no checkpoint: there is no best_model.pt in " in line and "--replace" in line
    assert not Path("other").exists()


def test_a_checkpoint_of_another_run(
    trained: tuple[MiniRun, Path], workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = compose([*TINY, "seed=7"]).run
    folder = record(workspace / "runs", other, ends=False)
    (folder / BEST_MODEL).write_bytes((trained[1] / trained[0].run_id / BEST_MODEL).read_bytes())
    assert main(["export", other.run_id, "--out", "model"]) == 2
    assert f"it is not a checkpoint of run {other.run_id}" in capsys.readouterr().err
    (folder / BEST_MODEL).unlink()
    (folder / BEST_MODEL).symlink_to(trained[1] / trained[0].run_id / BEST_MODEL)
    assert main(["export", other.run_id, "--out", "model"]) == 2
    assert f"{folder / BEST_MODEL} is a link or not a plain file" in capsys.readouterr().err
    assert sorted(path.name for path in workspace.iterdir()) == ["runs"]


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_no_half_folder(trained: tuple[MiniRun, Path], tmp_path: Path) -> None:
    """And what it leaves beside, the next export removes."""
    out = tmp_path / "place" / "model"
    command = [sys.executable, "-m", "tests.cores.verl.dying_export", str(trained[1]), trained[0].run_id]
    done = subprocess.run([*command, str(out)], cwd=ROOT, capture_output=True, text=True, check=True)
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    *killed, survivor = lives
    assert all(life["killed"] and life["out"] is None and life["beside"] <= 1 for life in killed), lives
    assert {"os.mkdir", "open", "os.rename"} <= {life["operation"] for life in killed}
    assert [life["operation"] for life in killed].count("os.rename") == 1
    assert survivor["code"] == 0
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(survivor["out"])
    assert survivor["beside"] == 0
    loaded(out)


def test_two_exports_to_one_place(tmp_path: Path) -> None:
    """Neither removes what the other writes; the first one to be ready has the place."""
    from cppo_lab.errors import UserError

    place = require_free(tmp_path / "model")
    with (
        pytest.raises(UserError, match="another process has written there in the meantime"),
        appearing(place) as one,
    ):
        (one / "file").write_text("one")
        with appearing(place) as other:
            (other / "file").write_text("other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "file").read_text() == "other"


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), appearing(require_free(tmp_path / "model")) as folder:
        (folder / "file").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
