"""`cppo export`: what transformers then loads says what the checkpoint says; what is refused."""

import contextlib
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from huggingface_hub import ModelCard
from pyarrow.parquet import read_table
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Qwen3ForCausalLM

from cppo_lab import schema
from cppo_lab.core_records import BEST_CHECKPOINT, BEST_MODEL, Exported
from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.tasks import make_task
from cppo_lab.cores.verl import core
from cppo_lab.cores.verl import export as export_module
from cppo_lab.cores.verl.checkpoints import append_row
from cppo_lab.cores.verl.config import lab_settings
from cppo_lab.files import appearing, require_free
from cppo_lab.runs.export import model_card, read_subject
from cppo_lab.runs.folder import run_lock
from cppo_lab.runs.recorder import Recorder
from cppo_lab.schema import Outcome
from cppo_lab.spec import RunSpec
from cppo_lab.sweep.compose import compose
from tests.conftest import Command, user_error
from tests.cores.test_mini import TOKENIZER, attempt, tiny
from tests.cores.verl.conftest import RANKS, on_ranks

SCORES, BEST_STEP = {0: 0.125, 2: 0.5, 4: 0.25}, 2
FACTOR = 1.25  # another model than the one that is loaded, and exact in every precision
KIND = ["core=verl", "model=tiny_qwen3", "training.t_stop=4", "seed=3"]
SPEC = compose(KIND).run
RUN = SPEC.run_id
LORA = (4, 6)  # rank and alpha
FILES = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "model.safetensors", "README.md",
}  # fmt: skip
ACTOR = Path("runs", RUN, BEST_CHECKPOINT, "actor")
EXPORT = f"export {RUN} --out model"


def save(_: int, ranks: int, folder: Path, model: str) -> None:
    """One of `ranks` processes, in each of which verl's own engine writes a checkpoint of `model` times FACTOR."""
    from tests.cores.verl.cpu_engine import make_worker, sent

    for kind, lora in (("", (0, 0)), ("lora", LORA)):
        worker = make_worker(Path(model), micro_batch=1, load_tokenizer=True, lora=lora)
        with torch.no_grad():
            for parameter in worker.engine.module.parameters():
                parameter.add_(0.01) if kind else parameter.mul_(FACTOR)
        worker.save_checkpoint(f"{folder}/{kind}{ranks}/actor", global_step=4)
    torch.save(sent(worker), f"{folder}/lora{ranks}/sent.pt")


@pytest.fixture(scope="module")
def saved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The folder of verl's weights, by the number of ranks that saved them."""
    folder = tmp_path_factory.mktemp("saved")
    on_ranks(save, folder, str(tiny_model))
    return {ranks: folder / str(ranks) / "actor" for ranks in RANKS}


def record(runs: Path, spec: RunSpec, ends: bool = True) -> Path:
    """The folder of a recorded run: of a sweep, validated at each step of SCORES."""
    folder = runs / spec.run_id
    tags = {schema.sweep_tag("mine"): "cppo w_min=0.8", schema.TAG_CODE_VERSION: "0.1.0+0123456789ab"}
    recorder = Recorder(spec, tags, folder)
    recorder.begin(None)
    for step in range(5):
        row = {"train/reward": 0.5}
        for i, name in enumerate((schema.MEAN, *spec.data.benchmarks) if step in SCORES else ()):
            row[schema.validation_metric(name, spec.validation.samples)] = SCORES[step] + i / 100
        recorder.log(step, row)
    if ends:
        recorder.finish(Outcome(schema.DONE, 4))
    return folder


def keep(actor: Path, run: str = RUN) -> None:
    """Make `actor`, verl's folder of weights, the best checkpoint of a run."""
    best = Path("runs", run, BEST_CHECKPOINT)
    shutil.rmtree(best, ignore_errors=True)
    shutil.copytree(actor, best / "actor")
    (best / "step").write_text(f"{BEST_STEP}\n")


@pytest.fixture
def run(saved: dict[int, Path], workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working folder with a recorded run and its best checkpoint; whatever is done, no name is looked up."""
    record(workspace / "runs", SPEC)
    keep(saved[1])
    monkeypatch.setattr(socket, "getaddrinfo", asked := Mock(return_value=[]))
    yield workspace
    assert asked.mock_calls == []


def sequences(vocabulary: int) -> Tensor:
    """Token ids [5, 12]."""
    return torch.randint(0, vocabulary, (5, 12), generator=torch.Generator().manual_seed(1))


def loaded(folder: Path) -> PreTrainedModel:
    """As a user loads it; nothing may be missing."""
    model, faults = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(faults.values()), faults
    return model


# -- What is written ---------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("ranks", RANKS)
def test_the_model_says_what_the_checkpoint_says(
    run: Path, cppo: Command, saved: dict[int, Path], tiny_model: Path, ranks: int
) -> None:
    keep(saved[ranks])
    for path in [*ACTOR.glob("optim*"), *ACTOR.glob("extra*")]:
        path.write_bytes(b"damaged")  # the optimiser is not read
    out = run / "deep/down/model"
    printed = cppo(f"export {RUN[:6]} --out deep/down/model")
    assert printed.out == f"{out}\n"
    assert [line for line in printed.err.splitlines() if "shard" in line] == [
        f"cppo: reading shard {rank} of {ranks}" for rank in range(1, ranks + 1)
    ]
    assert {path.name for path in out.iterdir()} == FILES
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1
    # What was saved is the model that verl loaded, with every weight scaled.
    exported, scaled = loaded(out), Qwen3ForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    for parameter in scaled.parameters():
        parameter.mul_(FACTOR)
    tokens = sequences(TOKENIZER.vocabulary)
    torch.testing.assert_close(exported(tokens).logits, scaled(tokens).logits, rtol=0, atol=0)
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (tiny_model, out))
    for name in ("vocab", "eos_token", "chat_template"):
        assert getattr(theirs, name) == getattr(ours, name)


@pytest.mark.parametrize("ranks", RANKS)
def test_adapters_are_merged(run: Path, cppo: Command, saved: dict[int, Path], ranks: int) -> None:
    """The export is the model that verl gives to the rollout engine, in bfloat16."""
    [rank, alpha] = LORA
    spec = compose([*KIND, f"optim.lora_rank={rank}", f"optim.lora_alpha={alpha}"]).run
    folder = saved[1].parents[1] / f"lora{ranks}"
    record(run / "runs", spec)
    keep(folder / "actor", spec.run_id)
    cppo(f"export {spec.run_id} --out adapted")
    weights, sent = loaded(run / "adapted").state_dict(), torch.load(folder / "sent.pt")
    assert weights.keys() >= sent.keys()
    for name, value in sent.items():
        torch.testing.assert_close(weights[name].bfloat16(), value.bfloat16(), msg=name)


def test_a_run_of_verl_is_evaluated_by_verls_validation(
    run: Path, monkeypatch: pytest.MonkeyPatch, cppo: Command
) -> None:
    """Of its exported model on the problems of the benchmark. That verl's trainer then trains nothing: `test_core`."""
    scores = {name: place / 10 for place, name in enumerate(SPEC.data.benchmarks)}

    def validate(config: Any) -> None:
        assert config.trainer.val_only and config.trainer.val_before_train
        [problems] = config.data.val_files
        assert read_table(problems).num_rows == 3 * 7
        best, name = torch.load(shard(), weights_only=False), "model.norm.weight"
        model = loaded(Path(config.actor_rollout_ref.model.path))
        assert torch.equal(model.state_dict()[name], best[name].to_local())
        metrics = {schema.validation_metric(name, 4): score for name, score in scores.items()}
        append_row(lab_settings(config).folder, 0, metrics)

    monkeypatch.setattr(core, "_ray_for", lambda *_: contextlib.nullcontext({}))
    monkeypatch.setattr(core, "_run", validate)
    asked = cppo(f"evaluate {RUN} --benchmark chain_short data.validation_problems=7 --json")
    [row] = asked.answer["runs"]
    assert (row["step"], row["scores"]) == (BEST_STEP, scores)


def test_weights_in_bfloat16_stay_so(run: Path, cppo: Command) -> None:
    state = torch.load(shard(), weights_only=False)
    torch.save({name: weight.bfloat16() for name, weight in state.items()}, shard())
    (run / "model").mkdir()  # an empty folder may be there
    cppo(EXPORT)
    model = loaded(run / "model")
    assert model.dtype == torch.bfloat16
    name = "model.layers.1.self_attn.o_proj.weight"
    assert torch.equal(model.state_dict()[name], state[name].to_local().bfloat16())
    assert "in bfloat16" in (run / "model" / "README.md").read_text()


def test_the_card(run: Path, cppo: Command) -> None:
    cppo(EXPORT)
    text = (run / "model" / "README.md").read_text()
    card = ModelCard(text)
    assert (card.data.library_name, card.data.pipeline_tag) == ("transformers", "text-generation")
    assert card.data.model_name == "cppo w_min=0.8 · s3 · tiny_qwen3"
    best = SCORES[BEST_STEP]
    assert {row.dataset_name: (row.metric_type, row.metric_value) for row in card.data.eval_results} == {
        f"short{23 + i}": ("avg_at_4", best + i / 100) for i in (1, 2, 3)
    }
    assert "| Code | CPPO Lab `0.1.0+0123456789ab`" in text
    weights = sum(part.numel() for part in Qwen3ForCausalLM.from_pretrained(run / "model").parameters())
    expected = {
        "Run": f"`{RUN}`", "Sweep": "`mine` (variant `cppo w_min=0.8`)", "Rule": "`cppo`", "Model": "`tiny_qwen3`",
        "Seed": "3", "Step of these weights": "2; the run: 4 of 4, done", "Weights": f"{weights:,} in float32",
        "Score of these weights": "0.5000 (mean Avg@4) at step 2",
        "Best score of the run": "0.5000 (mean Avg@4) at step 2",
        "Score before training": "0.1250 (mean Avg@4) at step 0", "`short26`": "0.5300", "mean": "0.5000",
    }  # fmt: skip
    lines = text.splitlines()
    assert [row for row in expected.items() if f"| {' | '.join(row)} |" not in lines] == []
    assert "**A miniature**" in text and "no evidence" in text
    folded = text[text.index("<details>") : text.index("</details>")]
    assert f"run_id: {RUN}" in folded and "  seed: 3" in folded and "w_min: 0.8" in folded
    # What others wrote is text.
    subject = read_subject(run / "runs", RUN)
    tags = {**subject.tags, schema.sweep_tag("mine"): "x` | <script>\n---\nlicense: mit\n\x1b[2J"}
    text = model_card(replace(subject, tags=tags), Exported(BEST_STEP, "float32", 1))
    assert "<script>" not in text.partition("\n---\n")[2] and "\x1b" not in text
    assert ModelCard(text).data.to_dict().get("license") is None


def test_weights_that_megatron_bridge_saved_are_taken_over(run: Path, cppo: Command) -> None:
    """Whole weights, in several files."""
    cppo(f"export {RUN} --out first")
    first, saved = loaded(Path("first")), ACTOR / "model" / "huggingface"
    shutil.rmtree(ACTOR)
    shutil.copytree("first", saved, ignore=shutil.ignore_patterns("README.md", "model.safetensors"))
    first.save_pretrained(saved, max_shard_size="20KB")
    assert len(list(saved.glob("*.safetensors"))) > 2
    (ACTOR / "optimizer").mkdir()
    cppo(EXPORT)
    torch.testing.assert_close(loaded(run / "model").state_dict(), first.state_dict(), rtol=0, atol=0)
    originals, copies = ({path.stat().st_ino for path in place.iterdir()} for place in (saved, run / "model"))
    assert not originals & copies  # either may be changed


# -- What is refused ---------------------------------------------------------------------------------------------------


Refused = Callable[..., str]


@pytest.fixture
def refused(cppo: Command) -> Refused:
    """The one line that says why nothing is exported; nothing is left of the attempt."""

    def said(line: str = EXPORT) -> str:
        before = sorted(Path().iterdir())
        printed = cppo(line, code=2)
        *progress, error = printed.err.splitlines()
        assert printed.out == "" and all(line.startswith("cppo: ") for line in progress), progress
        assert sorted(Path().iterdir()) == before
        return error.removeprefix("cppo: error: ")

    return said


def test_what_is_refused_of_a_run_and_a_place(
    run: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """Most is in tests/hostile."""
    (run / "runs" / f"{RUN[:8]}0000").mkdir()
    (run / "ring").symlink_to("ring")
    assert "has not started" in refused(f"export {RUN[:8]}0000 --out model")
    assert "--out ring is a circular link" in refused(f"export {RUN} --out ring")
    with run_lock(run / "runs" / RUN):
        assert refused().startswith(f"run {RUN} is being trained")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "transformers", None)
        said = refused()
        assert said.startswith("package 'transformers' is not installed") and "pip install " in said
    merge = export_module._merge_fsdp
    changes = Mock(side_effect=lambda *given: (merge(*given), (ACTOR.parent / "step").write_text("4\n")))
    monkeypatch.setattr(export_module, "_merge_fsdp", changes)
    assert "has replaced its best checkpoint in the meantime" in refused()
    with user_error("no longer exists: try again"):
        export_module.copy_file(run / "runs", (RUN, "gone"), run / "copy")


class Opens:
    """Makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, ("mark", "w")


def shard() -> Path:
    [path] = ACTOR.glob("model_*.pt")
    return path


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def flip() -> None:
    content = bytearray(shard().read_bytes())
    content[len(content) // 2] ^= 1
    shard().write_bytes(content)


def without_a_weight() -> None:
    state = torch.load(shard(), weights_only=False)
    del state["model.norm.weight"]
    torch.save(state, shard())


def pipe() -> None:
    (path := shard()).unlink()
    os.mkfifo(path)


def link(path: Path) -> None:
    """To all that the run itself had there."""
    path.rename("elsewhere")
    path.symlink_to(Path("elsewhere").resolve())


def megatrons() -> None:
    shutil.rmtree(ACTOR)
    (ACTOR / "model" / "dist_ckpt").mkdir(parents=True)
    (ACTOR / "model" / "dist_ckpt" / "__0_0.distcp").write_text("shard")


NO_FILE = "is a link or not a plain file"
HUB = ACTOR / "huggingface"
DAMAGE: list[tuple[Callable[[], object], str]] = [
    (
        lambda: torch.save({"model.norm.weight": Opens()}, shard()),
        "the shard of rank 0 is not read: it contains more than tensors",
    ),
    (
        lambda: torch.save({"model.norm.weight": 1.0}, shard()),
        "the shard of rank 0 is not read: it contains more than weights",
    ),
    (flip, "the shard of rank 0 is not read: it is damaged"),
    (lambda: shard().unlink(), "the shard of rank 0 of 1 is missing"),
    (pipe, NO_FILE),
    (without_a_weight, "missing: model.norm.weight"),
    (lambda: edit(HUB / "config.json", intermediate_size=32), "of another shape: "),
    (
        lambda: edit(HUB / "config.json", model_type="mine", architectures=["Mine"]), "the checkpoint cannot",
    ),
    (lambda: edit(HUB / "config.json", auto_map={"A": "mine.Mine"}), "the model's own code"),
    (lambda: (HUB / "config.json").unlink(), "so the model is unknown"),
    (
        lambda: (ACTOR / "fsdp_config.json").write_text('{"world_size": "1/../.."}'),
        "does not say how many ranks there were",
    ),
    (lambda: (ACTOR / "fsdp_config.json").unlink(), "has no weights as verl 0.9.1 writes them"),
    (lambda: shutil.rmtree(ACTOR.parent), "has no checkpoint any more: `cppo clean"),
    (lambda: edit(ACTOR.parents[1] / "config.json", seed=4), "the folder was copied, or the file"),
    (megatrons, "`python -m verl.model_merger merge --backend megatron` merges them"),
    *(
        (lambda path=path: link(path), f"{path} {NO_FILE}")
        for path in (ACTOR.parents[1], ACTOR.parents[1] / "spool/0001.jsonl", ACTOR, HUB / "config.json")
    ),
]  # fmt: skip


@pytest.mark.parametrize("damage, says", DAMAGE)
def test_checkpoints_that_are_damaged_and_links_in_a_run(
    run: Path, refused: Refused, damage: Callable[[], object], says: str
) -> None:
    damage()
    assert says in refused()
    assert not (run / "mark").exists()


class Part:
    """One rank's part of a weight of the whole `shape`, as a DTensor has it."""

    def __init__(self, local: Tensor, shape: tuple[int, ...], *ways: object) -> None:
        self._local_tensor, self.shape, self.placements = local, torch.Size(shape), ways
        self.device_mesh = SimpleNamespace(mesh=torch.arange(2 ** len(ways)).view((2,) * len(ways)))


def test_shards_of_ranks_are_merged_or_do_not_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    monkeypatch.setattr(torch.distributed.tensor, "DTensor", Part)

    def merge(*ranks: dict[str, Any]) -> dict[str, Tensor]:
        return export_module.merged(lambda rank: ranks[rank], len(ranks))

    whole, cut, every = torch.arange(8.0).reshape(4, 2), Shard(0), Replicate()
    weights = merge(*({"r": Part(whole, (4, 2), every), "b": whole} for _ in range(2)))
    assert all(torch.equal(weights[name], whole) for name in ("r", "b"))
    replicas = [{"w": Part(half, (4, 2), every, cut)} for half in whole.split(2)]
    assert torch.equal(merge(*replicas, {}, {})["w"], whole)  # two ranks have it all
    ones, spread = torch.ones(2), "w is spread over ranks in a way that verl's merger does not know"
    for first, second, message in [
        ({"w": ones}, {"v": ones}, "the ranks have saved different weights"),
        ({"w": ones}, {"w": 0 * ones}, "'w' differs between rank 0 and rank 1"),
        ({"w": Part(ones, (4,), cut)}, {"w": Part(ones, (4,), every)}, spread),
        ({"w": Part(ones, (4,), cut, cut)}, {"w": Part(ones, (4,), cut, cut)}, spread),
        ({"w": Part(ones, (2,), Partial())}, {"w": Part(ones, (2,), Partial())}, spread),
        ({"w": Part(ones, (5,), cut)}, {"w": Part(ones, (5,), cut)}, r"w has the shape \(4,\), not \(5,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            merge(first, second)


def test_an_error_of_the_disk_is_not_taken_for_a_broken_checkpoint() -> None:
    with pytest.raises(OSError, match="No space left on device"), export_module.refusing("it is broken"):
        raise OSError(28, "No space left on device")
    with user_error(r"broken: OSError: no file named config\.json"):  # noqa: SIM117
        with export_module.refusing("it is broken"):
            raise OSError("no file named\nconfig.json")  # as transformers raises it


# -- The embedded core -------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_an_embedded_model_says_the_same_as_a_qwen3(workspace: Path, cppo: Command, refused: Refused) -> None:
    """Of a run as a kill before its end is recorded leaves it."""
    spec = tiny("model.architecture.layers=2", "data.spellings=3")
    runs = workspace / "runs"
    folder = record(runs, spec, ends=False)
    with torch.enable_grad():
        attempt(spec, folder)
    printed = cppo(f"export {spec.run_id} --out model")
    assert printed.out == f"{workspace / 'model'}\n"
    assert printed.err.splitlines() == ["cppo: reading best_model.pt", "cppo: writing the model"]
    tokenizer = make_task(spec.data).tokenizer
    context = spec.data.prompt_length + spec.rollout.max_response_length
    ours = Transformer(spec.model.architecture, tokenizer.vocabulary, context)
    state = torch.load(folder / BEST_MODEL, weights_only=True)
    ours.load_state_dict(state["trainer"]["model"])
    tokens, model = sequences(tokenizer.vocabulary), loaded(workspace / "model")
    expected = ours(tokens).log_softmax(-1)
    torch.testing.assert_close(model(tokens).logits.log_softmax(-1), expected, rtol=0, atol=1e-5)
    assert float(expected.std()) > 0.3  # a model that says nothing would agree with any other
    theirs = AutoTokenizer.from_pretrained(workspace / "model")
    ids = list(range(tokenizer.pad))
    assert theirs.encode(" ".join(tokenizer.names(ids)), add_special_tokens=False) == ids
    assert (theirs.eos_token_id, theirs.pad_token_id) == (tokenizer.eos, tokenizer.pad)
    text = (workspace / "model" / "README.md").read_text()
    assert ModelCard(text).data.tags == ["cppo-lab", "reinforcement-learning", "miniature"]
    step = state["history"][-1][0]
    assert f"| Step of these weights | {step}; the run: 4 of 4, without a recorded end |" in text

    other = tiny("seed=7")
    foreign = record(runs, other, ends=False) / BEST_MODEL
    shutil.copy(folder / BEST_MODEL, foreign)
    again = f"export {other.run_id} --out other"
    assert f"it is not a checkpoint of run {other.run_id}" in refused(again)
    foreign.unlink()
    said = refused(again)
    assert "has kept no checkpoint: there is no best_model.pt in " in said and "--replace" in said
    foreign.symlink_to(folder / BEST_MODEL)
    assert f"{foreign} {NO_FILE}" in refused(again)
    torch.save(state | {"history": []}, folder / BEST_MODEL)
    assert "it does not say of which step it is" in refused(f"export {spec.run_id} --out other")


def test_two_exports_to_one_place_and_one_that_fails(tmp_path: Path) -> None:
    """Neither removes what the other writes; the first one to be ready has the place. One that fails leaves nothing."""
    place, said = require_free(tmp_path / "model"), "another process has written there in the meantime"
    with user_error(said), appearing(place) as first:
        (first / "file").write_text("first")
        with appearing(place) as other:
            (other / "file").write_text("other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model" / "file").read_text() == "other"
