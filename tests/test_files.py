"""Files that cannot be opened: which count as missing, and which are an error. And secrets, masked in any text."""

import errno
import io
import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cppo_lab.files import (
    RedactedLines,
    appearing,
    is_shared,
    mask_output,
    masked_errors,
    names_below,
    open_below,
    open_plain,
    redacted,
    require_free,
)
from tests.conftest import python, user_error
from tests.waiting import CEILING_SECONDS

TOO_LONG = "x" * 300  # no file system takes such a name, whoever asks


def test_a_path_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name in ("none", "file/none", "circle"):
        assert open_plain(tmp_path / name) is None
    for names in (("none",), ("file", "none"), ("none", "file")):
        assert open_below(tmp_path, *names) is None
    assert names_below(tmp_path / "none") == []
    assert names_below(tmp_path) == ["circle", "file"]
    tmp_path.chmod(0o770)
    assert is_shared(tmp_path)
    assert not is_shared(tmp_path / "none")


def test_a_path_that_cannot_be_opened_is_an_error_and_not_a_missing_file(tmp_path: Path) -> None:
    for attempt in (
        lambda: open_plain(tmp_path / TOO_LONG),
        lambda: open_below(tmp_path, TOO_LONG),
        lambda: open_below(tmp_path, TOO_LONG, "file"),
        lambda: open_below(tmp_path / TOO_LONG, "file"),
        lambda: names_below(tmp_path, TOO_LONG),
    ):
        with pytest.raises(OSError, match="File name too long") as caught:
            attempt()
        assert caught.value.errno == errno.ENAMETOOLONG


def test_no_descriptor_is_left_open_by_a_path_that_cannot_be_opened(tmp_path: Path) -> None:
    """In a process of its own: threads of this one may open files at any time."""
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    code = f"""
import os
from pathlib import Path
from cppo_lab.files import open_below, open_plain
before, refused = os.listdir("/proc/self/fd"), 0
assert open_plain(Path("folder")) is None
for names in (("folder", {TOO_LONG!r}), ("folder", "inner"), ("folder", "none"), ("none", "file")):
    try:
        assert open_below(Path(), *names) is None
    except Exception:
        refused += 1
print(refused, os.listdir("/proc/self/fd") == before)
"""
    assert python("-c", code, cwd=tmp_path).stdout == "2 True\n"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc"])
def test_a_name_that_leaves_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for read, *names in ((names_below, name), (open_below, name, "file")):
        with pytest.raises(ValueError, match="must be names within a folder"):
            read(tmp_path, *names)


def test_a_link_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("content")
    (tmp_path / "real" / "link").symlink_to("file")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for read, *names in ((open_below, "link", "file"), (open_below, "real", "link"), (names_below, "link")):
        with user_error(r"/link is a link or not a plain file.*: remove it"):
            read(tmp_path, *names)


@pytest.mark.parametrize(
    ("text", "shown"),
    {
        "postgresql://ada:s3cret@db:5432/mlflow": "postgresql://ada:***@db:5432/mlflow",
        "https://:s3cret@host/x": "https://:***@host/x",
        "https://s3cret@github.com/a/b.git": "https://***@github.com/a/b.git",
        "http://ada:s3c@ret@host": "http://ada:***@host",
        "mysql://ada:s3/cret@host/db": "mysql://ada:***@host/db",
        '{"uri":"http://a:s3cret@h","mail":"x@y"}': '{"uri":"http://a:***@h","mail":"x@y"}',
        "two http://a:s3cret@h http://b:s3cret@i": "two http://a:***@h http://b:***@i",
        "written so far: postgresql://ada:s3cre": "written so far: postgresql://ada:***",
        "http://127.0.0.1:5000/#/runs mail me@home": "http://127.0.0.1:5000/#/runs mail me@home",
        "see http://127.0.0.1:5000": "see http://127.0.0.1:5000",
        "http://ada:5000@host": "http://ada:***@host",
        "postgresql+psycopg://me:a@b:c@host/db": "postgresql+psycopg://me:***@host/db",
        "postgresql://host/db?user=me&password=s3cret": "postgresql://host/db?user=me&password=***",
        "sqlite:////tmp/x.db": "sqlite:////tmp/x.db",
        "step 3: reward=0.5": "step 3: reward=0.5",
        "HF_TOKEN=s3cret x": "HF_TOKEN=*** x",
        "export MLFLOW_TRACKING_PASSWORD='s3cret two'": "export MLFLOW_TRACKING_PASSWORD='***'",
        "AWS_SECRET_ACCESS_KEY: s3/cret+": "AWS_SECRET_ACCESS_KEY: ***",
        "cppo x --api-key s3cret --password=s3cret y": "cppo x --api-key *** --password=*** y",
        "{'db_password': 's3cret', 'n': 1}": "{'db_password': '***', 'n': 1}",
        '{"api_key": "s3cret"}': '{"api_key": "***"}',
        "Authorization: Basic dXNlcjpzM2NyZXQ=": "Authorization: Basic ***",
        "Bearer eyJhbGciOiJIUzI1NiJ9.e30": "Bearer ***",
        "https://h/x?token=s3cret&n=1": "https://h/x?token=***&n=1",
        "https://b/x?X-Amz-Signature=s3cret": "https://b/x?X-Amz-Signature=***",
        f"got hf_{'a' * 34} here": "got hf_*** here",
        "ghp_0123456789abcdefghij": "ghp_***",
        "tokens=5 MAX_TOKENS=6 token=the": "tokens=5 MAX_TOKENS=6 token=the",
        "unknown model '../../etc/passwd': valid: a": "unknown model '../../etc/passwd': valid: a",
        "TOKENIZERS_PARALLELISM=false": "TOKENIZERS_PARALLELISM=false",
        "no password was given; sk-learn-and-more": "no password was given; sk-learn-and-more",
        # Addresses of webhooks.
        "notify.url=http://h/x y": "notify.url=*** y",
        "override 'notify.url=\"http://h/x\"'": "override 'notify.url=\"***\"'",
        '"CPPO_NOTIFY_URL": "https://h/x"': '"CPPO_NOTIFY_URL": "***"',
        "see https://hooks.slack.com/services/T0/B0/xyz.": "see https://hooks.slack.com/***",
        "https://discord.com/api/webhooks/1/abc": "https://discord.com/api/webhooks/***",
        "notify.url is not set": "notify.url is not set",
    }.items(),
)
def test_redacted(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


SECRET = "s3cret"
LINES = [
    f"View run at: http://admin:{SECRET}@host:5000/#/experiments/1\n",
    f"HF_TOKEN={SECRET} and more\r\n",
    "loss 0.5 \u2014 nothing to mask\n",
    f"progress\rconnect postgresql://ada:{SECRET}@db/x\r",
    "\n",
]


@given(st.lists(st.sampled_from(LINES), max_size=5), st.lists(st.integers(0, 300), max_size=8))
def test_however_it_is_cut_the_mask_is_that_of_whole_lines(lines: list[str], cuts: list[int]) -> None:
    content = "".join(lines).encode()
    ends = sorted({min(cut, len(content)) for cut in (0, *cuts)} | {len(content)})
    masked = RedactedLines()
    text = "".join(masked.add(content[a:b]) for a, b in itertools.pairwise(ends)) + masked.rest()
    assert text == redacted(content.decode())
    assert SECRET not in text


AT_THE_END = """
import _imp, sys, threading
from cppo_lab.files import redacted

def hold():
    _imp.acquire_lock()
    threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
while not _imp.lock_held():
    pass
sys.modules.clear()
print(redacted("a://u:p@h, --token abc"))
"""


def test_nothing_is_imported_to_mask_what_is_printed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that Python ends may hold the lock of imports: a job that then waits for it never ends."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)  # its tracer imports
    assert python("-c", AT_THE_END, timeout=CEILING_SECONDS).stdout == "a://u:***@h, --token ***\n"


def test_a_line_without_an_end_is_bounded() -> None:
    masked = RedactedLines()
    assert sum(len(masked.add("x" * 1000)) for _ in range(200)) >= 100_000


def test_what_python_prints_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", out := io.StringIO())
    monkeypatch.setattr("sys.stderr", err := io.StringIO())
    mask_output()
    mask_output()  # once is enough
    print("at", f"http://admin:{SECRET}@", end="")
    assert out.getvalue() == ""  # half of an address is not shown
    print("host", flush=True)
    print("working ...", end="", flush=True)
    print(f"password={SECRET}", file=sys.stderr)
    assert out.getvalue() == "at http://admin:***@host\nworking ..."
    assert err.getvalue() == "password=***\n"


def test_an_error_with_a_secret_is_replaced_by_one_without() -> None:
    with pytest.raises(RuntimeError) as caught, masked_errors():
        raise OSError(f"no route to http://admin:{SECRET}@host")
    assert SECRET not in str(caught.value) and caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "OSError" in str(caught.value) and "admin:***@host" in str(caught.value)
    with pytest.raises(KeyError, match="plain"), masked_errors():
        raise KeyError("plain")


# A folder that appears as a whole.


def test_a_folder_that_cannot_be_put_in_its_place_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "model"
    place.mkdir()
    (place / "file").write_text("old")
    rename = Path.rename

    def full(path: Path, target: Path) -> Path:
        if target == place and (path / "file").read_text() == "new":  # the old folder has been moved away
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr("pathlib.Path.rename", full)
    with (
        pytest.raises(OSError, match=r"No space.*model") as error,  # a write names no file
        appearing(place, replace=True) as folder,
    ):
        (folder / "file").write_text("new")
    assert error.value.filename == str(place)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (place / "file").read_text() == "old"


def test_only_folders_are_removed_as_leftovers(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    (tmp_path / ".model.export-0123abcd").symlink_to(tmp_path / "mine")
    (tmp_path / ".model.export-01234567").write_text("a file of somebody")
    left = {path.name for path in tmp_path.iterdir()}
    (tmp_path / ".model.export-89abcdef").mkdir()  # of an export that was killed
    with appearing(require_free(tmp_path / "model")) as folder:
        (folder / "file").write_text("new")
    assert {path.name for path in tmp_path.iterdir()} == {*left, "model"}
    assert (tmp_path / "mine" / "file").read_text() == "kept"
