"""Diagnostics read from a store's artifacts: what is there, what is absent, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from cppo_lab.analysis import artifacts
from cppo_lab.analysis.artifacts import TokenWindow, read_positions, read_windows
from cppo_lab.analysis.positions import gap_curves, induced_threshold
from cppo_lab.errors import UserError

POSITIONS: dict[str, Any] = {
    "position": [1, 2, 3],
    "tokens": [40, 30, 0],
    "gap_mean": [0.1, 0.2, None],
    "gap_top10": [0.5, 0.6, float("nan")],
    "w_min": 0.8,
    "delta": None,
}
WINDOW: dict[str, Any] = {
    "step": 7,
    "symbols": ["a", "b"],
    "weighted_divergence": [0.1, 0.2],
    "token_threshold": 0.15,
    "prefix_threshold": [0.1, float("inf")],
    "moves_away": [True, False],
    "masked_by": ["prefix", ""],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(uri of a store, an experiment in it with a folder for artifacts)."""
    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    return uri, MlflowClient(uri).create_experiment("x", artifact_location=(folder / "artifacts").as_uri())


def run_with(store: tuple[str, str], name: str | None = None, content: Any = None) -> str:
    """A run with one diagnostic of that content: text as it is, anything else as JSON."""
    client = MlflowClient(store[0])
    mlflow_id = client.create_run(store[1]).info.run_id
    if name is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        client.log_text(mlflow_id, text, f"diagnostics/{name}")
    return mlflow_id


def test_positions(store: tuple[str, str]) -> None:
    mlflow_id = run_with(store, "positions.json", POSITIONS)
    gaps = read_positions(store[0], [mlflow_id])[mlflow_id]
    assert (gaps.positions, gaps.tokens, gaps.w_min, gaps.delta) == ((1, 2, 3), (40, 30, 0), 0.8, None)
    assert gaps.mean[:2] == (0.1, 0.2)
    assert math.isnan(gaps.mean[2])
    assert math.isnan(gaps.top10[2])


def test_window(store: tuple[str, str]) -> None:
    mlflow_id = run_with(store, "window.json", WINDOW)
    window = read_windows(store[0], [mlflow_id])[mlflow_id]
    assert (window.step, window.symbols, window.masked_by) == (7, ("a", "b"), ("prefix", ""))
    assert window.effective() == (0.1, 0.15)


def test_what_the_cores_keep_of_the_longest_responses_is_read_and_small(store: tuple[str, str]) -> None:
    """Both cores go through `cores.diagnostics`; the paper's longest responses have 16,384 tokens."""
    torch = pytest.importorskip("torch")
    from cppo_lab.cores.diagnostics import Diagnostics, ObservedTokens
    from cppo_lab.spec import RuleSpec

    tokens, responses = 16_384, 4
    rule = RuleSpec(name="cppo", delta=0.15, delta_b=0.02, delta_b_mode="fixed", w_min=0.8)
    made = Diagnostics(rule, tokens)
    draw = torch.Generator().manual_seed(1)
    logp, mu = (-3 * torch.rand(responses, tokens, generator=draw) for _ in range(2))
    valid = torch.ones_like(logp).bool()
    made.see(
        3,
        ObservedTokens(
            logp, mu, (logp.exp() - mu.exp()).abs() / 3, torch.ones_like(logp), valid, valid.long()
        ),
        lambda ids: ["中文 \n" for _ in ids],
    )
    made.end_step()
    tables = {name: json.dumps(table) for name, table in made.tables().items()}
    assert all(len(text.encode()) < artifacts.LARGEST / 2 for text in tables.values())
    positions, windows = (run_with(store, f"{name}.json", text) for name, text in tables.items())
    gaps = read_positions(store[0], [positions])[positions]
    assert gaps.tokens == (responses,) * tokens
    assert gaps.mean == pytest.approx((logp.exp() - mu.exp()).abs().mean(0).tolist(), abs=1e-6)
    window = read_windows(store[0], [windows])[windows]
    assert (window.step, len(window.symbols), window.token_threshold) == (3, tokens, 0.15)
    assert {"token", "prefix"} <= set(window.masked_by)


def test_a_run_that_saw_no_token_is_left_out(store: tuple[str, str]) -> None:
    """As a run leaves it whose groups were all equal at every watched step."""
    nothing = {name: [] if isinstance(value, list) else value for name, value in POSITIONS.items()}
    assert read_positions(store[0], [run_with(store, "positions.json", nothing)]) == {}


def test_a_run_without_diagnostics_is_left_out(store: tuple[str, str]) -> None:
    assert read_positions(store[0], [run_with(store), run_with(store, "window.json", WINDOW)]) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
        ({"tokens": [1]}, r"has 1 values of 'tokens' beside lists of 3"),
        ({"tokens": [1, 2, -1]}, r"has tokens\[2\]=-1, which is no count"),
        ({"gap_mean": "much"}, "lacks the list 'gap_mean'"),
        ({"gap_mean": [0.1, True, None]}, r"gap_mean\[1\]=True, which is no number"),
        ({"gap_mean": [0.1, None, None]}, "has no gap at a position that has tokens"),
        ({"position": [1, 2, 4]}, "positions other than 1, 2, 3"),
        ({"w_min": "0.8"}, "has w_min='0.8', which is no number"),
    ],
)
def test_what_is_not_as_it_should_be_is_named(store: tuple[str, str], change: Any, message: str) -> None:
    content = change if isinstance(change, str) else POSITIONS | change
    mlflow_id = run_with(store, "positions.json", content)
    with pytest.raises(UserError, match=rf"diagnostics/positions.json of MLflow run {mlflow_id} .*{message}"):
        read_positions(store[0], [mlflow_id])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"masked_by": ["", "whim"]}, "no reason to mask"),
        ({"moves_away": [1, 0]}, "no true or false"),
        ({"prefix_threshold": [float("nan"), 1]}, "no number"),
        ({"step": None}, "no count"),
        ({name: [] for name, value in WINDOW.items() if isinstance(value, list)}, "has no token"),
    ],
)
def test_a_window_is_checked_as_well(store: tuple[str, str], change: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_windows(store[0], [run_with(store, "window.json", WINDOW | change)])


def test_a_large_file_is_refused(store: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "LARGEST", 10)
    with pytest.raises(UserError, match=r"more than the 10 allowed: delete that artifact"):
        read_positions(store[0], [run_with(store, "positions.json", POSITIONS)])


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_positions(f"sqlite:///{tmp_path / 'none.db'}", ["x"])


def window_of(masked_by: str, kept_away: str = "") -> TokenWindow:
    """One letter a token: t token, p prefix, a kept and moving away, . kept and moving toward."""
    count = len(masked_by)
    reasons = tuple({"t": "token", "p": "prefix"}.get(letter, "") for letter in masked_by)
    away = tuple(letter != "." for letter in masked_by)
    return TokenWindow(1, tuple(masked_by), (0.1,) * count, 0.15, (0.2,) * count, away, reasons)


@pytest.mark.parametrize(
    ("letters", "shown"),
    [
        ("ttttaaaatpa", "aatp"),  # both kinds before many of one; kept ones that move away beside them
        ("....ttaa", "ttaa"),
        ("aaaaaaaa", "aaaa"),
        ("tp", "tp"),
    ],
)
def test_the_window_that_shows_most(letters: str, shown: str) -> None:
    assert "".join(window_of(letters).span(4).symbols) == shown


def test_gaps_are_averaged_over_tokens_then_over_runs(store: tuple[str, str]) -> None:
    one = run_with(store, "positions.json", POSITIONS)
    other = run_with(store, "positions.json", POSITIONS | {"gap_mean": [0.3, 0.2, None]})
    found = read_positions(store[0], [one, other])
    curves = gap_curves(list(found.values()))
    assert curves is not None
    assert curves.runs == 2
    assert curves.mean.positions == (1.0, 2.0)  # the third has too few tokens
    assert curves.mean.mean == pytest.approx((0.2, 0.2))
    assert curves.mean.low == pytest.approx((0.1, 0.2))
    assert curves.mean.high == pytest.approx((0.3, 0.2))
    assert curves.top10.mean == pytest.approx((0.5, 0.6))
    assert gap_curves([]) is None


def test_the_induced_threshold_is_that_of_the_rule() -> None:
    torch = pytest.importorskip("torch")
    from cppo_lab.maths.weights import position_weights

    for length in (1, 2, 7):
        weights = position_weights(torch.ones(1, length, dtype=torch.bool), 0.6, dtype=torch.float64)[0]
        assert induced_threshold(0.15, 0.6, length) == pytest.approx((0.15 / weights).tolist())
