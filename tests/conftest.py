"""What all tests share: GPU tests run only where there are GPUs, none hangs or leaves traces."""

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch
from leftovers import Before
from sampling import quick

import autopar

_TOO_LONG_S = 120  # far above the slowest test; a test that hangs ends the run and shows where
_PROGRAMS = Path(__file__).parent / "programs"
hypothesis.settings.register_profile("same each time", deadline=None, derandomize=True)
hypothesis.settings.load_profile("same each time")
collect_ignore = ["programs"]  # each is run in a process of its own; importing one may run it
collect_ignore_glob = ["*/conftest.py"]  # no doctests are in them, and all have one name


def pytest_addoption(parser):
    """Let the order be turned round: no test may need another before it."""
    parser.addoption("--reverse", action="store_true", help="run the last test first")


def pytest_configure(config):
    """Keep a way to the terminal for the traceback of a test that hangs; hear Ctrl-C.

    What a shell runs in the background ignores it, and so would each process that a test starts.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.terminal_fd = os.dup(2)


def pytest_unconfigure(config):
    """Python waits for threads before it exits; one that a failed test left behind may hang."""
    faulthandler.dump_traceback_later(30, exit=True, file=config.terminal_fd)


def _let_examples_import_what_they_use(items):
    """Run those of the reference as a reader does who copied them: without names of a module."""
    examples = [item for item in items if isinstance(item, pytest.DoctestItem)]
    things = [getattr(autopar, name) for name in autopar.__all__] if examples else []
    public = [f"{one.__module__}.{one.__qualname__}." for one in things if callable(one)]
    public += [f"{one.__name__}." for one in things if isinstance(one, ModuleType)]
    for example in examples:
        if f"{example.dtest.name}.".startswith(tuple(public)):
            example.dtest.globs = {"__name__": "__main__"}


def pytest_collection_modifyitems(config, items):
    """Without `-m stress`, leave out most of what is marked so."""
    _let_examples_import_what_they_use(items)
    if config.option.reverse:
        items.reverse()
    if "stress" not in config.option.markexpr:
        chosen = quick(items)
        config.hook.pytest_deselected(items=list({*items}.difference(chosen)))
        items[:] = chosen


@pytest.fixture(scope="module", autouse=True)
def _old_objects_are_left_alone():
    """Thousands of items, and what torch loads, are not searched at each garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_hangs(pytestconfig):
    faulthandler.dump_traceback_later(_TOO_LONG_S, exit=True, file=pytestconfig.terminal_fd)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(request):
    before = Before(gpus=request.node.get_closest_marker("gpu") is not None)
    yield
    changed = before.changed()
    assert not changed, f"{request.node.nodeid} left behind: {'; '.join(changed)}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip what is marked `gpu` without one, and what is marked `gpu(2)` with fewer than two."""
    marker = item.get_closest_marker("gpu")
    needed = 0 if marker is None else marker.args[0] if marker.args else 1
    if torch.cuda.device_count() < needed:
        pytest.skip(f"needs {needed} NVIDIA GPU(s); this machine has {torch.cuda.device_count()}")


@pytest.fixture
def no_windows():
    """Draw figures in memory, and close them."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.fixture
def run_program():
    """Run a file of tests/programs in a fresh process and return it once it has ended."""

    def run(name, *arguments, python=sys.executable, **options):
        source = Path(autopar.__file__).parents[1]
        path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [python, _PROGRAMS / name, *map(str, arguments)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=100, **options
        )

    return run


@pytest.fixture(scope="session")
def spin():
    """Keep the current stream busy for some milliseconds, without waiting for it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 20_000_000
    torch.cuda._sleep(cycles)  # the first one takes longer
    start.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    per_ms = cycles / start.elapsed_time(end)
    return lambda ms: torch.cuda._sleep(int(ms * per_ms))


class Gate:
    """A task that says when it has begun, and is held back until it is let go."""

    def __init__(self):
        self.begun = threading.Event()
        self._opened = threading.Event()
        self.running = self.finished = False

    def __call__(self, value=None):
        self.running = True
        self.begun.set()
        try:
            assert self._opened.wait(10), "nobody opened the gate"
        finally:
            self.running = False
        self.finished = True
        return value

    def open(self):
        self._opened.set()


@pytest.fixture
def gate():
    """A gate that is open once the test is over."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def threads_gone():
    """Hold the test to leaving no thread behind."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture
def in_time():
    """Call a function in another thread and fail, instead of waiting for ever, if it hangs."""

    def call(fn, timeout_s=20):
        outcome = Future()

        def run():
            try:
                outcome.set_result(fn())
            except BaseException as error:
                outcome.set_exception(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(timeout_s)
        return outcome.result(timeout=0)  # by a TimeoutError if there is none

    return call
