"""The command that starts Python in the jobs of a chaos run: `job_entry.py -u -m submitit.core._submit FOLDER`.

The uploading process of a job normally starts after half a minute of training, when the runs here are already over. So
half of them start it at once. Otherwise they equal runs that users launch.
"""

import os
import runpy
import sys


def main() -> None:
    """Run the module named after `-m`."""
    from cppo_lab.tracking import uploader

    if int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")) % 2 == 0:
        uploader.FIRST_SECONDS = 0.5
    words = sys.argv[sys.argv.index("-m") + 1 :]
    sys.argv = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if not sys.flags.safe_path:  # PYTHONSAFEPATH
        sys.path.pop(0)  # this folder, whose modules must not shadow others
    main()
