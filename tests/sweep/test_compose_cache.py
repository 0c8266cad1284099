"""Compositions that are kept are those of Hydra, and count only while nothing that makes them has changed."""

from pathlib import Path

import pytest

from cppo_lab.sweep.compose import cache
from cppo_lab.sweep.compose.cache import composed_before
from cppo_lab.sweep.compose.through_hydra import composed

CHOICES = ("core=verl", "model=qwen3_8b_base", "rule=cppo_kl")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cache, "FOLDER", tmp_path / "compositions")
    return tmp_path / "compositions"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What Hydra was asked for."""
    found: list[tuple[str, ...]] = []

    def compose(choices: tuple[str, ...], resolved: bool) -> dict[str, object]:
        found.append(choices)
        return composed(choices, resolved)

    monkeypatch.setattr(cache, "composed", compose)
    return found


def test_the_second_time_hydra_is_not_asked(folder: Path, asked: list[tuple[str, ...]]) -> None:
    expected = composed(CHOICES, resolved=False)
    assert [composed_before(CHOICES) for _ in range(3)] == [expected] * 3
    assert asked == [CHOICES]
    assert composed_before(("rule=dppo",)) == composed(("rule=dppo",), resolved=False)
    assert len(asked) == 2
    assert len(list(folder.glob("*/*"))) == 2


@pytest.mark.parametrize("kept", [-9, 100, 0])
def test_a_file_that_was_cut_short_is_written_again(
    folder: Path, asked: list[tuple[str, ...]], kept: int
) -> None:
    expected = composed_before(CHOICES)
    [path] = folder.glob("*/*")
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    assert composed_before(CHOICES) == expected
    assert len(asked) == 2
    assert path.read_bytes() == whole


def test_a_change_of_conf_or_of_the_version_asks_again(
    folder: Path, asked: list[tuple[str, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed_before(CHOICES)
    monkeypatch.setattr(cache, "__version__", "0.0.1")
    cache._fingerprint.cache_clear()
    composed_before(CHOICES)
    monkeypatch.undo()
    cache._fingerprint.cache_clear()
    cache._conf_files.cache_clear()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("seed: 0\n")
    monkeypatch.setattr(cache, "CONF", tmp_path / "conf")
    before = cache._conf_files()
    (tmp_path / "conf" / "config.yaml").write_text("seed: 1\n")
    cache._conf_files.cache_clear()
    assert cache._conf_files() != before
    cache._conf_files.cache_clear()
    assert asked == [CHOICES, CHOICES]


def test_choices_of_other_packages_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their configuration is in code, which may change without a file of ours."""
    answers = iter([{"core": "theirs", "rule": 1}, {"core": "theirs", "rule": 2}])
    monkeypatch.setattr(cache, "composed", lambda choices, resolved: next(answers))
    assert [composed_before(("core=theirs",))["rule"] for _ in range(2)] == [1, 2]
    assert not folder.exists()
