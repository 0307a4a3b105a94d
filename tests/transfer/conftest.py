"""What tests of copy pipelines are given: pipelines, also such that fail, and their streams."""

import gc

import pytest
import torch
from late_streams import ErraticStream
from pipeline_faults import Bench
from pipeline_ways import Noting

import autopar
from autopar.transfer.copy_stream import CudaCopyStream
from autopar.transfer.pipeline import CopyPipeline


@pytest.fixture(autouse=True)
def _threads_gone(threads_gone):
    """No test leaves a thread behind, nor one that is about to end."""


@pytest.fixture
def pipeline():
    with CopyPipeline("cpu", slots=3, slot_bytes=1024, threads=2) as pipeline:
        yield pipeline


@pytest.fixture
def together(monkeypatch):
    """Let small items travel together, which otherwise depends on how soon they come."""
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", 1e9)


@pytest.fixture(params=["alone", "together"])
def company(request, monkeypatch):
    """How small items travel."""
    soon_s = {"alone": 0, "together": 1e9}[request.param]
    monkeypatch.setattr("autopar.transfer.parcel._SOON_S", soon_s)


@pytest.fixture
def use_streams(monkeypatch):
    """Call it with a kind of stream for pipelines to use; what it returns lists those in use."""
    made = []

    def use(kind):
        def stream(device):
            made.append(kind(device))
            return made[-1]

        monkeypatch.setattr("autopar.transfer.pipeline.copy_stream", stream)
        return made

    yield use
    for stream in made:
        if isinstance(stream, ErraticStream):
            stream.stop()


@pytest.fixture
def streams(use_streams):
    """The streams of pipelines, as they come to use them."""
    return use_streams(Noting)


@pytest.fixture
def late_copies(spin, monkeypatch):
    """Make each copy of all pipelines late by some milliseconds."""

    def make(ms):
        copy = CudaCopyStream.copy

        def delayed(stream, to, source):
            spin(ms)
            copy(stream, to, source)

        monkeypatch.setattr(CudaCopyStream, "copy", delayed)

    return make


@pytest.fixture
def no_collector():
    """Let cycles of references keep what they hold."""
    gc.disable()
    yield
    gc.enable()


def _memory():
    """Bytes that are in use: of pinned memory, and of each device's."""
    if not torch.cuda.is_initialized():
        return 0, 0
    torch.cuda.synchronize()
    autopar.empty_pinned_pool()
    pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return pinned, torch.cuda.memory_allocated(0)


@pytest.fixture
def bench(request, monkeypatch, in_time):
    """A bench, whose pipelines leave no memory behind, and which has new ones that work."""
    if request.node.get_closest_marker("gpu"):
        torch.zeros(1, device="cuda:0").cpu()
    memory = _memory()
    gc.freeze()  # what was there before need not be searched for garbage
    bench = Bench(monkeypatch, in_time)
    yield bench
    assert in_time(bench.a_new_one_works)
    monkeypatch.undo()
    gc.collect()
    assert bench.alive() == 0
    assert all(now <= before for now, before in zip(_memory(), memory, strict=True))
