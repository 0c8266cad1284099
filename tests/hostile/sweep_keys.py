"""What sweep files and studies say: keys, names, values, conditions and resources that cannot be."""

from tests.hostile.case import Case
from tests.hostile.sweep_files import HEAD, MODELS, NAME, SWEEP, file, sweep, title

KEYS = (
    "valid: axes, baseline, beside, exclude, feeds, hypotheses, models, name, pairing, question, resources, title, "
    "variants"
)
LIST_OF_NAMES = "must be a list of one or more names, or such a list for each core"
LIST_OF_VALUES = "must be a list of one or more plain values, or such a list for each core"
SEED = "must be in [0, 2147483648)"
WORD = "must match ^[A-Za-z0-9]"


def variant(keys: str, says: str) -> Case:
    return file(f"{MODELS}variants: {keys}\n", f"sweep ./{NAME}: {says}")


KEYS_AND_TYPES = [
    sweep("modells: [x]\n", f": unknown key 'modells': did you mean 'models'? {KEYS}"),
    sweep("Title: x\n", f": unknown key 'Title': did you mean 'title'? {KEYS}"),
    sweep("'${oc.env:HOME}': x\n", f": unknown key '${{oc.env:HOME}}': {KEYS}"),
    file("question: Q\nmodels: [mini_base]\n", ": title is missing: add it"),
    file(HEAD, ": models is missing: add it"),
    title("3", ": title=3: must be text: quote it"),
    title("[a]", ": title=['a']: must be text: quote it"),
    title("${oc.env:HOME}", ": title='${oc.env:HOME}': a sweep file holds plain values"),
    file(f"{HEAD}models: mini_base\n", f": models='mini_base': {LIST_OF_NAMES}"),
    file(f"{HEAD}models: []\n", f": models=[]: {LIST_OF_NAMES}"),
    file(f"{HEAD}models: [1]\n", f": models=[1]: {LIST_OF_NAMES}"),
    file(f"{HEAD}models: {{}}\n", f": models: {LIST_OF_NAMES}"),
    file(f"{HEAD}models: null\n", f": models=None: {LIST_OF_NAMES}"),
    file(
        f"{HEAD}models: [mini_bas]\n",
        ": models='mini_bas': unknown model 'mini_bas': did you mean 'mini_base'?",
    ),
    file(f"{HEAD}models: [mini_base, mini_base]\n", ": 'mini_base' appears twice: remove one"),
    file(
        f"{HEAD}models: {{mimi: [mini_base]}}\n",
        ": models: unknown core 'mimi': did you mean 'mini'? valid: exact, mini, verl",
    ),
    file(f"{HEAD}models: {{verl: [qwen3_8b_base]}}\n", " has no models for core=mini (valid: verl)"),
    file(
        f"{HEAD}models: [../../etc/passwd]\n",
        ": models='../../etc/passwd': unknown model …valid: exact_early",
    ),
    file(
        f"{HEAD}models: ['mini_base;touch x']\n",
        ": unknown model 'mini_base;touch x': did you mean 'mini_base'?",
    ),
    file(f"{HEAD}models: ['']\n", ": models='': unknown model '': valid: exact_early"),
    file(f"name: ../../etc/x\n{SWEEP}", f": name='../../etc/x': {WORD}"),
    file(f"name: -rf\n{SWEEP}", f": name='-rf': {WORD}"),
    file(f"name: 'a b'\n{SWEEP}", f": name='a b': {WORD}"),
    file(f"name: $(touch x)\n{SWEEP}", f": name='$(touch x)': {WORD}"),
    file(f'name: "a\\nb"\n{SWEEP}', f": name='a\\nb': {WORD}"),
    file(f'name: "a\\n"\n{SWEEP}', f": name='a\\n': {WORD}"),
    file(f"name: 5\n{SWEEP}", ": name=5: must be text: quote it"),
    sweep("feeds: [Table]\n", ": feeds.0='Table': must be a table or figure of the paper, such as Table 1"),
    sweep("feeds: Table 1\n", ": feeds='Table 1': must be a list: [...]"),
    variant("[cppo]", "variants=['cppo']: must be a mapping: KEY: VALUE"),
    variant("{}", "variants={}: must not be empty"),
    variant("{cppo: cppo}", "variants.cppo='cppo': must be a mapping: KEY: VALUE"),
    variant("{'a,b': {rule: cppo}}", "variants.a,b='a,b': must be a name without commas"),
    variant("{'': {rule: cppo}}", "variants.='': must be a name without commas"),
    variant('{"a\\nb": {rule: cppo}}', "variants.a\\nb='a\\nb': must consist of printable characters"),
    variant("{a: {rule: cpo}}", "variants.a.rule='cpo': unknown rule 'cpo': did you mean 'cppo'?"),
    variant("{a: {rule: ../rule/cppo}}", "variants.a.rule='../rule/cppo': unknown rule '../rule/cppo'"),
    variant(
        "{a: {rule: [cppo, dppo]}}",
        "variants.a.rule=['cppo', 'dppo']: must be a plain value: several are an axis",
    ),
    variant(
        "{a: {rule: '${oc.env:HOME}'}}", "variants.a.rule='${oc.env:HOME}': a sweep file holds plain values"
    ),
    variant(
        "{a: {rule.w_mim: 0.5}}",
        "variants.a.rule.w_mim=0.5: unknown key 'rule.w_mim': did you mean 'rule.w_min'?",
    ),
    variant("{a: {rule.w_min: '0.5'}}", "variants.a.rule.w_min='0.5': must be a number in (0, 1]"),
    variant("{a: {rule.w_min: true}}", "variants.a.rule.w_min=True: must be a number in (0, 1]"),
    variant("{a: {rule.w_min: yes}}", "variants.a.rule.w_min='yes': must be a number in (0, 1]"),
    variant("{a: {rule.w_min: .nan}}", "variants.a.rule.w_min=nan: must be in (0, 1]"),
    variant("{a: {rule.delta: .inf}}", "variants.a.rule.delta=inf: must be a finite number in (0, inf)"),
    variant("{a: {rule.delta: -1}}", "variants.a.rule.delta=-1: must be in (0, inf)"),
    variant("{a: {core: verl}}", "variants.a.core: choose it on the command line: core=verl"),
    variant(
        "{a: {model: mini_base}}",
        "variants.a.model: variant 'a' sets 'model', which is an axis too: keep one",
    ),
    variant(
        "{a: {launcher.workers: 2}}",
        "variants.a.launcher.workers: 'launcher.workers' belongs on the command line",
    ),
    variant("{a: {tracking.uri: x}}", "variants.a.tracking.uri: 'tracking.uri' belongs on the command line"),
    variant("{a: {paths.data: /etc}}", "variants.a.paths.data: 'paths.data' belongs on the command line"),
    variant("{a: {resources.hours: 2}}", "variants.a.resources.hours: use resources:"),
    variant(
        "{a: {rule: cppo}, b: {rule: cppo}}", "variants 'a' and 'b' compose to the same run …: remove one"
    ),
    variant("{a: {+x.y: 1}}", "variants.a.+x.y=1: unknown key 'x': valid: advantage"),
    variant("{a: {rule@x: cppo}}", "variants.a.rule@x='cppo': override 'rule@x=cppo': rule takes one option"),
    variant("{a: {hydra.run.dir: /x}}", "variants.a.hydra.run.dir='/x': unknown key 'hydra.run.dir'"),
    variant("{a: {'b=c': 1}}", "variants.a.b=c=1: override 'b=c=1' is not key=value as Hydra reads it"),
    sweep("axes: [seed]\n", ": axes=['seed']: must be a mapping: KEY: VALUE"),
    sweep("axes: {seed: 0}\n", f": axes.seed=0: {LIST_OF_VALUES}"),
    sweep("axes: {seed: []}\n", f": axes.seed=[]: {LIST_OF_VALUES}"),
    sweep("axes: {seed: [[0]]}\n", f": axes.seed=[[0]]: {LIST_OF_VALUES}"),
    sweep("axes: {seed: [1, 1.0]}\n", ": axes.seed=[1, 1.0]: 1.0 appears twice: remove one"),
    sweep("axes: {seed: [-1]}\n", f": axes.seed=-1: {SEED}"),
    sweep("axes: {seed: [0.5]}\n", ": axes.seed=0.5: must be a whole number in [0, 2147483648)"),
    sweep("axes: {seed: ['0']}\n", ": axes.seed='0': must be a whole number in [0, 2147483648)"),
    sweep("axes: {seed: [2147483648]}\n", f": axes.seed=2147483648: {SEED}"),
    sweep("axes: {seed: [null]}\n", ": axes.seed=None: must be a whole number"),
    sweep("axes: {seed: {tpu: [0]}}\n", ": axes.seed: unknown core 'tpu': valid: exact, mini, verl"),
    sweep("axes: {seed: {verl: [0]}}\n", " has no axes.seed for core=mini (valid: verl)"),
    sweep("axes: {sead: [0]}\n", ": axes.sead=0: unknown key 'sead': did you mean 'seed'?"),
    sweep("axes: {model: [mini_base]}\n", ": axes.model: 'model' is no axis: use models:"),
    sweep("axes: {variant: [cppo]}\n", ": axes.variant: 'variant' is no axis: use variants:"),
    sweep("axes: {rule: [dppo]}\n", ": variants.cppo.rule: variant 'cppo' sets 'rule', which is an axis too"),
    sweep(
        "axes: {training.t_stop: [7]}\n",
        ": axes.training.t_stop=7 must lie on the validation grid: make it a multiple",
    ),
    sweep("axes: {batch.prompts: [0]}\n", ": axes.batch.prompts=0: must be in [1, 1000000000]"),
    sweep(
        "axes: {batch.prompts: [1e3]}\n",
        ": axes.batch.prompts=1000.0: must be a whole number in [1, 1000000000]",
    ),
    sweep(
        "axes: {optim.learning_rate: [1e-3x]}\n",
        ": axes.optim.learning_rate='1e-3x': must be a number in (0, inf)",
    ),
    sweep(
        "axes: {optim.learning_rate: [1e400]}\n", ": axes.optim.learning_rate=inf: must be a finite number"
    ),
    sweep(
        f"axes: {{seed: {list(range(1500))}, data.validation_seed: {list(range(1500))}}}\n",
        ": declares 2,250,000 runs, more than 1,000,000: declare fewer",
    ),
]

CONDITIONS = [
    sweep("exclude: {variant: cppo}\n", ": exclude={'variant': 'cppo'}: must be a list: [...]"),
    sweep("exclude: [{}]\n", ": exclude.0: must name at least one of variant, model, core"),
    sweep(
        "exclude: [{varient: cppo}]\n",
        ": exclude.0.varient: unknown condition 'varient': did you mean 'variant'?",
    ),
    sweep(
        "exclude: [{variant: ccpo}]\n",
        ": exclude.0.variant='ccpo': unknown variant 'ccpo': did you mean 'cppo'?",
    ),
    sweep("exclude: [{variant: cppo}]\n", ": exclude removes every run: remove an entry of it"),
    sweep("exclude: [cppo]\n", ": exclude.0='cppo': must be a mapping: KEY: VALUE"),
    sweep("exclude: [{core: tpu}]\n", ": exclude.0.core='tpu': unknown core 'tpu': valid: exact, mini, verl"),
    sweep(
        "exclude: [{variant: {a: b}}]\n",
        ": exclude.0.variant: must be a plain value or a list of one or more",
    ),
    sweep("resources: {hours: 1}\n", ": resources={'hours': 1}: must be a list: [...]"),
    sweep("resources: [{hours: 0}]\n", ": resources.0.hours=0: must be in (0, 10000]"),
    sweep("resources: [{hours: .nan}]\n", ": resources.0.hours=nan: must be in (0, 10000]"),
    sweep("resources: [{hours: '2:00'}]\n", ": resources.0.hours='2:00': must be a number in (0, 10000]"),
    sweep("resources: [{hour: 2}]\n", ": unknown key 'resources.0.hour': did you mean 'resources.0.hours'?"),
    sweep("resources: [{partition: 'gpu; touch x'}]\n", f": resources.0.partition='gpu; touch x': {WORD}"),
    sweep(
        'resources: [{partition: "g\\n#SBATCH --wrap=x"}]\n',
        ": resources.0.partition='g\\n#SBATCH --wrap=x': must",
    ),
    sweep("resources: [{account: $(touch x)}]\n", f": resources.0.account='$(touch x)': {WORD}"),
    sweep("resources: [{qos: '`touch x`'}]\n", f": resources.0.qos='`touch x`': {WORD}"),
    sweep('resources: [{constraint: "a\'b"}]\n', ': resources.0.constraint="a\'b": must match ^[A-Za-z0-9'),
    sweep("resources: [{cpus: 2.5}]\n", ": resources.0.cpus=2.5: must be a whole number in [1, 1000000000]"),
    sweep("resources: [{memory_gb: -1}]\n", ": resources.0.memory_gb=-1: must be in [0, inf)"),
    sweep("resources: [{layout: moon}]\n", ": resources.0.layout='moon': unknown layout 'moon': valid: cpu"),
    sweep(
        "resources: [{for: {variant: x}, hours: 1}]\n",
        ": resources.0.for.variant='x': unknown variant 'x': valid: cppo",
    ),
]

STUDIES = [
    file(f"{HEAD}sweeps: []\n", ": sweeps=[]: must not be empty"),
    file(f"{HEAD}sweeps: main\n", ": sweeps='main': must be a list: [...]"),
    file(f"{HEAD}sweeps: [1]\n", ": sweeps.0=1: must be text: quote it"),
    file(f"{HEAD}sweeps: [nowhere]\n", f"study ./{NAME}: sweeps.0: unknown sweep 'nowhere': valid: "),
    file(f"{HEAD}sweeps: [./{NAME}]\n", f"study ./{NAME}: sweeps.0: mine is a study itself; name its sweeps"),
    file(f"{HEAD}sweeps: [tune_cppo]\n", f"study ./{NAME}: sweeps.0: tune_cppo is a search; name sweeps"),
    file(f"{HEAD}sweeps: [main, main]\n", "sweeps=['main', 'main'] must have distinct names"),
    file(f"{HEAD}sweeps: [../gone.yaml]\n", "sweeps.0: sweep file ../gone.yaml does not exist"),
    file(f"{HEAD}sweeps: [main]\nmodels: [mini_base]\n", ": unknown key 'models': valid: axes, feeds, name"),
    file(
        f"{HEAD}sweeps: [quickstart]\naxes: {{sead: [1]}}\n",
        ": axes.sead=1: unknown key 'sead': did you mean 'seed'?",
    ),
]

CASES = [*KEYS_AND_TYPES, *CONDITIONS, *STUDIES]
