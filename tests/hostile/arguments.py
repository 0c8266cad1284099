"""Arguments of every subcommand: names that are none, options that contradict each other."""

from tests.hostile.case import Case

NO_SWEEP = "valid: admission, binary_vs_topk, calibration"
DIGITS = "is not a prefix of a run's id: give 4 to 12 hexadecimal digits (`cppo plan SWEEP` lists the ids)"
NO_RUN = "runs has no run with this prefix: see `cppo status` (an id has 12 digits)"
RUN = ["quickstart", "variant=grpo", "seed=0"]
NO_REPORT = "is no folder, and reports/build/"


def _case(*words: str, says: str) -> Case:
    return Case(words, says)


SWEEPS = [
    _case("plan", "nowhere", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
    _case("launch", "nowhere", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
    _case("report", "nowhere", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
    _case("status", "nowhere", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
    _case("watch", "nowhere", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
    _case("cancel", "nowhere", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
    _case("retry", "nowhere", "--failed", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
    _case("tune", "nowhere", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
    _case("plan", "quikstart", says="unknown sweep 'quikstart': did you mean 'quickstart'?"),
    _case("report", "maine", says="unknown sweep 'maine': did you mean 'main'?"),
    _case("show", "maine", says="unknown sweep 'maine': did you mean 'main'?"),
    _case("plan", "", says=f"unknown sweep '': {NO_SWEEP}"),
    _case("plan", ".", says=f"unknown sweep '.': {NO_SWEEP}"),
    _case("plan", "QUICKSTART", says=f"unknown sweep 'QUICKSTART': did you mean 'quickstart'? {NO_SWEEP}"),
    _case("plan", "a\nb", says=f"unknown sweep 'a\\nb': {NO_SWEEP}"),
    _case("plan", "\x1b[2J", says=f"unknown sweep '\\x1b[2J': {NO_SWEEP}"),
    _case("plan", "$(touch x)", says=f"unknown sweep '$(touch x)': {NO_SWEEP}"),
    _case("plan", "./", says="sweep file ./ is a folder: name a file in it"),
    _case("plan", "../gone.yaml", says="sweep file ../gone.yaml does not exist (shipped sweeps: admission"),
    _case("plan", "quickstart.yml", says="sweep file quickstart.yml does not exist (shipped sweeps: "),
    _case("plan", "http://h/y.yaml", says="sweep file http://h/y.yaml does not exist (shipped sweeps: "),
    _case("plan", "\udc80.yaml", says="sweep file \\udc80.yaml does not exist (shipped sweeps: "),
    _case(
        "plan",
        "a\x00b.yaml",
        says="sweep file a\\x00b.yaml cannot be read: embedded null byte: name a readable file",
    ),
    _case(
        "plan", "x" * 300 + ".yaml", says="x.yaml cannot be read: File name too long: name a readable file"
    ),
    _case(
        "plan",
        "quickstart",
        "--state",
        "gone",
        says="unknown state 'gone': did you mean 'done'? valid: collapsed",
    ),
    _case("plan", "quickstart", "--state", "", says="unknown state '': valid: collapsed, done, failed"),
    _case(
        "status",
        "--state",
        "DONE",
        says="unknown state 'DONE': did you mean 'done'? valid: collapsed, done, failed",
    ),
    _case("status", "--state", "done,", says="unknown state '': valid: collapsed, done, failed"),
]

RUNS = [
    _case("logs", "1234", says=f"run '1234': …{NO_RUN}"),
    _case("logs", "", says=f"run '' {DIGITS}"),
    _case("logs", "../../etc/passwd", says=f"run '../../etc/passwd' {DIGITS}"),
    _case("logs", "*", says=f"run '*' {DIGITS}"),
    _case("export", "1234", "--out", "x", says=f"run '1234': …{NO_RUN}"),
    _case("export", "123", "--out", "x", says=f"run '123' {DIGITS}"),
    _case("export", "../../etc", "--out", "x", says=f"run '../../etc' {DIGITS}"),
    _case("export", "", "--out", "x", says=f"run '' {DIGITS}"),
    _case("export", "1234", says="the following arguments are required: --out: see `cppo export --help`"),
    _case("export", "1234", "--out", "/etc", says="--out /etc exists and is not empty: name another folder"),
    _case("export", "1234", "--out", "/dev/null", says="--out /dev/null is a file: name a folder"),
    _case("export", "metrics", "quickstat", "--out", "x", says="did you mean 'quickstart'"),
    _case("export", "metrics", "quickstart", "--out", "/etc", says="--out /etc exists and is not empty"),
    _case(
        "export",
        "metrics",
        "quickstart",
        "--out",
        "x",
        "--format",
        "xls",
        says="unknown value of --format 'xls': valid: csv,",
    ),
    _case("cancel", says="cppo cancel: name either a sweep, or runs with --run ID"),
    _case(
        "cancel",
        "quickstart",
        "--run",
        "1234",
        says="cppo cancel: name either a sweep, or runs with --run ID",
    ),
    _case("cancel", "--run", "", says=f"run '' {DIGITS}"),
    _case("cancel", "--run", "../x", says=f"run '../x' {DIGITS}"),
    _case("sync", "--run", "../..", says=f"run '../..' {DIGITS}"),
    _case("sync", "--run", "", says=f"run '' {DIGITS}"),
    _case(
        "retry",
        "quickstart",
        says="cppo retry: choose the runs with either --failed, or --run ID once or more",
    ),
    _case(
        "retry",
        *RUN,
        "--failed",
        "--run",
        "e3",
        says="cppo retry: choose the runs with either --failed, or --run ID once or",
    ),
    _case(
        "retry",
        *RUN,
        "--run",
        "zz",
        says="--run 'zz' is a prefix of none of the ids e2000e08d665: give more digits of one",
    ),
    _case(
        "retry",
        *RUN,
        "--run",
        "",
        says="--run '' is a prefix of the ids e2000e08d665: give more digits of one",
    ),
    _case(
        "show",
        *RUN,
        "--run",
        "zz",
        says="--run 'zz' is a prefix of none of the ids e2000e08d665: give more digits of one",
    ),
    _case("show", *RUN, "--verl", says="--verl: the runs of quickstart are of core=mini: add core=verl"),
    _case(
        "show",
        *RUN,
        "--in",
        "main",
        says="--in main: only valid with a run's id: remove it",
    ),
    _case(
        "show",
        "abcdef123456",
        "a=1",
        says="takes neither overrides nor --run nor --verl: name its sweep instead",
    ),
    _case("diff", "zzzz", "1234", says=f"run 'zzzz' {DIGITS}"),
    _case("diff", "123", "1234", says=f"run '123' {DIGITS}"),
    _case("diff", "12345678901234", "1234", says=f"run '12345678901234' {DIGITS}"),
    _case("diff", "../x", "1234", says=f"run '../x' {DIGITS}"),
    _case("diff", "1234\n", "1234", says=f"run '1234\\n' {DIGITS}"),
    _case("diff", "1234", "1234", "--in", "nowhere", says=f"unknown sweep 'nowhere': {NO_SWEEP}"),
]

WATCHING = [
    _case("watch", "--every", "0", says="--every 0: seconds between updates, 0.2 to 86400"),
    _case("watch", "--every", "-1", says="--every -1: seconds between updates, 0.2 to 86400"),
    _case("watch", "--every", "nan", says="--every nan: seconds between updates, 0.2 to 86400"),
    _case("watch", "--every", "inf", says="--every inf: seconds between updates, 0.2 to 86400"),
    _case(
        "watch",
        "--notify",
        "",
        says="--notify '': there is no such program: give a command on PATH, or its path",
    ),
    _case(
        "watch",
        "--notify",
        "'x",
        says='--notify "\'x": No closing quotation: quote it as a shell would want it',
    ),
    _case(
        "watch",
        "--notify",
        "$(touch x)",
        says="--notify '$(touch x)': there is no such program: give a command",
    ),
    _case(
        "watch",
        "--notify",
        "/etc/passwd",
        says="--notify '/etc/passwd': there is no such program: give a command",
    ),
]

REPORTS = [
    _case(
        "report",
        *RUN,
        "--study",
        "x",
        says="--study 'x': quickstart is not a search, so it has no study; remove it",
    ),
    _case(
        "report", "main", "seed=0", "--from", "paper", says="take no overrides: cppo report main --from paper"
    ),
    _case(
        "report",
        "sensitivity",
        "--from",
        "paper",
        says="--from paper with 'sensitivity': …cppo report main --from paper",
    ),
    _case(
        "report",
        "main",
        "--from",
        "paper",
        "--study",
        "x",
        says="--study 'x' with --from paper: …; remove it",
    ),
    _case(
        "report",
        "tune_cppo",
        "--partial",
        says="--partial: the report of a search always includes unfinished trials",
    ),
    _case(
        "report",
        "tune_cppo",
        "--palette",
        "colorblind",
        says="--palette colorblind: the report of a search",
    ),
    _case("report", "tune_cppo", "--figures", "font=\n", says="--figures 'font=': no such font here"),
    _case(
        "report", "quickstart", "--figures", "width=3.3in,x", says="--figures 'x': not a setting of figures"
    ),
    _case("report", "tune_cppo", "--study", "a/b", says="--study 'a/b': use letters, digits"),
    _case("compare", "gone", "gone", says=f"'gone' {NO_REPORT}gone is none: name the folder of a report"),
    _case("compare", "../x", "y", says=f"'../x' {NO_REPORT}x is none: name the folder of a report"),
    _case("compare", "a\nb", "y", says="'a\\nb' is no folder"),
    Case(["compare", "x", "x"], f"'x' {NO_REPORT}x is none: name the folder of a report", {"x": ""}),
]

PAGE = [
    Case(
        ["ui", "--port", "0"], "--port 0: must be in [1, 65535]: leave it out, or choose another", store=True
    ),
    Case(
        ["ui", "--port", "-1"],
        "--port -1: must be in [1, 65535]: leave it out, or choose another",
        store=True,
    ),
    Case(
        ["ui", "--port", "99999"],
        "--port 99999: must be in [1, 65535]: leave it out, or choose another",
        store=True,
    ),
    Case(["ui", "--host", ""], "--host '': name an address of this machine, or leave it out", store=True),
    Case(
        ["ui", "--host", "192.0.2.1"],
        "cannot listen on 192.0.2.1 port …: name an address of this machine",
        store=True,
    ),
]

CASES = [*SWEEPS, *RUNS, *WATCHING, *REPORTS, *PAGE]
