"""Programs that stand in for Slurm's commands: what they answer, and what they were called with."""

import os
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

SILENT = "exec /bin/sleep 600"
# `squeue` fills the format that it is asked for with each line of a file; `sacct` has one state for every job;
# `sbatch` numbers the jobs, or refuses them; `scancel` keeps what it is given; `scontrol` has a file of settings.
COMMANDS = {
    "squeue": """
printf '%s\\n' "$@" > "$ANSWERS/squeue_asked"
echo asked >> "$ANSWERS/squeue_calls"
for word; do case "$word" in --format=*) format="${word#--format=}";; esac; done
while IFS=';' read -r job state comment reason name; do
    filled="s,%i,$job,; s,%U,${OWNER:-$(id -u)},; s,%T,$state,; s,%r,${reason:-None},; s,%j,${name:-cppo},"
    printf '%s\\n' "$format" | sed "$filled; s,%k,$comment,"
done < "$ANSWERS/squeue.txt"
""",
    "sacct": """
echo asked >> "$ANSWERS/sacct_calls"
for word; do jobs="$word"; done
printf '%s\\n' "$jobs" | tr ',' '\\n' | sed "s/\\$/|$(cat "$ANSWERS/sacct.txt")/"
""",
    "sbatch": """
says() { echo "sbatch: error: $1" >&2; exit 1; }
last=$(sed -nE 's/^#SBATCH --array=0-([0-9]+).*/\\1/p' "$1")
tasks=$(($(cat "$ANSWERS/tasks" 2>/dev/null || echo 0) + ${last:-0} + 1))
full="$(cat "$ANSWERS/full" 2>/dev/null)"
case "$*" in *--test-only*) [ "$full" != 0 ] || says QOSMaxSubmitJobPerUserLimit; exit 0;; esac
[ "${last:-0}" -lt "$(cat "$ANSWERS/longest" 2>/dev/null || echo 99)" ] || says "Invalid job array specification"
[ "$tasks" -le "${full:-99}" ] || says QOSMaxSubmitJobPerUserLimit
if grep -q partition=refused "$1"; then says "no such partition"; fi
if grep -q partition=away "$1"; then says "Socket timed out"; fi
echo "$tasks" > "$ANSWERS/tasks"
env > "$ANSWERS/environment"
cp "$1" "$ANSWERS/script"
echo "Submitted batch job $((99 + $(echo x >> "$ANSWERS/taken"; wc -l < "$ANSWERS/taken")))"
""",
    "scancel": 'printf "%s\\n" "$@" >> "$ANSWERS/scancel.txt"',
    "scontrol": """
case "$*" in
*config*) cat "$ANSWERS/config.txt";;
*job*) cat "$ANSWERS/job.txt" 2>/dev/null || exit 1;;
*) echo "Slurmctld(primary) is UP";;
esac
""",
    "sinfo": "",
    "srun": "",
}


class Slurm(NamedTuple):
    """What the stand-ins answer, and what they were called with."""

    folder: Path

    def command(self, name: str, text: str) -> None:
        """A stand-in's script from now on, by default the shell's."""
        (self.folder / name).write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)

    def shows(self, *jobs: str) -> None:
        """`squeue` shows these from now on: job;state;comment, and a reason and a name if there are."""
        (self.folder / "squeue.txt").write_text("".join(f"{job}\n" for job in jobs))

    def says(self, name: str, text: object) -> None:
        """A file that a stand-in reads."""
        (self.folder / name).write_text(f"{text}\n")

    def logged(self, name: str) -> str:
        """A file that a stand-in has written."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    @property
    def script(self) -> list[str]:
        """The lines of the batch script that was submitted last."""
        return self.logged("script").splitlines()

    @property
    def options(self) -> dict[str, str]:
        """What it asks of sbatch."""
        lines = (line.partition("#SBATCH --")[2].partition("=") for line in self.script)
        words = {name: shlex.split(value) or [""] for name, _, value in lines if name}
        return {name: word for name, [word] in words.items()}  # of two words sbatch reads the first alone

    @property
    def cancelled(self) -> list[str]:
        """The jobs that `scancel` was given."""
        return [word for word in self.logged("scancel.txt").split() if not word.startswith("-")]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    answers = Slurm(tmp_path / "answers")
    answers.folder.mkdir()
    for name, text in COMMANDS.items():
        answers.command(name, text)
    monkeypatch.setenv("PATH", str(answers.folder), prepend=os.pathsep)
    monkeypatch.setenv("ANSWERS", str(answers.folder))
    monkeypatch.setattr("cppo_lab.launch.slurm.queue.SETTLING_SECONDS", 0.0)
    answers.shows()
    answers.says("sacct.txt", "")
    answers.says("config.txt", "MaxArraySize            = 4")
    return answers
