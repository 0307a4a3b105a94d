"""What items come in, when they come, where they go, and in which mode somebody asks for them."""

import dataclasses
import itertools
import os
import time

import pytest
import torch

from autopar import CopyPipeline


@pytest.fixture
def pipeline():
    with CopyPipeline("cpu") as pipeline:
        yield pipeline


@dataclasses.dataclass
class Holder:
    held: object


@pytest.mark.parametrize(
    "held",
    [Holder(torch.ones(1)), [Holder({torch.ones(1)})], Holder(Holder([torch.ones(1)]))],
    ids=["once", "a set within", "three deep"],
)
def test_tensors_in_objects_are_found_and_refused(pipeline, held):
    with pytest.raises(TypeError, match="holds a Holder with tensors in it"):
        next(pipeline.prefetch([{"x": Holder(held)}]))


def test_objects_without_tensors_come_as_they_are(pipeline):
    given = Holder([Holder({"a": 1}), torch.Size([2])])
    (result,) = pipeline.prefetch([(given, torch.Size([3]), torch.ones(1))])
    assert result[0] is given
    assert type(result[1]) is torch.Size


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


def test_targets_may_be_used_again_once_they_are_there(pipeline):
    out = [torch.empty(3) for _ in range(2)]
    for _ in range(3):
        assert len([*pipeline.to_host([torch.ones(3)] * 2, out=out)]) == 2


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


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


@pytest.mark.parametrize("verb", ["to_host", "prefetch"])
def test_errors_that_take_no_notes_come_after_the_items_before(pipeline, verb):
    def source():
        yield from (torch.ones(1) for _ in range(3))
        raise Frozen(3)

    received = []
    with pytest.raises(Frozen):
        received.extend(getattr(pipeline, verb)(source()))
    assert len(received) == 3


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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_handle_is_refused_in_another_process(pipeline, monkeypatch):
    monkeypatch.setattr(pipeline._workers, "submit", lambda work: None)
    handle = pipeline.to_host_async(torch.ones(3))
    child = os.fork()
    if not child:
        try:
            handle.result()
        except RuntimeError as error:
            os._exit("in another process" not in str(error))
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert handle.result().tolist() == [1, 1, 1]


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
