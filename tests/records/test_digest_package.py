"""What of the package counts as measured code: each working room, and no words of it."""

import ast
import contextlib
import copy
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import autopar as ap
from autopar.records import digest
from autopar.records.digest import script_digest

_PACKAGE = Path(ap.__file__).parent
_GALLERY = sorted((Path(__file__).parents[2] / "gallery").rglob("plot_*.py"))


def digest_of(text):
    return script_digest(text, "experiment", {})


# What measured work is made with. What reads and shows records isn't part of it.
_ALL = """
import autopar as ap
from autopar import workload

def experiment():
    return (
        ap.Benchmark, ap.CopyPipeline, ap.Findings, ap.TaskGraph, ap.Timer, ap.annotate,
        ap.capacity, ap.cpu_lane, ap.cuda_lane, ap.empty_heap, ap.empty_pinned_pool,
        ap.hidden_share, ap.in_fresh_process, ap.measure, ap.measure_in_turn, ap.read_trace,
        ap.synchronize,
        ap.timeline_of, ap.timeline_of_handles, ap.try_gpu, ap.write_trace, workload,
    )
"""


def reached(script=_ALL, experiment="experiment"):
    """The definitions that an experiment names, at any depth: (module, name)."""
    module = digest._module_of(script)
    _, queue = digest._linked(digest._definition(module.definitions[experiment]), module)
    found = {}
    while queue:
        if (target := queue.pop()) not in found:
            found[target] = None
            queue += digest._linked_target(target)[1]
    return list(found)


def shows(node):
    return node.name in digest._SHOWS or node.name.startswith("_repr_")


@contextlib.contextmanager
def changed_inside(node):
    """One statement more in a function, another value of a constant."""
    if is_function(node):
        node.body.append(ast.parse("changed = 0").body[0])
        yield
        node.body.pop()
    else:
        value, node.value = node.value, ast.Tuple([node.value], ast.Load())
        yield
        node.value = value


def changeable(definition):
    """Its functions, but for those that only show it, or the definition, if it is a constant."""
    if isinstance(definition, (ast.Assign, ast.AnnAssign)):
        return [definition] if definition.value else []
    if is_function(definition) and shows(definition):
        return []
    nested = [changeable(each) for each in getattr(definition, "body", [])]
    return [*([definition] if is_function(definition) else []), *itertools.chain(*nested)]


def is_function(node):
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


@pytest.mark.stress
def test_each_function_and_each_constant_of_the_working_rooms_counts():
    """The text that is hashed has all of them, and a changed one has another text."""
    targets, total = reached(), 0
    sources = {module.name: definitions_of(source_of(module.name)) for module, _ in targets}
    for module, name in targets:
        for own in sources[module.name][name]:
            digest._Stripped().visit(own)
            for node in changeable(own):
                total += 1
                before = digest._text(node)
                assert before in digest._text_of((module, name)), f"{module.name}: {name}"
                with changed_inside(node):
                    assert digest._text(node) != before, f"{module.name}: {name}"
    assert total > 500


def source_of(module, package=_PACKAGE):
    path = package.joinpath(*module.split(".")[1:])
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def definitions_of(path):
    return digest.Module(ast.parse(path.read_text(encoding="utf-8")).body).definitions


def test_a_change_in_any_working_room_is_seen(monkeypatch):
    before, rooms, chosen = digest_of(_ALL), {}, {}
    for module, name in reached():
        chosen.setdefault(module.name, []).append(name)
    read = functools.cache(digest._room.__wrapped__)
    monkeypatch.setattr(digest, "_room", lambda path: rooms.get(path) or read(path))
    for path, names in chosen.items():
        statements = ast.parse(source_of(path).read_text(encoding="utf-8")).body
        changed = digest.Module(statements, path)
        definitions = [own for name in names for own in changed.definitions[name]]
        node = next(node for own in definitions for node in changeable(own))
        with changed_inside(node):
            rooms = {path: changed}
            digest._linked_target.cache_clear()
            digest._module_of.cache_clear()
            assert digest_of(_ALL) != before, f"{path}: {node.lineno}"
    assert len(chosen) > 30


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the package that may be changed, and that is read in its place."""
    folder = tmp_path / "autopar"
    shutil.copytree(_PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "recorded"))
    with monkeypatch.context() as patch:
        patch.setattr(digest, "_ROOT", folder)
        forget()
        yield folder
    forget()


def forget():
    digest._room.cache_clear()
    digest._module_of.cache_clear()


def test_words_and_layout_of_the_package_do_not_matter(package):
    before = digest_of(_ALL)
    for path in package.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if hasattr(node, "body") and isinstance(node.body, list) and node.body:
                first = node.body[0]
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    first.value = ast.Constant("Other words.")
        path.write_text(ast.unparse(tree), encoding="utf-8")  # no comments, other layout
    forget()
    assert digest_of(_ALL) == before


def test_where_modules_lie_and_what_they_are_called_does_not_matter(package):
    """All but the package itself move into other folders, under other names."""
    before = digest_of(_ALL)
    paths = [path for path in package.rglob("*.py") if not path.stem.startswith("__")]
    named = {".".join(path.relative_to(package).with_suffix("").parts): path for path in paths}
    moved = {name: f"room{len(name) % 3}.new_{name.replace('.', '_')}" for name in named}
    for folder in ("room0", "room1", "room2"):
        (package / folder).mkdir()
        (package / folder / "__init__.py").write_text('"""A room."""\n')
    for path in (package / "__init__.py", *named.values()):
        tree = Moved(moved).visit(ast.parse(path.read_text(encoding="utf-8")))
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    for name, path in named.items():
        path.rename(package.joinpath(*moved[name].split(".")).with_suffix(".py"))
    forget()
    assert digest_of(_ALL) == before


class Moved(ast.NodeTransformer):
    """Imports, in any order, of modules that have moved."""

    def __init__(self, moved):
        self.moved = moved

    def visit_Module(self, node):
        self.generic_visit(node)
        imports = [each for each in node.body if isinstance(each, (ast.Import, ast.ImportFrom))]
        imports = [each for each in imports if getattr(each, "module", "") != "__future__"]
        for each, other in zip(imports, reversed(imports), strict=True):
            node.body[node.body.index(each)] = copy.copy(other)
        return node

    def visit_ImportFrom(self, node):
        place = f"{node.module}.".removeprefix("autopar.")
        modules = [name for name in node.names if f"{place}{name.name}" in self.moved]
        if modules:
            found = []
            for name in modules:
                room, _, new = self.moved[f"{place}{name.name}"].rpartition(".")
                alias = ast.alias(new, asname=name.asname or name.name)
                found.append(ast.ImportFrom(f"autopar.{room}", [alias], level=0))
            return found
        if (node.module or "").startswith("autopar."):
            node.module = f"autopar.{self.moved[place.removesuffix('.')]}"
        return node


@pytest.mark.parametrize("name", ap.__all__)
def test_every_public_name_leads_to_its_definition(name):
    """Also those that are imported at their first use."""
    found = list(digest._room("autopar").find((name,)))
    assert found or isinstance(getattr(ap, name), type(ap)), "a module holds definitions itself"


@pytest.mark.parametrize("path", sorted(_PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_no_module_does_more_than_define(path):
    """A digest has what is named; what a module did by being imported would be missed."""
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        module = digest.Module([statement])
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_command = ast.unparse(statement).startswith("if __name__ == '__main__':")
        what = f"{path.name}:{statement.lineno} binds no name"
        assert module.definitions or module.imports or is_text or is_command, what


_SHOW_OR_KEEP = {"recorded", "observed", "newest_record", "show", "tabulate", "compare", "draw"}
_SHOW_OR_KEEP |= {"show_timelines", "claim", "Record", "write_record", "code_digest"}


@pytest.mark.parametrize("path", _GALLERY, ids=lambda path: path.stem)
def test_no_digest_of_the_gallery_has_what_shows_or_keeps(path):
    """So no page's variable is in one either: these are made by what shows and keeps."""
    script = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(script)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("ap.recorded", "ap.observed"):
            names = {name for _, name in reached(script, ast.unparse(node.args[0]))}
            assert "Findings" in names
            assert not names & _SHOW_OR_KEEP


def test_whatever_runs_is_part_of_the_digest():
    """Watch measured work: each function of the package that runs is one that counts."""
    for name in ap.__all__:
        getattr(ap, name)  # whatever is imported at its first use
    counted = {(Path(*module.name.split(".")[1:]).name, name) for module, name in reached()}
    ran, prefix = set(), f"{_PACKAGE}{os.sep}"

    def watch(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(prefix):
            ran.add((Path(code.co_filename).stem, code.co_qualname.split(".")[0], code.co_name))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    seen = {each for each in ran if each[1] not in ("<module>", "<lambda>", "__getattr__")}
    missed = {each for each in seen if each[:2] not in counted and each[2] not in digest._SHOWS}
    assert len(seen) > 100
    assert not missed


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
        run, twin = graph.run(), graph.run_serial()
        ap.workload.equal([run[first]], [twin[first]])
        assert run.timeline.busy_s() > 0
    with ap.cpu_lane() as lane, ap.cpu_lane(name="copies", kind="copy") as copies:
        handle = lane.submit(ap.workload.products, x, 3)
        ap.timeline_of_handles([handle, copies.submit(x.clone)])
        ap.measure(lambda: lane.submit(x.mm, x).wait(), label="one", warmup=1, repeats=3)
    ap.measure_in_turn({"one": lambda: x.mm(x)}, warmup=1, repeats=3)
    ap.timeline_of(lambda: ap.annotate("work")(x.mm)(x))
    with ap.CopyPipeline("cpu") as pipeline:
        list(pipeline.map(lambda x: x + 1, [x, x]))


def digests(run_program, *scripts, python=sys.executable):
    done = run_program("digests.py", _PACKAGE, *scripts, python=python)
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


@pytest.mark.stress
def test_every_python_here_gives_the_same_digests(run_program, tmp_path):
    """Of pages, of a script with odd f-strings, and without torch at hand."""
    others = other_pythons()
    if not others:
        pytest.skip("no other Python from 3.11 on is installed here")
    odd = tmp_path / "odd.py"
    odd.write_text(
        '''def odd(x, w=3, p=2, é=1):
    y = f"{x!r:>{w}.{p}} {{}} é{é}é" f'{x=}' "a" "b"
    y += rf"""a\\n {x}
        b""" + f"{x:}{f'{x}'}"
    match x:
        case {"a": [1, *rest]} | [_, 2, *rest] if rest:
            y = [*(y for z in rest if z), -1, 1j, b"\\x00", "\\ud800", ..., None, 1_000]
    try:
        return lambda *a, k=w, **kw: (yield)
    except* ValueError as error:
        raise TypeError from error
''',
        encoding="utf-8",
    )
    scripts = [*_GALLERY[::3], odd]
    expected = digests(run_program, *scripts)
    assert len(expected["digests"]) > 30
    for version, python in others.items():
        found = digests(run_program, *scripts, python=python)
        assert tuple(found["version"]) == version
        assert found["digests"] == expected["digests"], f"Python {version}"
