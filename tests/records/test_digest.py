"""What counts as the measured code: all that has run by then, and no words of it."""

import ast
import inspect
import os
import re
import runpy
import shutil
import sys
import threading
from pathlib import Path

import pytest
import torch

import autopar as ap
from autopar.records import digest
from autopar.records.digest import code_digest, script_digest

_PARAMETERS = {"size": 8, "count": 3}
_SCRIPT = '''
"""A page."""
import torch

SCALE = 2.0
TABLE = {"rows": [1, 2]}

def helper(x):
    """Helps."""
    return f"{x} + {len('one')}"  # why

class Kept:
    """Keeps."""

    "More of it."

    x = 1

def experiment(size, count):
    """Measures."""
    for row in TABLE["rows"]:
        helper(row)
    return [Kept(), SCALE]

TABLE.clear()
record = RECORD(
    experiment,
    size=8,
)

print(record)
'''
_PACKAGE = Path(ap.__file__).parent


def digest_of(text=_SCRIPT, parameters=_PARAMETERS, line=None):
    return script_digest(text, "experiment", parameters, line)


def measured_digest(old="", new=""):
    """The digest of the script, changed somewhere, at the statement that measures."""
    text = _SCRIPT.replace(old, new) if old else _SCRIPT
    assert old in _SCRIPT
    return digest_of(text, line=text[: text.index("experiment,\n")].count("\n"))


@pytest.mark.parametrize(
    ("old", "new", "matters"),
    [
        ("# why", "# because", False),
        ('"""Measures."""', '"""Measures it all,\n\n    in more words.\n    """', False),
        ('    """Helps."""\n', "", False),
        ('    "More of it."\n', '    "Even" " more."\n', False),
        ("    for row", "\n\n    # a note\n  # and another\n    for row", False),
        ("[Kept(), SCALE]", "[\n  Kept(\n ),   SCALE]", False),
        ('    """Keeps."""\n\n    "More of it."\n\n    x = 1', "  x = 1", False),
        ("print(record)", "print(record, 3)\nSCALE = 3", False),  # which runs later
        ("SCALE = 2.0", "SCALE = 2", True),
        ("len('one')", "len('two')", True),
        ("{x} + ", "{x}  + ", True),
        ("{x} + ", "{x!r} + ", True),
        ("x = 1", "x = '1'", True),
        ("    x = 1", '    x = f"1"\n    f"{x}"', True),
        ("def helper(x)", "@functools.cache\ndef helper(x)", True),
        ("    return [Kept", "        return [Kept", True),  # a block is no layout
        ("TABLE.clear()", "torch.manual_seed(3)", True),
        ("size=8", "size=9", True),  # of the statement that measures
    ],
)
def test_all_code_matters_that_has_run_and_no_words(old, new, matters):
    assert (measured_digest(old, new) != measured_digest()) == matters


def test_without_a_line_all_matters_and_so_do_whose_it_is_and_parameters_but_not_their_order():
    assert re.fullmatch("sha256:[0-9a-f]{64}", digest_of())
    assert digest_of() != script_digest(_SCRIPT, "helper", _PARAMETERS)
    assert digest_of(_SCRIPT.replace("print(record)", "print(record, 3)")) != digest_of()
    assert digest_of(parameters={"size": 9, "count": 3}) != digest_of()
    assert digest_of(parameters=dict(reversed(_PARAMETERS.items()))) == digest_of()


def test_it_has_what_ran_by_the_statement_that_measures(tmp_path):
    """As Python or sphinx-gallery runs a script; of one that runs no more, all counts."""
    path = tmp_path / "page.py"
    path.write_text(_SCRIPT, encoding="utf-8")
    names = {"RECORD": lambda experiment, size: code_digest(experiment, _PARAMETERS)}
    ran = runpy.run_path(str(path), names)
    assert ran["record"] == measured_digest()
    assert code_digest(ran["experiment"], _PARAMETERS) == digest_of()


# -- the package ----------------------------------------------------------------------------------


_COUNTING = {"transfer/ring.py", "lanes/outcome.py", "records/race.py"}  # some by way of others
_OTHERS = {"graph/run.py", "display/plot.py", "records/claim.py"}  # not used, or they show


def test_of_autopar_code_counts_and_neither_words_nor_place_nor_what_shows(tmp_path):
    folder, words = tmp_path / "elsewhere" / "autopar", "transfer/parcel.py"
    shutil.copytree(_PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "recorded"))
    for name in (*_COUNTING, *_OTHERS, words):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write("\n# more\n" if name == words else "\nmore = 0\n")
    used = digest._modules_used(ast.parse(_USING).body)
    here, there = digest._files(_PACKAGE, used), digest._files(folder, used)
    assert here.keys() == there.keys() > {words, *_COUNTING}
    assert {name for name in here if here[name] != there[name]} == _COUNTING


_USING = """
import autopar as ap

def experiment():
    with ap.CopyPipeline("cpu") as pipeline:
        return ap.race({"one": pipeline.close})
"""


@pytest.mark.parametrize(
    ("line", "leads"),
    [
        ("import autopar; autopar.TaskGraph()", True),
        ("from autopar import TaskGraph as Graph", True),
        ("from autopar.graph import run", True),
        ("import autopar.graph.run as of_run", True),
        ("import autopar as ap; pass_on(ap)", True),
        ("import autopar as ap; getattr(ap, name)", True),
        ("def f():\n    import autopar\n    return lambda: autopar.Plan", True),
        ("import autopars, torch; autopar.TaskGraph", False),
    ],
)
def test_code_leads_to_a_room_by_whatever_it_imports(line, leads):
    used = digest._modules_used(ast.parse(line).body)
    assert any(module.startswith("autopar.graph") for module in used) == bool(used) == leads


def test_whatever_runs_as_work_is_measured_is_part_of_the_digest():
    for name in ap.__all__:
        getattr(ap, name)  # whatever is imported at its first use
    ran, prefix = set(), f"{_PACKAGE}{os.sep}"

    def watch(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            ran.add(Path(frame.f_code.co_filename).relative_to(_PACKAGE).as_posix())

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert len(ran) > 30
    text = "import autopar as ap\n" + inspect.getsource(work)
    assert ran <= digest._files(_PACKAGE, digest._modules_used(ast.parse(text).body)).keys()


def work():
    """Some of each kind of work."""
    x = ap.workload.matrix(8)
    graph = ap.TaskGraph(cpu_lanes=2)
    first = graph.add(x.mm, x)
    graph.add(torch.add, first, x)
    graph.add_traced(lambda a: (a @ a).relu(), x)
    with graph:
        graph.measure()
        graph.plan()
        assert ap.workload.equal([graph.run()[first]], [graph.run_serial()[first]])
    with ap.cpu_lane() as lane, ap.cpu_lane(name="copies", kind="copy") as copies:
        handle = lane.submit(ap.workload.products, x, 3)
        ap.timeline_of_handles([handle, copies.submit(x.clone)])
        ap.race({"one": lambda: x.mm(x), "lane": lambda: lane.submit(x.mm, x)}, repeats=3)
    ap.timeline_of(lambda: ap.annotate("work")(x.mm)(x))
    with ap.CopyPipeline("cpu") as pipeline:
        list(pipeline.map(lambda x: x + 1, [x, x]))
