"""Overrides: what Hydra's grammar refuses, would take for something else, or follows out of conf/."""

from tests.hostile.case import Case


def _plan(override: str, says: str, *others: str) -> Case:
    return Case(["plan", "quickstart", override, *others], says)


def _verl(override: str, says: str, *others: str) -> Case:
    return Case(["plan", "quickstart", "core=verl", override, *others], says)


def _launch(override: str, says: str) -> Case:
    return Case(["launch", "quickstart", override], says)


QUOTE = "a value with spaces or special characters needs quotes: "
NAME = "must match ^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
RESOLVER = "${NAME:...} is not resolved: write the value itself"
SEED = "must be a whole number in [0, 2147483648)"
VARIANTS = "the variants of sweep quickstart set 'rule' themselves; choose among them with variant="
ONE_VALUE = "takes one value for all runs; a comma within it needs quotes"

FORMS = [
    _plan("a=", "unknown key 'a': valid: advantage, batch, core, data"),
    _plan("=b", "override '=b' is not of the form key=value"),
    _plan("=", "override '=' is not of the form key=value"),
    _plan("", "override '' is not of the form key=value"),
    _plan("seed", "override 'seed' is not of the form key=value"),
    _plan("~rule", "override '~rule' is not of the form key=value"),
    _plan("@x=1", "unknown key '': valid: core"),
    _plan("+=1", "unknown key '': valid: core"),
    _plan("seed==1", f"override 'seed==1' is not key=value as Hydra reads it (…): {QUOTE}"),
    _plan("seed=0,,1", f"override 'seed=0,,1' is not key=value as Hydra reads it (…): {QUOTE}"),
    _plan(
        "seed=choice()",
        "override 'seed=choice()' is not key=value as Hydra reads it (…empty choice is not legal",
    ),
    _plan(
        "seed=glob(*)", "override 'seed=glob(*)': seed takes one value here; a sweep takes several: seed=1,2"
    ),
    _plan(
        "seed=interval(0,1)",
        "override 'seed=interval(0,1)': seed takes one value here; a sweep takes several",
    ),
    _plan(
        "seed=range(0,1000000000)",
        "override 'seed=range(0,1000000000)': lists more than 100,000 values: list fewer",
    ),
    _plan("seed=" + "9" * 5000, f"override 'seed=999…999' is not key=value …: {QUOTE}"),
    _plan("data.name=" + "[" * 1000, QUOTE),
    _plan("data.name='a", f'override "data.name=\'a" is not key=value as Hydra reads it (…): {QUOTE}'),
    _plan('data.name="a', f"override 'data.name=\"a' is not key=value as Hydra reads it (…): {QUOTE}"),
    _plan("data.name=(a", f"override 'data.name=(a' is not key=value as Hydra reads it (…): {QUOTE}"),
    _plan("data.name={", f"override 'data.name={{' is not key=value as Hydra reads it (…): {QUOTE}"),
    _plan(
        "data.name=$(touch x)",
        f"override 'data.name=$(touch x)' is not key=value as Hydra reads it (…): {QUOTE}",
    ),
    _plan(
        "data.name=`touch x`",
        f"override 'data.name=`touch x`' is not key=value as Hydra reads it (…): {QUOTE}",
    ),
    _plan("data.name=a\nb", f"override 'data.name=a\\nb' is not key=value as Hydra reads it (…): {QUOTE}"),
    _plan("data.name=\x00", f"override 'data.name=\\x00' is not key=value as Hydra reads it (…): {QUOTE}"),
    _plan("data.name='\udc80'", "configuration: a value is not UTF-8 text: …: type it again"),
    _plan("data.name='\x1b[2J'", f"configuration: data.name='\\x1b[2J': {NAME}"),
    _plan("data.name='a\nb'", f"configuration: data.name='a\\nb': {NAME}"),
    _plan("data.name='a b'", f"configuration: data.name='a b': {NAME}"),
    _plan("data.name='../up'", f"configuration: data.name='../up': {NAME}"),
    _plan("data.name=" + "x" * 100_000, f"configuration: data.name='xxx…xxx': {NAME}"),
    _plan("seed=0", "override 'seed=1': 'seed=0' appears too: give seed once", "seed=1"),
]

REFERENCES = [
    _plan("rule.w_min=${oc.env:HOME}", f"override 'rule.w_min=${{oc.env:HOME}}': {RESOLVER}"),
    _plan("data.name=${oc.decode:1}", f"override 'data.name=${{oc.decode:1}}': {RESOLVER}"),
    _plan("data.name=${hydra:run.dir}", f"override 'data.name=${{hydra:run.dir}}': {RESOLVER}"),
    _plan("data.name=${now:%Y}", f"override 'data.name=${{now:%Y}}': {RESOLVER}"),
    _plan("data.name=${eval:1+1}", f"override 'data.name=${{eval:1+1}}': {RESOLVER}"),
    _plan("data.name=x${seed}${oc.env:HOME}", RESOLVER),
    _plan("paths.data=${oc.env:HOME}", f"override 'paths.data=${{oc.env:HOME}}': {RESOLVER}"),
    _plan("tracking.uri=${oc.env:SECRET}", f"override 'tracking.uri=${{oc.env:SECRET}}': {RESOLVER}"),
    _plan("data.name=${", f"override 'data.name=${{' is not key=value as Hydra reads it (…): {QUOTE}"),
    _plan(
        "training.t_stop=${nothing}",
        "Interpolation key 'nothing' not found: `cppo show SWEEP` prints the valid keys",
    ),
    _plan("training.t_stop=${training.t_stop}", "Recursive interpolation detected"),
]

OUT_OF_CONF = [
    _plan("model=/etc/passwd", "unknown model '/etc/passwd': valid: exact_early"),
    _plan("model=../rule/cppo", "unknown model '../rule/cppo': valid: exact_early"),
    _plan("data=../../../../etc/passwd", "unknown data '../../../../etc/passwd': valid: addition"),
    _plan("divergence=../rule/cppo", "unknown divergence '../rule/cppo': valid: binary_kl"),
    _plan("launcher=../core/verl", "unknown launcher '../core/verl': valid: inline, local, slurm"),
    _plan(
        "+rule@x=../../conf/config",
        "override '+rule@x=../../conf/config': rule takes one option (valid: cispo",
    ),
    _plan("rule@x=cppo", "override 'rule@x=cppo': rule takes one option (valid: cispo"),
    _plan("+rule=cppo", "override '+rule=cppo': rule takes one option (valid: cispo"),
    _plan("~rule=cppo", "override '~rule=cppo': rule takes one option (valid: cispo"),
    _plan("model@a=mini_base", "override 'model@a=mini_base': model takes one option (valid: exact_early"),
    _plan("hydra=x", "unknown key 'hydra': valid: core"),
    _plan("hydra.run.dir=/tmp/x", "unknown key 'hydra.run.dir': valid: core"),
    _plan("+hydra.run.dir=/tmp/x", "unknown key 'hydra.run.dir': valid: core"),
    _plan("hydra/launcher=x", "unknown key 'hydra/launcher': did you mean 'launcher'?"),
    _plan("+hydra/job_logging=none", "unknown key 'hydra/job_logging': valid: core"),
]

GROUPS = [
    _plan("rule=cpo", f"override 'rule=cpo': {VARIANTS}"),
    _plan("rule=", f"override 'rule=': {VARIANTS}"),
    _plan("rule={a: b}", f"override 'rule={{a: b}}': {VARIANTS}"),
    _plan("rule=null", f"override 'rule=null': {VARIANTS}"),
    _plan(
        "divergence=topk", "unknown divergence 'topk': did you mean 'topk_kl' or 'topk_tv'? valid: binary_kl"
    ),
    _plan("launcher=ssh", "unknown launcher 'ssh': valid: inline, local, slurm"),
    _plan("launcher=local,slurm", f"override 'launcher=local,slurm': launcher {ONE_VALUE}"),
    _plan("tracking=null", "unknown tracking 'None': valid: mlflow"),
    _plan("core=tpu", "unknown core 'tpu': valid: exact, mini, verl"),
    _plan("core=", "unknown core '': valid: exact, mini, verl"),
    _plan(
        "core=mini,verl", "unknown core 'mini,verl': did you mean 'mini' or 'verl'? valid: exact, mini, verl"
    ),
    _plan("layout=moon", "unknown layout 'moon': valid: cpu"),
    _plan("model=", "unknown model '': valid: exact_early"),
    _plan("model=mini_base,", "unknown model '': valid: exact_early"),
    _plan(
        "model=qwen3_8b_base",
        "model='qwen3_8b_base' is a published model, which core='mini' cannot train: add core=verl",
    ),
    _plan("variant=", "unknown variant of sweep quickstart '': valid: cppo, dppo, grpo"),
    _plan(
        "variant=CPPO",
        "unknown variant of sweep quickstart 'CPPO': did you mean 'cppo'? valid: cppo, dppo, grpo",
    ),
    _plan(
        "variant=cppo;touch x", "unknown variant of sweep quickstart 'cppo;touch x': valid: cppo, dppo, grpo"
    ),
    _launch("variant=ccpo", "unknown variant of sweep quickstart 'ccpo': did you mean 'cppo'?"),
    _launch("rule.name=cpo", "unknown rule 'cpo': did you mean 'cppo'?"),
    _plan("batch=8", "configuration: batch=8: must be a mapping: KEY: VALUE"),
    _plan("batch=null", "configuration: batch=None: must be a mapping: KEY: VALUE"),
    _plan(
        "model.architecture=small", "configuration: model.architecture='small': must be a mapping: KEY: VALUE"
    ),
]

KEYS = [
    _plan("+nosuch.key=1", "configuration: unknown key 'nosuch': valid: advantage"),
    _plan("++nosuch.key=1", "configuration: unknown key 'nosuch': valid: advantage"),
    _plan("+rule.new=1", "configuration: unknown key 'rule.new': did you mean 'rule.name'?"),
    _plan("optim.lr=1", "unknown key 'optim.lr': …valid: optim.beta1"),
    _launch("rule.wmin=0.5", "unknown key 'rule.wmin': did you mean 'rule.w_min'?"),
    _plan("rule.gate=inverse", "unknown key 'rule.gate': did you mean 'rule.name'?"),
    _plan("rule.options.x=1", "unknown key 'rule.options.x': did you mean 'rule.options'? valid: advantage"),
    _plan("trust_region.nothing=1", "no run of this sweep depends on 'trust_region.nothing'; remove it"),
    _plan("paths.nothing=1", "unknown key 'paths.nothing': did you mean 'paths.data'?"),
    _plan("tracking.url=x", "unknown key 'tracking.url': did you mean 'tracking.uri'?"),
    _plan("launcher.worker=2", "unknown key 'launcher.worker': did you mean 'launcher.workers'?"),
    _plan("launcher.requeues=3", "unknown key 'launcher.requeues': …valid: launcher.name, launcher.threads"),
]

VALUES = [
    _plan("seed=", f"configuration: seed='': {SEED}"),
    _plan("seed=-1", "configuration: seed=-1: must be in [0, 2147483648)"),
    _plan("seed=1.5", f"configuration: seed=1.5: {SEED}"),
    _plan("seed=nan", f"configuration: seed=nan: {SEED}"),
    _plan("seed=1e400", f"configuration: seed=inf: {SEED}"),
    _plan("seed=true", f"configuration: seed=True: {SEED}"),
    _plan("seed='0'", f"configuration: seed='0': {SEED}"),
    _plan("seed=0x10", f"configuration: seed='0x10': {SEED}"),
    _plan("seed=[0,1]", "override 'seed=[0,1]': seed takes plain values here, not lists: seed=1,2"),
    _plan("seed={a: 1}", "override 'seed={a: 1}': seed takes plain values here: seed=1,2"),
    _plan(
        "seed=99999999999999999999", "configuration: seed=99999999999999999999: must be in [0, 2147483648)"
    ),
    _plan("batch.prompts=-8", "configuration: batch.prompts=-8: must be in [1, 1000000000]"),
    _plan("batch.prompts=8.0", "configuration: batch.prompts=8.0: must be a whole number in [1, 1000000000]"),
    _plan(
        "batch.prompts=eight",
        "configuration: batch.prompts='eight': must be a whole number in [1, 1000000000]",
    ),
    _plan("batch.prompts=[8]", "configuration: batch.prompts=[8]: must be a whole number in [1, 1000000000]"),
    _plan("batch.minibatch_prompts=7", "batch: minibatch_prompts=7 must divide prompts=16 (valid: [1, 2"),
    _plan("batch.responses=1", "configuration: batch.responses=1: must be in [2, 1000000000]"),
    _plan(
        "optim.learning_rate=nan",
        "configuration: optim.learning_rate=nan: must be a finite number in (0, inf)",
    ),
    _plan(
        "optim.learning_rate=-inf",
        "configuration: optim.learning_rate=-inf: must be a finite number in (0, inf)",
    ),
    _plan("optim.beta1=1", "configuration: optim.beta1=1: must be in [0, 1)"),
    _plan("optim.weight_decay=-0.1", "configuration: optim.weight_decay=-0.1: must be in [0, inf)"),
    _plan("training.t_stop=-5", "configuration: training.t_stop=-5: must be in [1, 1000000000]"),
    _plan(
        "training.t_stop=13",
        "training.t_stop=13 must lie on the validation grid: make it a multiple of validation.every=5",
    ),
    _plan("training.aggregation=sum", "configuration: training.aggregation='sum': must be 'token-mean', "),
    _plan("training.collapse_share=2", "configuration: training.collapse_share=2: must be in [0, 1]"),
    _plan(
        "rollout.precision=float16",
        "configuration: rollout.precision='float16': must be 'float32' or 'bfloat16'",
    ),
    _plan("rollout.max_response_length=5", "raise max_response_length to 13 or more, or lower operations"),
    _plan("rollout.top_p=0", "configuration: rollout.top_p=0: must be in (0, 1]"),
    _plan("rollout.top_p=0.9", "rollout.top_p=0.9: core=mini evaluates …set rollout.top_p=1.0"),
    _plan("validation.every=0", "configuration: validation.every=0: must be in [1, 1000000000]"),
    _plan("advantage.normalize_std=1", "configuration: advantage.normalize_std=1: must be true or false"),
    _plan("model.architecture.heads=3", "heads=3 must be a multiple of kv_heads=2"),
    _plan("model.architecture.head_dim=3", "head_dim=3 must be even"),
    _plan("data.benchmarks=[]", "benchmarks=[] must be one or more distinct names"),
    _plan("data.benchmarks=[mean]", "'mean' names the mean over them; choose another"),
    _plan("data.benchmarks=['a/b']", f"configuration: data.benchmarks.0='a/b': {NAME}"),
    _plan(
        "data.benchmarks=x", "configuration: data.benchmarks='x': must be a list: \"data.benchmarks=['x']\""
    ),
    _plan("data.operations=128", "configuration: data.operations=128: must be in [1, 127]"),
    _plan("divergence.k=1000000", "set divergence.k=206 or less"),
    _plan("divergence.estimator=binary", "k and convention belong to estimator 'topk', and only to it"),
    _plan(
        "divergence.measure=l2", "configuration: divergence.measure='l2': must be 'tv', 'kl', 'k2' or 'k3'"
    ),
    _launch("rule.w_min=0", "rule.w_min=0: must be in (0, 1]"),
    _launch("rule.w_min=1.01", "rule.w_min=1.01: must be in (0, 1]"),
    _launch("rule.delta=0", "rule.delta=0: must be in (0, inf)"),
    _launch("rule.delta=-1", "rule.delta=-1: must be in (0, inf)"),
    _plan("rule.delta=nan", "configuration: rule.delta=nan: must be a finite number in (0, inf)"),
    _plan(
        "rule.delta_b_mode=sometimes",
        "configuration: rule.delta_b_mode='sometimes': must be 'fixed' or 'adaptive'",
    ),
    _plan("trust_region.delta=x", "configuration: rule.delta='x': must be a number in (0, inf)"),
    _plan("paths.data=1,2", f"override 'paths.data=1,2': paths.data {ONE_VALUE}"),
    _plan("paths.data=null", "paths: data=None: must be text: quote it"),
    _plan("tracking.uri=5", "tracking: uri=5: must be text: quote it"),
    _plan("tracking.uri=a,b", f"override 'tracking.uri=a,b': tracking.uri {ONE_VALUE}"),
]

VERL = [
    _verl("rollout.staleness=1", "rollout.staleness=1: …set rollout.staleness=0, or core=mini"),
    _verl("layout.nodes=0", "layout: nodes=0: must be in [1, 1000000000]"),
    _verl("layout.strategy=ddp", "layout: strategy='ddp': must be 'fsdp2' or 'megatron'"),
    _verl("layout.device=tpu", "layout: device='tpu': must be 'cuda' or 'cpu'"),
    _verl(
        "layout.tokens_per_device=10",
        "set layout.tokens_per_device=18 or more, or raise layout.sequence_parallel",
    ),
    _verl("layout.sequence_parallel=3", "sequence_parallel=3 must divide the 1 devices of the layout"),
    _verl(
        "layout.device=cuda", "rollout='cppo_cpu' with device='cuda': it serves CPUs; GPUs are served by vllm"
    ),
    _verl("layout.rollout_memory=2", "layout: rollout_memory=2: must be in [0, 1]"),
    _verl("layout.verl=5", "layout: verl=5: must be a mapping: KEY: VALUE"),
    _verl(
        "+layout.verl={data.seed: 1}", "layout.verl sets data.seed=1. …: drop it, or set the run's own field"
    ),
    _verl("rollout.top_p=0.95", "rollout.top_p=0.95: core=verl evaluates …set rollout.top_p=1.0"),
    _verl("rollout.top_p=0.9999999999", "rollout.top_p=0.9999999999: …set rollout.top_p=1.0"),
    _verl("rollout.temperature=0.001", "rollout.temperature=0.001: …set rollout.temperature=0.01 or more"),
    _verl("layout.megatron={}", "layout: megatron.tensor is missing: add it"),
    _verl("divergence=exact_tv", "choose divergence=topk_tv or topk_kl", "model=qwen3_8b_base"),
]

CASES = [*FORMS, *REFERENCES, *OUT_OF_CONF, *GROUPS, *KEYS, *VALUES, *VERL]
