"""What counts as the measured code, and that every Python sees the same in it."""

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import autopar
from autopar import workload
from autopar.digest import code_digest, normalized

_PACKAGE = Path(autopar.__file__).parent
_PARAMETERS = {"size": 8, "count": 3}
_SCRIPT = '''
"""A page."""
import torch
import autopar as d2l
from autopar.workload import products

SCALE = 2.0
LABEL = "one"
SIZES = (1, 2)
TABLE = {"rows": [1, 2]}
DTYPE = torch.float32
results = []
UNUSED = 1

def helper(x):
    """Helps."""
    return deeper(x) * SCALE  # why

def deeper(x):
    return f"{x} + {LABEL!r:>{len(LABEL)}}"

def unrelated():
    return 1

def experiment(size, count):
    """Measures."""
    x = d2l.workload.matrix(size)
    results.append(TABLE["rows"])
    return helper(products(x, count)), SIZES, DTYPE
'''
_numbers = itertools.count()


@pytest.fixture
def digest_of(tmp_path):
    """The digest of a script's `experiment`, the script being imported from a file of its own."""

    def digest_of(text=_SCRIPT, parameters=_PARAMETERS):
        name = f"page_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return code_digest(module.experiment, parameters)

    return digest_of


def changed(old, new):
    assert old in _SCRIPT
    return _SCRIPT.replace(old, new)


def test_a_digest_says_what_it_is(digest_of):
    kind, _, number = digest_of().partition(":")
    assert kind == "sha256"
    assert len(number) == 64
    assert int(number, 16)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# why", "# because"),
        ("  # why", ""),
        ('"""Measures."""', '"""Measures it all,\n\n    in more words.\n    """'),
        ('    """Helps."""\n', ""),
        ('"""A page."""', '"""Another page."""'),
        ("deeper(x) * SCALE", "deeper( x )*SCALE"),
        ("    x = d2l", "\n\n    # a note\n    x = d2l"),
        ("helper(products(x, count)), SIZES", "helper(\n        products(x, count)\n    ), SIZES"),
        ("results = []", "results = [1]"),  # lower case: filled as the script runs
        ("    x = d2l.workload.matrix", "    x = \\\n        d2l.workload.matrix"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("def unrelated():\n    return 1", "def unrelated():\n    return 2"),
        ("def unrelated():\n    return 1", ""),
        ("import torch\n", "import torch\nimport json\n"),
    ],
)
def test_what_does_not_matter(digest_of, old, new):
    assert digest_of(changed(old, new)) == digest_of()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2.0", "SCALE = 3.0"),
        ("SCALE = 2.0", "SCALE = 2"),
        ('LABEL = "one"', 'LABEL = "two"'),  # named by a helper's helper, in an f-string only
        ("SIZES = (1, 2)", "SIZES = (1, 3)"),
        ('"rows": [1, 2]', '"rows": [1, 3]'),
        ("torch.float32", "torch.float64"),
        ("deeper(x) * SCALE", "deeper(x) + SCALE"),
        ("{x} +", "{x}  +"),
        ("!r:>", "!s:>"),
        ("matrix(size)", "matrix(size, seed=1)"),
        ("    return helper", "    helper(x)\n    return helper"),
        ("def experiment(size, count)", "def experiment(count, size)"),
        ("products(x, count)), SIZES", "products(x, count), SIZES)"),
    ],
)
def test_what_matters(digest_of, old, new):
    assert digest_of(changed(old, new)) != digest_of()


def test_blocks_are_not_layout():
    inside = "def f(x):\n    if x:\n        g()\n        h()\n"
    outside = "def f(x):\n    if x:\n        g()\n    h()\n"
    assert normalized(inside) != normalized(outside)


@pytest.mark.parametrize("parameters", [{"size": 9, "count": 3}, {"size": 8}, {}])
def test_parameters_matter(digest_of, parameters):
    assert digest_of(parameters=parameters) != digest_of()


_WAYS = "WAYS = {'deep': [deeper], 'other': (unrelated, torch.mm, Path)}\n\n"
_WITH_WAYS = f"from pathlib import Path\n{_SCRIPT}".replace("TABLE[", "WAYS[")
_WITH_WAYS = _WITH_WAYS.replace("def experiment", f"{_WAYS}def experiment")


@pytest.mark.parametrize(
    ("old", "new"),
    [("return 1\n", "return 2\n"), ("'other': (", "'others': ("), ("torch.mm", "torch.bmm")],
)
def test_functions_in_a_constant_matter(digest_of, old, new):
    assert old in _WITH_WAYS
    assert digest_of(_WITH_WAYS.replace(old, new)) != digest_of(_WITH_WAYS)


def test_where_functions_of_a_constant_lie_does_not_matter(tmp_path):
    path = tmp_path / "page.py"
    tell = "from autopar.digest import code_digest\nprint(code_digest(experiment, {}))\n"
    path.write_text(f"{_WITH_WAYS}\n{tell}", encoding="utf-8")
    found = [subprocess.check_output([sys.executable, path], text=True) for _ in range(2)]
    assert found[0].startswith("sha256:")
    assert found[0] == found[1]


def test_the_order_of_parameters_does_not(digest_of):
    assert digest_of(parameters=dict(reversed(_PARAMETERS.items()))) == digest_of()


def test_parameters_must_be_json(digest_of):
    with pytest.raises(TypeError):
        digest_of(parameters={"size": object()})


@pytest.mark.parametrize(
    ("room", "old", "new"),
    [
        ("workload.py", "[x.mm(x) for", "[x @ x for"),
        ("workload.py", "size**0.5", "size**0.25"),
        ("worker.py", "wait=True", "wait=False"),
        ("stream.py", "popleft()", "pop()"),
        ("lane.py", "self._open = True", "self._open = 1"),
        ("task.py", "return self.fn(", "return (0, self.fn)[1]("),
    ],
)
def test_the_working_rooms_matter(run_program, tmp_path, room, old, new):
    """A change to the code that does the work makes a record of it old."""
    package = tmp_path / "autopar"
    shutil.copytree(_PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / room).read_text(encoding="utf-8")
    assert old in text
    (package / room).write_text(text + "\n# a remark\n", encoding="utf-8")
    same = digests(run_program, package)
    (package / room).write_text(text.replace(old, new), encoding="utf-8")
    other = digests(run_program, package)
    assert same["digest"] == digests(run_program, _PACKAGE)["digest"]
    assert other["digest"] != same["digest"]


def test_rooms_that_an_experiment_does_not_use_do_not_matter(digest_of, monkeypatch):
    before = digest_of()
    monkeypatch.setattr(workload, "product_flops", lambda size, count=1: 1.0)
    assert digest_of() == before


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x=1", "x = 1 ⏎"),
        ("x = ( 1 ,\n  2 )  # two\n", "x = ( 1 , 2 ) ⏎"),
        ("'a docstring'\n", ""),
        ("x = 'text'\n", "x = 'text' ⏎"),
        ("'a' 'b'\nx\n", "x ⏎"),
        ("if x:\n  y\nelse:\n\n  z", "if x : ⏎ ⇥ y ⏎ ⇤ else : ⏎ ⇥ z ⏎ ⇤"),
        ("f'{x}  y'+1", "f'{x}  y' + 1 ⏎"),
        ("y = f'{x!r:>{w}} {{}}'", "y = f'{x!r:>{w}} {{}}' ⏎"),
        ("y = f'é{x}é', f'{f\"{x}\"}'", "y = f'é{x}é' , f'{f\"{x}\"}' ⏎"),
        ('y = rf"""a\n {x}\n  b"""', 'y = rf"""a\n {x}\n  b""" ⏎'),
        ("y = f'{x:{w}.{p}}' f'{z=}'", "y = f'{x:{w}.{p}}' f'{z=}' ⏎"),
        ("y = 'é' + f'{x}' + 'z'", "y = 'é' + f'{x}' + 'z' ⏎"),
        ("f = lambda: (yield)\n", "f = lambda : ( yield ) ⏎"),
    ],
)
def test_normalized(source, expected):
    assert normalized(source) == expected


def digests(run_program, package, *sources, python=sys.executable):
    done = run_program("digests.py", package, *sources, python=python)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def other_pythons():
    """Pythons from 3.11 on that are installed here, one of each version, but for this one."""
    found = {}
    names = [f"python3.{minor}" for minor in range(11, 20)]
    paths = [Path(path) for name in names if (path := shutil.which(name))]
    for root in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"):
        homes = {"PYENV_ROOT": "~/.pyenv", "UV_PYTHON_INSTALL_DIR": "~/.local/share/uv/python"}
        home = Path(os.environ.get(root, homes[root])).expanduser()
        paths += [*home.glob("versions/3.*/bin/python"), *home.glob("cpython-3.*/bin/python")]
    for path in paths:
        asked = [path, "-c", "import sys; print(*sys.version_info[:2])"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            version = tuple(map(int, done.stdout.split()))
            if (3, 11) <= version != sys.version_info[:2]:
                found.setdefault(version, path)
    return found


def test_every_python_here_gives_the_same_digest(run_program):
    others = other_pythons()
    if not others:
        pytest.skip("no other Python from 3.11 on is installed here")
    sources = sorted([*_PACKAGE.glob("*.py"), *Path(__file__).parent.rglob("*.py")])
    expected = digests(run_program, _PACKAGE, *sources)
    for version, python in others.items():
        found = digests(run_program, _PACKAGE, *sources, python=python)
        assert tuple(found.pop("version")) == version
        different = [
            source.name
            for source, here, there in zip(
                sources, expected["normalized"], found["normalized"], strict=True
            )
            if here != there
        ]
        assert not different, f"Python {version} reads these differently: {different}"
        assert found["digest"] == expected["digest"], f"Python {version}"
