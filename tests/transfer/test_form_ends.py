"""Every way in which copy pipelines end, and how much is under way until then."""

import gc
import json
import threading

import pytest
import torch
from interruptions import interrupted_at
from pipeline_ways import VERBS, call, comes_true, on_devices, values_of

from autopar import CopyPipeline

_WAIT_S = 20


# -- how much is under way ------------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("slots", [1, 3])
def test_to_host_async_has_a_bound_and_needs_nobody_to_read(in_time, slots, device):
    """Nobody reads a result before the end, and all calls come back."""
    count, size = 60, 1 << 16

    def run():
        with CopyPipeline(device, slots=slots, slot_bytes=size) as pipeline:
            handles = []
            for i in range(count):
                x = torch.full((size,), i, dtype=torch.uint8, device=device)
                handles.append(pipeline.to_host_async(x))
                waiting = sum(not handle.done() for handle in handles)
                assert waiting <= slots + max(slots, 2)
            return [handle.result() for handle in handles]

    assert [values_of(result) for result in in_time(run, _WAIT_S)] == [{i} for i in range(count)]


@pytest.mark.gpu
def test_what_to_host_async_clones_is_bounded(spin):
    """The GPU is busy while far more is handed over than fits under the bound."""
    size = 1 << 22
    x = torch.ones(size, dtype=torch.uint8, device="cuda:0")
    with CopyPipeline("cuda:0", slots=2, slot_bytes=size) as pipeline:
        pipeline.to_host_async(x).result()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        for _ in range(50):
            spin(2)
            pipeline.to_host_async(x)
        torch.cuda.synchronize()
    most = 6 * size  # one is being made, and one let go
    assert torch.cuda.max_memory_allocated() - before <= most
    assert "`slots` + 2" in CopyPipeline.to_host_async.__doc__


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("sizes", [[4] * 500, [1] + [4] * 500, [4] * 300 + [1] * 300])
def test_an_iterator_stands_where_its_reading_has_ended(pipeline, verb, sizes):
    kept = iter([torch.full((size,), float(i)) for i, size in enumerate(sizes)])
    next(kept)  # half used is given as well
    assert [x[0].item() for x in call(pipeline, verb, kept)] == list(range(1, len(sizes)))
    assert list(kept) == []


# -- errors, Ctrl-C and ends ----------------------------------------------------------------------
_PARTS = 12
PARTS = [0, *(pytest.param(i, marks=pytest.mark.stress) for i in range(1, _PARTS))]


def whole(device="cpu", threads=2):
    """A short pipeline that does everything once."""
    with CopyPipeline(device, slots=2, slot_bytes=1 << 12, threads=threads) as pipeline:
        items = [torch.full((3000,), float(i)) for i in range(3)]
        assert [x[0].item() for x in pipeline.map(torch.neg, items)] == [0, -1, -2]
        small = [torch.full((3,), float(i)) for i in range(3)]
        out = [torch.zeros(3) for _ in small]
        there = [x.to(device) for x in small]
        assert [x[0].item() for x in pipeline.to_host(iter(there), out)] == [0, 1, 2]
        handle = pipeline.to_host_async(torch.ones(3000, device=device))
        assert handle.result()[0] == 1


def no_threads_are_left():
    gc.collect()
    # Python also lists one that Ctrl-C has kept from its start.
    living = filter(threading.Thread.is_alive, threading.enumerate())
    return not any(thread.name == "autopar copies" for thread in living)


@on_devices
@pytest.mark.parametrize("part", PARTS)
def test_ctrl_c_anywhere_from_the_opening_to_the_end_leaves_nothing_that_waits(
    in_time, part, device
):
    """At every place where Python hears a signal, a share of them in each part."""
    threads = torch.get_num_threads()
    whole(device)
    count = interrupted_at(-1, lambda: whole(device))
    assert count > 500
    for number in range(part, count, _PARTS):
        in_time(lambda number=number: interrupted_at(number, lambda: whole(device)), _WAIT_S)
        assert comes_true(no_threads_are_left), f"place {number}"
        assert torch.get_num_threads() == threads, f"place {number}"
    in_time(lambda: whole(device), _WAIT_S)
    gc.collect()  # what an interrupted one has left, with its slots


# Each process takes a second to begin, on a GPU several.
_MOST_USUAL = ("held_by_a_generator", "failed", "in_a_thread_that_goes_on", "never_left")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("ways", [_MOST_USUAL, pytest.param((), marks=pytest.mark.stress)])
def test_a_process_that_holds_a_pipeline_ends(run_program, device, ways):
    done = run_program("pipeline_ends.py", device, *ways)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == (len(ways) or 7)
    for name, (status, said) in found.items():
        assert status == (name == "failed"), f"{name}: {said}"
        assert "Fatal" not in said, said
        assert "Exception ignored" not in said, said
        assert ("ValueError: on purpose" in said) == ("failed" in name), said
