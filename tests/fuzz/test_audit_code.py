"""No product code evaluates, unpickles or hands to a shell what somebody else may have written."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("cppo_lab", "analysis", "reports", "dev", "benchmarks")
LINKED = (("cppo_lab", "analysis"), ("cppo_lab", "reports"))  # symbolic links
SOURCES = sorted(
    path
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if path.relative_to(ROOT).parts[:2] not in LINKED
)

PICKLERS = frozenset(
    {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
)
PICKLES_ERRORS = frozenset({"PickleError", "PicklingError", "UnpicklingError"})
RUNS_TEXT = frozenset({"eval", "exec", "compile", "__import__", "execfile"})
# Methods, by their own name and by the last part of what they are methods of (empty: of anything).
CALLS = {
    ("load", "yaml"), ("load_all", "yaml"), ("full_load", "yaml"), ("unsafe_load", "yaml"), ("unsafe_load_all", "yaml"),
    ("system", "os"), ("popen", "os"), ("getoutput", ""), ("getstatusoutput", ""), ("create_subprocess_shell", ""),
    ("read_pickle", ""), ("to_pickle", ""), ("load_model", ""), ("extractall", ""), ("unpack_archive", ""),
    ("mktemp", "tempfile"), ("_create_unverified_context", ""), ("import_module", ""), ("literal_eval", "yaml"),
    ("OmegaConf.register_new_resolver", ""), ("register_new_resolver", ""), ("from_string", ""),
}  # fmt: skip
FORBIDDEN_VALUES = {
    "shell": True, "allow_pickle": True, "weights_only": False, "autoescape": False, "verify": False,
    "trust_remote_code": True,
}  # fmt: skip
EVERYBODY = frozenset({"0.0.0.0", "::"})

# What there is of it, with the reason; one that is no longer needed fails the test.
REASONED = {
    ("cppo_lab/cores/base.py", "import_module"): "cores by the literal names of CORES",
    ("cppo_lab/cores/verl/compat.py", "import_module"): "the literal list of what is touched of verl",
    (
        "cppo_lab/tracking/page_server.py",
        "'0.0.0.0'",
    ): "told apart, to be opened at this machine's own address",
    ("cppo_lab/tracking/page_server.py", "'::'"): "as 0.0.0.0",
}


def found_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is not to be, each with its line."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PICKLERS - {"pickle"}:
                    yield f"import {alias.name}", line
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            package = (node.module or "").split(".")[0]
            if package in PICKLERS and not (package == "pickle" and names <= PICKLES_ERRORS):
                yield f"from {node.module} import {', '.join(sorted(names))}", line
            wanted = {name for name, owner in CALLS if owner in ("", package)}
            yield from ((name, line) for name in sorted(names & wanted))
        elif isinstance(node, ast.Attribute):
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner == "pickle" and node.attr not in PICKLES_ERRORS:
                yield f"pickle.{node.attr}", line
        elif isinstance(node, ast.Call):
            yield from ((what, line) for what in _calls(node))
        elif isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            yield from (
                (f"class of {base}", line) for base in bases if base.endswith("Loader") and "Safe" not in base
            )
        elif isinstance(node, ast.Constant) and node.value in EVERYBODY:
            yield repr(node.value), line


def _calls(node: ast.Call) -> Iterator[str]:
    function = node.func
    name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
    owner = ast.unparse(function.value).split(".")[-1] if isinstance(function, ast.Attribute) else ""
    if isinstance(function, ast.Name) and name in RUNS_TEXT:
        yield name
    if isinstance(function, ast.Attribute) and ((name, owner) in CALLS or (name, "") in CALLS):
        yield name
    given = {one.arg: one.value for one in node.keywords if one.arg}
    for key, value in FORBIDDEN_VALUES.items():
        if key in given and isinstance(given[key], ast.Constant) and given[key].value is value:  # type: ignore[attr-defined]
            yield f"{key}={value}"
    if (name, owner) == ("load", "torch") and not _is_true(given.get("weights_only")):
        yield "torch.load without weights_only"
    if name == "Environment" and not _is_true(given.get("autoescape")):
        yield "Environment without autoescape"


def _is_true(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    found = [
        (what, line) for what, line in found_in(ast.parse(path.read_text())) if (place, what) not in REASONED
    ]
    assert found == [], f"{place}: forbidden, or to be reasoned in REASONED"


def test_every_exception_is_needed() -> None:
    there = {
        (str(path.relative_to(ROOT)), what)
        for path in SOURCES
        for what, _ in found_in(ast.parse(path.read_text()))
    }
    assert set(REASONED) == there
    assert len(SOURCES) > 250


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\npickle.loads(x)", "from pickle import load", "import dill", "import cloudpickle as c",
        "eval(x)", "exec(x)", "__import__(x)", "compile(x, '', 'exec')", "import importlib\nimportlib.import_module(x)",
        "from importlib import import_module", "import yaml\nyaml.load(x)", "yaml.unsafe_load(x)", "yaml.full_load(x)",
        "class L(yaml.Loader): pass", "class L(yaml.FullLoader): pass", "subprocess.run(x, shell=True)", "os.system(x)",
        "os.popen(x)", "subprocess.getoutput(x)", "np.load(x, allow_pickle=True)", "torch.load(x)",
        "torch.load(x, weights_only=False)", "torch.load(x, weights_only=y)", "pd.read_pickle(x)",
        "mlflow.pyfunc.load_model(x)", "archive.extractall(x)", "shutil.unpack_archive(x)", "tempfile.mktemp()",
        "Environment(loader=x)", "jinja2.Environment(autoescape=False)", "requests.get(x, verify=False)",
        "s.bind(('0.0.0.0', 1))", "AutoModel.from_pretrained(x, trust_remote_code=True)", "env.from_string(x)",
    ],
)  # fmt: skip
def test_it_is_found(text: str) -> None:
    assert list(found_in(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    [
        "import pickle\ntry:\n    f()\nexcept pickle.UnpicklingError:\n    g()", "yaml.safe_load(x)", "json.load(x)",
        "torch.load(x, weights_only=True)", "np.load(x, allow_pickle=False)", "class L(yaml.SafeLoader): pass",
        "model.eval()", "re.compile(x)", "subprocess.run(x, check=True)", "Environment(autoescape=True)",
    ],
)  # fmt: skip
def test_nothing_else_is(text: str) -> None:
    assert list(found_in(ast.parse(text))) == []


# Where anything listens or starts something that does, and on which address.
LISTENERS = {
    "cppo_lab/cli/parser.py": "`cppo ui --host`, 127.0.0.1 by default",
    "cppo_lab/tracking/page_server.py": "`cppo ui`; asks whether a port is free",
    "cppo_lab/cores/verl/ray_nodes.py": "Ray among the machines of an allocation, with a token; asks for a free port",
    "cppo_lab/cores/verl/ray_local.py": "Ray on this machine alone: 127.0.0.1, with a token",
    "cppo_lab/cores/verl/platform_cpu.py": "names ray.init, and starts nothing",
    "dev/servers/faulty_proxy.py": "127.0.0.1",
    "dev/servers/group.py": "asks for a free port of 127.0.0.1",
    "dev/servers/mlflow_server.py": "127.0.0.1",
    "dev/servers/postgres.py": "127.0.0.1",
    "dev/slurm/network.py": "asks for free ports of the loopback address",
}
SIGNS = (
    ".bind(",
    "HTTPServer)",
    '"--host',
    "listen_addresses",
    "ray.init(",
    "start_server(",
    "uvicorn",
    "Flask(",
)


def test_who_listens_is_known() -> None:
    """A new place that listens is to be looked at, and added with its address."""
    places = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(sign in path.read_text() for sign in SIGNS)
        and not str(path.relative_to(ROOT)).startswith("benchmarks/")
    }
    assert places == set(LISTENERS)
