"""The records of the built-in rules, and of named settings of these rules."""

import math

from cppo_lab.rules.colours import (
    BLACK,
    BLUE,
    DASH_DOT,
    DASH_DOTS,
    DOTS,
    GREEN,
    LONG,
    LONG_SHORT,
    ORANGE,
    PURPLE,
    SHORT,
    SKY,
    VERMILLION,
)
from cppo_lab.rules.record import DIVERGENCE, KL, MINIBATCH, PERMUTATION, RESPONSE, Row, Rule, Stroke, Variant

CPPO_PAPER, TRM_PAPER = "2606.10968", "2512.23075"
_MASKS, _CLIPS, _RESPONSES = "cppo_lab.maths.masks", "cppo_lab.maths.clips", "cppo_lab.maths.responses"
_BUDGET = frozenset({DIVERGENCE, RESPONSE})
_OF_KL = frozenset({DIVERGENCE, KL, RESPONSE})

# In the order of the table of rule differences.
BUILT_IN = (
    Rule(
        name="grpo",
        function=f"{_CLIPS}:grpo",
        title="GRPO",
        paper="2402.03300",
        row=Row("ratio", beyond="clipped"),
        place=1,
        stroke=Stroke("#59A14F"),
        accessible=Stroke(GREEN, DASH_DOTS, "P"),
    ),
    # One function: PPO is the symmetric choice clip_low = clip_high.
    Rule(
        name="ppo",
        function=f"{_CLIPS}:grpo",
        title="PPO",
        paper="1707.06347",
        row=Row("ratio", beyond="clipped"),
    ),
    # Dr. GRPO keeps PPO's clip. It removes two things outside the rule: the division of advantages by the group's
    # standard deviation (`aggregation.group_advantages`), and of each response by its length (`aggregation`).
    Rule(
        name="dr_grpo",
        function=f"{_CLIPS}:grpo",
        title="Dr. GRPO",
        paper="2503.20783",
        row=Row("ratio", beyond="clipped"),
    ),
    Rule(
        name="dppo",
        function=f"{_MASKS}:dppo",
        title="DPPO",
        paper="2602.04879",
        needs=frozenset({DIVERGENCE}),
        row=Row("divergence"),
        place=4,
        stroke=Stroke("#E05759"),
        accessible=Stroke(VERMILLION, LONG, "s"),
    ),
    Rule(
        name="cppo",
        function=f"{_MASKS}:cppo",
        title="CPPO",
        paper=CPPO_PAPER,
        needs=_BUDGET,
        row=Row("divergence", position="yes", prefix="yes"),
        place=7,
        stroke=Stroke("#0052D9"),
        accessible=Stroke(BLUE),
    ),
    Rule(
        name="cppo_no_position_weight",
        function=f"{_MASKS}:cppo",
        fixed={"w_min": 1.0, "span": None},
        title="CPPO without position weight",
        paper=CPPO_PAPER,
        needs=_BUDGET,
        row=Row("divergence", prefix="yes"),
        stroke=Stroke("#00A3A1"),
        accessible=Stroke(GREEN, SHORT, "^"),
    ),
    Rule(
        name="cppo_no_prefix_budget",
        function=f"{_MASKS}:cppo",
        fixed={"delta_b": math.inf, "delta_b_mode": "fixed"},
        title="CPPO without prefix budget",
        paper=CPPO_PAPER,
        needs=_BUDGET,
        row=Row("divergence", position="yes"),
        stroke=Stroke("#7B4FB5"),
        accessible=Stroke(PURPLE, DASH_DOT, "v"),
    ),
    # Tests whether the order of the weights matters, or only their distribution.
    Rule(
        name="cppo_no_prefix_budget_shuffled",
        function=f"{_MASKS}:cppo",
        fixed={"delta_b": math.inf, "delta_b_mode": "fixed"},
        title="CPPO without prefix budget, shuffled weights",
        paper=CPPO_PAPER,
        needs=_BUDGET | {PERMUTATION},
        row=Row("divergence", position="shuffled"),
        stroke=Stroke("#E377C2"),
        accessible=Stroke(BLACK, DOTS, "D"),
    ),
    # The lightest weight first. If early tokens are decisive, it should do worse than shuffled and ordered weights.
    Rule(
        name="cppo_no_prefix_budget_reversed",
        function=f"{_MASKS}:cppo",
        fixed={"delta_b": math.inf, "delta_b_mode": "fixed", "reverse": True},
        title="CPPO without prefix budget, reversed weights",
        paper=CPPO_PAPER,
        needs=_BUDGET,
        row=Row("divergence", position="reversed"),
        stroke=Stroke("#17BECF"),
        accessible=Stroke(ORANGE, LONG_SHORT, "<"),
    ),
    Rule(
        name="cppo_soft",
        function=f"{_MASKS}:cppo_soft",
        title="CPPO soft gate",
        paper=CPPO_PAPER,
        needs=_BUDGET,
        row=Row("divergence", position="yes", prefix="yes", beyond="weighed less"),
        stroke=Stroke("#8C8C00"),
        accessible=Stroke(BLACK, SHORT, "P"),
    ),
    Rule(
        name="trm_max",
        function=f"{_RESPONSES}:trm_max",
        title="TRM-Max",
        paper=TRM_PAPER,
        needs=_OF_KL,
        row=Row("largest divergence", per="response"),
        place=5,
        stroke=Stroke("#B5651D"),
        accessible=Stroke(PURPLE, SHORT, "v"),
    ),
    Rule(
        name="trm_avg",
        function=f"{_RESPONSES}:trm_avg",
        title="TRM-Avg",
        paper=TRM_PAPER,
        needs=_OF_KL,
        row=Row("mean divergence", per="response"),
        place=6,
        stroke=Stroke("#D9A521"),
        accessible=Stroke(ORANGE, DASH_DOT, "^"),
    ),
    Rule(
        name="trm_max_avg",
        function=f"{_RESPONSES}:trm_max_avg",
        title="TRM-Max&Avg",
        paper=TRM_PAPER,
        needs=_OF_KL,
        row=Row("largest, mean divergence", per="response"),
        stroke=Stroke("#9C755F"),
        accessible=Stroke(BLACK, DASH_DOTS, "P"),
    ),
    Rule(
        name="cispo",
        function=f"{_CLIPS}:cispo",
        title="CISPO",
        paper="2506.13585",
        row=Row("ratio", beyond="capped"),
        place=3,
        stroke=Stroke("#B07AA1"),
        accessible=Stroke(SKY, LONG_SHORT, "D"),
    ),
    Rule(
        name="minpro",
        function=f"{_CLIPS}:minpro",
        title="MinPRO",
        paper="2601.22718",
        needs=frozenset({RESPONSE}),
        row=Row("ratio x least prefix ratio", prefix="yes", beyond="capped"),
        place=2,
        stroke=Stroke("#282828"),
        accessible=Stroke(BLACK, DOTS, "<"),
    ),
    Rule(
        name="gspo",
        function=f"{_RESPONSES}:gspo",
        title="GSPO",
        paper="2507.18071",
        needs=frozenset({RESPONSE}),
        row=Row("mean ratio", per="response", beyond="clipped"),
    ),
    Rule(
        name="geo_mean",
        function=f"{_RESPONSES}:geo_mean",
        title="GMPO",
        paper="2507.20673",
        needs=frozenset({RESPONSE}),
        row=Row("ratio within a mean", beyond="clipped"),
    ),
    Rule(
        name="sapo",
        function=f"{_CLIPS}:sapo",
        title="SAPO",
        paper="2511.20347",
        row=Row("ratio", beyond="weighed less"),
    ),
    Rule(
        name="icepop",
        function=f"{_MASKS}:icepop",
        title="IcePop",
        paper="2510.18855",
        row=Row("ratio, both directions"),
    ),
    # prime-rl's loss, without a paper.
    Rule(
        name="ipo",
        function=f"{_MASKS}:ipo",
        title="IPO",
        row=Row("probability, both directions", beyond="masked, pulled back"),
    ),
    # From a blog: ringtech.notion.site/kpop.
    Rule(
        name="kpop",
        function=f"{_MASKS}:kpop",
        title="KPop",
        row=Row("KL both ways, both directions"),
    ),
    Rule(
        name="drpo",
        function=f"{_CLIPS}:drpo",
        title="DRPO",
        paper="2606.09821",
        row=Row("probability", beyond="weighed less, pulled back"),
    ),
    Rule(
        name="m2po",
        function=f"{_RESPONSES}:m2po",
        title="M2PO",
        paper="2510.01161",
        needs=frozenset({MINIBATCH, RESPONSE}),
        row=Row("mean squared log-ratio", per="minibatch"),
    ),
    # These three are from a blog: richardli.xyz/rl-collapse.
    Rule(
        name="seq_tis",
        function=f"{_RESPONSES}:seq_tis",
        title="Seq-TIS",
        needs=frozenset({RESPONSE}),
        row=Row("product of ratios", per="response", beyond="capped"),
    ),
    Rule(
        name="seq_mis",
        function=f"{_RESPONSES}:seq_mis",
        title="Seq-MIS",
        needs=frozenset({RESPONSE}),
        row=Row("product of ratios", per="response"),
    ),
    Rule(
        name="geo_mask",
        function=f"{_RESPONSES}:geo_mask",
        title="Geo-Mask",
        needs=frozenset({RESPONSE}),
        row=Row("mean ratio", per="response"),
    ),
    Rule(
        name="opsm",
        function=f"{_RESPONSES}:opsm",
        title="Off-policy sequence mask",
        paper="2512.02556",
        needs=frozenset({RESPONSE}),
        row=Row("ratio; mean ratio if A < 0", per="token; response", beyond="clipped; masked"),
    ),
    Rule(
        name="vespo",
        function=f"{_RESPONSES}:vespo",
        title="VESPO",
        paper="2602.10693",
        needs=frozenset({RESPONSE}),
        row=Row("product of ratios", per="response", beyond="weighed less"),
    ),
    Rule(
        name="vaco",
        function=f"{_RESPONSES}:vaco",
        title="VACO",
        paper="2603.01365",
        needs=frozenset({RESPONSE}),
        row=Row("mean distance of the ratio from 1", per="response"),
    ),
)

_FIXED_BUDGET = (Stroke("#FF7F0E"), Stroke(GREEN, DASH_DOT, "v"))
_LOW_W_MIN = (Stroke("#5C6B73"), Stroke(BLACK, DOTS, "^"))
# Names, in sweeps and in the paper's curves, of a rule with other constants or another divergence.
SETTINGS = (
    Variant(
        name="cppo_kl", title="CPPO, KL", stroke=Stroke("#2E8B57"), accessible=Stroke(PURPLE, SHORT, "D")
    ),
    Variant(name="cppo_tv", title="CPPO, TV"),
    Variant(name="cppo_topk_tv", title="CPPO, Top-K TV"),
    Variant(
        name="cppo_binary_tv",
        title="CPPO, Binary TV",
        stroke=Stroke("#1FA2C4"),
        accessible=Stroke(PURPLE, DOTS, "<"),
    ),
    Variant(
        name="cppo_fixed_budget",
        title="CPPO, fixed budget rate",
        stroke=_FIXED_BUDGET[0],
        accessible=_FIXED_BUDGET[1],
    ),
    Variant(name="ipo_wide", title="IPO, 0.3 without penalty"),
    Variant(name="cppo_low_w_min", title="CPPO, lower w_min", stroke=_LOW_W_MIN[0], accessible=_LOW_W_MIN[1]),
    # The paper's curves name these two by their constants.
    Variant(
        name="cppo_db0.03_w0.8",
        title="CPPO, delta_b 0.03, w_min 0.8",
        stroke=_FIXED_BUDGET[0],
        accessible=_FIXED_BUDGET[1],
    ),
    Variant(
        name="cppo_db0.02_w0.6",
        title="CPPO, delta_b 0.02, w_min 0.6",
        stroke=_LOW_W_MIN[0],
        accessible=_LOW_W_MIN[1],
    ),
    Variant(name="no_trust_region", title="no trust region"),
)
