"""The GPU kit without a GPU: how its parts are run, what it carries, and whether its comparisons can fail."""

import json
import math
import os
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu_kit import gather, parity, running, update
from benchmarks.gpu_kit.record import Record
from cppo_lab.maths.rules import RULES
from cppo_lab.maths.tokens import Tokens
from tests.waiting import CEILING_SECONDS, until

ROOT = Path(__file__).parents[2]
WORDS = (sys.executable, "-c")
MEASURE = """
import sys
from pathlib import Path
from benchmarks.gpu_kit.record import Record
record = Record("made", Path(sys.argv[sys.argv.index("--file") + 1]))
record.figure("half_way", 1.5, "s", at_most=1.0)
"""
HANG = "import signal; signal.alarm(7200); signal.pause()"


def part(name: str, script: str, **limits: float) -> running.Part:
    return running.Part(name, "made up", **{"limit": 60.0, "least": 0.0, **limits}, words=(*WORDS, script))


def over_when(monkeypatch: pytest.MonkeyPatch, begun: Callable[[], bool]) -> list[float]:
    """The limit of a part that hangs has passed as soon as `begun`; that of the others never passes, and between parts
    no time passes. The limits, as they are given.
    """
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: 0.0))
    wait, limits = subprocess.Popen.wait, list[float]()

    def passed(process: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        if timeout is not None and HANG in str(process.args):
            limits.append(timeout)
            until("the part that hangs has begun", begun)
            raise subprocess.TimeoutExpired("hangs", timeout)
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", passed)
    return limits


def closure(names: list[str]) -> set[str]:
    """These packages and all that they need here, without extras."""
    found: set[str] = set()
    while names:
        name = canonicalize_name(names.pop())
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # for another platform or Python
            continue
        if name not in found:
            found.add(name)
            wanted = [Requirement(need) for need in needs]
            names += [one.name for one in wanted if not one.marker or one.marker.evaluate({"extra": ""})]
    return found


def link(names: set[str], folder: Path) -> None:
    """Lay what these packages have installed in `folder`, by links."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "bin", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A Python with torch, transformers and what they need, and the environment that has the carried packages too."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "venv", symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # Newer versions of typer, which transformers' commands use, need pydantic: the machine may have an older one.
    there = closure(["torch", "transformers"]) - set(gather.CARRIED) | {"typing-extensions"}
    link(there, folder / "venv" / "lib" / version / "site-packages")
    link(set(gather.CARRIED), folder / "carried")
    # Launches in this process set PYTHONSAFEPATH.
    unset = ("PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV", "PYTHONHOME")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {"CPPO_GPU_KIT_SITE": str(folder / "carried"), "OMP_NUM_THREADS": "1"}
    return folder / "venv" / "bin" / "python", environment


@pytest.mark.slow
def test_every_part_runs_with_what_is_carried_and_nothing_else(
    bare: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    python, environment = bare
    alone = subprocess.run(
        [python, "-c", "import mlflow"], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert "No module named 'mlflow'" in alone.stderr  # the bare Python is bare
    command = [
        python,
        "-m",
        "benchmarks.gpu_kit",
        "run",
        "--device",
        "cpu",
        "--minutes",
        "60",
        "--out",
        tmp_path,
    ]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS
    )
    log = tmp_path / running.LOG
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    whole = json.loads((tmp_path / running.RESULT).read_text())
    assert list(whole["parts"]) == [part.name for part in running.PARTS]
    assert re.match(r"[0-9a-f]{40}", whole["commit"])
    for name, found in whole["parts"].items():
        assert found["state"] == running.DONE
        assert found["machine"].keys() >= {"device", "driver", "cuda", "torch", "date"}
        for key, figure in found["figures"].items():
            assert (figure["value"] is None) == bool(figure.get("absent")), f"{name} {key}"
            assert figure.get("met", True), f"{name} {key}: {figure}"
    figures = whole["parts"]["parity"]["figures"]
    assert figures["golden_arrays_checked"]["value"] > 1000
    assert figures["float32_cppo_fixed_near_threshold"]["value"] > 50  # thresholds are pressed
    assert 0.05 < whole["parts"]["update"]["figures"]["masked_fraction"]["value"] < 0.95
    assert whole["parts"]["embedded"]["figures"]["responses_with_a_signal"]["value"] > 0
    assert (tmp_path / running.TABLE).read_text().count("\n") > 200
    assert len(list(tmp_path.iterdir())) == 3  # a lent machine returns eight files at most


def test_nothing_is_carried_that_is_not_imported() -> None:
    script = "import sys; from cppo_lab.sweep.compose import compose; compose([]); print(*sys.modules)"
    loaded = subprocess.run([*WORDS, script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert set(gather.CARRIED.values()) <= set(loaded.split())


def test_a_part_that_fails_takes_no_other_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = over_when(monkeypatch, (tmp_path / "hangs.json").exists)
    parts = [
        part("crashes", f"{MEASURE}\nimport os; print('so far'); os.abort()"),
        part("raises", "raise SystemExit('no such thing')"),
        part("hangs", f"{MEASURE}\n{HANG}", limit=15.0 / running.CPU_SLACK),
        part("measures_nothing", "pass"),
        part("too_long", "pass", least=1e6),
        part("whole", MEASURE),
    ]
    ran = running.run("cpu", tmp_path, 5.0, parts)
    assert [one.state for one in ran.values()] == [
        *(running.FAILED, running.FAILED, running.OVER, running.FAILED, running.SKIPPED, running.DONE)
    ]
    assert "exit code -6: so far" in ran["crashes"].why
    assert "no such thing" in ran["raises"].why
    assert "15 s" in ran["hangs"].why and limits == [15.0]
    assert "were left" in ran["too_long"].why
    whole = json.loads((tmp_path / running.RESULT).read_text())["parts"]
    for name in ("crashes", "hangs", "whole"):  # what was measured before stays
        assert whole[name]["figures"] == {
            "half_way": {"value": 1.5, "unit": "s", "at_most": 1.0, "met": False}
        }
    table = (tmp_path / running.TABLE).read_text()
    assert "1.5 s (at most 1, NOT MET)" in table and "hangs: over its limit" in table


def test_parts_share_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = over_when(monkeypatch, lambda: True)
    hanging = part("hangs", HANG)
    ran = running.run("cpu", tmp_path, 3 / 60, [hanging, part("later", MEASURE, least=20.0)])
    assert [one.state for one in ran.values()] == [running.OVER, running.SKIPPED]
    assert "ended after 3 s" in ran["hangs"].why and limits == [3.0]


def test_no_gpu_is_said(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu_kit",
        "part",
        "parity",
        "--file",
        str(tmp_path / "x.json"),
    ]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert said.returncode == 2 and "sees no GPU" in said.stderr


class TestParity:
    def figures(self, tmp_path: Path) -> dict[str, Any]:
        record = Record("parity", tmp_path / "parity.json")
        parity.rules("cpu", torch.float32, "float32", parity.batch(4, 128), record)
        return {key: figure.value for key, figure in record.figures.items()}

    def test_every_rule_has_a_case(self) -> None:
        assert {rule for rule, _ in parity.CASES.values()} == set(RULES)

    def test_a_threshold_that_is_off_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.figures(tmp_path)["float32_dppo_masks_differ_elsewhere"] == 0
        right = RULES["dppo"]

        def wrong(tokens: Tokens, *, delta: float) -> Any:
            return right(tokens, delta=delta * (1.2 if tokens.logp.dtype == torch.float32 else 1.0))

        monkeypatch.setitem(parity.RULES, "dppo", wrong)
        assert self.figures(tmp_path)["float32_dppo_masks_differ_elsewhere"] > 0

    def test_a_gradient_that_is_off_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        right = RULES["cispo"]

        def wrong(tokens: Tokens, **constants: Any) -> Any:
            output = right(tokens, **constants)
            off = 1.01 if tokens.logp.dtype == torch.float32 else 1.0
            return output._replace(objective=output.objective * off)

        monkeypatch.setitem(parity.RULES, "cispo", wrong)
        assert self.figures(tmp_path)["float32_cispo_gradient_error"] > 1e-3

    def test_only_decisions_on_the_threshold_are_near_it(self) -> None:
        divergence = torch.tensor([[0.03 * (1 + 1e-7), 0.03 * (1 + 1e-5), 0.02, 0.03 * (1 - 1e-7)]])
        one = torch.ones(1, 4, dtype=torch.float64)
        given = parity.Batch(-one, -1.5 * one, one, one.bool(), divergence.double())
        # float32 has no 1 + 1e-7 of this number: exact values, in float64
        given.divergence[0, 0], given.divergence[0, 3] = 0.03 * (1 + 1e-7), 0.03 * (1 - 1e-7)
        near = parity.turned("dppo", given, {"delta": 0.03}, 1e-6)
        assert near.tolist() == [[True, False, False, True]]


class TestUpdate:
    def test_packed_attention_is_each_sequence_alone(self) -> None:
        generator = torch.Generator().manual_seed(0)
        heads, groups, width, bounds = 4, 2, 8, [0, 5, 6, 13]
        query = torch.randn(1, heads, 13, width, generator=generator, dtype=torch.float64)
        key, value = torch.randn(2, 1, groups, 13, width, generator=generator, dtype=torch.float64)
        found, _ = update.packed_attention(None, query, key, value, None, cu_lengths=bounds, scaling=0.3)
        for head in range(heads):
            for place in range(13):
                start = max(bound for bound in bounds if bound <= place)
                own = slice(start, place + 1)
                scores = 0.3 * key[0, head // 2, own] @ query[0, head, place]
                expected = scores.softmax(0) @ value[0, head // 2, own]
                torch.testing.assert_close(found[0, place, head], expected)

    def test_the_estimate_is_of_these_tokens(self) -> None:
        parameters = 1_720_574_976
        seconds, held = update.estimated(update.FULL, parameters)
        flops = sum(6 * n * (parameters + 28 * 2048 * n) for n in update.FULL.lengths)
        assert update.FULL.tokens == 20480
        assert seconds == pytest.approx(flops / (989e12 * 0.30))
        state, logits, layers = 16 * parameters, 8 * 20480 * 151936, 20480 * 2048 * (27 * 2 + 56)
        gathered = 2 * 2 * (parameters / 28 + 151936 * 2048)
        assert held == pytest.approx(state + logits + layers + gathered + 6e9)

    def test_rows_predict_the_responses(self) -> None:
        given = update.inputs(update.TINY, "cpu")
        assert given["topk_ids"].sort(1).values.diff(dim=1).min() > 0  # K different ids
        expected = [p + 7 + t for p, n in ((0, 96), (96, 64), (160, 32)) for t in range(n - 8)]
        assert given["rows"].tolist() == expected
        assert given["tokens"][expected].tolist() == given["ids"][0, [row + 1 for row in expected]].tolist()
        assert given["cu_lengths"].tolist() == [0, 88, 144, 168]
        assert math.isclose(float(given["positions"].max()), 95)


class TestGather:
    LOCK = "a-b==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via c\nc==2 \\\n    --hash=sha256:cc\n"

    def test_the_lock_gives_versions_and_hashes(self) -> None:
        assert gather.locked(self.LOCK, ["a-b"]) == (
            "a-b==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        )
        found = gather.locked(gather.LOCK.read_text(), gather.CARRIED)
        assert found.count("==") == len(gather.CARRIED) and found.count("--hash=") >= len(gather.CARRIED)
        with pytest.raises(gather.GatherFailed, match="has no zz"):
            gather.locked(self.LOCK, ["c", "zz"])

    def test_an_index_that_does_not_answer_is_said(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu_kit", "gather", "--out", str(tmp_path)]
        nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
        # The user's own settings might name another index, or have the packages in their cache.
        nowhere |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_EXTRA_INDEX_URL": ""}
        before = gather.COMMIT.read_bytes() if gather.COMMIT.exists() else None
        said = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | nowhere,
            capture_output=True,
            text=True,
            timeout=CEILING_SECONDS,
        )
        assert said.returncode == 2
        assert re.fullmatch(r"error: pip could not fetch .*is the package index reachable\?.*\n", said.stderr)
        assert not list(tmp_path.iterdir())
        assert (gather.COMMIT.read_bytes() if gather.COMMIT.exists() else None) == before

    def test_an_archive_that_is_too_large_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gather, "LARGEST", 100)
        monkeypatch.setattr(gather, "SITE", ROOT / "benchmarks" / "gpu_kit")
        monkeypatch.setattr(gather, "COMMIT", ROOT / "LICENSE")
        with pytest.raises(gather.GatherFailed, match="leave out more"):
            gather._pack(tmp_path / "x.tar.gz", ["README.md"])
        assert not list(tmp_path.iterdir())
