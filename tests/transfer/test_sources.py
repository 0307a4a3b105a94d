"""What items come in, when they come, where they go, and in which mode somebody asks for them."""

import itertools
import time

import pytest
import torch

from autopar import CopyPipeline


@pytest.fixture
def pipeline():
    with CopyPipeline("cpu") as pipeline:
        yield pipeline


@pytest.mark.parametrize("source", [list, iter], ids=["list", "generator"])
@pytest.mark.parametrize("size", [4, 1 << 19])
@pytest.mark.parametrize("targets", [1, 2, 5])
def test_targets_that_are_still_on_their_way_are_refused(pipeline, source, size, targets):
    tensors = source([torch.full((size,), i) for i in range(20)])
    out = itertools.cycle([torch.empty(size, dtype=torch.long) for _ in range(targets)])
    received = []
    with pytest.raises(ValueError, match=r"out\[\d+\] shares memory with out\[\d+\]"):
        received.extend(result[0].item() for result in pipeline.to_host(tensors, out=out))
    assert received == list(range(len(received)))


def test_targets_may_lie_beside_and_between_each_other(pipeline):
    rows, columns = torch.empty(9, 4), torch.empty(4, 9)
    tensors = [torch.full((4,), float(i)) for i in range(9)]
    for out, result in ((rows, rows), (columns.t(), columns.t())):
        assert len([*pipeline.to_host(tensors, out=out)]) == 9
        assert result.equal(torch.stack(tensors))


def test_small_items_do_not_wait_for_many_that_come_late(pipeline):
    taken = []

    def source():
        for i in range(2_060):
            if i >= 2_000:
                time.sleep(0.02)
            taken.append(i)
            yield torch.ones(1)

    received = pipeline.to_host(source())
    for _ in range(2_001):
        next(received)
    assert len(taken) < 2_030  # as far ahead as items of any size


@pytest.mark.parametrize("verb", ["to_host", "prefetch"])
def test_items_do_not_have_the_mode_in_which_they_were_taken_ahead(pipeline, verb):
    received = getattr(pipeline, verb)(torch.ones(5) for _ in range(8))
    with torch.inference_mode():
        next(received)
    weight = torch.ones(5, requires_grad=True)
    for item in received:
        (item * weight).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("count", [1, 2, 9])
def test_strides_do_not_depend_on_what_travels_along(pipeline, count):
    item = torch.ones(1, 1, 4, 4).to(memory_format=torch.channels_last)
    for result in pipeline.to_host([item] * count):
        assert result.stride() == item.stride()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: next(p.map(lambda x: 1, [torch.ones(1)])), "what fn returned for item 0 is 1"),
        (lambda p: p.to_host([], pin="yes"), "pin is 'yes'"),
        (lambda p: p.to_host([], out=torch.tensor(1.0)), "out is a single tensor"),
        (lambda p: p.prefetch({"x": torch.ones(1)}), "batches is of type dict"),
        (lambda p: p.prefetch("x"), "batches is 'x'"),
    ],
    ids=["map", "pin", "out", "dict", "text"],
)
def test_slips_are_named(pipeline, call, message):
    with pytest.raises(TypeError, match=message):
        call(pipeline)
