"""The prompt of DAPO-Math-17k, which the AIME problems are given too."""

# Taken letter by letter from the rows of BytedTsinghua-SIA/DAPO-Math-17k; a test compares it with such rows.
# PAPER: the validation prompt is not given. DAPO's own AIME-2024 file wraps its problems in this text, so
# all three benchmarks get it: a policy is validated on the form that it is trained on.
BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'


def wrap(problem: str) -> str:
    """The user message that asks for the solution of `problem`."""
    return f"{BEFORE}{problem}{AFTER}"


def is_wrapped(prompt: str) -> bool:
    """Whether a user message has the form that `wrap` gives, around a problem that is not empty."""
    return prompt.startswith(BEFORE) and prompt.endswith(AFTER) and len(prompt) > len(BEFORE) + len(AFTER)
