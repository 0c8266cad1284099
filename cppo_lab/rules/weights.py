"""The position weight w_t of a token and the range of w_min, without torch: for bounds, figures and configurations.

    w_t = 1 - (1 - w_min) (t - 1) / (T - 1),   t = 1..T;   w_1 = 1 when T = 1

`maths/weights.py` computes the weights of a batch; a test compares the two.
"""

ABOVE, AT_MOST = 0, 1  # w_min lies in (0, 1]; 1 switches the weights off


def is_w_min(value: float) -> bool:
    """Whether w_min may have this value."""
    return ABOVE < value <= AT_MOST


def position_weight(t: int, length: int, w_min: float) -> float:
    """w_t for t = 1..T, T = `length`. The arguments are not checked."""
    return 1 - (1 - w_min) * (t - 1) / max(1, length - 1)
