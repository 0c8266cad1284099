"""No product code evaluates, unpickles or hands to a shell what somebody else may have written.

What a name alone tells, ruff finds (`make lint`): its rules S, and the names that pyproject.toml bans. Here are the
methods and arguments that it cannot see, and a test that it is set up to find the rest.
"""

import ast
import json
import re
from collections.abc import Iterator
from textwrap import indent

from tests.conftest import ROOT, python

FOLDERS = ("cppo_lab", "analysis", "reports", "dev", "benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))

BUILTINS = frozenset({"compile", "__import__"})
METHODS = frozenset({"extractall", "from_string", "load_model", "to_pickle"})  # of whatever object
ARGUMENTS = {  # of whatever is called
    "allow_pickle": True, "weights_only": False, "autoescape": False, "verify": False, "trust_remote_code": True,
}  # fmt: skip
EVERYBODY = "::"  # the address; ruff knows 0.0.0.0

# What there is of it, with the reason; one that is no longer needed fails the test.
REASONED = {
    (
        "cppo_lab/runs/export.py",
        "extractall",
    ): "of a zip file, whose members zipfile keeps below the folder, and no links",
    ("dev/notebook.py", "compile"): "of the cells of docs/notebook.ipynb",
    ("cppo_lab/cli/ui.py", "'::'"): "told apart, to be opened at this machine's own address",
}


def found_in(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """What is not to be, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            yield from ((name, node.lineno) for name in sorted(names & METHODS))
        elif isinstance(node, ast.Call):
            yield from ((what, node.lineno) for what in _calls(node))
        elif isinstance(node, ast.Constant) and node.value == EVERYBODY:
            yield repr(node.value), node.lineno


def _calls(node: ast.Call) -> Iterator[str]:
    function = node.func
    given = {one.arg: one.value for one in node.keywords if one.arg}
    if isinstance(function, ast.Name) and function.id in BUILTINS:
        yield function.id
    if isinstance(function, ast.Attribute):
        if function.attr in METHODS:
            yield function.attr
        owner = ast.unparse(function.value).split(".")[-1]
        if (owner, function.attr) == ("torch", "load") and not _is(given.get("weights_only"), True):
            yield "torch.load without weights_only"
    for key, value in ARGUMENTS.items():
        if _is(given.get(key), value):
            yield f"{key}={value}"


def _is(value: ast.expr | None, constant: bool) -> bool:
    return isinstance(value, ast.Constant) and value.value is constant


def test_sources() -> None:
    found = [
        (str(path.relative_to(ROOT)), what, line)
        for path in SOURCES
        for what, line in found_in(ast.parse(path.read_text()))
    ]
    unreasoned = [f"{place}:{line}: {what}" for place, what, line in found if (place, what) not in REASONED]
    assert unreasoned == [], "forbidden, or to be reasoned in REASONED"
    assert set(REASONED) == {(place, what) for place, what, _ in found}, "no longer needed in REASONED"
    assert len(SOURCES) > 200


FOUND_HERE = """__import__(x)
compile(x, '', 'exec')
np.load(x, allow_pickle=True)
torch.load(x)
torch.load(x, weights_only=False)
torch.load(x, weights_only=y)
mlflow.pyfunc.load_model(x)
from mlflow.pyfunc import load_model
archive.extractall(x)
frame.to_pickle(x)
session.get(x, verify=False)
requests.get(x, verify=False)
Template(x, autoescape=False)
s.bind(('::', 1))
env.from_string(x)
AutoModel.from_pretrained(x, trust_remote_code=True)""".splitlines()
HARMLESS = """yaml.safe_load(x)
json.load(x)
torch.load(x, weights_only=True)
np.load(x, allow_pickle=False)
class L(yaml.SafeLoader): pass
model.eval()
re.compile(x)
subprocess.run(x, check=True)
jinja2.Environment(autoescape=True)""".splitlines()


def test_the_rest_of_it_is_found_here() -> None:
    assert [text for text in FOUND_HERE if not list(found_in(ast.parse(text)))] == []
    assert [text for text in HARMLESS if list(found_in(ast.parse(text)))] == []


IMPORTS = (
    "import asyncio, importlib, jinja2, json, os, re, shutil, ssl, subprocess, tempfile, yaml\n"
    "import numpy as np\nimport pandas as pd\nimport requests\nimport torch\n"
    "from jinja2 import Environment\nfrom omegaconf import OmegaConf\n"
)
FOUND_BY_RUFF = """import pickle; pickle.loads(x)
from pickle import load
import _pickle
import marshal
import shelve
import dill
import cloudpickle as c
import joblib
import jsonpickle
eval(x)
exec(x)
importlib.import_module(x)
from importlib import import_module
yaml.load(x)
yaml.load(x, Loader=y)
yaml.load_all(x)
yaml.unsafe_load(x)
yaml.unsafe_load_all(x)
yaml.full_load(x)
yaml.full_load_all(x)
class L(yaml.Loader): pass
class L(yaml.FullLoader): pass
class L(yaml.UnsafeLoader): pass
class L(yaml.BaseLoader): pass
class L(yaml.CLoader): pass
class L(yaml.CFullLoader): pass
class L(yaml.CUnsafeLoader): pass
class L(yaml.CBaseLoader): pass
from yaml.loader import Loader
from yaml.cyaml import CLoader
subprocess.run(x, shell=True)
start(x, shell=True)
os.system(x)
os.popen(x)
subprocess.getoutput(x)
subprocess.getstatusoutput(x)
asyncio.create_subprocess_shell(x)
pd.read_pickle(x)
shutil.unpack_archive(x)
tempfile.mktemp()
ssl._create_unverified_context()
Environment(loader=x)
jinja2.Environment(autoescape=False)
jinja2.Environment(autoescape=x)
jinja2.Environment(autoescape=jinja2.select_autoescape())
requests.get(x, verify=False)
OmegaConf.register_new_resolver('a', x)
s.bind(('0.0.0.0', 1))""".splitlines()


def test_ruff_finds_the_others() -> None:
    """As the project has set it up, in a product file; each text in a function of its own."""
    texts = FOUND_BY_RUFF + HARMLESS
    file, owners = IMPORTS, dict[int, str]()
    for number, text in enumerate(texts):
        begin = file.count("\n")
        file += f"def case_{number}(x, y, s, model):\n{indent(text, '    ')}\n"
        owners |= dict.fromkeys(range(begin + 1, file.count("\n") + 1), text)
    options = ("--no-cache", "--output-format", "json", "-", "--stdin-filename", ROOT / "cppo_lab/tried.py")
    done = python("-m", "ruff", "check", *options, input=file, cwd=ROOT, check=False)
    found = {
        owners.get(one["location"]["row"], "the imports")
        for one in json.loads(done.stdout)
        if re.match(r"S\d|TID", one["code"] or "")
    }
    assert [text for text in texts if text in found] == FOUND_BY_RUFF
    assert "the imports" not in found


# Where anything listens or starts something that does, and on which address.
LISTENERS = {
    "cppo_lab/cli/command.py": "the option `cppo ui --host`, and starts nothing",
    "cppo_lab/cli/ui.py": "`cppo ui --host`, 127.0.0.1 by default, `cppo dash`, 127.0.0.1; asks whether a port is free",
    "cppo_lab/cores/verl/cluster.py": "Ray on 127.0.0.1 or among the machines of an allocation, with a token",
    "cppo_lab/cores/verl/platform_cpu.py": "names ray.init, and starts nothing",
    "dev/servers/faulty_proxy.py": "127.0.0.1",
    "dev/servers/mlflow_server.py": "127.0.0.1",
    "dev/servers/postgres.py": "127.0.0.1",
    "dev/slurm/network.py": "asks for free ports of the loopback address",
}
SIGNS = '.bind( HTTPServer) "--host listen_addresses ray.init( start_server( uvicorn Flask('


def test_who_listens_is_known() -> None:
    """A new place that listens is to be looked at, and added with its address."""
    places = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(sign in path.read_text() for sign in SIGNS.split())
        and not str(path.relative_to(ROOT)).startswith("benchmarks/")
    }
    assert places == set(LISTENERS)
