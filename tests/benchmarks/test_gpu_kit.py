"""The GPU kit without a GPU: how its parts are run, what it carries, and whether its comparisons can fail."""

import json
import os
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.gpu_kit import __main__ as kit
from benchmarks.gpu_kit import gather, parity, update
from benchmarks.gpu_kit.record import Record
from cppo_lab.maths.rules import RULES
from cppo_lab.maths.tokens import Tokens
from tests.waiting import CEILING_SECONDS

ROOT = Path(__file__).parents[2]


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
            names += [need.name for need in wanted if not need.marker or need.marker.evaluate({"extra": ""})]
    return found


def link(names: set[str], folder: Path) -> None:
    """Lay what these packages have installed in `folder`, by links."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        files = metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "bin", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))


@pytest.mark.slow
def test_every_part_runs_with_what_is_carried_and_nothing_else(tmp_path: Path) -> None:
    folder, out = tmp_path / "bare", tmp_path / "out"
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
    python = folder / "venv" / "bin" / "python"
    options: Any = {"env": environment, "cwd": ROOT, "capture_output": True, "text": True}
    alone = subprocess.run([python, "-c", "import mlflow"], **options)
    assert "No module named 'mlflow'" in alone.stderr  # the bare Python is bare
    words = ["-m", "benchmarks.gpu_kit", "run", "--device", "cpu", "--minutes", "60", "--out", out]
    done = subprocess.run([python, *words], timeout=CEILING_SECONDS, **options)
    log = out / kit.LOG
    assert done.returncode == 0, done.stdout + done.stderr + (log.read_text() if log.exists() else "")
    whole = json.loads((out / kit.RESULT).read_text())
    assert list(whole["parts"]) == list(kit.PARTS)
    assert re.match(r"[0-9a-f]{40}", whole["commit"])
    for name, part in whole["parts"].items():
        assert part["state"] == kit.DONE
        assert part["machine"].keys() >= {"device", "driver", "cuda", "torch", "date"}
        for key, fields in part["figures"].items():
            figure = kit.Figure(**fields)
            assert (figure.value is None) == bool(figure.absent), f"{name} {key}"
            assert figure.met is not False, f"{name} {key}: {figure}"
    figures = whole["parts"]["parity"]["figures"]
    assert figures["golden_arrays_checked"]["value"] > 1000
    assert figures["float32_cppo_fixed_near_threshold"]["value"] > 50  # thresholds are pressed
    assert 0.05 < whole["parts"]["update"]["figures"]["masked_fraction"]["value"] < 0.95
    assert whole["parts"]["embedded"]["figures"]["responses_with_a_signal"]["value"] > 0
    assert (out / kit.TABLE).read_text().count("\n") > 200
    assert len(list(out.iterdir())) == 3  # a lent machine returns eight files at most


def test_nothing_is_carried_that_is_not_imported() -> None:
    script = "import sys; from cppo_lab.sweep.compose import compose; compose([]); print(*sys.modules)"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert set(gather.CARRIED.values()) <= set(loaded.split())


def test_a_part_that_fails_takes_no_other_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def ended(words: list[str], limit: float, log: Path, *_: float, **options: Any) -> int | None:
        """As if the part of this name had run."""
        name, file = words[4], Path(words[-1])
        limits.append(limit)
        with log.open("a") as output:
            output.write({"crashes": "so far\n"}.get(name, ""))
        if name in ("crashes", "hangs", "whole"):
            Record(file, "cpu").figure("half_way", 1.5, "s", at_most=1.0)
        return {"crashes": -6, "hangs": None, "silent": 1}.get(name, 0)

    monkeypatch.setattr(kit, "limited", ended)
    names = ("crashes", "silent", "hangs", "measures_nothing", "whole")
    monkeypatch.setattr(kit, "PARTS", dict.fromkeys(names, 3.0))
    ran = kit.run_parts("cpu", tmp_path, 5.0)
    assert {name: (part["state"], part["why"]) for name, part in ran.items()} == {
        "crashes": (kit.FAILED, "exit code -6: so far"),
        "silent": (kit.FAILED, "exit code 1: it said nothing"),
        "hangs": (kit.OVER, "ended after 15 s; figures from before are kept"),
        "measures_nothing": (kit.FAILED, "it measured nothing"),
        "whole": (kit.DONE, ""),
    }
    assert limits == [15.0] * 5
    whole = json.loads((tmp_path / kit.RESULT).read_text())["parts"]
    for name in ("crashes", "hangs", "whole"):  # what was measured before stays
        assert whole[name]["figures"]["half_way"]["value"] == 1.5
    table = (tmp_path / kit.TABLE).read_text()
    assert "1.5 s (at most 1, NOT MET)" in table and "hangs: over its limit" in table
    assert kit.run_part("whole", "cpu", tmp_path, 7.5)["why"] == "8 s were left, and it needs 20"


def test_no_gpu_is_said(tmp_path: Path) -> None:
    words = ["-m", "benchmarks.gpu_kit", "part", "parity", "--file", str(tmp_path / "x.json")]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    said = subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert said.returncode == 2 and "sees no GPU" in said.stderr


@pytest.mark.parametrize(
    ("rule", "figure", "least"),
    [("dppo", "float32_dppo_masks_differ_elsewhere", 0), ("cispo", "float32_cispo_gradient_error", 1e-3)],
)
def test_a_rule_that_is_off_is_seen(
    rule: str, figure: str, least: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = RULES[rule]

    def wrong(tokens: Tokens, **constants: Any) -> Any:
        off = 1.2 if tokens.logp.dtype == torch.float32 else 1.0
        if "delta" in constants:
            return right(tokens, delta=constants["delta"] * off)
        output = right(tokens, **constants)
        return output._replace(objective=output.objective * off)

    for function, is_seen in ((right, False), (wrong, True)):
        monkeypatch.setattr(parity, "RULES", {"cppo": RULES["cppo"], rule: function})
        record = Record(tmp_path / "parity.json", "cpu")
        parity.rules("cpu", torch.float32, "float32", parity.batch(4, 128), record)
        assert ((record.figures[figure].value or 0.0) > least) is is_seen


def test_only_decisions_on_the_threshold_are_near_it() -> None:
    # Not by way of float32, which has no 1 + 1e-7 of this number.
    scale = torch.tensor([[1 + 1e-7, 1 + 1e-5, 2 / 3, 1 - 1e-7]], dtype=torch.float64)
    ones = torch.ones_like(scale)
    given = parity.Batch(-ones, -1.5 * ones, ones, ones.bool(), 0.03 * scale)
    near = parity.turned("dppo", given, {"delta": 0.03}, 1e-6)
    assert near.tolist() == [[True, False, False, True]]


def test_packed_attention_is_each_sequence_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    heads, groups, width, bounds = 4, 2, 8, [0, 5, 6, 13]
    query = torch.randn(1, heads, 13, width, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 1, groups, 13, width, generator=generator, dtype=torch.float64)
    found, _ = update.packed_attention(None, query, key, value, None, cu_lengths=bounds, scaling=0.3)
    for head in range(heads):
        for place in range(13):
            start = max(bound for bound in bounds if bound <= place)
            before = slice(start, place + 1)
            scores = 0.3 * key[0, head // 2, before] @ query[0, head, place]
            expected = scores.softmax(0) @ value[0, head // 2, before]
            torch.testing.assert_close(found[0, place, head], expected)


def test_the_estimate_is_of_these_tokens() -> None:
    parameters = 1_720_574_976
    seconds, held = update.estimated(update.FULL, parameters)
    flops = sum(6 * n * (parameters + 28 * 2048 * n) for n in update.FULL.lengths)
    assert update.FULL.tokens == 20480
    assert seconds == pytest.approx(flops / (989e12 * 0.30))
    state, logits, layers = 16 * parameters, 8 * 20480 * 151936, 20480 * 2048 * (27 * 2 + 56)
    gathered = 2 * 2 * (parameters / 28 + 151936 * 2048)
    assert held == pytest.approx(state + logits + layers + gathered + 6e9)


def test_the_lock_gives_versions_and_hashes() -> None:
    lock = "a-b==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n    # via c\nc==2 \\\n    --hash=sha256:cc\n"
    assert gather.locked(lock, ["a-b"]) == "a-b==1.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    carried = gather.locked(gather.LOCK.read_text(), gather.CARRIED)
    assert carried.count("==") == len(gather.CARRIED) <= carried.count("--hash=")
    with pytest.raises(gather.GatherFailed, match="has no zz"):
        gather.locked(lock, ["c", "zz"])


def test_an_index_that_does_not_answer_is_said(tmp_path: Path) -> None:
    words = ["-m", "benchmarks.gpu_kit", "gather", "--out", str(tmp_path)]
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    # The user's own settings might name another index, or have the packages in their cache.
    nowhere |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", "PIP_EXTRA_INDEX_URL": ""}
    before = gather.COMMIT.read_bytes() if gather.COMMIT.exists() else None
    options: Any = {"capture_output": True, "text": True, "timeout": CEILING_SECONDS}
    said = subprocess.run([sys.executable, *words], cwd=ROOT, env=os.environ | nowhere, **options)
    assert said.returncode == 2
    assert re.fullmatch(r"error: pip could not fetch .*is the package index reachable\?.*\n", said.stderr)
    assert not list(tmp_path.iterdir())
    assert (gather.COMMIT.read_bytes() if gather.COMMIT.exists() else None) == before


def test_an_archive_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "LARGEST", 100)
    with pytest.raises(gather.GatherFailed, match="leave out more"):
        gather.pack(tmp_path / "x.tar.gz", ["README.md"])
    assert not list(tmp_path.iterdir())
