"""The cache of histories: what it gives back is what was put in, or nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cppo_lab.analysis import history_cache
from cppo_lab.analysis.history_cache import HistoryCache
from cppo_lab.store.history import from_rows, pack
from tests.waiting import CEILING_SECONDS

URI = "sqlite:////data/mlflow.db"
RUN = "0123456789abcdef"


def packed(value: float, steps: int = 3) -> bytes:
    """A small history whose values are all `value`."""
    return pack(from_rows([(step, 0, {"a": value}) for step in range(steps)]))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all histories of this test."""
    monkeypatch.setattr(history_cache, "FOLDER", Path("cppo-lab/histories"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "cppo-lab" / "histories"


def only_file(home: Path) -> Path:
    """The one file there is."""
    (path,) = [path for path in home.rglob("*") if path.is_file()]
    return path


def test_what_was_put_in_comes_out_at_the_same_version_only(home: Path) -> None:
    cache = HistoryCache(URI)
    assert cache.get(RUN, "v1") is None
    cache.put(RUN, "v1", packed(0.5))
    assert only_file(home).stat().st_mode & 0o077 == 0
    found = HistoryCache(URI).get(RUN, "v1")
    assert found is not None and pack(found) == packed(0.5)
    assert cache.get(RUN, "v2") is None
    assert cache.get(RUN, "v") is None
    assert cache.get(RUN, "v11") is None
    assert HistoryCache("sqlite:////data/other.db").get(RUN, "v1") is None
    cache.put(RUN, "v2", packed(0.7))
    assert cache.get(RUN, "v1") is None
    only_file(home)


@pytest.mark.parametrize(
    "content", [b"", b"v1", b"v1\n", b"\n", b"v1\nsomething else", b"v1\n" + packed(0.5)[:-9], bytes(5000)]
)
def test_a_broken_or_foreign_file_is_as_good_as_none_and_is_replaced(home: Path, content: bytes) -> None:
    cache = HistoryCache(URI)
    cache.put(RUN, "v1", packed(0.5))
    only_file(home).write_bytes(content)
    assert cache.get(RUN, "v1") is None
    cache.put(RUN, "v1", packed(0.6))
    assert cache.get(RUN, "v1") is not None


def test_a_password_neither_names_nor_separates_a_store() -> None:
    HistoryCache("https://mia:secret@host:5000/x").put(RUN, "v1", packed(0.5))
    assert HistoryCache("https://host:5000/x").get(RUN, "v1") is not None


def test_an_id_that_leads_elsewhere_is_not_kept(home: Path) -> None:
    HistoryCache(URI).put("../../outside", "v1", packed(0.5))
    assert not home.exists()


def test_no_place_to_keep_anything_is_no_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.parent.mkdir()
    home.write_text("a file where the folder should be")
    cache = HistoryCache(URI)
    cache.put(RUN, "v1", packed(0.5))
    assert cache.get(RUN, "v1") is None
    cache.prune()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    homeless = HistoryCache(URI)
    homeless.put(RUN, "v1", packed(0.5))
    homeless.prune()
    assert homeless.get(RUN, "v1") is None


def test_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "mia"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/folder")
    HistoryCache(URI).put(RUN, "v1", packed(0.5))
    only_file(tmp_path / "mia" / ".cache" / "cppo-lab" / "histories")


def test_the_files_that_were_not_used_for_longest_go_first(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = HistoryCache(URI)
    for number in range(10):
        HistoryCache(f"{URI}{number % 2}").put(f"{number}", "v", packed(number))
    size = max(path.stat().st_size for path in home.rglob("*.history"))
    for path in home.rglob("*.history"):
        os.utime(path, (1000 + int(path.stem), 1000 + int(path.stem)))
    monkeypatch.setattr(history_cache, "MOST_BYTES", 10 * size)
    cache.prune()
    assert len(list(home.rglob("*.history"))) == 10
    assert HistoryCache(f"{URI}0").get("0", "v") is not None  # used now
    monkeypatch.setattr(history_cache, "MOST_BYTES", 5 * size)
    cache.prune()
    assert sorted(path.stem for path in home.rglob("*.history")) == ["0", "7", "8", "9"]


HAMMER = """
import sys
from cppo_lab.analysis.history_cache import HistoryCache
from cppo_lab.store.history import from_rows, pack

me = int(sys.argv[1])
cache = HistoryCache("sqlite:////data/mlflow.db")
mine = pack(from_rows([(step, 0, {"a": float(me)}) for step in range(2000)]))
seen = set()
for turn in range(150):
    cache.put("shared", "v", mine)
    found = cache.get("shared", "v")
    assert found is not None  # nobody ever sees half a file, or none in between
    assert len(set(found.value.tolist())) == 1 and len(found.value) == 2000
    seen.add(found.value[0])
    cache.prune()
print(*sorted(seen))
"""


def test_several_processes_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        subprocess.Popen([sys.executable, "-c", HAMMER, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    outputs = [process.communicate(timeout=CEILING_SECONDS)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0, 0]
    assert all(str(float(number)) in output for number, output in enumerate(outputs))
    assert HistoryCache(URI).get("shared", "v") is not None
    only_file(home)
