"""`cppo export` of runs of verl: what transformers then loads says what the checkpoint says; what is refused."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoTokenizer, Qwen3ForCausalLM

from cppo_lab import schema
from cppo_lab.cli import main
from cppo_lab.cores.verl import export as export_module
from cppo_lab.cores.verl.checkpoints import BEST
from cppo_lab.runs.folder import held
from tests.cores.verl.conftest import WORDS
from tests.cores.verl.exported import (
    BEST_STEP,
    SCORES,
    keep,
    loaded,
    logp,
    record,
    sequences,
    verl_spec,
)
from tests.cores.verl.saved import FACTOR, RANKS, save
from tests.cores.verl.story import RULE, SAMPLES, Story

pytestmark = pytest.mark.verl
SPEC = verl_spec()
RUN = SPEC.run_id
FILES = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
}
ACTOR = Path("runs", RUN, BEST, "actor")


@pytest.fixture(scope="module")
def saved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folder of verl's weights, by the number of ranks that saved them."""
    folder = tmp_path_factory.mktemp("saved")
    save(tiny_model, folder)
    return {ranks: folder / str(ranks) / "actor" for ranks in RANKS}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, with a recorded one and without checkpoints."""
    runs = tmp_path_factory.mktemp("recorded") / "runs"
    record(runs, SPEC)
    return runs


@pytest.fixture
def run(
    saved: dict[int, Path], recorded: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A working folder with the run, and a best checkpoint of one rank; whatever is done, no name is looked up."""
    shutil.copytree(recorded, workspace / "runs")
    keep(workspace / "runs" / RUN, saved[1])
    asked: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *names, **_: asked.append(names) or [])
    yield workspace
    assert asked == []


def keep_instead(saved: Path) -> None:
    """Another best checkpoint."""
    shutil.rmtree(ACTOR.parent)
    keep(ACTOR.parents[1], saved)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that says why nothing is exported; nothing is left of the attempt."""
    before = sorted(Path().iterdir())
    assert main(["export", *(arguments or (RUN, "--out", "model"))]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    *progress, said = found.err.splitlines()
    assert all(line.startswith("cppo: ") for line in progress), progress
    assert sorted(Path().iterdir()) == before
    return said.removeprefix("cppo: error: ")


# -- What is written ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
def test_the_model_says_what_the_checkpoint_says(
    run: Path, saved: dict[int, Path], tiny_model: Path, ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_instead(saved[ranks])
    assert main(["export", RUN[:6], "--out", "deep/down/model"]) == 0
    out = run / "deep" / "down" / "model"
    found = capsys.readouterr()
    assert found.out == f"{out}\n"
    assert [line for line in found.err.splitlines() if "shard" in line] == [
        f"cppo: reading shard {rank} of {ranks}" for rank in range(1, ranks + 1)
    ]
    assert {path.name for path in out.iterdir()} == FILES | {"model.safetensors", "README.md"}
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1

    # By hand: the parts of the ranks below each other, in verl's own state.
    parts = [
        torch.load(path, weights_only=False) for path in sorted(saved[ranks].glob("model_world_size_*.pt"))
    ]
    assert len(parts) == ranks
    state = {name: torch.cat([part[name].to_local() for part in parts]) for name in parts[0]}
    reference = Qwen3ForCausalLM(
        AutoConfig.from_pretrained(saved[ranks] / "huggingface", dtype=torch.float32)
    )
    reference.load_state_dict(state)
    model = loaded(out)
    assert model.dtype == torch.float32
    for name, weight in reference.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name
    tokens = sequences(len(WORDS))
    torch.testing.assert_close(logp(model, tokens), logp(reference, tokens), rtol=0, atol=1e-12)

    # And what was saved: the model that verl loaded, with every weight scaled.
    scaled = Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        for parameter in scaled.parameters():
            parameter.mul_(FACTOR)
    torch.testing.assert_close(logp(model, tokens), logp(scaled, tokens), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_run_that_verl_has_trained(
    story: Story, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(story.folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run_id, out = story.own_folder.name, tmp_path / "model"
    assert main(["export", run_id, "--out", str(out)]) == 0
    actor = story.own_folder / BEST / "actor"
    state = torch.load(actor / "model_world_size_1_rank_0.pt", weights_only=False)
    reference = Qwen3ForCausalLM(AutoConfig.from_pretrained(actor / "huggingface", dtype=torch.float32))
    reference.load_state_dict({name: weight.to_local() for name, weight in state.items()})
    tokens = sequences(reference.config.vocab_size)
    torch.testing.assert_close(logp(loaded(out), tokens), logp(reference, tokens), rtol=0, atol=1e-12)
    [made] = (story.folder / "runs" / "made_models").glob("*/config.json")
    moved = (logp(loaded(out), tokens) - logp(loaded(made.parent), tokens)).abs().max()
    assert float(moved) > 1e-4  # it is not the model that training began with
    ours, theirs = AutoTokenizer.from_pretrained(out), AutoTokenizer.from_pretrained(made.parent)
    assert ours.get_vocab() == theirs.get_vocab()
    text = (out / "README.md").read_text()
    step = int((story.own_folder / BEST / "step").read_text())
    score = dict(story.history(schema.validation_metric(schema.MEAN, SAMPLES)))[step]
    assert f"| Score of these weights | {score:.4f} (mean Avg@{SAMPLES}) at step {step} |" in text
    assert f"`one` (variant `{RULE}`)" in text
    commit = story.run.data.tags.get(schema.TAG_COMMIT)
    assert commit is None or commit.split()[-1] in text


def test_weights_in_bfloat16_stay_so(run: Path) -> None:
    [path] = ACTOR.glob("model_*.pt")
    state = torch.load(path, weights_only=False)
    torch.save({name: weight.bfloat16() for name, weight in state.items()}, path)
    assert main(["export", RUN, "--out", "model"]) == 0
    model = loaded(run / "model")
    assert model.dtype == torch.bfloat16
    name = "model.layers.1.self_attn.o_proj.weight"
    assert torch.equal(model.state_dict()[name], state[name].to_local().bfloat16())
    assert "in bfloat16" in (run / "model" / "README.md").read_text()


def test_the_tokenizer_is_the_runs(run: Path, saved: dict[int, Path]) -> None:
    (run / "model").mkdir()  # an empty folder may be there
    assert main(["export", RUN, "--out", "model"]) == 0
    ours = AutoTokenizer.from_pretrained(run / "model")
    theirs = AutoTokenizer.from_pretrained(saved[1] / "huggingface")
    assert ours.get_vocab() == theirs.get_vocab() and len(ours) == len(WORDS)
    assert ours.special_tokens_map == theirs.special_tokens_map
    messages = [{"role": "user", "content": "1 + 2"}]
    for tokenizer in (ours, theirs):
        assert tokenizer("1 + 2 = 3").input_ids == [WORDS.index(word) for word in ["1", "+", "2", "=", "3"]]
    chat = {"tokenize": False, "add_generation_prompt": True}
    assert ours.apply_chat_template(messages, **chat) == theirs.apply_chat_template(messages, **chat)
    assert ours.apply_chat_template(messages, **chat) == "user: 1 + 2 assistant: "


def test_the_card(run: Path) -> None:
    assert main(["export", RUN, "--out", "model"]) == 0
    text = (run / "model" / "README.md").read_text()
    card = ModelCard(text)
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    assert card.data.model_name == "cppo w_min=0.8 · s3 · tiny_qwen3"
    found = {one.dataset_name: (one.metric_type, one.metric_value) for one in card.data.eval_results}
    best = SCORES[BEST_STEP]
    assert found == {
        name: ("avg_at_4", best + i / 100) for i, name in enumerate(("short24", "short25", "short26"))
    }
    rows = dict(
        tuple(cell.strip() for cell in line.strip("|").split(" | ", 1))
        for line in text.splitlines()
        if line.startswith("| ")
    )
    assert rows["Run"] == f"`{RUN}`"
    assert rows["Sweep"] == "`mine` (variant `cppo w_min=0.8`)"
    assert (rows["Rule"], rows["Model"], rows["Seed"]) == ("`cppo`", "`tiny_qwen3`", "3")
    assert rows["Step of these weights"] == "2; the run: 4 of 4, done"
    assert rows["Score of these weights"] == rows["Best score of the run"] == "0.5000 (mean Avg@4) at step 2"
    assert rows["Score before training"] == "0.1250 (mean Avg@4) at step 0"
    assert rows["Code"].startswith("CPPO Lab `0.1.0+0123456789ab`")
    assert rows["`short26`"] == "0.5200" and rows["mean"] == "0.5000"
    weights = sum(one.numel() for one in Qwen3ForCausalLM.from_pretrained(run / "model").parameters())
    assert rows["Weights"] == f"{weights:,} in float32"
    assert "**A miniature**" in text and "no evidence" in text
    folded = text[text.index("<details>") : text.index("</details>")]
    assert f"run_id: {RUN}" in folded and "  seed: 3" in folded and "w_min: 0.8" in folded


def test_what_others_wrote_is_text_in_the_card(run: Path) -> None:
    [spool] = (run / "runs" / RUN / "spool").glob("*.jsonl")
    lines = spool.read_text().splitlines(keepends=True)
    begin = json.loads(lines[0])
    begin["tags"][schema.sweep_tag("mine")] = "x` | <script>\n---\nlicense: mit\n\x1b[2J"
    spool.write_text("".join([json.dumps(begin) + "\n", *lines[1:]]))
    assert main(["export", RUN, "--out", "model"]) == 0
    text = (run / "model" / "README.md").read_text()
    assert "<script>" not in text.partition("\n---\n")[2]
    assert "\x1b" not in text
    assert ModelCard(text).data.to_dict().get("license") is None


def test_a_run_without_a_record_has_a_card_too(run: Path) -> None:
    shutil.rmtree(run / "runs" / RUN / "spool")
    assert main(["export", RUN, "--out", "model"]) == 0
    text = (run / "model" / "README.md").read_text()
    assert "| Score of these weights | not on record |" in text
    assert ModelCard(text).data.eval_results is None


def test_the_optimiser_is_not_read(run: Path) -> None:
    for path in [*ACTOR.glob("optim*"), *ACTOR.glob("extra*")]:
        path.write_bytes(b"damaged")
    assert main(["export", RUN, "--out", "model"]) == 0


# -- Megatron ----------------------------------------------------------------------------------------------------------


def as_megatron(source: Path, several: bool) -> None:
    """What verl's Megatron engine leaves with Megatron-Bridge: whole weights, in one file or in several."""
    assert main(["export", RUN, "--out", str(source)]) == 0
    shutil.rmtree(ACTOR)
    folder = ACTOR / "model" / "huggingface"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("README.md"))
    if several:
        (folder / "model.safetensors").unlink()
        loaded(source).save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("*.safetensors"))) > 2
    (ACTOR / "optimizer").mkdir()


@pytest.mark.parametrize("several", [False, True])
def test_weights_that_megatron_bridge_saved_are_taken_over(run: Path, several: bool) -> None:
    as_megatron(run / "first", several)
    assert main(["export", RUN, "--out", "model"]) == 0
    ours, theirs = loaded(run / "model").state_dict(), loaded(run / "first").state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    inodes = {path.stat().st_ino for path in (ACTOR / "model" / "huggingface").iterdir()}
    assert not inodes & {
        path.stat().st_ino for path in (run / "model").iterdir()
    }  # copies: either may be changed


def as_shards(run: Path) -> None:
    """Megatron's own shards, as far as an exporter without Megatron looks at them."""
    as_megatron(run / "first", False)
    (ACTOR / "model" / "huggingface" / "model.safetensors").unlink()
    (ACTOR / "model" / "dist_ckpt").mkdir()
    for name in ("__0_0.distcp", ".metadata", "common.pt"):
        (ACTOR / "model" / "dist_ckpt" / name).write_text(name)


def test_megatrons_own_shards_need_megatron(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    as_shards(run)
    capsys.readouterr()
    assert "merged on a machine with a GPU and megatron-core" in refused(capsys)


@pytest.mark.parametrize("works", [True, False])
def test_megatrons_own_shards_are_handed_to_verl(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], works: bool
) -> None:
    """The command alone: Megatron is not installed where tests run."""
    as_shards(run)
    capsys.readouterr()
    real: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: name if name == "megatron.core" else real(name, *rest),
    )
    seen: dict[str, Any] = {}

    def merge(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        local, target = (Path(command[command.index(word) + 1]) for word in ("--local_dir", "--target_dir"))
        seen["command"] = command[1:6]
        seen["tied"] = "--tie-word-embedding" in command
        seen["files"] = {path.name: path.read_text() for path in (local / "model" / "dist_ckpt").iterdir()}
        seen["config"] = (local / "model" / "huggingface" / "config.json").is_file()
        if works:
            shutil.copytree(run / "first", target, dirs_exist_ok=True)
        return subprocess.CompletedProcess(command, 0 if works else 3, "Traceback\nValueError: no such key\n")

    stand_in = SimpleNamespace(run=merge, PIPE=subprocess.PIPE, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr(export_module, "subprocess", stand_in)
    if works:
        assert main(["export", RUN, "--out", "model"]) == 0
        assert loaded(run / "model").num_parameters() == loaded(run / "first").num_parameters()
    else:
        assert refused(capsys) == "verl's merger has failed with exit code 3: ValueError: no such key"
    assert seen["command"] == ["-m", "verl.model_merger", "merge", "--backend", "megatron"]
    assert seen["tied"] and seen["config"]
    assert seen["files"] == {name: name for name in ("__0_0.distcp", ".metadata", "common.pt")}
    assert not [path for path in run.iterdir() if path.name.startswith(".")]


# -- What is refused ---------------------------------------------------------------------------------------------------


def test_runs_that_are_not_known(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = "0000" if not RUN.startswith("0000") else "ffff"
    assert "has no run with this prefix" in refused(capsys, other, "--out", "model")
    for text in (RUN[:3], "../..", "", RUN + "0"):
        assert "give 4 to 12 hexadecimal digits" in refused(capsys, text, "--out", "model")
    (run / "runs" / f"{RUN[:8]}0000").mkdir()
    assert "is a prefix of 2 ids" in refused(capsys, RUN[:8], "--out", "model")
    said = refused(capsys, f"{RUN[:8]}0000", "--out", "model")
    assert said.startswith(f"run {RUN[:8]}0000 has kept no checkpoint") and "has not started" in said


def test_a_place_that_is_taken(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "full").mkdir()
    (run / "full" / "mine").write_text("mine")
    assert refused(capsys, RUN, "--out", "full").startswith("--out full exists and is not empty")
    (run / "file").write_text("mine")
    assert refused(capsys, RUN, "--out", "file") == "--out file is a file: name a folder"
    (run / "ring").symlink_to("ring")
    assert refused(capsys, RUN, "--out", "ring").startswith("--out ring is a circular link")
    assert (run / "full" / "mine").read_text() == (run / "file").read_text() == "mine"


def test_a_run_that_is_being_trained(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with held(run / "runs" / RUN):
        assert refused(capsys).startswith(f"run {RUN} is being trained")


def test_a_run_without_a_best_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(ACTOR.parent)
    assert refused(capsys).startswith(f"run {RUN} has kept no checkpoint: there is none in ")


@pytest.mark.parametrize("package", ["verl", "transformers"])
def test_a_package_that_is_missing(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    real: Callable[..., Any] = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else real(name, *rest)
    )
    said = refused(capsys)
    assert said.startswith(f"package {package!r} is not installed") and "pip install " in said


def test_a_checkpoint_that_changes_meanwhile(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = export_module._merge_fsdp

    def changes(*arguments: Any) -> None:
        real(*arguments)
        (ACTOR.parent / "step").write_text("4\n")

    monkeypatch.setattr(export_module, "_merge_fsdp", changes)
    assert "has replaced its best checkpoint in the meantime" in refused(capsys)


class Opens:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("mark", "w")


def _shard() -> Path:
    [path] = ACTOR.glob("model_*.pt")
    return path


def _flip() -> None:
    content = bytearray(_shard().read_bytes())
    content[len(content) // 2] ^= 1
    _shard().write_bytes(content)


def _without_a_weight() -> None:
    state = torch.load(_shard(), weights_only=False)
    del state["model.norm.weight"]
    torch.save(state, _shard())


def _config(**changes: Any) -> None:
    path = ACTOR / "huggingface" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _other_run() -> None:
    path = ACTOR.parents[1] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": 4}))


DAMAGE: dict[str, tuple[Callable[[], object], str]] = {
    "code in a shard": (
        lambda: torch.save({"model.norm.weight": Opens()}, _shard()),
        "the shard of rank 0 is not read: it contains more than tensors",
    ),
    "a flipped bit": (_flip, "the shard of rank 0 is not read: it is damaged"),
    "half a shard": (
        lambda: os.truncate(_shard(), _shard().stat().st_size // 2),
        "the shard of rank 0 is not read: it is damaged",
    ),
    "no shard": (lambda: _shard().unlink(), "the shard of rank 0 of 1 is missing"),
    "other things in it": (
        lambda: torch.save({"model.norm.weight": "text"}, _shard()),
        "it contains more than weights",
    ),
    "adapters": (lambda: torch.save({"lora_A": torch.ones(2)}, _shard()), "holds LoRA adapters"),
    "a weight that is missing": (_without_a_weight, "missing: model.norm.weight"),
    "another shape": (lambda: _config(intermediate_size=32), "of another shape: "),
    "another layer": (lambda: _config(num_hidden_layers=3, layer_types=["full_attention"] * 3), "missing: "),
    "no such architecture": (
        lambda: _config(model_type="mine", architectures=["Mine"]),
        "the checkpoint cannot",
    ),
    "code of its own": (
        lambda: _config(auto_map={"AutoModelForCausalLM": "mine.Mine"}),
        "requires the model's own code",
    ),
    "text for a number": (lambda: _config(hidden_size="x"), "the checkpoint cannot be merged: Strict"),
    "half a tokenizer": (
        lambda: os.truncate(ACTOR / "huggingface" / "tokenizer.json", 100),
        "the checkpoint cannot be merged: ",
    ),
    "no configuration": (
        lambda: (ACTOR / "huggingface" / "config.json").unlink(),
        "so the model is unknown",
    ),
    "ranks": (
        lambda: (ACTOR / "fsdp_config.json").write_text('{"world_size": "1/../.."}'),
        "does not say how many ranks there were",
    ),
    "more ranks": (
        lambda: (ACTOR / "fsdp_config.json").write_text('{"world_size": 2}'),
        "the shard of rank 0 of 2 is missing",
    ),
    "no weights": (lambda: (ACTOR / "fsdp_config.json").unlink(), "has no weights as verl 0.9.1 writes them"),
    "no step": (lambda: (ACTOR.parent / "step").write_text("one"), "has kept no checkpoint"),
    "of another run": (_other_run, "the folder was copied, or the file was changed"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_checkpoints_that_are_damaged(run: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    damage, says = DAMAGE[name]
    damage()
    assert says in refused(capsys)
    assert not (run / "mark").exists()


LINKS = [
    "", "config.json", "spool", "spool/0001.jsonl", BEST, f"{BEST}/step", f"{BEST}/actor",
    f"{BEST}/actor/fsdp_config.json", f"{BEST}/actor/model_world_size_1_rank_0.pt", f"{BEST}/actor/huggingface",
    f"{BEST}/actor/huggingface/config.json", f"{BEST}/actor/huggingface/tokenizer.json",
]  # fmt: skip


@pytest.mark.parametrize("name", LINKS)
def test_links_in_a_run_are_not_followed(run: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """What they lead to would be exported: all of it is such as the run itself had."""
    place = run / "runs" / RUN / name
    elsewhere = run / "elsewhere"
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    assert f"{place} is a link or not a plain file" in refused(capsys)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_holds_nobody_up(
    run: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    path = _shard()
    path.unlink()
    make(path)
    assert "is a link or not a plain file" in refused(capsys)
