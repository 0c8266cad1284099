"""Which tests run when. `make test` and plain `pytest`: fast. `make test-all`: fast and full. `make soak`: soak.

Naming files or folders on the command line runs whatever is in them. What is not listed is fast.
"""

from pathlib import Path
from typing import Final

FAST: Final = "fast"  # on any machine, with nothing but Python; docs/tests.md says how long
FULL: Final = "full"  # needs a server, an apt package, root, or minutes
SOAK: Final = "soak"  # finds rare things by volume or chance; not in CI

# Tier -> what is in it, and why: paths below tests/, or path::test. The longest that fits counts.
_NAMED: Final = {
    FULL: (
        "analysis/test_histories_of_server.py",  # an MLflow server
        "benchmarks/test_gpu_kit.py",  # makes a bare environment, and runs the whole kit on the CPU
        "browser",  # Chromium
        "cores/verl",  # Ray, and verl's imports take ten seconds a process
        "data/test_verl.py",  # verl's imports take ten seconds a process
        # A process that loads torch and trains twice.
        "cores/test_loop.py::test_no_run_of_an_embedded_core_loads_the_compiler_or_needs_triton",
        "cores/test_core_records.py::test_a_core_of_another_package_conforms",  # attempts in processes
        "cores/test_core_conformance.py",  # processes that load torch or MLflow
        "launch/test_batches.py",  # groups of runs, killed and continued in processes
        "launch/test_conformance.py",  # twenty processes
        "launch/test_launch.py",  # launches, kills and resumes in every way; test_main_job.py has one of each
        "launch/slurm",  # Slurm and root
        "maths/test_from_logits.py::test_the_kernels_compile_for_an_h100",  # Triton's compiler: ten seconds
        "old_store",  # thirty commands, of which seven train: 40 s
        "reports/test_exact_view.py",  # trains sixteen short runs
        "reports/test_latex.py",  # LaTeX
        # A process that trains two runs, and their report.
        "rules/test_foreign_rules.py::test_an_entry_point_trains_on_the_embedded_core",
        "search/test_kill.py",  # searches whose workers are killed
        "search/test_worker.py",  # searches that train
        "servers",  # an MLflow server, PostgreSQL
        "slurm",  # Slurm and root
        "sweep/test_authors_recipe.py",  # plans nearly every sweep under two recipes, for two cores
        "cli/test_ui.py::test_it_serves_until_it_is_terminated_and_leaves_nothing",  # an MLflow server
        # verl's imports take ten seconds.
        "testing/test_across.py::test_verls_own_losses_are_ours_under_the_recorded_settings",
        "test_working_folder.py",  # starts every command and every kind of job in new processes
        "test_reaper.py",  # three sessions of pytest
        "test_wheel.py",  # builds and installs the package
    ),
    SOAK: (
        "cores/verl/test_async_runs.py",  # two trainings with Ray: minutes of one core
        "cores/verl/vllm/test_vllm_async.py",  # the same with vLLM: six minutes
        "dev/test_gpu_lock.py::test_the_locks_are_solutions",  # asks the package index, whose answer changes
        # A minute; with Apptainer it is in the full tier.
        "launch/slurm/test_containers.py::test_a_run_in_a_container_goes_on_after_whatever_slurm_does_to_it[pyxis]",
        "launch/slurm/test_two_accounts.py::test_both_launch_a_new_folder_at_once",  # two minutes
        "launch/slurm/test_two_accounts.py::test_one_submits_and_the_other_sees_it",  # two minutes
        # Two starts of Ray: ten minutes of two cores; on one machine it is in the full tier.
        "slurm/test_ray_nodes.py::test_a_preflight_starts_and_resumes_on_two_machines",
        "slurm/test_ray_nodes.py::test_machines_join_from_containers[apptainer]",  # a start of Ray
        # Two starts of Ray.
        "slurm/test_ray_nodes.py::test_two_jobs_share_two_machines_and_each_ends_without_the_other",
    ),
    FAST: (
        "launch/slurm/test_several_nodes.py",  # needs no Slurm
        "slurm/test_without_slurm.py",  # needs no Slurm
    ),
}
TIERS: Final = {path: tier for tier, paths in _NAMED.items() for path in paths}
# What --tier takes -> the tiers that run.
CHOICES: Final = {"fast": {FAST}, "rest": {FULL}, "all": {FAST, FULL}, "soak": {SOAK}}


def tier(path: Path, test: str = "") -> str:
    """The tier of a file by its path below tests/, or of a test in it by its name, without parameters or with them."""
    tests = [f"{path.as_posix()}::{name}" for name in (test, test.partition("[")[0])]
    names = (*tests, *(part.as_posix() for part in (path, *path.parents)))
    return next((TIERS[name] for name in names if name in TIERS), FAST)


def tiers_in(path: Path) -> set[str]:
    """The tiers of the tests of a file, by its path below tests/."""
    return {tier(path), *(TIERS[name] for name in TIERS if name.startswith(f"{path.as_posix()}::"))}
