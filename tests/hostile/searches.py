"""Search files, the arguments of `cppo tune`, and places where studies would be kept."""

from tests.hostile.case import Case

NAME = "mine.yaml"
HEAD = "title: T\nquestion: Q?\nmodels: [mini_small_base]\nsettings: {rule: cppo}\n"
SEARCH = "search:\n  trials: 4\n  parameters:\n    rule.w_min: {low: 0.4, high: 1.0}\n  objectives: [final_score]\n"
BOUNDS = "{low: 0.4, high: 1.0}"
PARAMETER = f"rule.w_min: {BOUNDS}"
WHERE = f"search ./{NAME}: search.parameters.rule.w_min"
FILE_OR_SERVER = "use sqlite:///FILE.db, a path that ends in .journal"
STUDY_NAME = "use letters, digits, `_`, `-` and `.`, beginning with a letter or digit"


def _instead(old: str, new: str, says: str) -> Case:
    text = HEAD + SEARCH
    assert old in text
    return Case(["plan", f"./{NAME}"], says, {NAME: text.replace(old, new)})


def _bounds(bounds: str, says: str) -> Case:
    return _instead(BOUNDS, bounds, f"{WHERE}{says}")


def _added(text: str, says: str) -> Case:
    return Case(["plan", f"./{NAME}"], f"search ./{NAME}: {says}", {NAME: HEAD + SEARCH + text})


def _tune(*words: str, says: str, files: dict[str, str] | None = None) -> Case:
    return Case(["tune", "tune_cppo", *words], says, files or {})


FILES = [
    _instead("trials: 4", "trials: 0", "search.trials=0: must be in [1, 100000]"),
    _instead("trials: 4", "trials: 99999999999", "search.trials=99999999999: must be in [1, 100000]"),
    _instead("trials: 4", "trials: many", "search.trials='many': must be a whole number in [1, 100000]"),
    _bounds("{low: 1.0, high: 0.4}", ": low=1.0 must be less than high=0.4: exchange them"),
    _bounds("{low: 0.4}", ": high is missing: add it"),
    _instead("low: 0.4", "low: .nan", "configuration: rule.w_min=nan: must be in (0, 1]"),
    _bounds("{low: 0.4, high: .inf}", " at inf: configuration: rule.w_min=inf: must be in (0, 1]"),
    _bounds("{low: 0.4, high: 2.0}", " at 2.0: configuration: rule.w_min=2.0: must be in (0, 1]"),
    _bounds(
        "{low: 0.4, high: 1.0, step: 0}", ": step=0 must be above 0 and divide high - low = 1.0 - 0.4 evenly"
    ),
    _bounds("{low: 0.4, high: 1.0, step: -0.1}", ": step=-0.1 must be above 0 and divide high - low"),
    _bounds("{low: 0.4, high: 1.0, step: .nan}", ": step=nan must be above 0 and divide high - low"),
    _bounds("{low: 0.4, high: 1.0, step: 1e-300}", ": step=1e-300 must be above 0 and divide high - low"),
    _bounds("{low: 0.4, high: 1.0, step: 0.25}", ": step=0.25 must be above 0 and divide high - low"),
    _bounds(
        "{low: 0.0, high: 1.0, log: true}",
        ": log=True with low=0.0: a logarithmic scale begins above 0; raise low",
    ),
    _bounds(
        "{low: 0.4, high: 1.0, log: true, step: 0.1}", ": log=True with step=0.1: …remove one of the two"
    ),
    _bounds("{low: '0.4', high: 1.0}", ": low='0.4': must be a whole number or a number"),
    _bounds(
        "{lo: 0.4, high: 1.0}", ": unknown key 'lo': did you mean 'log' or 'low'? valid: high, log, low, step"
    ),
    _bounds("[0.4, 1.0]", "=[0.4, 1.0]: must be a mapping: KEY: VALUE"),
    _bounds("{choices: []}", ": choices=[]: must have 2 items or more"),
    _bounds("{choices: [0.5]}", ": choices=[0.5]: must have 2 items or more"),
    _bounds("{choices: [0.5, 0.5]}", ": choices=[0.5, 0.5]: a value appears twice; remove one"),
    _bounds("{choices: [0.5, a]}", " at 'a': configuration: rule.w_min='a': must be a number in (0, 1]"),
    _bounds(
        "{choices: [[1], 2]}", ": choices.0=[1]: must be text or a whole number or a number or true or false"
    ),
    _bounds("{mini: 5}", ".mini=5 must be {low: ..., high: ...} or {choices: [...]}"),
    _bounds("{verl: {low: 0.4, high: 1.0}}", " has no bounds for core=mini (valid: verl): add mini: {...}"),
    _instead("rule.w_min:", "rule.w_mim:", "unknown key 'rule.w_mim': did you mean 'rule.w_min'?"),
    _instead(
        PARAMETER, "seed: {choices: [0, 1]}", "search.parameters.seed: this key cannot be tuned; remove it"
    ),
    _instead(
        PARAMETER,
        "launcher.workers: {choices: [1, 2]}",
        "launcher.workers: this key cannot be tuned; remove it",
    ),
    _instead(
        PARAMETER, "training.t_stop: {choices: [40, 60]}", "could not be compared; remove 'training.t_stop'"
    ),
    _instead(
        PARAMETER, "'a=b': {low: 0.1, high: 0.2}", "override 'a=b=0.1' is not key=value as Hydra reads it"
    ),
    _instead("[final_score]", "[]", "search.objectives=[]: must not be empty"),
    _instead("[final_score]", "[score]", "search.objectives.0='score': must be 'final_score', 'best_score'"),
    _instead("[final_score]", "[final_score, final_score]", "one appears twice; remove it"),
    _added("  sampler: {name: grid}\n", "search.sampler.name='grid': must be 'tpe', 'nsga2' or 'random'"),
    _added("  sampler: {startup: 1}\n", "search.sampler.startup=1: must be in [2, inf)"),
    _added(
        "  pruner: {name: percentile}\n",
        "search.pruner.name='percentile': must be 'median', 'hyperband' or 'none'",
    ),
    _added("seeds: []\n", "seeds=[]: must not be empty"),
    _added("seeds: [0, 0]\n", "seeds=[0, 0]: one appears twice; remove it"),
    _added("seeds: [-1]\n", "seeds.0=-1: must be greater than or equal to 0"),
    _added("seeds: 0\n", "seeds=0: must be a list: [...]"),
    _instead(
        "[mini_small_base]", "[mini_base, mini_small_base]", "must be a list of exactly one name, …one model"
    ),
    _instead("[mini_small_base]", "[nope]", "unknown model 'nope': valid: exact_early"),
    _instead(
        "{rule: cppo}",
        "{rule: cppo, seed: 0}",
        "settings.seed=0: use models and seeds, or seed= on the command",
    ),
    _instead(
        "{rule: cppo}",
        "{rule: cppo, rule.w_min: 0.5}",
        "settings.rule.w_min=0.5 is tuned by …: keep one of them",
    ),
    _instead(
        "{rule: cppo}", "{rule: cppo, tracking.uri: x}", "settings.tracking.uri belongs on the command line"
    ),
    _instead("{rule: cppo}", "{rule: nope}", "unknown rule 'nope': valid: cispo"),
    _instead("search:\n", "search: 5\nx:\n", "unknown key 'x': valid: feeds, models, name"),
]

ARGUMENTS = [
    Case(
        ["tune", "quickstart"], "quickstart has no key `search`: it is not a search: cppo launch quickstart"
    ),
    Case(
        ["launch", "tune_cppo"],
        "tune_cppo is a search, which chooses its runs as it goes: use `cppo tune` for it",
    ),
    Case(
        ["show", "tune_cppo"],
        "tune_cppo is a search, which chooses its runs as it goes: use `cppo tune` for it",
    ),
    _tune("--trials", "0", says="--trials 0: must be in [1, 100000]"),
    _tune("--trials", "9999999999", says="--trials 9999999999: must be in [1, 100000]"),
    _tune("--trials", "many", says="argument --trials: invalid int value: 'many': see `cppo tune --help`"),
    _tune("--study", "", says=f"--study '': {STUDY_NAME}"),
    _tune("--study", "../x", says=f"--study '../x': {STUDY_NAME}"),
    _tune("--study", "a b", says=f"--study 'a b': {STUDY_NAME}"),
    _tune("--study", "a\nb", says=f"--study 'a\\nb': {STUDY_NAME}"),
    _tune("--study", "$(touch x)", says=f"--study '$(touch x)': {STUDY_NAME}"),
    _tune("--study", "x" * 101, says=f"xxx': {STUDY_NAME}"),
    _tune("seed=x", says="override 'seed=x': seeds are whole numbers: seed=0,1"),
    _tune("seed=", says="override 'seed=': seeds are whole numbers: seed=0,1"),
    _tune("seed=99999999999", says="seed=99999999999: must be in [0, 2147483648)"),
    _tune("model=a,b", says="override model='a,b': a search tunes for one model; name one of them"),
    _tune("rule.w_min=0.5", says="search tune_cppo tunes 'rule.w_min' itself; remove the override"),
    _tune("x", says="override 'x' is not of the form key=value"),
    _tune("core=tpu", says="has no bounds for core=tpu (valid: mini, verl): add tpu: {...}"),
    _tune("training.t_stop=7", says="training.t_stop=7 must lie on the validation grid: make it a multiple"),
]

STORAGES = [
    _tune("--storage", "", says=f"storage '' is not supported: {FILE_OR_SERVER}"),
    _tune("--storage", "x.db", says=f"storage 'x.db' is not supported: {FILE_OR_SERVER}"),
    _tune("--storage", "sqlite:///", says=f"storage 'sqlite:///' is not supported: {FILE_OR_SERVER}"),
    _tune(
        "--storage",
        "sqlite:///:memory:",
        says=f"storage 'sqlite:///:memory:' is not supported: {FILE_OR_SERVER}",
    ),
    _tune("--storage", "redis://h", says=f"storage 'redis://h' is not supported: {FILE_OR_SERVER}"),
    _tune(
        "--storage",
        "mysql://u:secret@h/d",
        says=f"storage 'mysql://u:***@h/d' is not supported: {FILE_OR_SERVER}",
    ),
    _tune("--storage", "sqlite:///gone/x.db", says="/gone does not exist: make it, or name another place"),
    _tune("--storage", "gone/x.journal", says="/gone does not exist: make it, or name another place"),
    _tune(
        "--storage",
        "sqlite:///n.db",
        says="n.db cannot be used: …not a database",
        files={"n.db": "no " * 500},
    ),
    _tune(
        "--storage",
        "n.journal",
        says="n.journal: line 1 is no record of Optuna's journal: name another file",
        files={"n.journal": "my notes\n"},
    ),
    _tune(
        "--storage",
        "o.journal",
        says="o.journal: line 2 is no record of Optuna's journal: name another file, or remove that line",
        files={"o.journal": '{"op_code": 0}\n[1]\n'},
    ),
    Case(
        ["plan", "tune_cppo"],
        f"storage 'x.db' is not supported: {FILE_OR_SERVER}",
        environment={"OPTUNA_STORAGE": "x.db"},
    ),
    Case(
        ["tune", "tune_cppo"],
        f"storage 'http://u:***@h' is not supported: {FILE_OR_SERVER}",
        environment={"OPTUNA_STORAGE": "http://u:secret@h"},
    ),
    Case(
        ["tune", "tune_cppo"],
        "folder /nowhere does not exist: make it, or name another place",
        environment={"OPTUNA_STORAGE": "sqlite:////nowhere/x.db"},
    ),
]

CASES = [*FILES, *ARGUMENTS, *STORAGES]
