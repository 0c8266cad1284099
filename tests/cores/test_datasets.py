"""What runs say that they read, against the problems that they do read."""

import json
import shutil
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.core_records import Resources, load_part
from cppo_lab.data.prepare import prepare
from cppo_lab.schema import Dataset
from cppo_lab.spec import PathsSpec
from cppo_lab.sweep.compose import compose
from tests.conftest import TINY, python
from tests.cores.test_mini import tiny


def datasets_of(*overrides: str, data: Path | None = None) -> dict[str, Dataset]:
    """The datasets of a run by name."""
    spec = compose(list(overrides)).run
    paths = None if data is None else PathsSpec(data=str(data), models=None)
    datasets = load_part(spec.core, "datasets")(spec, Resources(Path(), Path(), paths=paths))
    assert all(len(one.digest) <= 36 for one in datasets)
    contexts = [one.context for one in datasets]
    assert contexts == ([schema.TRAINING] + [schema.VALIDATION] * len(datasets))[: len(datasets)]
    return {one.name: one for one in datasets}


def digests(datasets: dict[str, Dataset]) -> dict[str, str]:
    return {name: one.digest for name, one in datasets.items()}


def test_the_digests_tell_problems_apart() -> None:
    """They are equal where the problems are, and differ where the problems do."""
    from cppo_lab.cores.mini.tasks import make_task, validation_sets

    digest_of: dict[tuple[object, ...], set[str]] = {}
    numbers = (f"data.{key}" for key in ("validation_seed=5", "modulus=7", "validation_problems=5"))
    for change in ("seed=0", "seed=1", "rule=grpo", *numbers):
        spec = tiny(change)
        datasets = datasets_of(*TINY, change)
        for name, problems in validation_sets(make_task(spec.data)).items():
            assert datasets[name].profile["problems"] == len(problems)
            digest_of.setdefault(tuple(problems.identities()), set()).add(datasets[name].digest)
    assert all(len(digests) == 1 for digests in digest_of.values())
    assert len(set().union(*digest_of.values())) == len(digest_of) == 3 * 4


def test_training_problems_depend_on_the_seed_and_the_batches() -> None:
    kinds = ("", "rule=grpo optim.learning_rate=0.1", "seed=1", "batch.prompts=16")
    base, rule, seed, batch = (datasets_of(*TINY, *words.split()) for words in kinds)
    assert list(base) == ["chain", "chain24", "chain25", "chain26"]
    assert (base["chain"].profile["problems"], base["chain"].profile["task"]) == (4 * 8, "chain")
    assert digests(rule) == digests(base) and seed["chain24"] == base["chain24"]
    assert len({datasets["chain"].digest for datasets in (base, seed, batch)}) == 3


def test_both_cores_validate_on_the_same_problems() -> None:
    verl = compose(["core=verl", "model=tiny_qwen3"]).run
    datasets = datasets_of("core=verl", "model=tiny_qwen3")
    data = [f"data.{key}={value}" for key, value in verl.data.model_dump().items() if isinstance(value, int)]
    mini = datasets_of(f"data={verl.data.name}", *data)
    assert all(mini[name] == datasets[name] for name in verl.data.benchmarks)
    assert (
        mini[verl.data.name].digest != datasets[verl.data.name].digest
    )  # drawn batch by batch, or into a file


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "prepared"
    prepare("sample", folder)
    return folder


PAPER = ("core=verl", "model=qwen3_1_7b_base")


def test_prepared_files(prepared: Path) -> None:
    datasets = datasets_of(*PAPER, data=prepared)
    records = json.loads((prepared / "manifest.json").read_text())["files"]
    assert list(datasets) == ["dapo_math", "aime24", "aime25", "aime26"]
    for one in datasets.values():
        record = records[Path(one.source).name]
        assert Path(one.source).parent == prepared
        assert record["content_sha256"].startswith(one.digest) and len(one.digest) == 12
        assert (one.profile["problems"], one.profile["origin"]) == (record["rows"], record["origin"])
    assert datasets["aime25"].profile["problems"] == 30


def test_files_of_another_making(tmp_path: Path, prepared: Path) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(prepared, foreign, ignore=shutil.ignore_patterns("manifest.json"))
    datasets = datasets_of(*PAPER, data=foreign)
    assert len(datasets) == len({*digests(datasets).values()}) == 4
    assert datasets["dapo_math"].profile["digest_of"] == "size and end of the file"
    assert digests(datasets_of(*PAPER, data=foreign)) == digests(datasets)
    (foreign / "train.parquet").write_bytes((prepared / "aime24.parquet").read_bytes())
    (foreign / "manifest.json").write_text("{}")
    (foreign / "aime26.parquet").unlink()  # that the run will say so is not for here
    changed = datasets_of(*PAPER, data=foreign)
    assert list(changed) == ["dapo_math", "aime24", "aime25"]
    assert changed["dapo_math"].digest == datasets["aime24"].digest != datasets["dapo_math"].digest
    assert datasets_of(*PAPER, data=tmp_path / "nowhere") == {}


def test_no_trainer_is_loaded() -> None:
    """Nor verl by its core before it is needed: that takes seconds, and reads the environment."""
    script = (
        "import sys; from cppo_lab.core_records import load_part\n"
        "for core in ('mini', 'verl'): load_part(core, 'datasets')\n"
        "print({'torch', 'verl', 'ray', 'transformers', 'pyarrow'} & sys.modules.keys())\n"
        "load_part('verl', 'train')\n"
        "print({'verl', 'ray', 'transformers'} & sys.modules.keys())"
    )
    assert python("-c", script).stdout == "set()\n" * 2
