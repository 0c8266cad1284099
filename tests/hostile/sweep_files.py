"""Files of sweeps, studies and searches: no text, no YAML, YAML that means more than it says; keys, names, values,
conditions and resources that cannot be.
"""

import os
from collections.abc import Callable
from pathlib import Path

from cppo_lab.sweep.groups import groups
from tests.hostile.case import Case, Content

NAME = "mine.yaml"
HEAD = "title: T\nquestion: Q?\n"
MODELS = f"{HEAD}models: [mini_base]\n"
SWEEP = f"{MODELS}variants:\n  cppo: {{rule: cppo}}\n"
NO_TITLE = SWEEP.removeprefix("title: T\n")
BILLION = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{one}: &{one} [{','.join([f'*{before}'] * 9)}]\n"
    for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "x:\n  a: &a {k0: 1, k1: 1, k2: 1, k3: 1, k4: 1, k5: 1, k6: 1, k7: 1, k8: 1}\n" + "".join(
    f"  {one}: &{one} {{<<: [{','.join([f'*{before}'] * 9)}]}}\n"
    for before, one in zip("abcdefgh", "bcdefghi", strict=True)
)
NO_MAPPING = f"sweep ./{NAME}: a sweep file is a mapping with title, question, models, variants, axes"
DEEP = "more than 32 levels deep: remove the alias to its own parent, or the extra brackets"
AMBIGUOUS = (
    "is a number that programs read differently, or as text: write plain decimal digits…quote it if it"
)
PLAIN = "only text, numbers, true, false, lists and mappings are values"
KEYS = "valid: analysis, axes, baseline…resources, title, variants"
LIST_OF_NAMES = "must be a list of one or more names, or such a list for each core"
LIST_OF_VALUES = "must be a list of one or more plain values, or such a list for each core"
WORD = "must match ^[A-Za-z0-9]"
RULES = ", ".join(groups()["rule"])
LAYOUTS = ", ".join(groups()["layout"])
CPPO = "valid: rule.delta, rule.delta_b…rule.ratio_cap, rule.w_min"
FILES = {
    "title: T\nquestion: a\u202eb\n": ": question: 'a\\u202eb' has the character '\\u202e': remove it",
    f"{HEAD}sweeps: [maine]":
        "study ./mine.yaml: sweeps.0: unknown sweep 'maine': did you mean 'main'? valid: ",
    f"{HEAD}sweeps: [quickstart]\naxes: {{rule: [cppo]}}":
        "sweep quickstart in study ./mine.yaml: variants.grpo.rule: variant 'grpo' sets 'rule', which is an axis",
    f"{HEAD}sweeps: [quickstart]\naxes: {{seed: [-1]}}":
        "sweep quickstart in study ./mine.yaml: axes.seed=-1: must be in [0, 2147483648)",
    f"{HEAD}models: [qwen3_8b_base]\nvariants: {{cppo: {{rule: cppo}}}}\n":
        ": models='qwen3_8b_base' is a published model, which core='mini' cannot train: add core=verl, or choose",
    f"{HEAD}models: [mini_base]\nvariants: {{a: {{rule: cppo}}}}\nexclude: [{{variant: [a]}}]\n":
        ": exclude removes every run: remove an entry of it",
    # hypotheses of which `exclude` leaves one side alone, on a model or for a seed
    f"{HEAD}models: [mini_quick, mini_long]\nvariants: {{a: {{rule: cppo}}, b: {{rule: dppo}}}}\n"
    "axes: {seed: [0, 1]}\nexclude: [{variant: b, model: mini_long}, {variant: a, seed: 1}]\nhypotheses:\n"
    "  h: {claim: C, better: [a], than: [b], test_seeds: [0]}\n"
    "  g: {claim: C, better: [b], than: [a], test_seeds: [1]}\n":
        "hypotheses.h: `exclude` leaves model 'mini_long', seed 0, with runs of 'a' and without 'b', so they are never "
        "compared: exclude all of them there, or none; also: hypotheses.g: `exclude` leaves model 'mini_quick'",
    "": NO_MAPPING,
    "just text": NO_MAPPING,
    SWEEP.encode("utf-16-le"): "unacceptable character #x0000",
    "title: Größe\n".encode("latin-1"): f"sweep file ./{NAME} is not UTF-8 text: save it as UTF-8",
    b"\xef\xbb\xbf" + SWEEP.encode() + b"modells: 1\n": f"unknown key 'modells': did you mean 'models'? {KEYS}",
    "#" + "x" * 1000000: "has more than 1,000,000 bytes: no sweep needs as many",
    "&r\ntitle: T\nquestion: *r\n": f": question.question.…: {DEEP}",
    "title: T\nquestion: &l [*l]\n": f": question.0.0.…: {DEEP}",
    "[" * 2000: f"sweep ./{NAME}: {DEEP}",
    f"<<: 5\n{SWEEP}":
        " line 1, column 5: not valid YAML: expected a mapping or list of mappings for merging",
    f"? [a, b]\n: 1\n{SWEEP}": " line 1, column 3: not valid YAML: found unhashable key",
    f"1: x\n{SWEEP}": ": 1: the key 1 is not text: quote it",
    f"yes: x\n{SWEEP}": "unknown key 'yes'",
    "title: T: more\n": " line 1, column 9: not valid YAML: …: quote a text with `: `",
    f"{SWEEP}training.t_stop: 20\n": "unknown key 'training.t_stop': did you mean 'axes.training.t_stop'?",
    f"{SWEEP}seeds: [0]\n": "unknown key 'seeds': did you mean 'axes.seed'?",
    f"{SWEEP}baseline: [cppo]\npairing: x\n": "baseline=['cppo']: must be text; also: pairing='x': must be 'seed'",
    "title: [unclosed\n": " line 2, column 1: not valid YAML: expected ',' or ']'",
    f"{SWEEP}---\n{SWEEP}": " line 6, column 1: not valid YAML: but found another document",
    f"{MODELS}variants: {{a: {{rule: cppo, rule: dppo}}}}\n":
        "line 4, column 28: key 'variants.a.rule' appears twice: remove one",
    "question: Q\nmodels: [mini_base]\n": ": title is missing: add it",
    HEAD: ": models is missing: add it",
    f"{HEAD}models: mini_base\n": f": models='mini_base': {LIST_OF_NAMES}",
    f"{HEAD}models: []\n": f": models=[]: {LIST_OF_NAMES}",
    f"{HEAD}models: [mini_bas]\n": ": models='mini_bas': unknown model 'mini_bas': did you mean 'mini_base'?",
    f"{HEAD}models: [mini_base, mini_base]\n": ": 'mini_base' appears twice: remove one",
    f"{HEAD}models: {{mimi: [mini_base]}}\n":
        ": models: unknown core 'mimi': did you mean 'mini'? valid: exact, mini, verl",
    f"{HEAD}models: {{verl: [qwen3_8b_base]}}\n": " has no models for core=mini (valid: verl): use core=verl",
    f"name: ../../etc/x\n{SWEEP}": f": name='../../etc/x': {WORD}",
    f'name: "a\\nb"\n{SWEEP}': f": name='a\\nb': {WORD}",
    f"{HEAD}sweeps: []\n": ": sweeps=[]: must not be empty",
    f"{HEAD}sweeps: [./{NAME}]\n": f"study ./{NAME}: sweeps.0: mine is a study itself; name its sweeps",
    f"{HEAD}sweeps: [tune_cppo]\n": f"study ./{NAME}: sweeps.0: tune_cppo is a search; name sweeps",
    f"{HEAD}sweeps: [main, main]\n": "sweeps=['main', 'main'] must have distinct names",
    f"{HEAD}sweeps: [../gone.yaml]\n": "sweeps.0: sweep file ../gone.yaml does not exist",
    f"{HEAD}sweeps: [main]\nmodels: [mini_base]\n": ": unknown key 'models': valid: axes, feeds, name",
    f"{HEAD}sweeps: [quickstart]\naxes: {{sead: [1]}}\n":
        ": axes.sead=1: unknown key 'sead': did you mean 'seed'?",
}  # fmt: skip

ADDED = {
    "axes: {rule.w_min: [0.5, 2]}\n": ": axes.rule.w_min=2: must be in (0, 1]",
    "axes: {divergence.k: [8, 20]}\n":
        ": axes.divergence.k=20: the rollout policy has log-probabilities of 16 tokens…set divergence.k=16 or less",
    "axes: {rule.wmin: [0.5]}\n":
        f": axes.rule.wmin: unknown key 'rule.wmin': did you mean 'rule.w_min'? {CPPO}",
    "axes: {seed: [0, 1]}\nexclude: [{seed: [1, 2]}]\n": ": exclude.0.seed=2: unknown seed '2': valid: 0, 1",
    "axes: {seed: [0, 1]}\nexclude: [{seed: '1'}]\n": ": exclude.0.seed='1': remove its quotes",
    "resources: [{for: {model: mini_bas}, hours: 3}]\n":
        ": resources.0.for.model='mini_bas': unknown model 'mini_bas': did you mean 'mini_base'? valid: mini_base",
    '"\\e[2J": 1\n': ": \\x1b[2J: '\\x1b[2J' has the character '\\x1b': remove it",
    "axes: {seed: [010]}\n": f" line 6, column 15: not valid YAML: '010' {AMBIGUOUS}",
    "axes: {seed: [on]}\n": ": axes.seed='on': must be a whole number in",
    BILLION: f": {PLAIN}, 100,000 at most: the aliases here expand to more; write the values out",
    MERGES: " line …, column 10: not valid YAML: << merges more than 100,000 keys: write out",
    "axes: {seed: *nowhere}\n": " line 6, column 14: not valid YAML: found undefined alias 'nowhere'",
    "axes: {seed: [0]}\naxes: {seed: [1]}\n": " line 7, column 1: key 'axes' appears twice: remove one",
    "'${oc.env:HOME}': x\n": f": unknown key '${{oc.env:HOME}}': {KEYS}",
    "feeds: [Table]\n": ": feeds.0='Table': must be a table or figure of the paper, such as Table 1",
    "axes: [seed]\n": ": axes=['seed']: must be a mapping: KEY: VALUE",
    "axes: {seed: 0}\n": f": axes.seed=0: {LIST_OF_VALUES}",
    "axes: {seed: [[0]]}\n": f": axes.seed=[[0]]: {LIST_OF_VALUES}",
    "axes: {seed: [1, 1.0]}\n": ": axes.seed=[1, 1.0]: 1.0 appears twice: remove one",
    "axes: {seed: [0.5]}\n": ": axes.seed=0.5: must be a whole number in [0, 2147483648)",
    "axes: {rule: {tpu: [0]}}\n":
        ": axes.rule: unknown core 'tpu': valid: exact, mini, verl; a key within a key is written with dots",
    "axes: {seed: {verl: [0]}}\n": " has no axes.seed for core=mini (valid: verl)",
    "axes: {sead: [0]}\n":
        ": axes.sead=0: unknown key 'sead': did you mean 'seed'? valid: advantage, along…validation",
    "axes: {variant: [cppo]}\n": ": axes.variant: 'variant' is no axis: use variants:",
    "axes: {rule: [dppo]}\n": ": variants.cppo.rule: variant 'cppo' sets 'rule', which is an axis too",
    "axes: {training.t_stop: [7]}\n":
        ": axes.training.t_stop=7 must lie on the validation grid: make it a multiple",
    "axes: {optim.learning_rate: [1e-3x]}\n":
        ": axes.optim.learning_rate='1e-3x': must be a number in (0, inf)",
    f"axes: {{seed: {list(range(1500))}, data.validation_seed: {list(range(1500))}}}\n":
        ": declares 2,250,000 runs, more than 1,000,000: declare fewer",
    "axes: {seed: [0]}\nanalysis: factorial\n": ": analysis='factorial': the sweep has no axis but seed",
    "exclude: [{}]\n":
        ": exclude.0: must name at least one of variant, model, core, or a key of variants and axes",
    "exclude: [{varient: cppo}]\n":
        ": exclude.0.varient: unknown condition 'varient': did you mean 'variant'? valid: core, model, rule, "
        "variant",
    "exclude: [{variant: ccpo, model: mini}]\n":
        ": exclude.0.variant='ccpo': unknown variant 'ccpo': did you mean 'cppo'? valid: cppo; also: "
        "exclude.0.model='mini': unknown model 'mini'",
    "exclude: [{core: tpu}]\n": ": exclude.0.core='tpu': unknown core 'tpu': valid: exact, mini, verl",
    "exclude: [{variant: {a: b}}]\n": ": exclude.0.variant: must be a plain value or a list of one or more",
    "resources: {hours: 1}\n": ": resources={'hours': 1}: must be a list: [...]",
    "resources: [{hours: 0}]\n": ": resources.0.hours=0: must be in (0, 10000]",
    "resources: [{hour: 2}]\n":
        ": unknown key 'resources.0.hour': did you mean 'resources.0.hours'? valid: resources.0.account",
    'resources: [{partition: "g\\n#SBATCH --wrap=x"}]\n':
        ": resources.0.partition='g\\n#SBATCH --wrap=x': must",
    'resources: [{constraint: "a\'b"}]\n': ': resources.0.constraint="a\'b": must match ^[A-Za-z0-9',
    "resources: [{memory_gb: -1}]\n": ": resources.0.memory_gb=-1: must be in [0, inf)",
    "resources: [{layout: five_nodes}]\n":
        ": resources.0.layout='five_nodes': unknown layout 'five_nodes': did you mean 'four_nodes'? valid: "
        f"{LAYOUTS}",
    "resources: [{for: {variant: x}, hours: 1}]\n":
        ": resources.0.for.variant='x': unknown variant 'x': valid: cppo",
}  # fmt: skip

TITLES = {
    '"\\ud800"': ": title: '\\ud800' has the character '\\ud800': remove it",
    "!!python/object/apply:os.system ['touch x']": " line 1, column 8: …os.system' is not read …: remove it",
    "!custom x":
        " line 1, column 8: not valid YAML: the tag '!custom' is not read from a sweep file: remove it",
    "2026-01-01": f": title=datetime.date(2026, 1, 1) is a date: {PLAIN}: quote it",
    "2026-13-45": " line 1, column 8: not valid YAML: '2026-13-45' is no timestamp: quote it",
    "!!int x": " line 1, column 8: not valid YAML: 'x' is no int: quote it",
    "9" * 5000: " line 1, column 8: not valid YAML: '999… is no int: quote it",
    "9" * 4000: ": title: a whole number of 13,288 bits: no key takes one so large",
    "0x"
    + "f" * 5000: " line 1, column 8: not valid YAML: '0xfff…... is a number that programs read differently",
    "3": ": title=3: must be text: quote it",
    "${oc.env:HOME}": ": title='${oc.env:HOME}': a sweep file holds plain values",
}  # fmt: skip

VARIANTS = {
    "{a\u202eb: {rule: cppo}}": "variants.a\\u202eb: 'a\\u202eb' has the character '\\u202e': remove it",
    "{a: {rule: cppo, training.t_stop: abc}}":
        "variants.a.training.t_stop='abc': must be a whole number in [1, 1000000000]",
    "{a: {rule: cppo, batch.minibatch_prompts: 5}}":
        "variants.a.batch.minibatch_prompts=5: batch: minibatch_prompts=5 must divide prompts=32 (valid: [1, 2, 4",
    "{a: {rule: trm_max, divergence: topk_tv}}":
        "variants.a.divergence='topk_tv': divergence.measure='tv' with rule 'trm_max': …choose divergence=topk_kl, bin",
    "{a: {rule: grpo}}\naxes: {trust_region.delta: [0.5, 0.6]}":
        "axes.trust_region.delta: no run of the sweep depends on 'trust_region.delta': remove it",
    "{a: {rule: cppo}, b: {rule: dppo}}\naxes: {rule.w_min: [0.6, 0.8]}\nexclude: [{rule: dppo, rule.w_min: 0.6}]":
        "exclude.0={rule: dppo, rule.w_min: 0.6}: no run of the sweep has all of these: remove the entry, or",
    "[cppo]": "variants=['cppo']: must be a mapping: KEY: VALUE",
    "{}": "variants={}: must not be empty",
    "{int: 5}": "variants.int=5: must be a mapping: KEY: VALUE",
    "{'a,b': {rule: cppo}}":
        "variants.a,b='a,b': must be a name without commas: the command line lists names (variant=a,b)",
    "{'a; x=1': {rule: cppo}}": "variants.a; x=1='a; x=1': must be a name without semicolons",
    "{'': {rule: cppo}}": "variants.='': must be a name, without blanks at its ends",
    "{' a': {rule: cppo}}": "variants. a=' a': must be a name, without blanks at its ends",
    '{"a\\nb": {rule: cppo}}': "variants.a\\nb='a\\nb': must consist of printable characters",
    "{a: {rule: cpo}}": f"variants.a.rule='cpo': unknown rule 'cpo': did you mean 'cfpo' or 'cppo'? valid: {RULES}",
    "{a: {rule: [cppo, dppo]}}":
        "variants.a.rule=['cppo', 'dppo']: must be a plain value: several are an axis",
    "{a: {rule: cppo, optim: {learning_rate: 0.1}}}":
        "variants.a.optim: must be a plain value: a key within a key is written with dots, as rule.w_min",
    "{cppo: {}, grpo: {}}": "variants: grpo names a rule but would train cppo: add rule: grpo",
    "{cppo: {rule: grpo}}": "variants: cppo names a rule but would train grpo: rename it (no run changes)",
    "{a: {rule: '${oc.env:HOME}'}}": "variants.a.rule='${oc.env:HOME}': a sweep file holds plain values",
    "{a: {rule.w_min: '0.5'}}": "variants.a.rule.w_min='0.5': must be a number in (0, 1]",
    "{a: {rule.delta: .inf}}": "variants.a.rule.delta=inf: must be a finite number in (0, inf)",
    "{a: {model: mini_base}}": "variants.a.model: variant 'a' sets 'model', which is an axis too: keep one",
    "{a: {launcher.workers: 2}}":
        "variants.a.launcher.workers: 'launcher.workers' belongs on the command line",
    "{a: {rule: cppo}, b: {rule: cppo}}":
        "variants 'a' and 'b' compose to the same run de6dbad0155a: remove one, or the override that makes",
    "{a: {+x.y: 1}}": "variants.a.+x.y=1: unknown key 'x': valid: advantage",
    "{a: {'b=c': 1}}": "variants.a.b=c=1: override 'b=c=1' is not key=value as Hydra reads it",
}  # fmt: skip

# With core=verl.
VERL = {
    "variants: {a: {rule: cppo, data.reward: 'x:y'}}":
        ": variants.a.data.reward='x:y': …in CPPO_REWARDS and here by its name alone; a file does not say what",
    "variants: {a: {rule: cppo, '++data.reward': 'x:y'}}":
        ": variants.a.++data.reward='x:y': …a file does not say what is imported",
    "variants: {a: {rule: cppo, rule.path: 'x:y'}}":
        ": variants.a.rule.path='x:y': a file does not say what is imported: install …or in CPPO_RULES",
    "variants: {a: {rule: cppo, '++rule.path': 'x:y'}}":
        ": variants.a.++rule.path='x:y': a file does not say what is imported",
    "variants: {a: {rule: cppo, divergence: exact_tv}}":
        ": variants.a.divergence='exact_tv': divergence.estimator='exact' would…: choose divergence=topk_tv or topk_kl",
    "resources: [{hours: 3}, {gpus: 3}]":
        ": resources.1.gpus=3: layout='two_nodes' has 6 data-parallel ranks, …: choose a layout whose ranks divide 256",
    "variants: {a: {rule: cppo, divergence.k: 200000}}":
        ": variants.a.divergence.k=200000: the rollout policy…; set divergence.k=151936 or less",
}  # fmt: skip

# Files with several mistakes: each is said, once.
SEVERAL = {
    # hypotheses, and what a run's configuration says
    "variants: {a: {rule: cppo, rule.w_min: 2}, b: {rule: dppo}}\nhypotheses:\n"
    "  h: {claim: C, better: [a], than: [z], test_seeds: [0]}\n"
    "  g: {claim: C, better: [y, x], than: [b], test_seeds: [0]}\n"
    "  f: {claim: C, better: [a], than: [b], test_seeds: []}\n":
        "hypotheses.h: variant 'z' is not in variants (valid: a, b); also: hypotheses.g: variant 'y' is not in "
        "variants (valid: a, b); also: variant 'x' is not in variants (valid: a, b); also: hypotheses.f.test_seeds=[]: "
        "must not be empty; also: variants.a.rule.w_min=2: must be in (0, 1]",
    # a key, a baseline, conditions and an axis
    "titel: T\nvariants: {a: {rule: cppo}, b: {rule: dppo}}\nbaseline: c\n"
    "exclude: [{variant: aa}, {modell: x}]\nresources: [{for: {seed: 1}, hours: 1}]\naxes: {seeds: [1]}\n":
        "unknown key 'titel': did you mean 'title'?…; also: unknown baseline 'c': valid: a, b; also: "
        "exclude.0.variant='aa'…; also: exclude.1.modell: unknown condition 'modell': did you mean 'model'?…; also: "
        "resources.0.for.seed: unknown condition 'seed'…; also: axes.seeds=1: unknown key 'seeds': did you "
        "mean 'seed'?",
    # keys that belong elsewhere, and one that a variant misspells twice
    "variants: {a: {rule: cppo, core: mini, optim.lr: 1, rule.wmin: 1}}\n"
    "axes: {layout: [cpu], launcher.workers: [1], resources.hours: [1]}\n":
        "axes.layout: 'layout' is no axis…; also: axes.launcher.workers: 'launcher.workers' belongs on the command "
        "line…; also: axes.resources.hours: use resources:; also: variants.a.core: choose it on the command line…; "
        "also: variants.a.optim.lr=1: unknown key 'optim.lr': did you mean 'optim.learning_rate'…; also: "
        "variants.a.rule.wmin=1: unknown key 'rule.wmin': did you mean 'rule.w_min'",
    # hypotheses that no run tests
    "variants: {a: {rule: cppo}, b: {rule: dppo}}\naxes: {rule.w_min: [0.6, 0.8]}\nhypotheses:\n"
    "  h: {claim: C, better: [a], than: [b], test_seeds: [0]}\n"
    "  g: {claim: C, better: [a w_min=0.6], than: [b w_min=0.6], test_seeds: [0], after: h}\n":
        "hypotheses.h: the file's axes are part of the names of variants: 'a' is 'a w_min=0.6' or 'a w_min=0.8': name "
        "that…; also: hypotheses.g: no run is of variant 'b w_min=0.6'",
    # names of variants that no run has: with a blank of their own, and where axes alone define the runs
    "variants: {my a: {rule: cppo}, b: {rule: dppo}}\naxes: {rule.w_min: [0.6, 0.8]}\nbaseline: my a w_min=0.9\n"
    "hypotheses: {h: {claim: C, better: [my a w_min=0.7], than: [my a w_min=0.6], test_seeds: [0]}}\n":
        "unknown baseline 'my a w_min=0.9': did you mean …valid: b, my a, my a w_min=0.6, …; also: hypotheses.h: no "
        "run is of variant 'my a w_min=0.7' (variants: 'my a w_min=0.6', 'my a w_min=0.8', 'b')",
    "axes: {rule: [cppo, dppo], seed: [0, 1]}\nbaseline: grpo\n"
    "hypotheses: {h: {claim: C, better: [cppo], than: [grpo], test_seeds: [1]}}\n":
        "unknown baseline 'grpo'…; also: hypotheses.h: no run is of variant 'grpo' (variants: 'cppo', 'dppo')",
    # seeds: what each may be, once
    "variants: {a: {rule: cppo}, b: {rule: dppo}}\n"
    "hypotheses: {h: {claim: '', better: [a], than: [b], test_seeds: [-1], selection_seeds: [x]}}\n":
        "hypotheses.h.claim='': must not be empty; also: hypotheses.h.test_seeds.0=-1: must be in [0, 2147483648); "
        "also: hypotheses.h.selection_seeds.0='x': must be a whole number in [0, 2147483648)",
    # of a hypothesis its form, what it contradicts, what the sweep does not have, and its order; and of the runs
    "variants: {a: {rule: cppo, rule.wmin: 1}, b: {rule: dppo, foo: 2}}\nexclude: [{variant: c}]\n"
    "axes: {seed: [0, 1]}\nhypotheses:\n"
    "  h: {claim: C, better: [z], than: [b], test_seeds: [7], models: tren, after: g}\n"
    "  g: {claim: C, better: [a], than: [a], test_seeds: [1, 1], selection_seeds: [1], after: h}\n":
        "hypotheses.h.models='tren': must be 'mean', 'each' or 'trend'; also: hypotheses.h: variant 'z' is not in "
        "variants (valid: a, b); also: test_seeds: no run has seed 7…; also: after='g' leads back to it…; also: "
        "hypotheses.g: 'a' is in `better` and in `than`…; also: seed 1 is in test_seeds and in selection_seeds…; also: "
        "test_seeds: 1 stands there twice…; also: after='h' leads back to it…; also: exclude.0.variant='c'…; also: "
        "variants.a.rule.wmin=1: unknown key 'rule.wmin'…; also: variants.b.foo=2: unknown key 'foo'",
    "hypotheses:\n"
    "  h: {claim: '', better: a, than: [b], test_seeds: 0, margin: 1, after: f}\n"
    "  g: 5\n"
    "  f: {claim: C, better: [a], than: [b], test_seeds: [0], after: g}\n"
    "  e: {claim: C, better: [a], test_seeds: [0], after: d, models: trend, within: 3, smallest: 200}\n"
    "variants: {a: {rule: nope}, b: {rule: dppo}}\n":
        "unknown key 'hypotheses.h.margin'…; also: hypotheses.h.claim=''…; also: hypotheses.h.better='a': must be a "
        "list…; also: hypotheses.h.test_seeds=0: must be a list…; also: hypotheses.g=5: must be a mapping…; also: "
        "hypotheses.e.than is missing…; also: hypotheses.e: models=trend is for scores, without `within`; also: "
        "smallest and within are points of a score (0 to 100): at most 100; also: models=trend needs three models…; "
        "also: after='d' is no hypothesis (valid: h, g, f, e); also: variants.a.rule='nope': unknown rule 'nope'",
    # of a hypothesis of a wrong form, what its runs lack; and variants whose names are wrong
    "variants: {a: {rule: cppo}, b: {rule: dppo}}\naxes: {rule.w_min: [0.6, 0.8]}\nhypotheses:\n"
    "  h: {claim: C, better: [a], than: [b], test_seeds: [0], outcome: luck}\n":
        "hypotheses.h.outcome='luck'…; also: hypotheses.h: the file's axes are part of the names of variants: 'a' is",
    "variants: {'a,b': {rule: cppo}, b: {rule: dppo}}\nhypotheses:\n"
    "  h: {claim: C, better: [b], than: [b], test_seeds: [0], after: h}\n":
        "variants.a,b='a,b': must be a name without commas…; also: hypotheses.h: 'b' is in `better` and in `than`…; "
        "also: after='h' leads back to it",
}  # fmt: skip
# The hypothesis `above` about `cppo` and `dppo` with seeds 0, 1 and 2.
HYPOTHESES = {
    "claim: C, better: [cppo], than: [dppo], test_seeds: [1, 7]":
        "test_seeds: no run has seed 7: name seeds of the sweep (0, 1, 2), or extend axes.seed",
    "claim: C, better: [cppo], than: [dppo], test_seeds: [1, 2], smallest: 0":
        "hypotheses.above.smallest=0: must be in (0, inf)",
    "claim: C, better: [cppo], than: [dppo], test_seeds: [1, 2], sequential: yes":
        "hypotheses.above.sequential='yes': must be true",
    "claim: C, better: [cppo, cppo], than: [dppo], test_seeds: [1, 2]": "better: 'cppo' stands there twice",
    "claim: C, better: [cppo], than: [dppo], test_seeds: [1, 2], models: trend, outcome: error":
        "outcome=error_slope is the trend of an error",
}  # fmt: skip

HUB = f"{HEAD}models: {{verl: [qwen3_8b_base]}}\n"
COMPARED = f"{MODELS}variants: {{cppo: {{rule: cppo}}, dppo: {{rule: dppo}}}}\naxes: {{seed: [0, 1, 2]}}\n"
SEARCH_HEAD = "title: T\nquestion: Q?\nmodels: [mini_small_base]\nsettings: {rule: cppo}\n"
BOUNDS = "{low: 0.4, high: 1.0}"
PARAMETER = f"rule.w_min: {BOUNDS}"
SEARCH = f"{SEARCH_HEAD}search:\n  trials: 4\n  parameters:\n    {PARAMETER}\n  objectives: [final_score]\n"
A_PARAMETER = (
    "a parameter is KEY: {low: ..., high: ...} or KEY: {choices: [...]}, …for each core, KEY: {CORE: …}"
)
# A core's parameters, where a parameter has cores.
TURNED = {
    f"mini: {{{PARAMETER}}}": f"mini={{'rule.w_min': {{'low': 0.4, 'high': 1.0}}}}: {A_PARAMETER}",
    f"mni: {{{PARAMETER}}}": f"mni={{'rule.w_min': {{'low': 0.4, 'high': 1.0}}}}: {A_PARAMETER}",
    "mini: [rule.w_min]": f"mini=['rule.w_min']: {A_PARAMETER}",
    f"mini: {{{PARAMETER}}}\n    rule.delta: 5": f"mini=…: {A_PARAMETER}…; also: …rule.delta=5: a parameter is",
    "[rule.w_min]": f"search.parameters=['rule.w_min']: {A_PARAMETER}",
}
BOUNDED = {
    "{low: 0.4}": ": high is missing: add it",
    "{low: 0.4, high: .inf}": " at inf: configuration: rule.w_min=inf: must be in (0, 1]",
    "{low: 0.4, high: 2.0}": " at 2.0: configuration: rule.w_min=2.0: must be in (0, 1]",
    "{low: 0.4, high: 1.0, step: 0}": ": step=0 must be above 0 and divide high - low = 1.0 - 0.4 evenly",
    "{low: 0.4, high: 1.0, step: .nan}": ": step=nan must be above 0 and divide high - low",
    "{low: 0.4, high: 1.0, step: 1e-300}": ": step=1e-300 must be above 0 and divide high - low",
    "{low: 0.4, high: 1.0, step: 0.25}": ": step=0.25 must be above 0 and divide high - low",
    "{low: 0.0, high: 1.0, log: true}":
        ": log=True with low=0.0: a logarithmic scale begins above 0; raise low",
    "{low: 0.4, high: 1.0, log: true, step: 0.1}": ": log=True with step=0.1: …remove one of the two",
    "{low: '0.4', high: 1.0}": ": low='0.4': must be a whole number or a number",
    "{lo: 0.4, high: 1.0}": ": unknown key 'lo': did you mean 'log' or 'low'? valid: high, log, low, step",
    "{choices: [0.5]}": ": choices=[0.5]: must have 2 items or more",
    "{choices: [0.5, 0.5]}": ": choices=[0.5, 0.5]: a value appears twice; remove one",
    "{choices: [0.5, a]}": " at 'a': configuration: rule.w_min='a': must be a number in (0, 1]",
    "{choices: [[1], 2]}": ": choices.0=[1]: must be text or a whole number or a number or true or false",
    **{
        text: f"={value}: {A_PARAMETER}"
        for text, value in {
            "[0.4, 1.0]": "[0.4, 1.0]",
            "0.4": "0.4",
            "0.4..1.0": "'0.4..1.0'",
            "{mini: 5}": "{'mini': 5}",
            "{mini: [0.4, 1.0]}": "{'mini': [0.4, 1.0]}",
            "{mini: {low: 0.4, high: 1.0}, exat: {low: 0.4, high: 1.0}}": "{'mini': …'exat': {'low': 0.4, …}}",
            "{mini: {low: 0.4, high: 1.0}, low: 0.4}": "{'mini': {'low': 0.4, 'high': 1.0}, 'low': 0.4}",
            "{min: 0.4, max: 1.0}": "{'min': 0.4, 'max': 1.0}",
        }.items()
    },
    "{mini: {low: 0.4}}": ".mini: high is missing: add it",
    "{verl: {low: 0.4, high: 1.0}}": " has no bounds for core=mini (valid: verl): add mini: {...}",
}  # fmt: skip

IN_A_SEARCH = [
    ("low: 0.4", "low: .nan", "configuration: rule.w_min=nan: must be in (0, 1]"),
    (PARAMETER, "seed: {choices: [0, 1]}", "search.parameters.seed: this key cannot be tuned; remove it"),
    (PARAMETER, "training.t_stop: {choices: [40, 60]}", "could not be compared; remove 'training.t_stop'"),
    (PARAMETER, "'a=b': {low: 0.1, high: 0.2}", "override 'a=b=0.1' is not key=value as Hydra reads it"),
    ("[final_score]", "[]", "search.objectives=[]: must not be empty"),
    ("[final_score]", "[score]", "search.objectives.0='score': must be 'final_score', 'best_score'"),
    ("[final_score]", "[final_score, final_score]", "one appears twice; remove it"),
    ("[mini_small_base]", "[mini_base, mini_small_base]", "must be a list of exactly one name, …one model"),
    ("[mini_small_base]", "[nope]", "unknown model 'nope': valid: exact_early"),
    (
        "[mini_small_base]",
        "{Mini: [x]}",
        "search ./mine.yaml: models: unknown core 'Mini': did you mean 'mini'?",
    ),
    (
        PARAMETER,
        "batch.prompts: {low: 32, high: 48, step: 3.2}",
        "batch.prompts at 35.2: …must be a whole number",
    ),
    (
        "{rule: cppo}",
        "{rule: cppo, rule.w_min: 0.5}",
        "settings.rule.w_min=0.5 is tuned by …: keep one of them",
    ),
    ("{rule: cppo}", "{rule: nope}", "unknown rule 'nope': valid: cfpo, cispo"),
    ("search:\n", "search: 5\nx:\n", "unknown key 'x': valid: feeds, models, name"),
    (
        "[final_score]\n",
        "[final_score, stability]\n  pruner: {name: median}\n",
        "pruner.name='median' with objectives=['final_score', 'stability']: Optuna prunes for a single objective only; "
        "set pruner: {name: none}",
    ),
    (
        PARAMETER,
        "trust_region.kl_delta: {low: 0.1, high: 0.3}",
        "trust_region.kl_delta at 0.3: the runs do not depend on 'trust_region.kl_delta'; remove it",
    ),
    (
        PARAMETER,
        "rule.path: {choices: ['mine.rules:ours', 'mine.rules:theirs']}",
        "search ./mine.yaml: search.parameters.rule.path: a file does not say what is imported",
    ),
    (
        "{rule: cppo}",
        "{rule: cppo, rule.path: 'mine.rules:ours'}",
        "search ./mine.yaml: settings.rule.path='mine.rules:ours': a file does not say what is imported",
    ),
    ("[mini_small_base]", "{verl: [tiny_qwen3]}", "has no models for core=mini (valid: verl)"),
]
AFTER_A_SEARCH = {
    "  sampler: {startup: 1}\n": "search.sampler.startup=1: must be in [2, inf)",
    "seeds: []\n": "seeds=[]: must not be empty",
    "seeds: [0, 0]\n": "seeds=[0, 0]: one appears twice; remove it",
    "seeds: [-1]\n": "seeds.0=-1: must be in [0, 2147483648)",
}  # fmt: skip


RULE_FILES = {
    ("rule/Bad.yaml", ""): "rule file rule/Bad.yaml: its name must be lower-case letters, digits and _",
    (
        "rule/own.yaml",
        "defaults: [override /divergence: x]\nrule: {name: own}\n",
    ): "own.yaml: unknown divergence 'x': valid: binary_kl",
    ("rule/own.yaml", "name: own\nslack: 0"): "rule file rule/own.yaml: slack: …: put it below `options`",
    ("rule/own.yaml", "name: own"): "variants.cppo.rule.name='own' is of another package: choose rule=own",
}
OTHER_RULES = (
    "study ./study.yaml: sweeps.1: rule file b/rule/own.yaml: rule 'own' is another one in a/rule/own.yaml"
)


def read(text: Content, says: str, *words: str) -> Case:
    return Case(f"plan ./{NAME} {' '.join(words)}", says, {NAME: text})


NOT_READ: dict[str, Callable[[Path], object]] = {
    f"sweep file {NAME} cannot be read: …: name a readable file": lambda path: path.symlink_to(NAME),
    f"sweep file {NAME} does not exist (shipped sweeps: …main": lambda path: path.symlink_to("gone.yaml"),
    f"sweep file {NAME} is no regular file: copy its text into one": os.mkfifo,
    f"sweep file {NAME} is no regular file: copy its text": lambda path: path.symlink_to("/dev/zero"),
    f"sweep file {NAME} is a folder: name a file in it": Path.mkdir,
}


def _at(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: make(folder / NAME)


CASES = [
    *(Case(f"plan {NAME}", says, make=_at(make)) for says, make in NOT_READ.items()),
    Case(
        "plan './my x.yaml'",
        f"sweep file ./my x.yaml: its name is the sweep's, and {WORD}…: rename it, or give it a key `name`",
        {"my x.yaml": SWEEP},
    ),
    Case("plan a.txt/x.yaml", "sweep file a.txt/x.yaml cannot be read: Not a directory", {"a.txt": ""}),
    *(read(text, says) for text, says in FILES.items()),
    *(
        Case(
            f"plan {NAME}",
            says,
            {NAME: SWEEP.replace("rule: cppo", "rule: cppo, rule.name: own"), path: text},
        )
        for (path, text), says in RULE_FILES.items()
    ),
    Case(  # neither a file of the name installs a core, nor a record beside it
        f"plan {NAME} core=acme",
        "unknown core 'acme': valid: exact, mini, verl",
        {
            NAME: SWEEP,
            "core/acme.yaml": "# @package _global_\ncore: acme:ACME\n",
            "acme.py": "ACME = 1 / 0\n",
        },
    ),
    Case(
        "plan ./study.yaml",
        OTHER_RULES,
        {f"{name}/rule/own.yaml": f"name: own\ndelta: {ord(name)}\n" for name in "ab"}
        | {f"{name}/{name}.yaml": SWEEP for name in "ab"}
        | {"study.yaml": f"{HEAD}sweeps: [a/a.yaml, b/b.yaml]\n"},
    ),
    *(read(SWEEP + text, f"sweep ./{NAME}{says}") for text, says in ADDED.items()),
    *(read(f"title: {text}\n{NO_TITLE}", f"sweep ./{NAME}{says}") for text, says in TITLES.items()),
    *(read(f"{MODELS}variants: {text}\n", f"sweep ./{NAME}: {says}") for text, says in VARIANTS.items()),
    *(
        read(f"title: T\nmodels: [mini_base]\n{text}", f"sweep ./{NAME}: {says}")
        for text, says in SEVERAL.items()
    ),
    *(read(f"{HUB}{text}\n", f"sweep ./{NAME}{says}", "core=verl") for text, says in VERL.items()),
    *(read(f"{COMPARED}hypotheses: {{above: {{{text}}}}}\n", says) for text, says in HYPOTHESES.items()),
    *(
        read(SEARCH.replace(BOUNDS, text), f"search ./{NAME}: search.parameters.rule.w_min{says}")
        for text, says in BOUNDED.items()
    ),
    *(read(SEARCH.replace(PARAMETER, text), says) for text, says in TURNED.items()),
    *(read(SEARCH.replace(old, new), says) for old, new, says in IN_A_SEARCH),
    *(read(SEARCH + text, f"search ./{NAME}: {says}") for text, says in AFTER_A_SEARCH.items()),
]
