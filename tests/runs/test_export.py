"""The model card of a run of a published model. The one of a miniature: cores/verl/test_export.py."""

from cppo_lab import schema
from cppo_lab.core_records import Exported
from cppo_lab.runs.export import Subject, front_matter, model_card
from cppo_lab.sweep.compose import compose


def made_subject() -> Subject:
    """A run of the paper, validated before training and at step 10, where no mean was recorded."""
    spec = compose(["core=verl", "model=qwen3_1_7b_base"]).run
    samples = spec.validation.samples
    first = spec.data.benchmarks[0]
    rows = {
        0: {schema.validation_metric(schema.MEAN, samples): 0.125},
        10: {schema.validation_metric(first, samples): 0.5},
    }
    return Subject(spec, {}, rows)


def test_a_published_model_is_named_with_its_revision_and_its_data() -> None:
    subject = made_subject()
    model, exported = subject.spec.model, Exported(10, "bfloat16", 1000)
    matter = front_matter(subject, exported)
    assert matter["base_model"] == model.repository == "Qwen/Qwen3-1.7B-Base"
    assert matter["datasets"] == ["BytedTsinghua-SIA/DAPO-Math-17k"]
    assert matter["tags"] == ["cppo-lab", "reinforcement-learning"]
    samples, first = subject.spec.validation.samples, subject.spec.data.benchmarks[0]
    text = model_card(subject, exported)
    for line in (
        f"| Model | `{model.name}`: `{model.repository}` at `{model.revision}` |",
        "graded by mathematical equality (math-verify)",
        # A score without a mean stands alone.
        f"| Benchmark | Avg@{samples} at step 10 |",
        f"| `{first}` | 0.5000 |",
        "| Score of these weights | not on record |",
    ):
        assert line in text
    assert "miniature" not in text.lower() and "| mean |" not in text
    assert "The scores of step 20 were not recorded." in model_card(subject, Exported(20, "bfloat16", 1000))
