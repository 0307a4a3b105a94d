"""Which room may import which: down only, so that each can be read knowing those below it."""

import ast
import sys
from pathlib import Path

import pytest

import autopar

_SOURCES = Path(autopar.__file__).parent
_ROOMS = {path.stem: path for path in sorted(_SOURCES.glob("*.py"))}

# From the ground up. A room imports rooms of lower floors only, so there can be no circle.
_PURE_FLOORS = (
    {"access", "copyplan", "digest", "display", "limit", "measurement", "origin"}
    | {"loads", "outcome", "progress", "provenance", "span", "storage"},
    {"evidence", "events", "fresh", "groups", "intervals", "schedule", "traces", "unit", "verdict"},
    {"record"},
    {"gallery", "jobs", "table", "usage"},
    {"idle", "nsys", "own"},
    {"diagnosis", "kineto"},
    {"tracefile"},
    {"words"},
    {"shapes"},
    {"planplot"},
    {"plot", "svg"},
    {"pictures", "report"},
    {"reportpage"},
    {"inspection"},
)
_TORCH_FLOORS = (
    {"annotate", "chance", "device", "layout", "memory", "modes", "owner", "state", "workload"},
    {"clock", "node"},
    {"calls", "copystream", "handle", "machine", "tracing"},
    {"aliasing", "experiment", "load", "profiler", "reach", "task", "timer"},
    {"hidden", "slots"},
    {"hazards", "lane", "observer", "parcel"},
    {"guard", "stream", "worker"},
    {"capture", "crew", "learning", "plan"},
    {"graphrun", "ring"},
    {"runner"},
    {"graph", "transfer"},
    {"__init__", "__main__"},
)
_FLOORS = {
    room: number for number, rooms in enumerate(_PURE_FLOORS + _TORCH_FLOORS) for room in rooms
}
_PURE = {room for rooms in _PURE_FLOORS for room in rooms}


def imports(tree):
    """Every module that some code imports, wherever it does so, by its full name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "rooms name each other in full"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_imported(tree):
    named = [name.split(".") for name in imports(tree)]
    return {parts[1] for parts in named if parts[0] == "autopar" and len(parts) > 1} & set(_ROOMS)


def imported_when_loaded(tree):
    """What importing the module imports: neither in a function nor for type checkers alone."""
    for node in tree.body:
        checking = isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        if not checking and not isinstance(node, ast.FunctionDef):
            yield from imports(node)


def tree_of(room):
    return ast.parse(_ROOMS[room].read_text(encoding="utf-8"))


def test_every_room_has_a_floor_and_every_floor_its_rooms():
    assert set(_ROOMS) == set(_FLOORS), "a new room needs a floor, a removed one leaves none"
    assert len(_FLOORS) == sum(map(len, _PURE_FLOORS + _TORCH_FLOORS)), "a room is on two floors"


@pytest.mark.parametrize("room", _ROOMS)
def test_imports_go_down(room):
    up = {
        other
        for other in rooms_imported(tree_of(room))
        if other != room and _FLOORS[other] >= _FLOORS[room]
    }
    assert not up, f"{room} imports {up}, which are not on lower floors"


def test_that_test_sees_every_form_of_import():
    code = (
        "import autopar.lane\nfrom autopar import svg\ndef f():\n    from autopar.span import Span"
    )
    assert rooms_imported(ast.parse(code)) == {"lane", "svg", "span"}


@pytest.mark.parametrize("room", sorted(_PURE))
def test_pure_rooms_do_without_torch(room):
    assert "torch" not in {name.split(".")[0] for name in imports(tree_of(room))}


@pytest.mark.parametrize("room", _ROOMS)
def test_only_plots_import_what_draws_and_only_when_called(room):
    draws = {"matplotlib", "networkx"}
    if room not in {"planplot", "plot"}:
        assert not draws & {name.split(".")[0] for name in imports(tree_of(room))}
    assert not draws & {name.split(".")[0] for name in imported_when_loaded(tree_of(room))}


def test_no_room_shadows_the_standard_library():
    assert not set(_ROOMS) & set(sys.stdlib_module_names)


@pytest.mark.parametrize("room", _ROOMS)
def test_the_first_line_says_what_it_is(room):
    text = ast.get_docstring(tree_of(room))
    assert text, f"{room} has no docstring"
    assert text.splitlines()[0].endswith(".")
