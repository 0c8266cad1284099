"""The wheel carries configs, sweeps, templates and the paper's data, and works from any folder."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_works_from_an_empty_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("cppo_lab", "analysis", "reports", "conf", "sweeps"):
        shutil.copytree(
            ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("build", "__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
    ]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"cppo_lab"}
    licences = {name.rpartition("/")[2] for name in names if "dist-info/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"}
    inside = {name.removeprefix("cppo_lab/") for name in names}
    for folder in ("conf", "sweeps", "reports/paper", "reports/schematic", "reports/templates", "analysis"):
        shipped = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix and "__pycache__" not in path.parts
        }
        assert shipped
        assert shipped <= inside
    assert {f"data/rows/aime{year}.jsonl" for year in (24, 25, 26)} <= inside

    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    environment.pop("MLFLOW_TRACKING_URI", None)
    code = "import cppo_lab, sys; from cppo_lab.cli import main; print(cppo_lab.__file__); main(['plan', 'quickstart'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=empty, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert "6 runs: 6 missing" in done.stdout
    assert list(empty.iterdir()) == []
