"""Command lines whose words alone are wrong: names that are none, values out of range, options that contradict."""

from tests.hostile.case import Case

NO_SWEEP = "valid: admission, allocation, allocation_exact"
DIGITS = "is not a prefix of a run's id: give 4 to 12 hexadecimal digits (`cppo plan SWEEP` lists the ids)"
NO_RUN = "runs has no run with this prefix: see `cppo status` (an id has 12 digits)"
FILE_OR_SERVER = "use sqlite:///FILE.db, a path that ends in .journal"
STUDY_NAME = "use letters, digits, `_`, `-` and `.`, beginning with a letter or digit"
FORMS = "is not supported: use sqlite:///FILE.db, http(s)://HOST:PORT or a postgresql:// URI"
AGAIN = "make the report again with `cppo report`"

LINES = {
    "": "the following arguments are required: COMMAND: see `cppo --help`",
    "lunch": "unknown command 'lunch': did you mean 'launch'? valid: …launch…: see `cppo --help`",
    "show": "the following arguments are required: SWEEP|RUN: see `cppo show --help`",
    "reference export": "unknown action 'export': did you mean 'import'? valid: import",
    "list keys rule": "override 'rule' is not of the form key=value",
    "list model": "unknown kind 'model': did you mean 'models'? valid: keys, models, rules, sweeps: see",
    "data fetch": "unknown action 'fetch': valid: check, prepare: see `cppo data --help`",
    "data check": "the following arguments are required: DIR: see `cppo data check --help`",
    "doctor --core": "argument --core: expected one argument: see `cppo doctor --help`",
    "sync extra": "unrecognized arguments: extra: see `cppo sync --help`",
    "status '\x1b[2J' '--nope\n'": "unrecognized arguments: --nope\\n: see `cppo status --help`",
    "plan quickstart --config-dir=/tmp": "unrecognized arguments: --config-dir=/tmp: see",
    "plan quickstart --seed 0": "unrecognized arguments: --seed 0: overrides have no dashes: seed=0: see",
    "launch quickstart --models x": "unrecognized arguments: --models x: overrides have no dashes: model=x: see",
    "plan quickstart --jsn": "unrecognized arguments: --jsn: did you mean --json?: see `cppo plan --help`",
    "plan quickstart --json --csv": "argument --csv: not allowed with argument --json: see",
    "plan quickstart --json=1": "argument --json: ignored explicit argument '1': see `cppo plan --help`",
    "launch quickstart --max-seeds 5": "--max-seeds 5: only valid with --until-decided",
    "launch quickstart --until-decided --max-seeds 2": "--max-seeds 2: the first look is after 4 seeds: give so",
    "launch quickstart --until-decided --stop-hopeless": "--stop-hopeless with --until-decided: a stopped run counts",
    "launch quickstart launcher=slurm --stop-hopeless": "--stop-hopeless: nobody watches runs of launcher=slurm:",
    "plan quickstart core=exact data=chain": "configuration: data='chain' has the keys of other cores: choose",
    "launch quickstart --until-decided": "--until-decided: quickstart has no hypotheses: state them in its file",
    "launch quickstart --max-gpu-hours nan --dry-run": "argument --max-gpu-hours: invalid amount value: 'nan': see",
    "launch quickstart notify.url=ftp://h/SECRET": "notify.url (or CPPO_NOTIFY_URL) is not an address http(s)://",
    "launch quickstart tracking.mirror=x": "tracking: mirror='x': must be 'trackio' or 'wandb'",
    "launch quickstart notify.nope=1": "unknown key 'notify.nope'",
    "sync --json --watch": "--json with --watch: the object is printed at once; omit one",
    "evaluate quickstart --benchmark chain": "quickstart: none of its runs is finished here: see",
    "data prepare --out x --validation a=gone": "--validation 'a=gone': give NAME=FILE, an existing file",
    **{
        f"data prepare --out x --validation {name}=/dev/null": (
            "a name begins with a letter, has no dot, and is neither 'train' nor 'mean'"
        )
        for name in ("2024_held", "mean", "train", "a.b")
    },
    "export metrics 0123456789ab --out x": "'0123456789ab' is the id of a run: name its sweep, which `cppo show",
    "archive quickstart --out /etc": "--out /etc exists: name another file, or remove it yourself",
    "archive quickstart --out x.zip": "no run of quickstart has ended here: launch it",
    "report quickstart --from moon": "unknown value of --from 'moon': valid: paper, runs: see",
    "dash quickstart --every 0": "--every 0: seconds between two reports, 1 to 86400",
    "note 1234 x --tag k=v y": f"run '1234': …{NO_RUN}",
    "note 1234 --tag novalue": "--tag novalue: must be KEY=VALUE",
    "clean quickstart --code": "cppo clean --code: the code is of all sweeps: name none",
    "report gone.zip": "gone.zip cannot be read as a file of `cppo archive`",
    "plan nowhere": f"unknown sweep 'nowhere': {NO_SWEEP}",
    "plan quikstart": "unknown sweep 'quikstart': did you mean 'quickstart'?",
    **{f"{words}''": f"unknown sweep '': {NO_SWEEP}" for words in ("plan ", "status ", "clean --yes --code ")},
    "plan 'a\nb'": f"unknown sweep 'a\\nb': {NO_SWEEP}",
    "plan http://h/y.yaml": "sweep file http://h/y.yaml does not exist (shipped sweeps: ",
    "plan '\udc80.yaml'": "sweep file \\udc80.yaml does not exist (shipped sweeps: ",
    "plan 'a\x00b.yaml'": "sweep file a\\x00b.yaml cannot be read: embedded null byte: name a readable file",
    f"plan {'x' * 300}": "unknown sweep 'xxx",
    f"plan {'x' * 300}.yaml": "x.yaml cannot be read: File name too long: name a readable file",
    "plan quickstart model.name=mini_long": "'model.name=mini_long' renames the model alone: write model=mini_long",
    "plan quickstart --state gone": "unknown state 'gone': did you mean 'done'? valid: collapsed",
    "logs 1234": f"run '1234': …{NO_RUN}",
    "logs ''": f"run '' {DIGITS}",
    "logs ../../etc/passwd": f"run '../../etc/passwd' {DIGITS}",
    "export 1234 --out x": f"run '1234': …{NO_RUN}",
    "export model 123 --out x": f"run '123' {DIGITS}",
    "export 1234 --out /etc": "--out /etc exists and is not empty: name another folder",
    "export 1234 --out /dev/null": "--out /dev/null is a file: name a folder",
    "export metrics quickstart --out x --format xls": "unknown value of --format 'xls': valid: csv,",
    "cancel": "cppo cancel: name either a sweep, or runs with --run ID",
    "cancel quickstart --run 1234": "cppo cancel: name either a sweep, or runs with --run ID",
    "retry quickstart": "cppo retry: choose the runs with either --failed, or --run ID once or more",
    "retry quickstart variant=grpo seed=0 --failed --run e3":
        "cppo retry: choose the runs with either --failed, or --run ID once or",
    "retry quickstart variant=grpo seed=0 --run zz":
        "--run 'zz' is a prefix of none of the ids e2000e08d665: give more digits of one",
    "retry quickstart variant=grpo seed=0 --run e2000e08d665 --finished": "is missing: --finished is for finished",
    "retry quickstart variant=grpo seed=0 --run ''":
        "--run '' is a prefix of the ids e2000e08d665: give more digits of one",
    "show quickstart variant=grpo seed=0 --verl":
        "--verl: the runs of quickstart are of core=mini: add core=verl",
    "show quickstart variant=grpo seed=0 --in main": "--in main: only valid with a run's id: remove it",
    "show abcdef123456": "/runs has such an id: a run that has not begun is found by its sweep: --in SWEEP",
    "show abcdef123456 a=1": "takes neither overrides nor --run nor --verl: name its sweep instead",
    "diff '1234\n' 1234": f"run '1234\\n' {DIGITS}",
    "diff 1234 1234 --in nowhere": f"unknown sweep 'nowhere': {NO_SWEEP}",
    "watch --every 0": "--every 0: seconds between updates, 0.2 to 86400",
    "watch --every nan": "--every nan: seconds between updates, 0.2 to 86400",
    "watch --notify ''": "--notify '': there is no such program: give a command on PATH, or its path",
    "watch --notify ''\"'\"'x'": '--notify "\'x": No closing quotation: quote it as a shell would want it',
    "report quickstart variant=grpo seed=0 --study x":
        "--study 'x': quickstart is not a search, so it has no study; remove it",
    "report main seed=0 --from paper": "take no overrides: cppo report main --from paper",
    "report sensitivity --from paper": "--from paper with 'sensitivity': …cppo report main --from paper",
    "report main --from paper --study x": "--study 'x' with --from paper: …; remove it",
    "report tune_cppo --partial": "--partial: the report of a search always includes unfinished trials",
    "report tune_cppo --palette colorblind": "--palette colorblind: the report of a search",
    "report tune_cppo --figures 'font=\n'": "--figures 'font=': no such font here",
    "report quickstart --figures width=3.3in,x": "--figures 'x': not a setting of figures",
    "report tune_cppo --study a/b": "--study 'a/b': use letters, digits",
    "doctor seed=0,1": "override 'seed=0,1': seed takes one value here; a sweep takes several: seed=1,2",
    "doctor paths.data=5": "paths: data=5: must be text: quote it",
    "doctor 'paths.data=${oc.env:HOME}'": "${NAME:...} is not resolved: write the value itself",
    "data prepare --from gone": "--from gone: no such file or folder; valid: hub, sample, or",
    "tune quickstart 'variant=a b'":
        "quickstart has no key `search`: it is not a search: cppo launch quickstart 'variant=a b'",
    "launch tune_cppo": "tune_cppo is a search, which chooses its runs as it goes: use `cppo tune` for it",
    "tune tune_cppo --trials 0": "--trials 0: must be in [1, 100000]",
    "tune tune_cppo --study ../x": f"--study '../x': {STUDY_NAME}",
    f"tune tune_cppo --study {'x' * 101}": f"xxx': {STUDY_NAME}",
    "tune tune_cppo seed=x": "override 'seed=x': seeds are whole numbers: seed=0,1",
    "tune tune_cppo seed=99999999999": "seed=99999999999: must be in [0, 2147483648)",
    "tune tune_cppo model=a,b": "override 'model=a,b': a search tunes for one model; name one of them",
    "tune tune_cppo rule.w_min=0.5": "search tune_cppo tunes 'rule.w_min' itself; remove the override",
    "tune tune_cppo core=tpu": "has no bounds for core=tpu (valid: mini, verl): add tpu: {...}",
    "tune tune_cppo core=verl model=tiny_qwen3 layout=cpu_two_nodes":
        "layout=cpu_two_nodes of model tiny_qwen3 takes 2 nodes, and …choose a layout of one node (layout=one_node",
    "tune tune_cppo training.t_stop=7":
        "training.t_stop=7 must lie on the validation grid: make it a multiple",
    "tune tune_cppo --storage sqlite:///:memory:":
        f"storage 'sqlite:///:memory:' is not supported: {FILE_OR_SERVER}",
    "tune tune_cppo --storage mysql://u:secret@h/d":
        f"storage 'mysql://u:***@h/d' is not supported: {FILE_OR_SERVER}",
    "tune tune_cppo --storage sqlite:///a%20b.db":
        "/a%20b.db: the `%20` in its path would be read as another character: work in another folder, or name another",
    "tune tune_cppo --storage sqlite:///gone/x.db": "/gone does not exist: make it, or name another place",
    "compare '' ''": f". is not a report, it has no report.json: {AGAIN}",
    "plan quickstart variant=grpo seed=0 tracking.uri=./runs.db": f"tracking URI './runs.db' {FORMS}",
    "plan quickstart variant=grpo seed=0 'tracking.uri='\"'\"'ftp://u:secret@h'\"'\"''":
        f"tracking URI 'ftp://u:***@h' {FORMS}",
    "plan quickstart seed=0 seed=1": "override 'seed=1': 'seed=0' appears too: give seed once",
    "plan quickstart variant=cppo variant=grpo": "'variant=cppo' appears too: give variant once",
    "plan quickstart batch.prompts=8 batch.prompts=8,16": "'batch.prompts=8' appears too: give batch.prompts once",
    "plan quickstart core=verl divergence=exact_tv model=qwen3_8b_base":
        "choose divergence=topk_tv or topk_kl",
    "plan main --deviation=1": "--deviation=1: only valid with --power",
    "plan main --power --deviation=0": "must be above 0",
    "plan main --power --deviation=1,x": "--deviation=x: must be a number of points",
    "plan main --power --effect=nan": "--effect=nan: must be a number of points",
    "plan main --power --csv": "--csv with --power: use --json",
    "plan position_order seed=0 --power": "is planned: plan their variants with seed=140,141,",
    "plan quickstart_exact variant=dppo --power": "is planned: plan their variants with seed=0,1,2,",
    "plan exact --power --error-deviation=x": "--error-deviation=x: must be a number of points",
    "plan main --error-deviation=30": "--error-deviation=30: only valid with --power",
    "plan main --power --correlation=much": "--correlation=much: must be a number",
    "plan main --power --correlation=1": "--correlation=1: must be a number of at least 0 and below 1",
    "plan tune_cppo --power": "tune_cppo is a search, which tests no claim",
    "plan quickstart core=mini variant=grpo --power": "quickstart: --power compares two methods",
    "report quickstart --watch": "--watch needs --partial",
    "report quickstart --partial --watch --every 0": "--every 0: seconds",
    "preflight quickstart": "core=mini needs no preflight",
    "list models core=exact": "takes no overrides",
    "new main": "'main' is a sweep that comes with the product",
    **{
        f"new {name}": f"'{name}' is no name of a sweep: …beginning with a letter or digit"
        for name in ("../x", "λ", "_x")
    },
    "plan --state done": "name a sweep, before the options",
    "report gone --figures width=3": "--figures 'width=3': a width is a number with in, cm, mm or pt",
    "plan study model=mini_lang": "unknown model of this study 'mini_lang'",
    "plan study rule.wmin=0.5": "unknown key 'rule.wmin'",
    "plan quickstart variants=cppo": "unknown key 'variants': did you mean 'variant'?",
    "plan study variant=cppo_soft model=mini_long": "no sweep of it has all of",
    "plan study variant=grpo trust_region.delta=0.2": "no run of this sweep depends on 'trust_region.delta'",
    "plan quickstart +training.new=1,2": "only a key that is there can take several values",
    "plan main model=mini_small_base,mini_long model.name=x": "names two different runs: give each setting",
    "launch quickstart core=verl model=qwen3_8b_base": "runs of this sweep cannot start here (see `cppo doctor`): ",
    "plan study divergence=exact_kl": "the variants of sweep main set 'divergence' themselves",
    "plan calibration core=verl": "sweep calibration has no models for core=verl (valid: mini)",
    "plan main variant=grpo rule.ratio_cap=20": "no variant of this sweep has the key 'rule.ratio_cap'",
    "plan main variant=grpo recipe.max_prompt_length=512":
        "no run of this sweep depends on 'recipe.max_prompt_length'",
    "plan quickstart variant=cppo rule.w_min=null": "rule.w_min=null: rule 'cppo' needs a value",
    "plan quickstart variant=cppo rule.name=dppo":
        "rule 'dppo' has no constant 'delta_b' (valid: delta, ratio_cap,",
    "plan quickstart variant=cppo +rule.dual_clip=3": "rule 'cppo' has no constant 'dual_clip'",
    "plan quickstart variant=grpo rule.clip_low=2": "rule.clip_low=2: must be in [0, 1]",
    "plan quickstart variant=cppo divergence.measure=k2": "measure='k2' with estimator='topk': sample takes",
    "plan quickstart variant=cppo rule.clip_low=0.1": "unknown key 'rule.clip_low'",
    "doctor rule=verl_dro": "needs core=verl",
    "doctor +rule.options.x=1": "rule 'cppo' has no option 'x' (valid: none)",
    "doctor along=dppo": "core='mini' has no along: add core=exact",
    "doctor model=exact_early": "model='exact_early' is a model of core=exact: add core=exact",
    "doctor core=exact": "core='exact' does not train model='mini_base': choose model=exact_early or",
    "doctor core=exact model=qwen3_8b_base data=dapo_math": "cannot train",
    "doctor --core verls": "unknown core 'verls': did you mean 'verl'?",
    "doctor core=verl model=qwen3_8b_base data=chain": "choose data=dapo_math",
    "doctor core=verl model=tiny_qwen3 data=files": "data=files needs data.train=FILE and data.validation.NAME=FILE",
    "doctor core=verl model=tiny_qwen3 data=files data.train=gone.jsonl data.validation.held=gone.jsonl":
        "data.validation.held='gone.jsonl' cannot be read (No such file or directory)",
    "doctor core=verl model=tiny_qwen3 data=files data.train=/dev/zero data.validation.held=/dev/zero":
        "data.validation.held='/dev/zero' cannot be read (not a regular file)",
    "doctor core=verl model=tiny_qwen3 data=dapo_math data.benchmarks=[aime24,gain]":
        "tables have a column 'gain': give that validation set another name",
    "show main core=verl model.parameters=inf": "model.parameters=inf: must be a finite number in (0, inf)",
    "plan main core=verl '++layout.verl={actor_rollout_ref.rollout.max_num_seqs: many}'":
        "layout.verl sets actor_rollout_ref.rollout.max_num_seqs='many': must be a whole number",
    "doctor core=verl model=tiny_qwen3 data=dapo_math data.train=pyproject.toml": "unknown key 'data.train'",
    "doctor core=verl model=tiny_qwen3 data=chain data.validation.held=pyproject.toml": "unknown key 'data.validation'",
    "doctor core=verl model=tiny_qwen3 data=dapo_math data.reward=no_such_module:score":
        "data.reward='no_such_module:score': no source of module 'no_such_module' is found",
    "doctor core=verl model=tiny_qwen3 data=dapo_math data.reward=score": "or in CPPO_REWARDS and here by",
    "doctor core=verl model=qwen3_8b_base layout.tokens_per_device=10239":
        "less than the longest sequence, 2048 + 8192 tokens: set layout.tokens_per_device=10240 or more",
    "doctor core=verl model=qwen3_8b_base layout.rollout_tensor_parallel=16":
        "rollout_tensor_parallel=16 must divide the 8 devices of a node",
    "doctor core=verl model=qwen3_8b_base rollout.mode=async rollout.max_staleness=1 rollout.staleness=1":
        "staleness=1 with mode='async', …: set staleness=0",
    "doctor core=verl model=qwen3_8b_base rollout.mode=async rollout.max_staleness=1 rollout.correction=decoupled":
        "set correction=bypass, or drop mode",
    "doctor core=verl model=qwen3_8b_base layout.strategy=megatron": "the Megatron engine, and only it, needs",
    "doctor core=verl model=tiny_qwen3 data=dapo_math data.training=files": "only data=files takes data.train and",
    "doctor core=verl model=qwen3_8b_base layout.nodes=3":
        "24 data-parallel ranks, which cannot share a minibatch of 32 prompts x 8",
    "doctor core=verl model=qwen3_8b_base layout.devices_per_node=6 layout.rollout_tensor_parallel=3 batch.prompts=48 "
    "batch.minibatch_prompts=24": "layout.rollout_tensor_parallel=3 cannot share the key-value heads of model",
    "doctor core=verl model=qwen3_8b_base layout=two_nodes_megatron layout.devices_per_node=9 "
    "layout.rollout_tensor_parallel=1 layout.megatron.tensor=3 layout.megatron.expert=1 batch.prompts=48 "
    "batch.minibatch_prompts=24":
        "layout.megatron.tensor=3 cannot share the key-value heads of model",
    "doctor core=verl model=qwen3_8b_base layout=two_nodes_megatron rollout.staleness=1":
        "rollout.staleness=1 with layout=two_nodes_megatron: …choose a layout with strategy fsdp2",
    "doctor core=verl model=qwen3_8b_base optim.lora_rank=8 optim.lora_alpha=8 rollout.staleness=1":
        "rollout.staleness=1 with optim.lora_rank=8: …set rollout.staleness=0, or optim.lora_rank=null",
    "doctor core=verl model=qwen3_30b_a3b_base rollout.router_replay=R3 layout=four_nodes_moe":
        "configuration: rollout.router_replay='R3' cannot be had with …choose a layout with Megatron",
    "doctor core=verl model=qwen3_8b_base optim.master_dtype=bfloat16 layout=one_node_megatron":
        "configuration: optim.master_dtype='bfloat16' cannot …choose a layout with strategy fsdp2",
    "doctor core=verl model=qwen3_8b_base optim.lora_rank=8 optim.lora_alpha=8 layout=one_node_megatron":
        "configuration: optim.lora_rank=8 cannot be had with …choose a layout with strategy fsdp2",
    "doctor core=verl model=qwen3_30b_a3b_base optim.lora_rank=8 optim.lora_alpha=8 layout=four_nodes_moe":
        "optim.lora_rank=8 with model=qwen3_30b_a3b_base: …set null, or choose a dense",
    "doctor core=verl model=qwen3_8b_base rollout.mode=async rollout.max_staleness=3 layout=one_node_megatron":
        "configuration: rollout.mode='async' cannot be had with …choose a layout with strategy fsdp2",
    "doctor core=verl model=qwen3_30b_a3b_base rule=cppo_kl layout.megatron.tensor=3":
        "= 3 must divide the 32 devices",
    "plan main core=verl model=qwen3_30b_a3b_base layout.megatron.expert=7":
        "layout: expert=7 x pipeline=1 = 7 must divide the 32 devices of the layout",
    "preflight quickstart core=verl --random-weights": "model=tiny_qwen3 is made by the product itself: drop --random",
    "preflight main core=verl model=qwen3_8b_base model.repository=acme/Other variant=cppo --random-weights":
        "unknown repository with known sizes 'acme/Other': valid: Qwen/",
    "doctor core=exact model=exact_early along=dppo along.match=delta rule=grpo":
        "along.match='delta' with rule 'grpo', which has no delta: set along.match=scale",
    "doctor data.modulus=1000 data.spellings=1000":
        "makes 1000000 symbols, more than 100000: lower spellings to 100 or",
    "doctor data=addition data.operations=1":
        "takes more than half of the 100 problems that exist: raise operations or modulus",
    "doctor model.warm_start.steps=300": "steps=300 is the limit of a warm start…target_accuracy to null",
    "doctor rule=dppo +rule.position_span=padded": "rule 'dppo' has no constant 'position_span'",
    "doctor recipe=author": "unknown recipe 'author': did you mean 'authors'?",
    "doctor 'paths={datax: x}'": "unknown key 'paths.datax': did you mean 'paths.data'?",
    "doctor '~nothing'": "unknown key 'nothing': did you mean 'rule.smoothing'? valid: advantage",
    "doctor seed@x=1": "unknown key 'seed@x'",
    "doctor +_target_=os.system": "unknown key '_target_'",
    "doctor +rule.delta=1": "override '+rule.delta=1': rule.delta is there already: write rule.delta=1",
    "doctor '~rule.delta=9'":
        "override '~rule.delta=9': rule.delta is 0.05: give that value, or none: ~rule.delta",
    "doctor launcher.container=x": "launcher.container needs launcher=slurm",
    "doctor \"resources.partition='a b'\"": "resources: partition='a b': must match",
    "doctor \"paths.models='${oc.${paths.data}:SECRET}'\" paths.data=env":
        "${NAME:...} is not resolved: write the value itself",
    "doctor \"paths.models='${oc.${paths.${core}}:SECRET}'\" +paths.mini=env":
        "${NAME:...} is not resolved: write the value itself",
}  # fmt: skip

CASES = [
    *(Case(typed, says) for typed, says in LINES.items()),
    Case("sync", "CPPO_MIRROR) is 'x': choose trackio or wandb", environment={"CPPO_MIRROR": "x"}),
]
