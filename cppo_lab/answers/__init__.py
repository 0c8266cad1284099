"""The recorded answers of a run: each problem's outcome, the texts of some problems, and the tokens of some training
groups.

The files are in the folder ANSWERS of a run's folder, and in MLflow as artifacts of the same names:

    answers/outcomes.npz              right and truncated answers and mean length of every problem at every validation
    answers/texts-000010.jsonl.gz     prompts and responses of the validated step 10
    answers/tokens-000010.npz         tokens of training groups of that step, with what a rule decided from

`outcomes.py`, `texts.py` and `tokens.py` have the three formats; begin with `reading.py` and `recording.py`.

Files are replaced atomically, never appended to, and equal contents give equal bytes, so a killed and resumed run has
the same files as an uninterrupted run. Readers validate everything and raise UserError for invalid files. This package
depends on neither MLflow, nor torch, nor a trainer core. What a rule would decide on them: `analysis/replay.py`.
"""

ANSWERS = "answers"  # in a run's folder, and among the artifacts of an MLflow run
