"""What counts as the measured code: all that runs, nothing else, and the same on every Python."""

import functools
import itertools
import linecache
import re
import runpy

import pytest

from autopar.records.digest import code_digest, script_digest

_PARAMETERS = {"size": 8, "count": 3}
_SCRIPT = '''
"""A page."""
import torch
from torch import mm as product
import autopar as d2l
from autopar.workload import products

SCALE = 2.0
LABEL, UNUSED_TOO = "one", "two"
SIZES = (1, 2)
TABLE = {"rows": [1, 2]}
DTYPE = torch.float32
HALF = SCALE / 2
results = []
UNUSED = 1
x = y = rows = total = 5  # names that functions have, too, for what is their own

def helper(x):
    """Helps."""
    return deeper(x) * SCALE  # why

def deeper(x):
    return f"{x} + {LABEL!r:>{len(LABEL)}}"

class Kept:
    """Keeps."""

    def __init__(self, x: int) -> None:
        self.x = product(x, HALF)

    def __repr__(self):
        return f"Kept({self.x})"

    def _repr_html_(self):
        return f"<p>{self.x}</p>"

def unrelated():
    return 1

def experiment(size, count):
    """Measures."""
    import math
    from autopar.timeline.span import Span
    x = d2l.workload.matrix(size)
    total = sum(rows for rows in range(count))
    results.append(TABLE["rows"])

    def inner():
        return [Span for y in SIZES]

    return helper(products(x, count)), inner, DTYPE, (lambda: Kept(math.pi))

for rows in TABLE["rows"]:
    total += rows
d2l.show(total)
print(results)
'''
_numbers = itertools.count()


def digest_of(text=_SCRIPT, parameters=_PARAMETERS):
    return script_digest(text, "experiment", parameters)


def changed(old, new, text=_SCRIPT):
    assert old in text
    return text.replace(old, new)


def test_a_digest_says_what_it_is():
    assert re.fullmatch("sha256:[0-9a-f]{64}", digest_of())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Words and layout.
        ("# why", "# because"),
        ('"""Measures."""', '"""Measures it all,\n\n    in more words.\n    """'),
        ('    """Helps."""\n', ""),
        ('"""A page."""', '"""Another page."""'),
        ("deeper(x) * SCALE", "(deeper(x) * SCALE)"),
        ("    x = d2l", "\n\n    # a note\n    x = d2l"),
        ("helper(products(x, count)), inner", "helper(\n  products(\n   x, count,\n )), inner"),
        ('LABEL, UNUSED_TOO = "one"', "LABEL, UNUSED_TOO = 'one'"),
        ("x: int) -> None", "x)"),
        ("def helper(x)", "def helper(x: float) -> str"),
        # What only shows.
        ("Kept({self.x})", "Kept with {self.x}"),
        ("<p>{self.x}</p>", "<b>{self.x}</b>"),
        # Names that are no globals of measured code.
        ("rows = total = 5", "rows = total = 1.2345"),
        ("total = 5", "total = d2l.capacity().cores"),
        ("    total += rows", "    total += 2 * rows"),
        ("def unrelated():\n    return 1", ""),
        ("d2l.show(total)", "d2l.show(total + 1)"),
        # Imports.
        ("import torch\n", "import torch\nimport json\n"),
        ("from torch import mm as product", "from torch import nn, mm as product"),
        ("    import math\n", "    import json, math\n"),
    ],
)
def test_what_does_not_matter(old, new):
    assert digest_of(changed(old, new)) == digest_of()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SCALE = 2.0", "SCALE = 2"),
        ("SCALE / 2", "SCALE / 3"),  # named by a class that a lambda names
        ('= "one"', '= "two"'),  # named by a helper's helper, in an f-string only
        ("SIZES = (1, 2)", "SIZES = (1, 3)"),
        ('"rows": [1, 2]', '"rows": [1, 3]'),
        ("print(results)", "TABLE['rows'].append(3)\nTABLE.clear()"),
        ("print(results)", "TABLE['rows'] = [3]"),
        ("print(results)", "SIZES += (3,)"),
        ("print(results)", "if SCALE:\n    SIZES = ()"),
        # However a name is bound, and whatever may change its value.
        ("print(results)", "match [3]:\n    case [SCALE]:\n        pass"),
        ("print(results)", "match [3]:\n    case [*SIZES]:\n        pass"),
        ("print(results)", "def rescale():\n    global SCALE\n    SCALE = 3\nrescale()"),
        ("print(results)", "def rescale():\n    TABLE.clear()\nrescale()"),
        ("print(results)", "unrelated(TABLE)"),
        ("print(results)", "setattr(SCALE, 'real', 3)"),
        ("print(results)", "torch.nn.init.zeros_(SCALE)"),
        ("print(results)", "if (SCALE := 3):\n    pass"),
        ("print(results)", "def z():\n    torch.backends.cuda.matmul.allow_tf32 = True\nz()"),
        ("print(results)", "m = torch.backends.cuda.matmul\nm.allow_tf32 = True"),
        ("print(results)", "w = d2l.workload\nw.matrix = print"),
        ("print(results)", "with open('x') as SCALE:\n    pass"),
        ("print(results)", "del TABLE['rows']"),
        ("print(results)", "if SCALE:\n    TABLE.clear()"),
        ("print(results)", "for table in (TABLE,):\n    table.clear()"),
        ("print(results)", "assert TABLE.pop('rows')"),
        ("print(results)", "print([TABLE.clear() for _ in SIZES])"),
        ("print(results)", "alias = TABLE\nalias['rows'] = 3"),
        ("print(results)", "clear = TABLE.clear\nclear()"),
        ("print(results)", "dict.clear(TABLE)"),
        ("print(results)", "object.__setattr__(Kept, 'x', 3)"),
        ("print(results)", "setattr(torch, 'mm', torch.bmm)"),
        ("print(results)", "def patch():\n    Kept.x = 3\nif patch():\n    pass"),
        ("print(results)", "def patch(kind):\n    kind.x = 3\npatch(Kept)"),
        ("print(results)", "def inner():\n    TABLE.clear()\ndef outer():\n    inner()\nouter()"),
        ("print(results)", "torch.manual_seed(3)"),
        ("print(results)", "@TABLE.setdefault\ndef registered():\n    return 1"),
        ("print(results)", "d2l.workload.matrix = None"),
        ("print(results)", "SIZES = unrelated()\ndef unrelated():\n    return SIZES"),
        ("results = []", "results = [1]"),
        ("torch.float32", "torch.float64"),
        ("deeper(x) * SCALE", "deeper(x) + SCALE"),
        ("!r:>", "!s:>"),
        ("matrix(size)", "matrix(size, seed=1)"),
        ("    return helper", "    helper(x)\n    return helper"),
        ("def experiment(size, count)", "def experiment(count, size)"),
        ("products(x, count)), inner", "products(x, count), inner)"),
        ("[Span for", "[len for"),
        ("import Span", "import Timeline as Span"),
        ("import mm as product", "import bmm as product"),
        ("self.x = product", "self.y = product"),
        ("Kept(math.pi)", "Kept(math.e)"),
        ("def helper(x)", "@unrelated\ndef helper(x)"),
        ("def deeper(x)", "def deeper(x=SIZES)"),
    ],
)
def test_what_matters(old, new):
    assert digest_of(changed(old, new)) != digest_of()


@pytest.mark.parametrize(
    "hidden",
    [
        "exec('x = 1')",
        "eval('1')",
        "globals()['x'] = 1",
        "import builtins; builtins.exec('x = 1')",
        "import sys; sys.modules['x'] = 1",
        "import importlib; importlib.import_module(LABEL)",
        "helper.__globals__['x'] = 1",
    ],
)
@pytest.mark.parametrize("place", ["inside", "at the top", "in what the top calls"])
def test_code_that_hides_what_it_does_is_refused(hidden, place):
    if place == "inside":
        text = changed("    return deeper", f"    {hidden}\n    return deeper")
    elif place == "at the top":
        text = changed("print(results)", hidden)
    else:
        text = changed("print(results)", f"def run():\n    {hidden}\nrun()")
    with pytest.raises(TypeError, match="hides what code does; expected names and calls"):
        digest_of(text)


def test_what_nobody_runs_may_hide_what_it_does():
    assert (
        digest_of(changed("def unrelated():", "def unrelated():\n    exec('x = 1')")) == digest_of()
    )


def test_blocks_are_not_layout():
    inside = "def experiment(x):\n    if x:\n        g()\n        h()\n"
    assert digest_of(inside) != digest_of(inside.replace("        h()", "    h()"))


def test_it_matters_which_of_several_definitions_a_name_stands_for():
    names = "from autopar.timeline.span import Span as a, Timeline as b, Span as c\n"
    script = f"{names}def experiment():\n    return a, b, c\n"
    assert digest_of(script) != digest_of(changed("Span as c", "Timeline as c", script))


@pytest.mark.parametrize(
    ("again", "matters"),
    [
        ("SCALE = 3", False),
        ("def SCALE():\n    return 3", False),
        ("SCALE = SCALE * 3", True),
        ("SCALE *= 3", True),
        ("if UNUSED:\n    SCALE = 3", True),
        ("SCALE.value = 3", True),
    ],
)
def test_what_a_name_was_bound_to_before_matters_only_if_it_can(again, matters):
    text = changed("print(results)", again)
    assert (digest_of(changed("SCALE = 2.0", "SCALE = 4.0", text)) != digest_of(text)) == matters
    assert digest_of(text) != digest_of()


def test_parameters_matter_but_not_their_order():
    for parameters in ({"size": 9, "count": 3}, {"size": 8}, {}):
        assert digest_of(parameters=parameters) != digest_of()
    assert digest_of(parameters=dict(reversed(_PARAMETERS.items()))) == digest_of()
    with pytest.raises(TypeError):
        digest_of(parameters={"size": object()})


# -- where the code runs --------------------------------------------------------------------------


def in_a_file(folder):
    """As Python or sphinx-gallery runs a script: whole, or block by block under its name."""
    path = folder / f"page_{next(_numbers)}.py"
    path.write_text(_SCRIPT, encoding="utf-8")
    return runpy.run_path(str(path))


def in_cells(_):
    """As IPython runs a notebook: each cell is a file of its own, and `In` has them all."""
    pieces = re.split(r"\n\n(?=\S)", _SCRIPT)
    cells = ["", "get_ipython().run_line_magic('matplotlib', 'inline')", *pieces, pieces[3], "x ="]
    namespace = {"get_ipython": lambda: None, "In": cells, "_": "the last output", "Out": {}}
    for number, cell in enumerate(pieces):
        name = f"/tmp/ipykernel_1/{number}.py"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("run", [in_a_file, in_cells])
def test_it_is_the_same_however_the_script_is_run(run, tmp_path, capsys):
    experiment = run(tmp_path)["experiment"]
    assert code_digest(experiment, _PARAMETERS) == digest_of()


def test_a_cell_that_was_changed_and_run_again_counts_as_it_is_now():
    namespace = in_cells(None)
    namespace["In"].append("SCALE = 3.0")
    other = code_digest(namespace["experiment"], _PARAMETERS)
    assert other == digest_of(changed("SCALE = 2.0", "SCALE = 3.0"))
    namespace["In"] += ["SCALE = 2.0", "from autopar.workload import products"]
    assert code_digest(namespace["experiment"], _PARAMETERS) == digest_of()  # imported twice


def test_a_wrapped_experiment_is_the_one_inside(tmp_path):
    inside = in_a_file(tmp_path)["experiment"]
    around = functools.wraps(inside)(lambda size, count: inside(size, count))
    assert code_digest(around, _PARAMETERS) == digest_of()


def test_an_experiment_without_a_source_is_refused():
    namespace = {}
    exec("def experiment():\n    pass\n", namespace)
    with pytest.raises(OSError, match="source"):
        code_digest(namespace["experiment"], {})
    if piece := (lambda: 1):
        with pytest.raises(OSError, match="made with def"):
            code_digest(piece, {})
