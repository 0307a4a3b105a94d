"""Ranges that every tool sees, and that are closed whatever happens."""

import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from autopar import annotate

_ROOM = sys.modules[annotate.__module__]


class FakeNvtx(threading.local):
    """What a tool sees of each thread: the ranges that are open, and all that were opened."""

    def __init__(self):
        self.open, self.opened = [], []

    def rangePushA(self, name):
        self.open.append(name)
        self.opened.append(name)

    def rangePop(self):
        self.open.pop()


@pytest.fixture
def nvtx(monkeypatch):
    fake = FakeNvtx()
    monkeypatch.setattr(_ROOM, "nvtx", fake)
    yield fake
    assert fake.open == []


class FakeProfiler:
    """In place of torch's: the threads on which each range was opened and closed."""

    def __init__(self):
        self._is_profiler_enabled = True
        self.ranges = []

    @contextmanager
    def record_function(self, name):
        opened = threading.get_ident()
        yield
        self.ranges.append((opened, threading.get_ident()))


@pytest.fixture
def tool(monkeypatch):
    fake = FakeProfiler()
    monkeypatch.setattr(_ROOM, "profiler", fake)
    return fake


def test_an_exception_closes_what_it_leaves(nvtx):
    with pytest.raises(ZeroDivisionError), annotate("outer"):
        with pytest.raises(KeyError), annotate("caught"):
            raise KeyError
        assert nvtx.open == ["outer"]
        with annotate("inner"):
            _ = 1 / 0
    assert nvtx.opened == ["outer", "caught", "inner"]


def test_decorator_with_recursion_errors_and_what_it_returns(nvtx):
    @annotate("down")
    def down(n, *, end=0):
        """Counts."""
        assert nvtx.open == ["down"] * (5 - n)
        return down(n - 1, end=end) + 1 if n else 10 // end

    assert (down.__name__, down.__doc__) == ("down", "Counts.")
    assert down(4, end=5) == 6
    with pytest.raises(ZeroDivisionError):
        down(4)
    assert nvtx.opened == ["down"] * 10


def test_one_decorated_function_on_several_threads_at_once(nvtx, tool):
    barrier = threading.Barrier(4)
    leaks = []

    @annotate("shared")
    def meet():
        barrier.wait(10)  # all four are inside before any leaves
        return list(nvtx.open)

    def run():
        leaks.append((meet(), list(nvtx.open)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert leaks == [(["shared"], [])] * 4
    assert all(opened == closed for opened, closed in tool.ranges)
    assert len(tool.ranges) == 4


def test_each_range_is_closed_at_its_own_end(nvtx, tool):
    """Also where one object is entered again after the profiler has stopped."""
    shared = annotate("shared")
    with shared:
        tool._is_profiler_enabled = False
        with shared:
            assert nvtx.open == ["shared", "shared"]
        assert tool.ranges == []
    assert len(tool.ranges) == 1


def test_torch_profiler_sees_the_range_and_what_is_in_it(nvtx):
    activities = [torch.profiler.ProfilerActivity.CPU]
    outer = annotate("autopar-outer")
    with outer:  # begins before the profiler
        with torch.profiler.profile(activities=activities, acc_events=True) as session:
            with annotate("autopar-seen"):
                torch.ones(8).sum()
            with pytest.raises(ValueError, match="on purpose"), annotate("autopar-failed"):
                raise ValueError("on purpose")
            left = annotate("autopar-left")
            left.__enter__()  # outlives it
        left.__exit__(None, None, None)
    ranges = [event for event in session.events() if event.name.startswith("autopar-")]
    assert [event.name for event in ranges][:2] == ["autopar-seen", "autopar-failed"]
    assert "aten::sum" in {child.name for child in ranges[0].cpu_children}
    assert "autopar-outer" not in {event.name for event in ranges}


def test_without_nvtx_in_the_build(monkeypatch):
    monkeypatch.setattr(_ROOM, "nvtx", None)
    with annotate("plain"):
        pass
    assert repr(annotate("plain")) == "annotate('plain')"


def test_refuses_a_name_that_is_none_and_what_cannot_be_called():
    with pytest.raises(TypeError, match="expected a string.*annotate"):
        annotate(len)
    with pytest.raises(TypeError, match="fn is of type int; expected a function"):
        annotate("forward")(3)


@pytest.mark.gpu
def test_a_build_for_gpus_has_nvtx_and_ranges_are_closed(monkeypatch):
    calls, built = [], _ROOM.nvtx  # without a tool the library itself keeps no count

    def counted(name):
        return lambda *args: (calls.append((name, *args)), getattr(built, name)(*args))[1]

    names = ("rangePushA", "rangePop")
    monkeypatch.setattr(_ROOM, "nvtx", SimpleNamespace(**{name: counted(name) for name in names}))
    with pytest.raises(ZeroDivisionError), annotate("one"), annotate("two"):
        _ = 1 / 0
    assert calls == [("rangePushA", "one"), ("rangePushA", "two"), ("rangePop",), ("rangePop",)]
