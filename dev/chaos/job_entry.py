"""What starts Python in the jobs of a chaos run: `eager.py -u -m submitit.core._submit FOLDER`.

A process that sends a run's points exists only once the run has trained for half a minute, and the runs here are over
by then: half of them get it at once. Nothing else of them differs from runs that people launch.
"""

import os
import runpy
import sys


def main() -> None:
    """Run the module that the words behind `-m` name."""
    from cppo_lab.tracking import shipper

    if int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")) % 2 == 0:
        shipper.ASIDE_AFTER_SECONDS = 0.5
    words = sys.argv[sys.argv.index("-m") + 1 :]
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules are not to be taken for others of their names
    main()
