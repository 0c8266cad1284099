"""Models with random weights in the place of published ones: their shapes, their files, what a preflight says."""

import math
from pathlib import Path

import pytest
from pyarrow.parquet import read_table
from transformers import AutoTokenizer

from cppo_lab.cli import main
from cppo_lab.cores.verl.export import require_complete
from cppo_lab.cores.verl.hf_models import SIZES, Sizes, config_of, make_stand_in, weights_of
from cppo_lab.data.sources import is_wrapped
from cppo_lab.errors import UserError
from cppo_lab.plugins import OK
from cppo_lab.spec import HubModel, PathsSpec
from cppo_lab.sweep.compose import compose
from cppo_lab.sweep.doctor import check_data, check_model
from cppo_lab.sweep.file import load_sweep
from cppo_lab.sweep.plan import make_plan
from cppo_lab.sweep.preflight import kinds, make_stand_ins

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
    assert not list(tmp_path.glob("*.partial"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(tokenizer) == model.vocabulary
    assert tokenizer.decode([7, 63, 9, 2], skip_special_tokens=True).strip() == ""  # nothing to grade


def test_they_are_what_a_run_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cppo doctor` finds model and data whole; a second call makes nothing."""
    composed = compose(
        ["core=verl", "model=qwen3_1_7b_base", *(f"model.{name}={value}" for name, value in SMALL.items())]
    )
    monkeypatch.setitem(SIZES, "Qwen/Qwen3-1.7B-Base", Sizes(2, 48, tied=True))
    said: list[str] = []
    for _ in range(2):
        paths = make_stand_ins([composed.run], tmp_path, said.append)
    assert len(said) == 1
    assert said[0].startswith("random weights for Qwen/Qwen3-1.7B-Base: 3.44 GB in ")
    assert paths == PathsSpec(data=str(tmp_path / "data"), models=str(tmp_path / "models"))
    assert check_model(composed.run, paths).status == OK
    assert check_data(composed.run, paths).status == OK
    rows = read_table(tmp_path / "data" / "train.parquet").to_pylist()
    assert len(rows) == 2 * composed.run.batch.prompts
    assert all(is_wrapped(row["prompt"][0]["content"]) for row in rows)
    answers = [row["reward_model"]["ground_truth"] for row in rows]
    assert answers == [str(2 * n + 1) for n in range(len(rows))]


def test_models_without_stand_ins_are_refused(tmp_path: Path) -> None:
    unknown = ["model=qwen3_8b_base", "model.repository=acme/Other"]
    for overrides, message in [
        (["model=tiny_qwen3"], "model=tiny_qwen3 is made by the product itself: drop --random-weights"),
        (unknown, "repository with known sizes"),
    ]:
        with pytest.raises(UserError, match=message):
            make_stand_ins([compose(["core=verl", *overrides]).run], tmp_path, print)
    assert not (tmp_path / "models").exists()


def test_results_are_kept_apart_from_those_of_real_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the report says so."""
    plan = make_plan(load_sweep("main"), ["core=verl", "variant=cppo"])
    real, random = kinds(plan, tmp_path), kinds(plan, tmp_path, random_weights=True)
    assert [kind.runs for kind in random] == [kind.runs for kind in real]
    assert not {kind.folder for kind in random} & {kind.folder for kind in real}
    monkeypatch.chdir(tmp_path)
    command = ["preflight", "main", "core=verl", "model=qwen3_8b_base", "variant=cppo", "--show"]
    for more, said in ((["--random-weights"], True), ([], False)):
        assert main([*command, *more]) == 1
        assert ("random weights of these shapes" in capsys.readouterr().out) == said
