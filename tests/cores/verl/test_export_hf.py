"""Models and tasks of our own making in Hugging Face's format say what the embedded core says."""

import multiprocessing
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from verl.utils.dataset.rl_dataset import RLHFDataset

from cppo_lab.cores.mini.model import Transformer
from cppo_lab.cores.mini.tasks.base import make_task, validation_sets
from cppo_lab.cores.mini.warm_start import load_warm_start
from cppo_lab.cores.verl.config import verl_config
from cppo_lab.cores.verl.export_hf import as_fast_tokenizer, make_model, write_task
from cppo_lab.cores.verl.files import Files, planned_files, require_files
from cppo_lab.data.manifest import read_rows
from cppo_lab.data.prepare import prepare
from cppo_lab.errors import UserError
from cppo_lab.spec import TaskData, VerlRun
from cppo_lab.sweep.compose import compose
from tests.waiting import CEILING_SECONDS

pytestmark = pytest.mark.verl
TINY = ["core=verl", "model=tiny_qwen3", "model.warm_start.steps=30"]
TASKS = [
    [],
    ["data=addition", "data.validation_problems=4", "data.operations=4"],
    ["data.spellings=3"],
]


def tiny(*overrides: str) -> VerlRun:
    run = compose([*TINY, *overrides]).run
    assert isinstance(run, VerlRun)
    return run


def planned(spec: VerlRun, shared: Path) -> Files:
    return planned_files(spec, compose(TINY).paths, shared, shared / spec.run_id)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[VerlRun, Files, Path]:
    """A run with its model and its task."""
    shared, spec = tmp_path_factory.mktemp("shared"), tiny()
    files = planned(spec, shared)
    require_files(spec, files, shared)
    return spec, files, shared


@pytest.mark.parametrize("overrides", TASKS, ids=["chain", "addition", "spellings"])
def test_every_symbol_is_one_token_with_our_id(overrides: list[str]) -> None:
    spec = tiny(*overrides)
    assert isinstance(spec.data, TaskData)
    ours = make_task(spec.data).tokenizer
    fast = as_fast_tokenizer(ours)
    ids = list(range(ours.vocabulary))
    for symbol in ids:
        assert fast.encode(ours.name(symbol), add_special_tokens=False) == [symbol]
        assert fast.convert_ids_to_tokens([symbol]) == [ours.name(symbol)]
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(0, ours.pad, (200,), generator=draw).tolist()
    assert fast.encode(ours.decode(text), add_special_tokens=False) == text
    assert fast.encode(fast.decode(text), add_special_tokens=False) == text
    assert (fast.eos_token_id, fast.pad_token_id) == (ours.eos, ours.pad)


def test_a_saved_tokenizer_is_the_same(made: tuple[VerlRun, Files, Path]) -> None:
    spec, files, _ = made
    assert isinstance(spec.data, TaskData)
    ours = make_task(spec.data).tokenizer
    saved = AutoTokenizer.from_pretrained(files.model)
    text = ours.decode(list(range(ours.pad)))
    assert saved.encode(text, add_special_tokens=False) == list(range(ours.pad))


def test_the_exported_model_computes_what_ours_does(made: tuple[VerlRun, Files, Path]) -> None:
    spec, files, shared = made
    assert isinstance(spec.data, TaskData)
    tokenizer = make_task(spec.data).tokenizer
    context = spec.data.prompt_length + spec.rollout.max_response_length
    ours = Transformer(spec.model.architecture, tokenizer.vocabulary, context)  # type: ignore[union-attr]
    load_warm_start(spec.model.for_seed(spec.seed), spec.data, ours, shared / "warm_starts")
    theirs = AutoModelForCausalLM.from_pretrained(files.model, dtype=torch.float32)
    tokens = torch.randint(0, tokenizer.vocabulary, (5, context), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), atol=1e-5, rtol=0)
    assert theirs.config.max_position_embeddings == context
    assert theirs.config.eos_token_id == tokenizer.eos


@pytest.mark.parametrize("overrides", TASKS, ids=["chain", "addition", "spellings"])
def test_verls_data_set_gives_exactly_our_prompts(overrides: list[str], tmp_path: Path) -> None:
    spec = tiny(*overrides)
    assert isinstance(spec.data, TaskData)
    task = make_task(spec.data)
    files = planned(spec, tmp_path)
    write_task(spec, files.train, files.validation[0])
    fast = as_fast_tokenizer(task.tokenizer)
    config = verl_config(spec, compose(TINY).layout, files).data
    expected = {name: problems.prompts.tolist() for name, problems in validation_sets(task).items()}
    found: dict[str, list[list[int]]] = {name: [] for name in expected}
    rows = RLHFDataset([str(files.validation[0])], fast, config)
    for place in range(len(rows)):
        row = rows[place]
        found[row["data_source"]].append(prompt_ids(fast, row["raw_prompt"]))
    assert found == expected
    assert len(RLHFDataset([str(files.train)], fast, config)) == spec.training.t_stop * spec.batch.prompts


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: object) -> list[int]:
    """As verl's agent loop makes them."""
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert isinstance(ids, list)
    return ids


def test_training_problems_are_enough_and_none_is_held_out(made: tuple[VerlRun, Files, Path]) -> None:
    spec, files, _ = made
    train, validation = list(read_rows(files.train)), list(read_rows(files.validation[0]))
    assert len(train) == spec.training.t_stop * spec.batch.prompts  # one epoch is the run
    held_out = {row["reward_model"]["ground_truth"] for row in validation}
    assert len(held_out) == len(validation) == 12
    assert not held_out & {row["reward_model"]["ground_truth"] for row in train}
    names = [(row["data_source"], row["extra_info"]["index"]) for row in (*train, *validation)]
    assert len(set(names)) == len(names)  # seeds of requests are made of them


def test_a_continued_run_finds_the_same_task(made: tuple[VerlRun, Files, Path]) -> None:
    spec, files, shared = made
    before = [path.read_bytes() for path in (files.train, files.validation[0])]
    require_files(spec, files, shared)
    assert [path.read_bytes() for path in (files.train, files.validation[0])] == before
    other = planned(tiny("seed=1"), shared)
    write_task(tiny("seed=1"), other.train, other.validation[0])
    assert other.train.read_bytes() != before[0]
    assert other.validation[0].read_bytes() == before[1]


def test_a_longer_context_is_another_model_folder(made: tuple[VerlRun, Files, Path]) -> None:
    """Weights are shared, the limit on the length is not: it would cut the longer run's responses."""
    _, files, shared = made
    longer = tiny("rollout.max_response_length=30")
    other = planned(longer, shared)
    assert other.model != files.model
    make_model(longer, Path(other.model), shared)
    one, two = (AutoModelForCausalLM.from_pretrained(folder) for folder in (files.model, other.model))
    assert one.config.max_position_embeddings < two.config.max_position_embeddings
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def _make(spec: VerlRun, folder: Path, shared: Path, made: "multiprocessing.Queue[float]") -> None:
    make_model(spec, folder, shared)
    made.put((folder / "config.json").stat().st_mtime_ns)


def test_two_processes_make_it_once(tmp_path: Path) -> None:
    spec = tiny()
    folder = Path(planned(spec, tmp_path).model)
    context = multiprocessing.get_context("fork")
    times = context.Queue()
    processes = [context.Process(target=_make, args=(spec, folder, tmp_path, times)) for _ in range(2)]
    for process in processes:
        process.start()
    assert times.get(timeout=CEILING_SECONDS) == times.get(timeout=CEILING_SECONDS)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(path.suffix for path in folder.parent.iterdir()) == ["", ".lock"]


def test_what_a_kill_left_is_made_again(made: tuple[VerlRun, Files, Path]) -> None:
    spec, files, shared = made
    folder = shared / "another"
    partial = folder.with_suffix(".partial")
    partial.mkdir()
    (partial / "config.json").write_text("{")
    make_model(spec, folder, shared)
    assert (folder / "config.json").read_bytes() == (Path(files.model) / "config.json").read_bytes()
    assert not partial.exists()


def test_what_a_published_model_needs_is_asked_for(tmp_path: Path) -> None:
    found = compose(
        ["core=verl", "model=qwen3_1_7b_base", f"paths.data={tmp_path}", f"paths.models={tmp_path}"]
    )
    spec = found.run
    assert isinstance(spec, VerlRun)
    files = planned_files(spec, found.paths, tmp_path, tmp_path / spec.run_id)
    with pytest.raises(UserError, match=r"train\.parquet does not exist: run `cppo data prepare --out"):
        require_files(spec, files, tmp_path)
    for path in (files.train, *files.validation):
        path.touch()
    with pytest.raises(UserError, match=r"Qwen3-1\.7B-Base holds no model: download Qwen/Qwen3-1\.7B-Base"):
        require_files(spec, files, tmp_path)
    Path(files.model).mkdir(parents=True)
    (Path(files.model) / "config.json").touch()
    require_files(spec, files, tmp_path)


def test_a_training_set_smaller_than_a_batch_is_refused(tmp_path: Path) -> None:
    prepare("sample", tmp_path / "data")  # 8 problems
    for prompts, fits in ((16, False), (8, True)):
        found = compose(
            [
                *(
                    "core=verl",
                    "model=qwen3_1_7b_base",
                    f"paths.data={tmp_path / 'data'}",
                    f"paths.models={tmp_path}",
                ),
                *(f"batch.prompts={prompts}", "batch.minibatch_prompts=8"),
            ]
        )
        assert isinstance(found.run, VerlRun)
        files = planned_files(found.run, found.paths, tmp_path, tmp_path / "run")
        expected = (
            r"holds no model" if fits else r"train\.parquet has 8 problems, fewer than batch\.prompts=16"
        )
        with pytest.raises(UserError, match=expected):
            require_files(found.run, files, tmp_path)


def test_a_pinned_revision_is_not_taken_from_the_hub_in_silence(tmp_path: Path) -> None:
    found = compose(
        ["core=verl", "model=qwen3_1_7b_base", "model.revision=0123abcd", f"paths.data={tmp_path}"]
    )
    spec = found.run
    assert isinstance(spec, VerlRun)
    files = planned_files(spec, found.paths, tmp_path, tmp_path / spec.run_id)
    for path in (files.train, *files.validation):
        path.touch()
    with pytest.raises(UserError, match=r"model\.revision='0123abcd': verl takes a repository's main"):
        require_files(spec, files, tmp_path)
