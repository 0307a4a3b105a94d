"""Which room may import which: down only, so that each can be read knowing those below it."""

import ast
import graphlib
import re
import sys
from pathlib import Path

import autopar

_SOURCES = Path(autopar.__file__).parent
_MODULES = {
    ".".join(path.relative_to(_SOURCES).with_suffix("").parts): path
    for path in sorted(_SOURCES.rglob("*.py"))
}
_CORE = "autopar"  # the small core: files in no folder; `__init__` and `__main__` are the door
_DOOR = {"__init__", "__main__"}

# What each room may import, beside itself.
_MAY = {
    _CORE: "",
    "effects": "autopar",
    "timing": "autopar effects lanes",
    "timeline": "autopar",
    "lanes": "autopar effects timeline",
    "transfer": "autopar effects lanes",
    "graph": "autopar effects timing timeline lanes",
    "display": "autopar timing timeline",
    "traces": "autopar lanes timeline display",
    "records": "autopar effects timing timeline lanes display traces",
    "distributed": "autopar effects timing timeline traces records",
}
_WITHOUT_TORCH = {"timeline", "display", "traces", "records", "effects.loads", "timing.measurement"}
_DRAW, _DRAWS_PLANS = "display.plot", "display.graph_plot"  # the first loads the second
_DRAWS = re.compile(rf"matplotlib\b|networkx\b|autopar\.{_DRAWS_PLANS}\b")
_WITH_TORCH = {"traces.profiler", "records.experiment", "records.race"}


def room_of(module):
    return module.split(".")[0] if "." in module else _CORE


def imports(tree):
    """Every module that some code imports, wherever it does so, by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "rooms name each other in full"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_imported(tree):
    named = {name.removeprefix("autopar.") for name in imports(tree)}
    return named & set(_MODULES)


def imported_when_loaded(tree):
    """What importing the module imports: neither in a function nor for type checkers alone."""
    for node in tree.body:
        checking = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if not checking and not isinstance(node, ast.FunctionDef):
            yield from imports(node)


def tree_of(module):
    return ast.parse(_MODULES[module].read_text(encoding="utf-8"))


def test_rooms_import_what_they_may():
    for module in set(_MODULES) - _DOOR:
        allowed = {room_of(module), *_MAY[room_of(module)].split()}
        named = modules_imported(tree_of(module))
        other = {other for other in named if room_of(other) not in allowed}
        assert not other, f"{module} imports {other}, and its room may import {allowed}"


def test_no_imports_go_in_a_circle():
    named = {name: modules_imported(tree_of(name)) for name in set(_MODULES) - _DOOR}
    modules = {name: others - {name} for name, others in named.items()}
    for graph in (modules, {room: may.split() for room, may in _MAY.items()}):
        graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_pure_modules_do_without_torch():
    pure = {module for module in _MODULES if {module, room_of(module)} & _WITHOUT_TORCH}
    with_it = {
        module
        for module in pure - _WITH_TORCH
        if "torch" in {name.split(".")[0] for name in imports(tree_of(module))}
    }
    assert not with_it


def test_only_plots_import_what_draws_and_only_when_called():
    for module in set(_MODULES) - {_DRAWS_PLANS}:
        seen = imported_when_loaded if module == _DRAW else imports
        drawing = [name for name in seen(tree_of(module)) if _DRAWS.match(name)]
        assert not drawing, f"{module} imports {drawing}"


def test_no_name_shadows_the_standard_library_or_a_public_function():
    names = {part for module in _MODULES for part in module.split(".")[:1]} - _DOOR
    assert not names & set(sys.stdlib_module_names)
    assert not {name for name in names & set(autopar.__all__) if callable(getattr(autopar, name))}


def test_the_first_line_says_what_it_is_and_begins_with_the_files_name():
    for module, path in _MODULES.items():
        first = (ast.get_docstring(tree_of(module)) or "").partition("\n")[0]
        assert first.endswith((".", "?")), f"{module} begins with {first!r}"
        name = path.parent.name if module.endswith("__init__") else module.split(".")[-1]
        word = re.match(r"\w+", first).group().lower().rstrip("s")
        names = {name.rstrip("s"), name.split("_")[0].rstrip("s")}
        assert module == "__main__" or word in names, f"{module} begins with {first!r}"


def test_a_room_names_every_file_that_it_has():
    for room in set(_MAY) - {_CORE}:
        text = ast.get_docstring(tree_of(f"{room}.__init__"))
        files = {name.split(".")[1] for name in _MODULES if room_of(name) == room} - _DOOR
        named = set(re.findall(r"`(\w+)`", text))
        assert files <= named, room
        defined = {
            node.name
            for module in _MODULES
            if room_of(module) == room
            for node in ast.walk(tree_of(module))
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        }
        assert named <= files | defined, room
