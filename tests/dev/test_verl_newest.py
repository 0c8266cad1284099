"""Another verl is looked at without being installed: what it lacks is named."""

import subprocess
import zipfile
from pathlib import Path

from tests.conftest import ROOT, python


def look_at(source: str) -> "subprocess.CompletedProcess[str]":
    return python("-m", "dev.verl_newest", source, cwd=ROOT, check=False)


def test_what_another_verl_lacks_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "verl-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {
            "verl/__init__.py": "",
            "verl-9.9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: verl\nVersion: 9.9.9\n",
            "verl-9.9.9.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "verl-9.9.9.dist-info/RECORD": "",
        }.items():
            archive.writestr(name, text)
    done = look_at(str(wheel))
    assert done.returncode == 1, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first.startswith("verl 9.9.9 in ")
    assert len(rest) > 20, done.stderr
    assert all(" is missing: " in line for line in rest)
    assert any(line.startswith("verl.trainer.ppo.v1.PPOTrainerSync ") for line in rest)


def test_what_cannot_be_installed_is_said(tmp_path: Path) -> None:
    done = look_at(str(tmp_path / "nowhere.whl"))
    assert done.returncode == 2
    assert "dev.verl_newest: error: pip could not install" in done.stderr
