"""What would reach sbatch, srun or a batch script, and processes of the local launcher."""

from tests.hostile.case import Case

RUN = ["plan", "quickstart", "variant=grpo", "seed=0"]
WORD = "must match ^[A-Za-z0-9][A-Za-z0-9_.,:+@-]*$"
LINE = "must match ^[^\\n\\r\\x00]*$"


def _slurm(override: str, says: str) -> Case:
    return Case([*RUN, "launcher=slurm", override], says)


def _container(override: str, says: str) -> Case:
    chosen = ["launcher.container.runtime=pyxis", "launcher.container.image=lab.sqsh"]
    chosen = [text for text in chosen if not override.startswith(text.partition("=")[0] + "=")]
    return Case([*RUN, "launcher=slurm", *chosen, override], says)


def _local(override: str, says: str) -> Case:
    return Case([*RUN, override], says)


CASES = [
    _local("launcher.workers=0", "launcher: workers=0: must be in [1, 1000000000]"),
    _local("launcher.workers=-1", "launcher: workers=-1: must be in [1, 1000000000]"),
    _local("launcher.workers=two", "launcher: workers='two': must be a whole number in [1, 1000000000]"),
    _local("launcher.workers=1.5", "launcher: workers=1.5: must be a whole number in [1, 1000000000]"),
    _local("launcher.threads=0", "launcher: threads=0: must be in [1, 1000000000]"),
    _local("launcher.threads=null", "launcher: threads=None: must be a whole number in [1, 1000000000]"),
    _local("launcher.name=ssh", "launcher: name='ssh': must be 'inline', 'local' or 'slurm'"),
    _local(
        "launcher={name: local}",
        "override 'launcher={name: local}': launcher takes one option (valid: inline",
    ),
    _slurm(
        "+launcher.sbatch.comm=x",
        "sbatch.comm='x' must not be set here: write the whole word, sbatch.comment",
    ),
    _slurm(
        "+launcher.sbatch.job-name='$(touch x)'",
        "sbatch.job-name='$(touch x)' must not be set here: it is that of the sweep and the run",
    ),
    _slurm(
        "+launcher.sbatch.wrap='touch x'",
        "sbatch.wrap='touch x' must not be set here: a run is what is submitted",
    ),
    _slurm("+launcher.sbatch.outp=x", "sbatch.outp='x' must not be set here: see `cppo logs`"),
    _slurm("+launcher.sbatch.time=5", "sbatch.time=5 must not be set here: set resources.hours"),
    _slurm(
        "+launcher.sbatch.reservation='a\n#SBATCH --wrap=touch x'",
        "sbatch.reservation='a\\n#SBATCH --wrap=touch x': must be text on one line or",
    ),
    _slurm("+launcher.sbatch.licenses='a\rb'", "sbatch.licenses='a\\rb': must be text on one line or"),
    _slurm(
        "+launcher.sbatch.Reservation=x", "sbatch.Reservation='Reservation': must match ^[a-z][a-z0-9-]*$"
    ),
    _slurm(
        "+launcher.sbatch.exclusive=[1]", "sbatch.exclusive=[1]: must be text on one line or a whole number"
    ),
    _slurm("+launcher.sbatch.begin=nan", "sbatch.begin=nan: must be text on one line or a whole number"),
    _slurm("launcher.sbatch=[1]", "launcher.sbatch=[1]"),
    _slurm("launcher.setup=['a\nb']", f"launcher: setup.0='a\\nb': {LINE}"),
    _slurm("launcher.setup=x", "launcher: setup='x': must be a list: \"launcher.setup=['x']\""),
    _slurm("launcher.setup=[1]", "launcher: setup.0=1: must be text: quote it"),
    _slurm("launcher.srun=['--export=A\nB']", f"launcher: srun.0='--export=A\\nB': {LINE}"),
    _slurm("launcher.srun=--mpi", "launcher: srun='--mpi': must be a list: \"launcher.srun=['--mpi']\""),
    _slurm("launcher.python='a\nb'", f"launcher: python='a\\nb': {LINE}"),
    _slurm("launcher.python=[a]", "launcher: python=['a']: must be text: quote it"),
    _container("launcher.container.runtime=docker", "runtime='docker': must be 'pyxis' or 'apptainer'"),
    _container("launcher.container.image=null", "with image=None: set launcher.container.image"),
    _container("launcher.container.image=' '", "with image=' ': set launcher.container.image"),
    _container("launcher.container.image='a\nb'", f"image='a\\nb': {LINE}"),
    _container(
        "launcher.container.image='--bind=/'", "image='--bind=/' would be read as an option: write ./--bind"
    ),
    _container(
        "launcher.container.mount=[]", "unknown key 'launcher.container.mount': …launcher.container.mounts"
    ),
    _container("+launcher.container.user=x", "unknown key 'container.user': …valid: container.environment"),
    _container(
        "launcher.container.mounts=/a:/b",
        "mounts='/a:/b': must be a list: \"launcher.container.mounts=['/a:/b']\"",
    ),
    _container("launcher.container.mounts=['/a']", "mounts: '/a' is not two paths …write SOURCE:TARGET or"),
    _container("launcher.container.mounts=['/a:/b:rx']", "mounts: '/a:/b:rx' is not two paths"),
    _container("launcher.container.mounts=['a:/b']", "'a' is not an absolute path: write SOURCE:TARGET"),
    _container("launcher.container.mounts=['/a/../c:/b']", "'/a/../c' is not an absolute path"),
    _container("launcher.container.mounts=['/a:/']", "mounts: '/a:/' would hide the whole image"),
    _container(
        "launcher.container.mounts=['/a,/x:/b']", "mounts: '/a,/x' has ',' in it, which container runtimes"
    ),
    _container(
        "launcher.container.mounts=['/a$(touch x):/b']", "'/a$(touch x)' has '$' in it, which container"
    ),
    _container("launcher.container.mounts=['/a\n:/b']", f"mounts.0='/a\\n:/b': {LINE}"),
    _container("launcher.container.mounts=['/a:/c','/b:/c/']", "mounts: two have the target /c: remove one"),
    _container("launcher.container.environment=['A B']", "environment: 'A B': write NAME, or NAME=VALUE"),
    _container("launcher.container.environment=['=x']", "environment: '=x': write NAME, or NAME=VALUE"),
    _container("launcher.container.environment=['A=b\nc']", f"environment.0='A=b\\nc': {LINE}"),
    _container("launcher.container.environment=[A,'A=1']", "environment: A appears twice: remove one"),
    _container(
        "launcher.container.environment=['SLURM_JOB_ID=1']", "SLURM_JOB_ID is set by Slurm and the launcher"
    ),
    _slurm(
        "launcher.container.image=x.sqsh",
        "image='x.sqsh' has no use without a runtime: set launcher.container.runt",
    ),
    _slurm("launcher.container=x", "launcher: container='x': must be a mapping: KEY: VALUE"),
    _local(
        "launcher.container.runtime=pyxis",
        "launcher.container needs launcher=slurm: choose it, or start `cppo`",
    ),
    _local(
        "+launcher.container.runtime=pyxis",
        "launcher.container needs launcher=slurm: choose it, or start `cppo`",
    ),
    _local(
        "+launcher.container={image: x}",
        "launcher.container needs launcher=slurm: choose it, or start `cppo`",
    ),
    _slurm("launcher.requeues=-1", "launcher: requeues=-1: must be in [0, 1000]"),
    _slurm("launcher.requeues=x", "launcher: requeues='x': must be a whole number in [0, 1000]"),
    _slurm("launcher.grace_seconds=5", "launcher: grace_seconds=5: must be in [10, 3600]"),
    _slurm("launcher.grace_seconds=4000", "launcher: grace_seconds=4000: must be in [10, 3600]"),
    _slurm("launcher.grace=5", "unknown key 'launcher.grace': …valid: launcher.grace_seconds"),
    _slurm("resources.partition='gpu;touch x'", f"resources: partition='gpu;touch x': {WORD}"),
    _slurm(
        "resources.partition='gpu\n#SBATCH --wrap=x'",
        f"resources: partition='gpu\\n#SBATCH --wrap=x': {WORD}",
    ),
    _slurm("resources.partition='gpu\n'", f"resources: partition='gpu\\n': {WORD}"),
    _slurm("resources.partition='a\"b'", f"resources: partition='a\"b': {WORD}"),
    _slurm("resources.partition=-x", f"resources: partition='-x': {WORD}"),
    _slurm("resources.partition=", f"resources: partition='': {WORD}"),
    _slurm("resources.account='$(touch x)'", f"resources: account='$(touch x)': {WORD}"),
    _slurm("resources.qos='`touch x`'", f"resources: qos='`touch x`': {WORD}"),
    _slurm("resources.constraint='a b'", "resources: constraint='a b': must match ^[A-Za-z0-9"),
    _slurm("resources.memory_gb=nan", "resources: memory_gb=nan: must be a finite number in [0, inf)"),
    _slurm("resources.memory_gb=-1", "resources: memory_gb=-1: must be in [0, inf)"),
    _slurm("resources.memory_gb=false", "resources: memory_gb=False: must be a number"),
    _slurm("resources.gpu_type=a100:2", "resources: gpu_type='a100:2': must match ^[A-Za-z0-9]"),
    _slurm("resources.cpus=-1", "resources: cpus=-1: must be in [1, 1000000000]"),
    _slurm("resources.hours=20000", "resources: hours=20000: must be in (0, 10000]"),
    _slurm("resources.hours=inf", "resources: hours=inf: must be in (0, 10000]"),
    _slurm(
        "resources.hours=1,2", "override 'resources.hours=1,2': resources.hours takes one value for all runs"
    ),
    _slurm(
        "resources.hours=0.01",
        "resources.hours=0.01 is a limit of 1 min, …set resources.hours higher or launcher.grace",
    ),
]
