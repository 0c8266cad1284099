"""What can be freed of runs, what an archive has, and the model card of a run of a published model. The card of a
miniature: cores/verl/test_export.py.
"""

import json
import zipfile
from pathlib import Path

import pytest

from cppo_lab import schema
from cppo_lab.core_records import BEST_CHECKPOINT, BEST_MODEL, CHECKPOINT, CHECKPOINTS, Exported
from cppo_lab.runs import export
from cppo_lab.runs.export import Subject, front_matter, model_card
from cppo_lab.runs.folder import run_lock, write_status
from tests.conftest import user_error, write
from tests.jobs import run_of

WEIGHTS = [CHECKPOINT, CHECKPOINTS, BEST_MODEL, BEST_CHECKPOINT]


def a_run(folder: Path, status: str) -> Path:
    """A run with everything: 1,000 bytes of each kind of weights, and of a result that was replaced."""
    names = [name if name.endswith(".pt") else f"{name}/actor/shard" for name in WEIGHTS]
    write(folder, dict.fromkeys([*names, "replaced/old/status.json"], bytes(1000)))
    write(
        folder, {"spool/0001.jsonl": "rows", "spool/shipped.json": "{}", "attempts/1_submitted.pkl": "code"}
    )
    write_status(folder, {"status": status, "record": "r"})
    return folder


@pytest.mark.parametrize(
    "status, parts, gone, freed",
    [
        ("done", ["checkpoints"], WEIGHTS, 4000),
        ("collapsed", ["superseded"], ["replaced"], 1000),
        ("collapsed", [*export.PARTS], [*WEIGHTS, "replaced"], 5000),
        *((status, [*export.PARTS], [], 0) for status in ("running", "partial", "failed", "", "queued")),
    ],
)
def test_of_a_finished_run_only_what_is_asked_for_is_freed_and_of_others_nothing(
    tmp_path: Path, status: str, parts: list[str], gone: list[str], freed: int
) -> None:
    folder = a_run(tmp_path / "a", status)
    before = {path.name for path in folder.iterdir()}
    usage, finished = export.usage(folder), status in schema.FINISHED
    assert (usage["checkpoints"], usage["superseded"]) == (4000 * finished, 1000 * finished)
    assert usage["disk"] > 5000
    assert export.remove(folder, parts) == freed
    assert before - {path.name for path in folder.iterdir()} == {*gone}
    assert export.remove(folder, parts) == 0


def test_nothing_of_a_run_that_is_trained_again_and_no_link_is_freed(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a", "done")
    with run_lock(folder):  # flock: another descriptor of this process counts as another process
        assert export.remove(folder, [*export.PARTS]) == 0
    elsewhere = tmp_path / "elsewhere"
    (folder / BEST_MODEL).rename(elsewhere)
    (folder / BEST_MODEL).symlink_to(elsewhere)
    assert export.remove(folder, ["checkpoints"]) == 3000
    assert elsewhere.read_bytes() == bytes(1000) and (folder / BEST_MODEL).is_symlink()
    (tmp_path / "b").symlink_to(folder)
    assert export.remove(tmp_path / "b", ["superseded"]) == 0


def packed(folder: Path, out: Path) -> bytes:
    with out.open("wb") as file:
        export.archive({"runs/a": folder, "report": folder / "nowhere"}, {"sweep": "x"}, file)
    return out.read_bytes()


def test_an_archive_has_the_records_and_is_the_same_twice(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "a", "done")
    first = packed(folder, tmp_path / "1.zip")
    (folder / "spool" / "0001.jsonl").touch()
    assert packed(folder, tmp_path / "2.zip") == first
    with zipfile.ZipFile(tmp_path / "1.zip") as archive:
        assert archive.namelist() == ["archive.json", "runs/a/spool/0001.jsonl", "runs/a/status.json"]
        assert json.loads(archive.read("archive.json")) == {"sweep": "x"}
        assert {member.compress_type for member in archive.infolist()} == {zipfile.ZIP_DEFLATED}
    (folder / "note").symlink_to("/etc/passwd")
    with user_error("is a link"):
        packed(folder, tmp_path / "3.zip")


def test_a_published_model_is_named_with_its_revision_and_its_data() -> None:
    """Validated before training and at step 10, where no mean was recorded."""
    spec = run_of("core=verl model=qwen3_1_7b_base")
    model, samples, benchmark = spec.model, spec.validation.samples, spec.data.benchmarks[0]
    rows = {
        0: {schema.validation_metric(schema.MEAN, samples): 0.125},
        10: {schema.validation_metric(benchmark, samples): 0.5},
    }
    subject, exported = Subject(spec, {}, rows), Exported(10, "bfloat16", 1000)
    matter = front_matter(subject, exported)
    assert matter["base_model"] == model.repository == "Qwen/Qwen3-1.7B-Base"
    assert matter["datasets"] == ["BytedTsinghua-SIA/DAPO-Math-17k"]
    assert matter["tags"] == ["cppo-lab", "reinforcement-learning"]
    text = model_card(subject, exported)
    for line in (
        f"| Model | `{model.name}`: `{model.repository}` at `{model.revision}` |",
        "graded by mathematical equality (math-verify)",
        # A score without a mean stands alone.
        f"| Benchmark | Avg@{samples} at step 10 |",
        f"| `{benchmark}` | 0.5000 |",
        "| Score of these weights | not on record |",
    ):
        assert line in text
    assert "miniature" not in text.lower() and "| mean |" not in text
    assert "The scores of step 20 were not recorded." in model_card(subject, Exported(20, "bfloat16", 1000))


def test_a_run_of_a_core_without_an_exporter_is_not_told_to_train_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_of("core=exact model=exact_early")
    subject = Subject(spec, {}, {10: {schema.validation_metric(schema.MEAN, 16): 0.5}}, "done")
    monkeypatch.setattr(export, "read_subject", lambda *_: subject)
    with user_error("core='exact' is no core that exports its models: these are mini, verl"):
        export.export(tmp_path, spec.run_id, tmp_path / "out", print)
