"""Models and tasks of our own making in Hugging Face's format say what the embedded core says; files of a run."""

import asyncio
import json
import math
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from pyarrow.parquet import read_table
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl import DataProto
from verl.utils.dataset.rl_dataset import RLHFDataset

from cppo_lab.core_records import Resources
from cppo_lab.cores.mini.tasks import make_task, validation_sets
from cppo_lab.cores.verl.config import verl_config
from cppo_lab.cores.verl.export import require_complete
from cppo_lab.cores.verl.files import Files, datasets, planned_files, require_files
from cppo_lab.cores.verl.hf_models import (
    SIZES,
    Sizes,
    as_fast_tokenizer,
    config_of,
    make_model,
    make_stand_in,
    make_stand_ins,
    weights_of,
    write_task,
)
from cppo_lab.cores.verl.rewards import TaskRewardManager
from cppo_lab.data.prepare import prepare
from cppo_lab.data.sources import is_wrapped
from cppo_lab.plugins import OK
from cppo_lab.spec import HubModel, PathsSpec, VerlRun
from cppo_lab.spec.job import read_folders
from cppo_lab.sweep import launch
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.doctor import check_data, check_model
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.preflight import kinds
from tests.conftest import Command, user_error
from tests.waiting import CEILING_SECONDS

TINY = ["core=verl", "model=tiny_qwen3", "model.warm_start.steps=30"]
FILES = ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors")
HUB = ["core=verl", "model=qwen3_1_7b_base"]


def planned(shared: Path, *overrides: str, of: Sequence[str] = TINY) -> tuple[VerlRun, Files]:
    made = compose([*of, *overrides])
    return made.run, planned_files(made.run, made.paths, shared, shared / made.run.run_id)


def with_data(files: Files) -> None:
    for path in (files.train, *files.validation):
        path.touch()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[VerlRun, Files, Path]:
    """A run with its model and its task."""
    shared = tmp_path_factory.mktemp("shared")
    spec, files = planned(shared)
    require_files(spec, files, shared)
    return spec, files, shared


@pytest.mark.parametrize(
    "overrides",
    [[], ["data=addition", "data.validation_problems=4", "data.operations=4"], ["data.spellings=3"]],
)
def test_every_symbol_is_one_token_and_verls_data_set_gives_our_prompts(
    overrides: list[str], tmp_path: Path
) -> None:
    spec, files = planned(tmp_path, *overrides)
    task = make_task(spec.data)
    ours, fast = task.tokenizer, as_fast_tokenizer(task.tokenizer)
    for symbol in range(ours.vocabulary):
        assert fast.encode(ours.name(symbol), add_special_tokens=False) == [symbol]
        assert fast.convert_ids_to_tokens([symbol]) == [ours.name(symbol)]
    text = torch.randint(0, ours.pad, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    for words in (" ".join(ours.names(text)), fast.decode(text)):
        assert fast.encode(words, add_special_tokens=False) == text
    assert (fast.eos_token_id, fast.pad_token_id) == (ours.eos, ours.pad)
    write_task(spec, files.train, files.validation[0])
    config = verl_config(spec, compose(TINY).layout, files).data
    expected = {name: problems.prompts.tolist() for name, problems in validation_sets(task).items()}
    prompts: dict[str, list[Any]] = {name: [] for name in expected}
    rows = RLHFDataset([str(files.validation[0])], fast, config)
    for row in (rows[place] for place in range(len(rows))):  # as verl's agent loop makes prompts of them
        ids = fast.apply_chat_template(row["raw_prompt"], add_generation_prompt=True, return_dict=False)
        prompts[row["data_source"]].append(ids)
    assert prompts == expected
    assert len(RLHFDataset([str(files.train)], fast, config)) == spec.training.t_stop * spec.batch.prompts


def test_runs_share_weights_and_not_the_limit_on_the_length(made: tuple[VerlRun, Files, Path]) -> None:
    """It would cut the longer run's responses. What the weights compute: `test_export`, `test_staleness`."""
    spec, files, shared = made
    longer, other = planned(shared, "rollout.max_response_length=30")
    make_model(longer, Path(other.model), shared)
    model, long = (AutoModelForCausalLM.from_pretrained(each.model) for each in (files, other))
    lengths = [run.data.prompt_length + run.rollout.max_response_length for run in (spec, longer)]
    assert [each.config.max_position_embeddings for each in (model, long)] == lengths
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), long.parameters(), strict=True))


def test_the_task_of_a_run(made: tuple[VerlRun, Files, Path]) -> None:
    """Training problems are enough, and none is held out; a continued run finds the same."""
    spec, files, shared = made
    train, validation = read_table(files.train).to_pylist(), read_table(files.validation[0]).to_pylist()
    assert len(train) == spec.training.t_stop * spec.batch.prompts  # one epoch is the run
    held_out = {row["reward_model"]["ground_truth"] for row in validation}
    assert len(held_out) == len(validation) == 12
    assert not held_out & {row["reward_model"]["ground_truth"] for row in train}
    names = [(row["data_source"], row["extra_info"]["index"]) for row in (*train, *validation)]
    assert len(set(names)) == len(names)  # seeds of requests are made of them

    def written(files: Files) -> list[bytes]:
        return [path.read_bytes() for path in (files.train, *files.validation)]

    before = written(files)
    require_files(spec, files, shared)
    assert written(files) == before
    other, another = planned(shared, "seed=1")
    write_task(other, another.train, *another.validation)
    assert [a == b for a, b in zip(written(another), before, strict=True)] == [False, True]


def test_two_processes_make_it_once_and_what_a_kill_left_is_made_again(tmp_path: Path) -> None:
    spec, files = planned(tmp_path)
    folder = Path(files.model)
    partial = folder.with_name(f".{folder.name}.export-01234567")
    partial.mkdir(parents=True)
    (partial / "config.json").write_text("{")
    context = multiprocessing.get_context("fork")
    times = context.Queue()

    def make() -> None:
        make_model(spec, folder, tmp_path)
        times.put((folder / "config.json").stat().st_mtime_ns)

    for _ in range(2):
        context.Process(target=make).start()
    assert times.get(timeout=CEILING_SECONDS) == times.get(timeout=CEILING_SECONDS)
    assert sorted(path.suffix for path in folder.parent.iterdir()) == ["", ".lock"]


def test_a_model_that_the_hubs_cache_has_whole_is_taken_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No library then asks the hub, which nodes of a cluster may not reach; of half a model it has to."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", "~")
    repository = tmp_path / "models--Qwen--Qwen3-1.7B-Base"
    snapshot = repository / "snapshots" / "0123abcd"
    for path in (repository / "refs" / "main", *(snapshot / name for name in FILES)):
        assert planned(tmp_path, of=HUB)[1].model == "Qwen/Qwen3-1.7B-Base"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0123abcd")
    for more in ("seed=0", "model.revision=0123abcd"):  # verl could not ask for a revision
        spec, files = planned(tmp_path, f"paths.data={tmp_path}", more, of=HUB)
        with_data(files)
        require_files(spec, files, tmp_path)
        assert files.model == str(snapshot)


def test_what_a_published_model_needs_is_asked_for(tmp_path: Path) -> None:
    data, models = f"paths.data={tmp_path}", f"paths.models={tmp_path}"
    spec, files = planned(tmp_path, data, models, of=HUB)
    with user_error(r"train\.parquet does not exist: run `cppo data prepare --out"):
        require_files(spec, files, tmp_path)
    with_data(files)
    with user_error(r"Qwen3-1\.7B-Base holds no model: download Qwen/Qwen3-1\.7B-Base"):
        require_files(spec, files, tmp_path)
    with user_error(r"model\.revision='0123abcd': verl takes a repository's main"):
        require_files(*planned(tmp_path, data, "model.revision=0123abcd", of=HUB), tmp_path)
    Path(files.model).mkdir(parents=True)
    (Path(files.model) / "config.json").touch()
    require_files(spec, files, tmp_path)
    prepare("sample", tmp_path / "data")  # 8 problems
    small = (f"{data}/data", models, "batch.minibatch_prompts=8")
    with user_error(r"has 8 problems, fewer than batch\.prompts=16"):
        require_files(*planned(tmp_path, *small, "batch.prompts=16", of=HUB), tmp_path)
    require_files(*planned(tmp_path, *small, "batch.prompts=8", of=HUB), tmp_path)


def test_a_run_on_files_of_ones_own_prepares_them_and_makes_a_model_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (rewards := Path("bytes_reward.py")).write_text("def score(**_): return 1\n")
    Path("mine.jsonl").write_text(
        "".join(f'{{"problem": "{n} + 1", "answer": {n + 1}}}\n' for n in range(64))
    )
    composed = compose([
        "core=verl", "model=tiny_qwen3", "data=files", "data.reward=bytes_reward:score", "data.train=mine.jsonl",
        "data.validation.held=mine.jsonl",
    ])  # fmt: skip
    spec, paths = composed.run, composed.paths
    files = planned_files(spec, paths, tmp_path, tmp_path / "run")
    require_files(spec, files, tmp_path)
    assert [path.name for path in (files.train, *files.validation)] == ["train.parquet", "held.parquet"]
    sets = datasets(spec, Resources(tmp_path, tmp_path, paths=paths))
    assert {data.name for data in sets} == {"train", "held"}
    assert read_folders(spec, paths) == [tmp_path] * 2
    launch._require_code([SimpleNamespace(spec=spec)])
    assert verl_config(spec, composed.layout, files).reward.custom_reward_function.name == "own_score"
    tokenizer = AutoTokenizer.from_pretrained(files.model)
    assert tokenizer.decode(tokenizer.encode("½ + 1")) == "½ + 1"
    for file in (Path("mine.jsonl"), rewards):
        file.write_text("")
        with user_error(f"{file.stem}.* has changed since the run was planned"):
            require_files(spec, files, tmp_path)


def test_the_reward_of_a_task_in_verl_is_the_embedded_cores_grade(made: tuple[VerlRun, Files, Path]) -> None:
    spec, files, _ = made
    manager = TaskRewardManager(verl_config(spec, compose(TINY).layout, files), None, None)
    truth, generator = read_table(files.train)["reward_model"][0].as_py(), torch.Generator().manual_seed(0)
    problem = manager.task.write(torch.tensor([json.loads(truth["ground_truth"])]), generator)
    worked = manager.task.noisy_traces(problem, 0.0, generator)
    grades = []
    for response in (worked, worked.flip(1)):
        tensors = {"responses": response, "attention_mask": torch.ones_like(response)}
        data = DataProto.from_dict(tensors, {"reward_model": numpy.array([truth], dtype=object)})
        grades.append(asyncio.run(manager.run_single(data))["reward_score"])
    assert grades == [1.0, 0.0]


# -- Models with random weights in the place of published ones ---------------------------------------------------------

MODELS = ("qwen3_0_6b_base", "qwen3_1_7b", "qwen3_1_7b_base", "qwen3_8b_base", "qwen3_30b_a3b_base")
SMALL = {"layers": 2, "width": 32, "kv_width": 128, "vocabulary": 64, "context": 256}


def hub_model(name: str) -> HubModel:
    return compose(["core=verl", f"model={name}"]).run.model


@pytest.mark.parametrize("name", MODELS)
def test_the_shapes_have_the_published_number_of_parameters(name: str) -> None:
    """As conf/model has it, to a million; of those that a token uses, too."""
    model = hub_model(name)
    sizes = SIZES[model.repository]
    shapes = dict(weights_of(config_of(model, sizes)))
    count = sum(map(math.prod, shapes.values()))
    assert round(count / 1e9, 3) == model.parameters
    experts = sum(math.prod(shape) for key, shape in shapes.items() if ".experts." in key)
    used = count - experts + (experts * sizes.experts_per_token // sizes.experts if experts else 0)
    assert round(used / 1e9, 3) == model.active_parameters


@pytest.mark.parametrize(
    "sizes", [Sizes(2, 48, tied=True), Sizes(2, 48), Sizes(2, 16, experts=4, experts_per_token=2)]
)
def test_transformers_loads_every_weight(tmp_path: Path, sizes: Sizes) -> None:
    model = hub_model("qwen3_1_7b_base").model_copy(update=SMALL)
    make_stand_in(model, sizes, tmp_path / "model")
    dtype, parameters = require_complete(tmp_path / "model")
    assert dtype == "bfloat16"
    assert parameters == sum(math.prod(shape) for _, shape in weights_of(config_of(model, sizes)))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(tokenizer) == model.vocabulary
    assert tokenizer.decode([7, 63, 9, 2], skip_special_tokens=True).strip() == ""  # nothing to grade


def test_they_are_what_a_run_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cppo doctor` finds model and data whole; a second call makes nothing."""
    run = compose([*HUB, *(f"model.{name}={value}" for name, value in SMALL.items())]).run
    monkeypatch.setitem(SIZES, "Qwen/Qwen3-1.7B-Base", Sizes(2, 48, tied=True))
    said: list[str] = []
    for _ in range(2):
        paths = make_stand_ins([run], tmp_path, said.append)
    assert [line.partition(" in ")[0] for line in said] == [
        "random weights for Qwen/Qwen3-1.7B-Base: 3.44 GB"
    ]
    assert paths == PathsSpec(data=str(tmp_path / "data"), models=str(tmp_path / "models"))
    assert check_model(run, paths).status == check_data(run, paths).status == OK
    rows = read_table(tmp_path / "data" / "train.parquet").to_pylist()
    assert all(is_wrapped(row["prompt"][0]["content"]) for row in rows)
    answers = [row["reward_model"]["ground_truth"] for row in rows]
    assert answers == [str(2 * n + 1) for n in range(2 * run.batch.prompts)]


def test_results_are_kept_apart_from_those_of_real_weights(cppo: Command, tmp_path: Path) -> None:
    """And the report says so."""
    plan = make_plan(load_sweep("main"), ["core=verl", "variant=cppo"])
    real, random = kinds(plan, tmp_path), kinds(plan, tmp_path, random_weights=True)
    assert [kind.runs for kind in random] == [kind.runs for kind in real]
    assert not {kind.folder for kind in random} & {kind.folder for kind in real}
    command = "preflight main core=verl model=qwen3_8b_base variant=cppo --show"
    assert "random weights of these shapes" in cppo(f"{command} --random-weights", code=1).out
    assert "random weights of these shapes" not in cppo(command, code=1).out
