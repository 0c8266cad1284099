"""Command lines that no subcommand understands."""

from tests.hostile.case import Case


def _case(*words: str, says: str) -> Case:
    return Case(words, says)


FORMS = [
    _case(says="the following arguments are required: COMMAND: see `cppo --help`"),
    _case("lunch", says="unknown command 'lunch': did you mean 'launch'? valid: …launch…: see `cppo --help`"),
    _case("--nope", says="the following arguments are required: COMMAND: see `cppo --help`"),
    *(
        _case(command, says=f"the following arguments are required: SWEEP: see `cppo {command} --help`")
        for command in ("launch", "report", "tune", "retry")
    ),
    _case("plan", "--csv", says="name a sweep, before the options: `cppo list` lists them"),
    _case("show", says="the following arguments are required: SWEEP|RUN: see `cppo show --help`"),
    _case("diff", "1234", says="the following arguments are required: RUN: see `cppo diff --help`"),
    _case("diff", "1234", "5678", "9abc", says="unrecognized arguments: 9abc: see `cppo diff --help`"),
    _case("logs", says="the following arguments are required: RUN: see `cppo logs --help`"),
    _case("compare", "a", says="the following arguments are required: REPORT: see `cppo compare --help`"),
    _case("compare", "a", "b", "c", says="unrecognized arguments: c: see `cppo compare --help`"),
    _case("reference", says="the following arguments are required: ACTION: see `cppo reference --help`"),
    _case("reference", "export", says="unknown action 'export': did you mean 'import'? valid: import"),
    _case("data", says="the following arguments are required: ACTION: see `cppo data --help`"),
    _case(
        "data",
        "fetch",
        says="unknown action 'fetch': valid: check, prepare: see `cppo data --help`",
    ),
    _case("data", "check", says="the following arguments are required: DIR: see `cppo data check --help`"),
    _case("sync", "extra", says="unrecognized arguments: extra: see `cppo sync --help`"),
    _case("ui", "extra", says="unrecognized arguments: extra: see `cppo ui --help`"),
    _case("doctor", "--core", says="argument --core: expected one argument: see `cppo doctor --help`"),
    _case("status", "--nope", says="unrecognized arguments: --nope: see `cppo status --help`"),
    _case(
        "status", "\x1b[2J", "--nope\n", says="unrecognized arguments: --nope\\n: see `cppo status --help`"
    ),
    _case("plan", "quickstart", "--config-dir=/tmp", says="unrecognized arguments: --config-dir=/tmp: see"),
    _case(
        "plan", "quickstart", "--multirun", says="unrecognized arguments: --multirun: see `cppo plan --help`"
    ),
    _case(
        "plan", "quickstart", "--json", "--csv", says="argument --csv: not allowed with argument --json: see"
    ),
    _case(
        "plan",
        "quickstart",
        "--json=1",
        says="argument --json: ignored explicit argument '1': see `cppo plan --help`",
    ),
    _case(
        "launch", "quickstart", "--replace=1", says="argument --replace: ignored explicit argument '1': see"
    ),
    _case(
        "report",
        "quickstart",
        "--from",
        "moon",
        says="unknown value of --from 'moon': valid: paper, runs: see",
    ),
    _case(
        "report",
        "quickstart",
        "--palette",
        "x",
        says="unknown value of --palette 'x': valid: colorblind, paper: see",
    ),
    _case("ui", "--port", "x", says="argument --port: invalid int value: 'x': see `cppo ui --help`"),
    _case(
        "watch", "--every", "x", says="argument --every: invalid float value: 'x': see `cppo watch --help`"
    ),
]

CASES = FORMS
