"""What tests of lanes share: none leaves a thread, and lanes are left while tasks are held."""

import threading

import cuda_stand_ins
import pytest
from lane_forms import WAIT_S

from autopar import cpu_lane, cuda_lane


@pytest.fixture(autouse=True)
def _threads_gone(threads_gone):
    """No test leaves a thread behind."""


@pytest.fixture
def forms_run_in_time(request, in_time):
    """No form hangs: each is run in a thread that is given up after some seconds."""
    form = request.function
    request.node.obj = lambda **given: in_time(lambda: form(**given), timeout_s=30)


@pytest.fixture
def current(monkeypatch):
    """The callers' current stream, where streams are made up."""
    return cuda_stand_ins.stand_in(monkeypatch)


@pytest.fixture(params=["cpu", "cuda"])
def new_lane(request):
    """How to make a lane of either kind; streams are made up."""
    if request.param == "cuda":
        request.getfixturevalue("current")
    return cpu_lane if request.param == "cpu" else cuda_lane


@pytest.fixture
def open_soon(gate):
    """Let the gate open in a moment, when it is waited for on purpose."""
    opening = threading.Timer(0.05, gate.open)
    yield opening.start
    if opening.ident:
        opening.join()


@pytest.fixture
def leave(gate):
    """Leave a block by an exception while the gate holds a task; it opens once others dropped."""
    opening = []

    def leave(queued):
        opening.append(threading.Thread(target=lambda: (queued._wait_until_issued(), gate.open())))
        opening[0].start()
        assert gate.begun.wait(WAIT_S)
        raise ZeroDivisionError

    yield leave
    opening[0].join(WAIT_S)
    assert gate.finished, "work outlived its lane"
