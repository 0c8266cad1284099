"""What runs have learned and logged, for other programs: `cppo export`.

Guarantees of this package:

- A model is a folder that `transformers` loads, with its tokenizer and a model card that names the run (`card.py`).
- A folder appears as a whole or not at all, and nothing that is there is overwritten unasked (`folder.py`).
- A run that is being trained is refused: its best checkpoint may change.
- A model is read from the run's folder, without the tracking store (`subject.py`), and written by the `Exporter` of
  its core (`cppo_lab.cores.base`).
- `metrics.py` writes the metrics of a sweep as Parquet or CSV.

Begin with `export` below.
"""

from collections.abc import Callable
from pathlib import Path

from cppo_lab.cores.base import load_exporter
from cppo_lab.errors import UserError
from cppo_lab.export.card import model_card
from cppo_lab.export.folder import appearing, require_free
from cppo_lab.export.subject import read_subject
from cppo_lab.runs.folder import is_held

CARD = "README.md"


def export(runs: Path, run_id: str, out: Path, say: Callable[[str], None]) -> Path:
    """Write the model that run `run_id` has kept, its tokenizer and its model card to the folder `out`.

    `runs` is the folder of all runs, `say` takes lines of progress. `out` appears as a whole or not at all. Returns its
    resolved path. Raises UserError if the run is being trained, has no usable checkpoint, or if `out` exists and is not
    empty.
    """
    place = require_free(out)
    if is_held(runs / run_id):
        raise being_trained(run_id)
    subject = read_subject(runs, run_id)
    with appearing(place) as folder:
        exported = load_exporter(subject.spec.core)(subject.spec, runs, folder, say)
        (folder / CARD).write_text(model_card(subject, exported), encoding="utf-8")
    return place


def being_trained(run_id: str) -> UserError:
    """The error for a run that is still training, so that its checkpoints may change."""
    return UserError(
        f"run {run_id} is being trained, and its best checkpoint may change: wait for its end (`cppo watch`), or end "
        f"it with `cppo cancel --run {run_id}`"
    )
