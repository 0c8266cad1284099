"""What launcher and job agree on, whatever variables the shell of the user has: the only list of them."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

# Variables of every job: no file of the working folder is imported, and submitit takes the signal that jobs expect for
# a warning.
AGREED = {"PYTHONSAFEPATH": "1", "SUBMITIT_PREEMPT_SIGNAL": "USR2"}
# And those that no job gets: submitit's, which choose its executor and its messages.
_OF_SUBMITIT = re.compile(r"SUBMITIT_|_TEST_CLUSTER_\Z")
# Options of Slurm's commands, and of a job that this process runs in: they would change what Slurm answers or what a
# new job is. Not those that say which cluster, and who asks. `SBATCH_*`: `slurm/submit.py`; git's: `runs/machine.py`.
_OF_SLURM = re.compile(
    r"(?!SLURM_(CONF|CONF_SERVER|CLUSTERS|JWT)\Z)(SQUEUE|SCANCEL|SACCT|SINFO|SCONTROL|SRUN|SLURMD?)_"
)


def agreed(within: bool = True) -> dict[str, str]:
    """The variables of this process, as agreed on.

    `within`: for a process that is part of the Slurm job that this process may run in; else for Slurm's commands.
    """
    foreign = [_OF_SUBMITIT] if within else [_OF_SUBMITIT, _OF_SLURM]
    passed = {
        name: value for name, value in os.environ.items() if not any(names.match(name) for names in foreign)
    }
    return passed | AGREED


@contextlib.contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Have these variables in the block, for libraries that pass on those of this process."""
    before = dict(os.environ)

    def set_all(variables: Mapping[str, str]) -> None:
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)

    set_all(values)
    try:
        yield
    finally:
        set_all(before)
