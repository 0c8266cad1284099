"""Overrides: what Hydra's grammar refuses, would take for something else, or follows out of conf/; what would reach
sbatch, srun or a batch script, and processes of the local launcher.
"""

import shlex
from collections.abc import Mapping

from tests.hostile.case import Case

QUOTE = "a value with spaces or special characters needs quotes: "
NAME = "must match ^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
RESOLVER = "${NAME:...} is not resolved: write the value itself"
SEED = "must be a whole number in [0, 2147483648)"
VARIANTS = "the variants of sweep quickstart set 'rule' themselves; choose among them with variant="
ONE_VALUE = "takes one value for all runs; a comma within it needs quotes"
WORD = "must match ^[A-Za-z0-9][A-Za-z0-9_.,:+@-]*$"
LINE = "must match ^[^\\n\\r\\x00]*$"

PLAN = {
    "batch.prompts=2000000001": "configuration: batch.prompts=2000000001: must be in [1, 1000000000]",
    "rule.ratio_cap=0.5": "rule.ratio_cap=0.5: must be in [1, inf)",
    "rule.log_ratio_clamp=0": "rule.log_ratio_clamp=0: must be",
    "rule.delta_b_cap=0.9": "rule.delta_b_cap=0.9: must be in [1, inf)",
    "rule.delta_b_cap=.inf": "(infinity is `inf` on the command line, `.inf` in YAML)",
    "rule.delta_b_scale=true": "rule.delta_b_scale=True: must be a number",
    "tracking.answers.problems=foo":
        "tracking: answers.problems='foo': must be a whole number in [0, 1000000] or 'all'",
    "w_min=1": "unknown key 'w_min': did you mean 'rule.w_min' or 'trust_region.w_min'?",
    "training.learning_rate=1": "did you mean 'optim.learning_rate' or 'model.warm_start.learning_rate'?",
    "model=qwen3_8b": "unknown model 'qwen3_8b': did you mean 'qwen3_8b_base'?",
    "model=mini": "unknown model 'mini': did you mean 'mini_base' or 'mini_long'?",
    "paths.models='${oc.env:SECRET}'": "${NAME:...} is not resolved: write the value itself",
    "paths.models=$\\{oc.env\\:SECRET\\}": "${NAME:...} is not resolved: write the value itself",
    "+paths={models: ['${oc.env:SECRET}']}": "${NAME:...} is not resolved: write the value itself",
    "a=": "unknown key 'a': valid: advantage, along, batch, core, data",
    "": "override '' is not of the form key=value",
    "~rule": "override '~rule' is not of the form key=value",
    "+=1": "unknown key '': valid: along, core",
    "seed=0,,1": f"override 'seed=0,,1' is not key=value as Hydra reads it (…): {QUOTE}",
    "seed=choice()":
        "override 'seed=choice()' is not key=value as Hydra reads it (…empty choice is not legal",
    "seed=glob(*)": "override 'seed=glob(*)': seed takes one value here; a sweep takes several: seed=1,2",
    "seed=range(0,1000000000)":
        "override 'seed=range(0,1000000000)': lists more than 100,000 values: list fewer",
    "seed=" + "9" * 5000: f"override 'seed=999…999' is not key=value …: {QUOTE}",
    "data.name=" + "[" * 1000: QUOTE,
    "data.name='a": f"""override "data.name='a" is not key=value as Hydra reads it (…): {QUOTE}""",
    "data.name=a\nb": f"override 'data.name=a\\nb' is not key=value as Hydra reads it (…): {QUOTE}",
    "data.name=\x00": f"override 'data.name=\\x00' is not key=value as Hydra reads it (…): {QUOTE}",
    "data.name='\udc80'": "configuration: a value is not UTF-8 text: …: type it again",
    "data.name='\x1b[2J'": f"configuration: data.name='\\x1b[2J': {NAME}",
    "data.name=" + "x" * 100000: f"configuration: data.name='xxx…xxx': {NAME}",
    "rule.w_min=${oc.env:HOME}": f"override 'rule.w_min=${{oc.env:HOME}}': {RESOLVER}",
    "data.name=x${seed}${oc.env:HOME}": RESOLVER,
    "data.name=${": f"override 'data.name=${{' is not key=value as Hydra reads it (…): {QUOTE}",
    "training.t_stop=${nothing}":
        "Interpolation key 'nothing' not found: `cppo show SWEEP` prints the valid keys",
    "training.t_stop=${training.t_stop}": "Recursive interpolation detected",
    "model=../rule/cppo": "unknown model '../rule/cppo': valid: exact_early",
    "+rule@x=../../conf/config": "override '+rule@x=../../conf/config': rule takes one option (valid: cfpo, cispo",
    "~rule=cppo": "override '~rule=cppo': rule takes one option (valid: cfpo, cispo",
    "@seed=0": "unknown key '@seed': valid: along, core",
    "hydra.run.dir=/tmp/x": "unknown key 'hydra.run.dir': valid: along, core",
    "+hydra/job_logging=none": "unknown key 'hydra/job_logging': valid: along, core",
    "rule=cpo": f"override 'rule=cpo': {VARIANTS}",
    "rule={a: b}": f"override 'rule={{a: b}}': {VARIANTS}",
    "divergence=topk": "unknown divergence 'topk': did you mean 'topk_kl' or 'topk_tv'? valid: binary_kl",
    "launcher=local,slurm": f"override 'launcher=local,slurm': launcher {ONE_VALUE}",
    "tracking=null": "unknown tracking 'None': valid: mlflow",
    "core=tpu": "unknown core 'tpu': valid: exact, mini, verl",
    "core=mini,verl": "unknown core 'mini,verl': did you mean 'mini' or 'verl'? valid: exact, mini, verl",
    "model=qwen3_8b_base":
        "model='qwen3_8b_base' is a published model, which core='mini' cannot train: add core=verl",
    "variant=CPPO":
        "unknown variant of sweep quickstart 'CPPO': did you mean 'cppo'? valid: cppo, dppo, grpo",
    "batch=8": "configuration: batch=8: must be a mapping: KEY: VALUE",
    "+nosuch.key=1": "configuration: unknown key 'nosuch': valid: advantage",
    "+rule.new=1": "configuration: unknown key 'rule.new': did you mean 'rule.name'?",
    "optim.lr=1": "unknown key 'optim.lr': …valid: optim.beta1",
    "rule.options.x=1": "unknown key 'rule.options.x': did you mean 'rule.options'? valid: advantage",
    "trust_region.nothing=1": "no run of this sweep depends on 'trust_region.nothing'; remove it",
    "tracking.url=x": "unknown key 'tracking.url': did you mean 'tracking.uri'?",
    "launcher.requeues=3": "unknown key 'launcher.requeues': …valid: launcher.name, launcher.threads",
    "seed=-1": "configuration: seed=-1: must be in [0, 2147483648)",
    "seed=1.5": f"configuration: seed=1.5: {SEED}",
    "seed=true": f"configuration: seed=True: {SEED}",
    "seed='0'": f"configuration: seed='0': {SEED}",
    "seed=0-3": f"configuration: seed='0-3': {SEED}; several: seed=range(0,4) on the command line, a list in YAML",
    "models=x": "unknown key 'models': did you mean 'model'?",
    "seed={a: 1}": "override 'seed={a: 1}': seed takes plain values here: seed=1,2",
    "seed=[0,1]": "override 'seed=[0,1]': seed takes plain values here, not lists: seed=1,2",
    "batch.prompts=-8": "configuration: batch.prompts=-8: must be in [1, 1000000000]",
    "batch.prompts=[8]": "configuration: batch.prompts=[8]: must be a whole number in [1, 1000000000]",
    "batch.responses=1": "configuration: batch.responses=1: must be in [2, 1000000000]",
    "batch.minibatch_prompts=7": "batch: minibatch_prompts=7 must divide prompts=16 (valid: [1, 2",
    "optim.learning_rate=nan": "configuration: optim.learning_rate=nan: must be a finite number in (0, inf)",
    "optim.beta1=1": "configuration: optim.beta1=1: must be in [0, 1)",
    "training.t_stop=13":
        "training.t_stop=13 must lie on the validation grid: make it a multiple of validation.every=5",
    "training.aggregation=sum": "configuration: training.aggregation='sum': must be 'token-mean', ",
    "rollout.precision=float16":
        "configuration: rollout.precision='float16': must be 'float32' or 'bfloat16'",
    "rollout.max_response_length=5": "raise max_response_length to 13 or more, or lower operations",
    "rollout.top_p=0": "configuration: rollout.top_p=0: must be in (0, 1]",
    "rollout.top_p=0.9": "rollout.top_p=0.9: core=mini evaluates …set rollout.top_p=1.0",
    "advantage.normalize_std=1": "configuration: advantage.normalize_std=1: must be true or false",
    "model.architecture.heads=3": "heads=3 must be a multiple of kv_heads=2",
    "model.architecture.head_dim=3": "head_dim=3 must be even",
    "data.benchmarks=[]": "benchmarks=[] must be one or more distinct names",
    "data.benchmarks=[mean]": "'mean' names the mean over them; choose another",
    "data.benchmarks=['a/b']": f"configuration: data.benchmarks.0='a/b': {NAME}",
    "data.benchmarks=x": "configuration: data.benchmarks='x': must be a list: \"data.benchmarks=['x']\"",
    "divergence.k=1000000": "set divergence.k=206 or less",
    "divergence.estimator=binary": "k and convention belong to estimator 'topk', and only to it",
    "trust_region.delta=x": "configuration: rule.delta='x': must be a number in (0, inf)",
    "paths.data=1,2": f"override 'paths.data=1,2': paths.data {ONE_VALUE}",
    "tracking.uri=5": "tracking: uri=5: must be text: quote it",
}  # fmt: skip

LAUNCH = {
    "rule.name=cpo": "unknown rule 'cpo': did you mean 'cfpo' or 'cppo'?",
    "rule.w_min=0": "rule.w_min=0: must be in (0, 1]",
}

VERL = {
    "rollout.staleness=101": "rollout.staleness=101: must be in [0, 100]",
    "layout.strategy=ddp": "layout: strategy='ddp': must be 'fsdp2' or 'megatron'",
    "layout.tokens_per_device=10":
        "set layout.tokens_per_device=18 or more, or raise layout.sequence_parallel",
    "layout.sequence_parallel=3": "sequence_parallel=3 must divide the 1 devices of the layout",
    "layout.device=cuda": "rollout='cppo_cpu' with device='cuda': it serves CPUs; GPUs are served by vllm",
    "layout.verl=5": "layout: verl=5: must be a mapping: KEY: VALUE",
    "+layout.verl={data.seed: 1}": "layout.verl sets data.seed=1. …: drop it, or set the run's own field",
    "+layout.verl={trainer.max_actor_ckpt_to_keep: 1}": "max_actor_ckpt_to_keep=1, …set 2 or more, or null to keep all",
    "+layout.verl={trainer.max_actor_ckpt_to_keep: '2'}": "max_actor_ckpt_to_keep='2', …set 2 or more",
    "+layout.verl={actor_rollout_ref.rollout.max_num_seq: 1}":
        "docs/verl.md lists the keys; did you mean 'actor_rollout_ref.rollout.max_num_seqs'?",
    "+layout.verl={num_workers: 1}":
        "did you mean 'actor_rollout_ref.rollout.agent.num_workers' or 'reward.num_workers'?",
    "+layout.verl={trainer.nnodes: 1}": "layout.verl sets trainer.nnodes=1. …: set layout.nodes",
    "+layout.verl={actor_rollout_ref.model.lora_rank: 1}": ": set optim.lora_rank, which enters the id",
    "rollout.router_replay=R2": "core=verl recomputes none (mu's are the engine's); set rollout.router_replay=R3",
    "rollout.router_replay=R3": "router_replay='R3': model=tiny_qwen3 has no experts to route to; set null",
    "rollout.quantization=fp8":
        "quantization='fp8' cannot be had with layout='cpu', …choose a layout with GPUs, or set rollout.quan",
    "rollout.mode=async":
        "rollout: mode='async' with max_staleness=None: set mode=async and max_staleness=1 or more, or neither",
    "rollout.max_staleness=1": "rollout: mode='sync' with max_staleness=1: set mode=async",
    "optim.lora_rank=8": "optim: lora_rank=8 with lora_alpha=None: set both, or neither",
    "layout.checkpoint_every=0": "layout: checkpoint_every=0: must be in [1, 1000000000]",
    "layout.checkpoint_every=5": "checkpoint_every=5 is beyond the run's last step, training.t_stop=4: lower it",
    "rollout.top_p=0.95": "rollout.top_p=0.95: core=verl evaluates …set rollout.top_p=1.0",
    "rollout.temperature=0.001": "rollout.temperature=0.001: …set rollout.temperature=0.01 or more",
    "validation.temperature=0.001": "validation.temperature=0.001: …set validation.temperature=0.01 or more",
    "layout.megatron={}": "layout: megatron.tensor is missing: add it",
}  # fmt: skip

EXACT = {
    "validation.top_p=0.95": "validation.top_p=0.95: core=exact evaluates …set validation.top_p=1.0",
    "rollout.max_response_length=5000": "rollout.max_response_length=5000: core=exact keeps …set 4096 or less",
    "rollout.max_response_length=5": "model.stretches=8 of a response of 5 tokens: set 5 or less",
    "model.slips=64": "model.slips=64 of 64 tokens: a start makes fewer",
    "data.benchmarks=[a,b,c,d]": "are more than the 3 ordinary symbols, …: raise vocabulary, or name fewer",
    "data.family=fork": "data.family='fork': must be 'early_fork', ",
}

LOCAL = {
    "launcher.workers=0": "launcher: workers=0: must be in [1, 1000000000]",
    "launcher.workers=two": "launcher: workers='two': must be a whole number in [1, 1000000000]",
    "launcher.name=ssh": "launcher: name='ssh': must be 'inline', 'local' or 'slurm'",
    "launcher={name: local}": "override 'launcher={name: local}': launcher takes one option (valid: inline",
    "rollout.router_replay=R3": "rollout.router_replay='R3': core=mini has none; drop it, or choose core=verl",
    "rollout.quantization=fp8": "rollout.quantization='fp8': core=mini has none; drop it, or choose core=verl",
    "optim.master_dtype=bfloat16": "optim.master_dtype='bfloat16': core=mini has none; drop it",
    "layout.checkpoint_every=2": "core=mini has checkpoints at its validations alone: drop it or choose core=verl",
    "+launcher.container={image: x}": "launcher.container needs launcher=slurm: choose it, or start `cppo`",
}  # fmt: skip

SLURM = {
    "+launcher.sbatch.comm=x": "sbatch.comm='x' must not be set here: write the whole word, sbatch.comment",
    "+launcher.sbatch.job-name='$(touch x)'":
        "sbatch.job-name='$(touch x)' must not be set here: it is that of the sweep and the run",
    "+launcher.sbatch.wrap='touch x'":
        "sbatch.wrap='touch x' must not be set here: a run is what is submitted",
    "+launcher.sbatch.outp=x": "sbatch.outp='x' must not be set here: see `cppo logs`",
    "+launcher.sbatch.time=5": "sbatch.time=5 must not be set here: set resources.hours",
    "+launcher.sbatch.reservation='a\n#SBATCH --wrap=touch x'":
        "sbatch.reservation='a\\n#SBATCH --wrap=touch x': must be text on one line or",
    "+launcher.sbatch.licenses='a\rb'": "sbatch.licenses='a\\rb': must be text on one line or",
    "+launcher.sbatch.Reservation=x": "sbatch.Reservation='Reservation': must match ^[a-z][a-z0-9-]*$",
    "+launcher.sbatch.exclusive=[1]": "sbatch.exclusive=[1]: must be text on one line or a whole number",
    "launcher.sbatch=[1]": "override 'launcher.sbatch=[1]': launcher.sbatch must be a mapping: KEY: VALUE",
    "+launcher.srun={a: 1}": "launcher.srun must be a list: [...]",
    "paths=1": "paths: must be a mapping: KEY: VALUE",
    "launcher.setup=['a\nb']": f"launcher: setup.0='a\\nb': {LINE}",
    "launcher.srun=['--export=A\nB']": f"launcher: srun.0='--export=A\\nB': {LINE}",
    "launcher.srun=--mpi": "launcher: srun='--mpi': must be a list: \"launcher.srun=['--mpi']\"",
    "launcher.python='a\nb'": f"launcher: python='a\\nb': {LINE}",
    "launcher.container.image=x.sqsh":
        "image='x.sqsh' has no use without a runtime: set launcher.container.runt",
    "launcher.container=x": "launcher: container='x': must be a mapping: KEY: VALUE",
    "launcher.requeues=-1": "launcher: requeues=-1: must be in [0, 1000]",
    "launcher.grace_seconds=5": "launcher: grace_seconds=5: must be in [10, 3600]",
    "launcher.grace=5": "unknown key 'launcher.grace': …valid: launcher.grace_seconds",
    "resources.partition='gpu\n#SBATCH --wrap=x'": f"resources: partition='gpu\\n#SBATCH --wrap=x': {WORD}",
    "resources.partition=-x": f"resources: partition='-x': {WORD}",
    "resources.account='$(touch x)'": f"resources: account='$(touch x)': {WORD}",
    "resources.qos='`touch x`'": f"resources: qos='`touch x`': {WORD}",
    "resources.constraint='a b'": "resources: constraint='a b': must match ^[A-Za-z0-9",
    "resources.memory_gb=nan": "resources: memory_gb=nan: must be a finite number in [0, inf)",
    "resources.gpu_type=a100:2": "resources: gpu_type='a100:2': must match ^[A-Za-z0-9]",
    "resources.cpus=-1": "resources: cpus=-1: must be in [1, 1000000000]",
    "resources.hours=20000": "resources: hours=20000: must be in (0, 10000]",
    "resources.hours=1,2": "override 'resources.hours=1,2': resources.hours takes one value for all runs",
    "resources.hours=0.01":
        "resources.hours=0.01 is a limit of 1 min, …set resources.hours higher or launcher.grace",
}  # fmt: skip

CONTAINER = {
    "launcher.container.runtime=docker": "runtime='docker': must be 'pyxis' or 'apptainer'",
    "launcher.container.image=null": "with image=None: set launcher.container.image",
    "launcher.container.image='a\nb'": f"image='a\\nb': {LINE}",
    "launcher.container.image='--bind=/'": "image='--bind=/' would be read as an option: write ./--bind",
    "launcher.container.mount=[]": "unknown key 'launcher.container.mount': …launcher.container.mounts",
    "+launcher.container.user=x": "unknown key 'container.user': …valid: container.environment",
    "launcher.container.mounts=/a:/b":
        "mounts='/a:/b': must be a list: \"launcher.container.mounts=['/a:/b']\"",
    "launcher.container.mounts=['/a']": "mounts: '/a' is not two paths …write SOURCE:TARGET or",
    "launcher.container.mounts=['a:/b']": "'a' is not an absolute path: write SOURCE:TARGET",
    "launcher.container.mounts=['/a/../c:/b']": "'/a/../c' is not an absolute path",
    "launcher.container.mounts=['/a:/']": "mounts: '/a:/' would hide the whole image",
    "launcher.container.mounts=['/a,/x:/b']": "mounts: '/a,/x' has ',' in it, which container runtimes",
    "launcher.container.mounts=['/a$(touch x):/b']": "'/a$(touch x)' has '$' in it, which container",
    "launcher.container.mounts=['/a\n:/b']": f"mounts.0='/a\\n:/b': {LINE}",
    "launcher.container.mounts=['/a:/c','/b:/c/']": "mounts: two have the target /c: remove one",
    "launcher.container.environment=['A B']": "environment: 'A B': write NAME, or NAME=VALUE",
    "launcher.container.environment=['A=b\nc']": f"environment.0='A=b\\nc': {LINE}",
    "launcher.container.environment=[A,'A=1']": "environment: A appears twice: remove one",
    "launcher.container.environment=['SLURM_JOB_ID=1']": "SLURM_JOB_ID is set by Slurm and the launcher",
}  # fmt: skip

OPTIONS_OF_A_LOSS = {
    "rule.options.dro_betta=1": "did you mean 'rule.options.dro_beta'?",
    "+rule.options.dro_betta=1": "rule 'verl_dro' has no option 'dro_betta' (valid: dro_beta)",
    "~rule.options.dro_beta": "rule.options.dro_beta=null: rule 'verl_dro' needs a value",
    "rule.options.dro_beta=x": "rule.options.dro_beta='x'",
    "+rule.delta=1": "rule 'verl_dro' has no constant 'delta' (valid: none)",
    "rule.name=verl_gspo": "rule.options.clip_ratio_low=null: rule 'verl_gspo' needs a value",
}


def overridden(table: Mapping[str, str], *words: str) -> list[Case]:
    """Each override behind the words of a command, without those that set the same key."""
    return [
        Case(
            shlex.join(
                [*(word for word in words if not override.startswith(word.partition("=")[0] + "=")), override]
            ),
            says,
        )
        for override, says in table.items()
    ]


ONE = ("plan", "quickstart", "variant=grpo", "seed=0")
IMAGE = ("launcher.container.runtime=pyxis", "launcher.container.image=lab.sqsh")
CASES = [
    *overridden(PLAN, "plan", "quickstart"),
    *overridden(LAUNCH, "launch", "quickstart"),
    *overridden(VERL, "plan", "quickstart", "core=verl"),
    *overridden(EXACT, "plan", "quickstart", "core=exact"),
    *overridden(OPTIONS_OF_A_LOSS, "doctor", "core=verl", "model=tiny_qwen3", "rule=verl_dro"),
    *overridden(LOCAL, *ONE),
    *overridden(SLURM, *ONE, "launcher=slurm"),
    *overridden(CONTAINER, *ONE, "launcher=slurm", *IMAGE),
]
