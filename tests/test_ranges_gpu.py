"""That both kinds of tools see a range."""

import sys
from types import SimpleNamespace

import pytest
import torch

from autopar.ranges import annotate
from autopar.traces import profiler

pytestmark = pytest.mark.gpu


def test_this_build_has_nvtx_and_ranges_are_closed(monkeypatch):
    from torch._C import _nvtx

    room = sys.modules["autopar.ranges"]
    assert room.nvtx is _nvtx
    calls = []  # without a tool the library itself keeps no count

    def counted(name):
        call = getattr(_nvtx, name)
        return lambda *args: (calls.append((name, *args)), call(*args))[1]

    names = ("rangePushA", "rangePop")
    monkeypatch.setattr(room, "_nvtx", SimpleNamespace(**{name: counted(name) for name in names}))
    with pytest.raises(ZeroDivisionError), annotate("one"), annotate("two"):
        _ = 1 / 0
    assert calls == [("rangePushA", "one"), ("rangePushA", "two"), ("rangePop",), ("rangePop",)]


def test_torch_profiler_sees_it_round_the_launches():
    with profiler._session() as session:
        with annotate("autopar-launches"):
            torch.ones(8, device="cuda:0").sum()
        torch.cuda.synchronize(0)
    (seen,) = (
        event
        for event in session.events()
        if event.name == "autopar-launches" and event.device_type == torch.autograd.DeviceType.CPU
    )
    assert "aten::sum" in {child.name for child in seen.cpu_children}
