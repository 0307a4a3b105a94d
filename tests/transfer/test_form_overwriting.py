"""Every form of handing over memory that is overwritten as soon as the rule allows it."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from pipeline_ways import VERBS, call, on_devices, side, values_of

from autopar import CopyPipeline

_WAIT_S = 20
_FIRST = 1 << 22  # bytes of an item that what comes behind it has to wait for


SIZES = [8, 100_000]  # small ones travel together
COUNT = 12


class Overwritten:
    """Tensors that are overwritten as soon as the rule allows it, whichever way they are kept."""

    def __init__(self, device, size, pin=False):
        self.made = [torch.zeros(_FIRST // 4, device=device)]
        self.made += [torch.full((size,), float(i), device=device) for i in range(1, COUNT)]
        if pin:
            self.made = [tensor.pin_memory() for tensor in self.made]

    def named(self):
        for tensor in self.made:
            yield tensor
            tensor.fill_(-1)

    def freed(self):
        size = len(self.made[1])
        while self.made:
            yield self.made.pop(0)
            torch.full((size,), -1.0)

    def in_place(self):
        one = self.made[0].clone()
        yield one
        for i in range(1, COUNT):
            yield one.fill_(i)

    def list_that_makes_its_items(self):
        class Frames(list):
            def __iter__(own):
                return self.in_place()

        return Frames([torch.zeros(3)] * COUNT)

    def array(self):
        values = np.zeros(len(self.made[1]))
        yield self.made[0]
        for i in range(1, COUNT):
            values[:] = i
            yield torch.from_numpy(values)

    def sequence_that_makes_its_items(self):
        class Frames(Sequence):
            def __len__(own):
                return COUNT

            def __getitem__(own, i):
                if i >= COUNT:
                    raise IndexError
                return self.made[0].fill_(i)

        return Frames()


SOURCES = [name for name in vars(Overwritten) if not name.startswith("_")]


@on_devices
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_source_may_overwrite_an_item_when_it_is_asked_for_the_next_one(
    in_time, verb, source, size, device
):
    if source == "array" and side(verb, device) != "cpu":
        return
    items = getattr(Overwritten(side(verb, device), size), source)()

    def run():
        with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
            return [values_of(result) for result in call(pipeline, verb, items)]

    assert in_time(run, _WAIT_S) == [{i} for i in range(COUNT)]


@on_devices
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("pin", [False, pytest.param(True, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("end", ["next", "end", "close", "break"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_lists_element_may_be_overwritten_once_the_next_one_is_there_or_it_ends(
    verb, end, pin, kind, size, device
):
    if pin and (side(verb, device) != "cpu" or device == "cpu"):
        return
    items = kind(Overwritten(side(verb, device), size, pin).made)
    taken = []
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        results = call(pipeline, verb, items)
        if end in ("close", "break"):
            taken += itertools.islice(results, 1 if end == "close" else 3)
            results.close()
            for item in items:
                item.fill_(-1)
        for i, result in enumerate(results):
            taken.append(result)
            if i and end == "next":
                items[i - 1].fill_(-1)
        for item in items:
            item.fill_(-1)
        if device != "cpu":
            torch.cuda.synchronize(device)
    assert [values_of(result) for result in taken] == [{i} for i in range(len(taken))]


@on_devices
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["overwritten", "freed", "view", "weak"])
def test_what_was_given_to_to_host_async_may_be_overwritten_at_once(how, size, device):
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        handles = [pipeline.to_host_async(torch.zeros(_FIRST // 4, device=device))]
        for i in range(1, 6):
            tensor = torch.full((size,), float(i), device=device)
            handles.append(pipeline.to_host_async(tensor[:] if how == "view" else tensor))
            if how != "freed":
                tensor.fill_(-1)
            del tensor
            torch.full((size,), -1.0, device=device)
        results = [values_of(handle.result()) for handle in handles]
    assert results == [{i} for i in range(6)]


@on_devices
@pytest.mark.parametrize("kind", [list, iter])
@pytest.mark.parametrize("size", SIZES)
def test_memory_of_out_may_be_used_once_its_item_was_yielded(kind, size, device):
    tensors = Overwritten(device, size).made
    out = [torch.zeros(len(tensor)) for tensor in tensors]
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        for i, result in enumerate(pipeline.to_host(kind(tensors), out=kind(out))):
            assert values_of(result) == {i}
            result.fill_(-1)
    assert all(values_of(each) == {-1} for each in out)


# -- results are the caller's ---------------------------------------------------------------------


@on_devices
@pytest.mark.parametrize("verb", ["to_host", "prefetch"])
def test_small_results_may_share_a_block_and_a_clone_does_not(verb, device):
    """As both verbs say: whoever keeps one of them keeps the block, unless it clones it."""
    items = [torch.full((4,), float(i), device=side(verb, device)) for i in range(8)]
    with CopyPipeline(device, slot_bytes=1 << 20) as pipeline:
        found = pipeline.prefetch([items]) if verb == "prefetch" else [pipeline.to_host(items)]
        results = list(next(iter(found)))
    assert "share" in getattr(CopyPipeline, verb).__doc__
    assert results[0].untyped_storage().nbytes() > results[0].nbytes
    assert results[0].clone().untyped_storage().nbytes() == results[0].nbytes
    results[0].fill_(-1)
    assert [result[0].item() for result in results] == [-1, *range(1, 8)]
    assert all(result.is_leaf and result._version == (i == 0) for i, result in enumerate(results))
