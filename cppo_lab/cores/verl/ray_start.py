"""Ray's own command line, with the patience of `ray_local`.

Run as `python -m cppo_lab.cores.verl.ray_start start ...`.
"""

from ray.scripts.scripts import main

from cppo_lab.cores.verl.ray_local import patient_start

if __name__ == "__main__":
    with patient_start():
        main()
