"""What a run keeps of its answers: each problem's outcome, the texts of some, and the tokens of some training groups.

All of it lies in the folder ANSWERS of a run's folder, and in MLflow as artifacts of the same names:

    answers/outcomes.npz              right, cut off and mean length of every problem at every validation (`outcomes`)
    answers/texts-000010.jsonl.gz     prompts and responses of the validated step 10 (`texts`)
    answers/tokens-000010.npz         tokens of training groups of that step, with what a rule decides by (`tokens`)

Files are replaced as a whole, never appended to, and equal contents give equal bytes: a killed and continued run has
the files of an unbroken one. A reader takes nothing in them on trust and raises UserError for what no run has written.
This package knows neither MLflow nor a trainer core; `replay` alone needs torch.
"""

ANSWERS = "answers"  # in a run's folder, and among the artifacts of an MLflow run
