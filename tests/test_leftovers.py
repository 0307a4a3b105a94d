"""That what tests leave behind is told and mended, and that few cases show every value."""

import random
import signal
import sys
import threading

import leftovers
import pytest
import torch
from leftovers import Before
from sampling import every, few, names_of
from torch.cuda import _gpu_trace

LEFT = {
    "switch interval": lambda: sys.setswitchinterval(0.1),
    # A job in the background has SIG_IGN from the beginning.
    "Ctrl-C": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    "autograd": lambda: torch.set_grad_enabled(False),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "how many threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
}


@pytest.mark.parametrize("what", [*LEFT, "working directory"])
def test_a_setting_is_told_and_set_back(what, tmp_path, monkeypatch):
    before = Before()
    LEFT.get(what, lambda: monkeypatch.chdir(tmp_path))()
    (words,) = before.changed()
    assert what in words
    assert before.changed() == []


def test_a_thread_and_traced_calls_are_told(gate, monkeypatch):
    before = Before()
    thread = threading.Thread(target=gate, name="mine")
    thread.start()
    monkeypatch.setattr(leftovers, "_GONE_S", 0.05)
    assert before.changed() == ["the thread 'mine' runs"]
    gate.open()
    thread.join()
    assert before.changed() == []
    monkeypatch.setattr(_gpu_trace.EventCreationCallbacks, "callback_list", [print])
    assert before.changed() == ["each call of CUDA's is traced"]


class InCapture:
    """A generator that a capture has left as it was in there."""

    mended = False

    def clone_state(self):
        return self

    def graphsafe_set_state(self, state):
        assert state is self
        self.mended = True

    def rand(self, *size, device):
        if not self.mended:
            raise RuntimeError("Offset increment outside graph capture")


def test_a_generator_in_capture_is_told_and_mended(monkeypatch):
    generator = InCapture()
    monkeypatch.setattr(leftovers, "used_gpus", lambda: [torch.device("cuda", 0)])
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch, "rand", generator.rand)
    words = "cuda:0 has no random numbers: Offset increment outside graph capture"
    assert list(leftovers.broken_generators()) == [words]
    assert list(leftovers.broken_generators()) == []


@pytest.mark.gpu
def test_a_stream_is_told_and_set_back_and_pools_are_empty_before_each_test():
    tensors = [torch.empty(2**24, device="cuda:0"), torch.empty(2**24, pin_memory=True)]
    tensors.clear()
    reserved_bytes = torch.cuda.memory_reserved(0)
    freed = torch.cuda.host_memory_stats()["num_host_free"]
    before = Before(gpus=True)
    assert torch.cuda.memory_reserved(0) <= reserved_bytes - 4 * 2**24
    assert torch.cuda.host_memory_stats()["num_host_free"] > freed
    torch.cuda.set_stream(torch.cuda.Stream(0))
    (words,) = before.changed()
    assert "current streams" in words
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.gpu(2)
def test_a_gpu_is_told_and_set_back():
    before = Before(gpus=True)
    torch.cuda.set_device(1)
    (words,) = before.changed()
    assert "current GPU" in words
    assert torch.cuda.current_device() == 0


def test_few_cases_show_every_value_on_each_device():
    gpu = pytest.param("gpu", marks=pytest.mark.gpu)
    parameters = [("device", ["cpu", gpu]), ("verb", "abcdefg"), ("slots, k", [(1, 2), (3, 4)])]
    marks = [pytest.mark.parametrize(*parameter).mark for parameter in parameters]
    assert names_of(marks) == ["device", "verb", "slots", "k"]
    cases = list(few(marks, random.Random(0)))
    assert len(cases) == 2 * 7
    for device in ("cpu", "gpu"):
        chosen = [case for case in cases if case.values[0] == device]
        assert {case.values[1] for case in chosen} == {*"abcdefg"}
        assert {case.values[2:] for case in chosen} == {(1, 2), (3, 4)}
        assert {bool(case.marks) for case in chosen} == {device == "gpu"}
    values = every(3, range(5), str)
    assert [bool(case.marks) for case in values] == [False, True, True, False, True]
    assert values[0].id == "0"
