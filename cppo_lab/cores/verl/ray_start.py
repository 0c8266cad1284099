"""Ray's command line, with the longer start timeout of `cluster`.

Run as `python -m cppo_lab.cores.verl.ray_start start ...`.
"""

from ray.scripts.scripts import main

from cppo_lab.cores.verl.cluster import longer_start_timeout

if __name__ == "__main__":
    with longer_start_timeout():
        main()
