"""What of the package counts as measured code: each working room, and no words of it."""

import ast
import importlib.util
import itertools
import os
import shutil
import sys
import threading
from pathlib import Path

import pytest
import torch

import autopar as ap
from autopar.records import digest

_PACKAGE = Path(ap.__file__).parent
_GALLERY = sorted((Path(__file__).parents[2] / "gallery").rglob("plot_*.py"))
_HARMLESS = ("'", '"', "import ", "from ", "if __name__ == '__main__':", "if TYPE_CHECKING:")
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


@pytest.fixture
def package(tmp_path):
    """A copy of the package that may be changed."""
    folder = tmp_path / "autopar"
    shutil.copytree(_PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "recorded"))
    return folder


def digests_by(package, *experiments):
    """Digests by a module of its own, which has read nothing yet."""
    spec = importlib.util.spec_from_file_location(digest.__name__, digest.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._ROOT = package
    return [module.script_digest(script, name, {}) for script, name in experiments]


def rewrite(path, transformer):
    tree = transformer.visit(ast.parse(path.read_text(encoding="utf-8")))
    path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")


class Changed(ast.NodeTransformer):
    """A statement more in each function, those inside of it included."""

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.body.append(ast.parse("changed = 0").body[0])
        return node


_SMALL = {
    "one.inner": """from __future__ import annotations
import math
from autopar.two import helper as other

def fast(x: int) -> int:
    'Says.'
    return other(x) + math.pi  # why
""",
    "two": """SCALE = 2
def helper(x):
    from autopar import three
    return three.add(x) * SCALE
""",
    "three": """def add(x):
    return x + 1
def unrelated():
    return 1
""",
}
_SCRIPT = "from autopar.one.inner import fast\ndef experiment():\n    return fast(1)\n"


@pytest.fixture
def digest_with(tmp_path):
    """The digest of an experiment with a small package, of which some text is replaced."""
    numbers = itertools.count()

    def digest_with(replaced=(), moved=()):
        folder = tmp_path / str(next(numbers)) / "autopar"
        for name, text in _SMALL.items():
            for old, new in replaced:
                text = text.replace(old, new)
            path = folder.joinpath(*dict(moved).get(name, name).split(".")).with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        script = _SCRIPT
        for old, new in replaced:
            script = script.replace(old, new)
        return digests_by(folder, (script, "experiment"))

    return digest_with


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("'Says.'", "'Says more.'"),
        ("# why", "# because"),
        ("x: int) -> int", "x)"),
        ("import math\n", "import math, os\n"),
        ("def unrelated():\n    return 1", "def unrelated():\n    return 2"),
    ],
)
def test_words_layout_and_what_is_not_used_do_not_matter(digest_with, old, new):
    assert digest_with([(old, new)]) == digest_with()


@pytest.mark.parametrize(
    ("old", "new"), [("math.pi", "math.e"), ("SCALE = 2", "SCALE = 3"), ("x + 1", "x + 2")]
)
def test_a_change_is_seen_however_far_it_is(digest_with, old, new):
    assert digest_with([(old, new)]) != digest_with()


@pytest.mark.stress
@pytest.mark.parametrize("room", ["effects", "graph", "lanes", "timing", "transfer"])
def test_a_change_in_any_file_of_a_working_room_is_seen(package, room):
    before = digests_by(package, (_ALL, "experiment"))
    for path in sorted((package / room).glob("[!_]*.py")):
        text = path.read_text(encoding="utf-8")
        rewrite(path, Changed())
        assert digests_by(package, (_ALL, "experiment")) != before, path.name
        path.write_text(text, encoding="utf-8")


def test_where_modules_lie_and_what_they_are_called_does_not_matter(digest_with):
    imports = "import math\nfrom autopar.two import helper as other"
    turned = "from autopar.new.sub.second import helper as other\nimport math"
    replaced = [(imports, turned), ("autopar.one.inner", "autopar.first")]
    replaced += [("from autopar import three", "from autopar.new import third as three")]
    moved = {"one.inner": "first", "two": "new.sub.second", "three": "new.third"}
    assert digest_with(replaced, moved) == digest_with()


def test_how_results_are_shown_and_kept_is_in_no_digest_of_the_gallery(package):
    """So no page's variable is in one either: these are made by what shows and keeps."""
    measuring = ("ap.recorded", "ap.observed")
    experiments = [
        (script, ast.unparse(node.args[0]))
        for script in (path.read_text(encoding="utf-8") for path in _GALLERY)
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in measuring
    ]
    before = digests_by(package, *experiments)
    for room in ("display", "records"):
        for path in (package / room).glob("*.py"):
            if path.stem not in ("record", "digest", "race", "nsight"):  # these measure
                rewrite(path, Changed())
    assert digests_by(package, *experiments) == before
    rewrite(package / "records" / "record.py", Changed())  # of which `Findings` is
    assert not {*digests_by(package, *experiments)} & {*before}


def test_no_module_does_more_than_define():
    """A digest has what is named; what a module did by being imported would be missed."""
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            defines = digest.Module().add(node) or ast.unparse(node).startswith(_HARMLESS)
            assert defines, f"{path.name}:{node.lineno} binds no name"


def test_whatever_runs_is_part_of_the_digest():
    """Watch measured work: each function of the package that runs is one that counts."""
    for name in ap.__all__:
        getattr(ap, name)  # whatever is imported at its first use
    counted = [(digest.read_script(_ALL), "experiment")]
    for target in counted:  # which grows meanwhile
        for _, targets, _ in digest._linked(target)[1]:
            counted += {*targets}.difference(counted)
    ran, prefix = set(), f"{_PACKAGE}{os.sep}"

    def watch(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(prefix):
            dotted = ".".join(Path(code.co_filename).relative_to(_PACKAGE).with_suffix("").parts)
            ran.add((f"autopar.{dotted}", code.co_qualname.split(".")[0], code.co_name))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    others = ("<module>", "<lambda>", "__getattr__", "__repr__", "__str__")
    ran = {(path, name) for path, *names in ran for name in names[:1] if not {*names} & {*others}}
    assert len(ran) > 100
    assert not [call for call in ran if (digest._module(call[0]), call[1]) not in counted]


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
        ap.measure(lambda: lane.submit(x.mm, x).wait(), label="one", warmup=1, repeats=3)
    ap.measure_in_turn({"one": lambda: x.mm(x)}, warmup=1, repeats=3)
    ap.timeline_of(lambda: ap.annotate("work")(x.mm)(x))
    with ap.CopyPipeline("cpu") as pipeline:
        list(pipeline.map(lambda x: x + 1, [x, x]))
