"""Copy pipelines on the CPU: whose memory is whose, and until when."""

import threading
import time
import weakref

import pytest
import torch
from pipeline_ways import WAYS, every_way, first_elements, numbers

from autopar.transfer import ring
from autopar.transfer.pipeline import CopyPipeline

pytestmark = pytest.mark.usefixtures("threads_gone")
_WAIT_S = 10  # for what should come at once


# -- sources that change --------------------------------------------------------------------------


# -- results are the caller's ---------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("sizes", [(4,), (1, 2, 4), (1000,)])
@pytest.mark.usefixtures("together")
def test_autograd_takes_each_result_by_itself(pipeline, way, sizes):
    items = [torch.full((sizes[i % len(sizes)],), float(i)) for i in range(12)]
    weight = torch.tensor(3.0, requires_grad=True)
    results = list(WAYS[way](pipeline, items))
    assert all(result.is_leaf and not result.requires_grad for result in results)
    losses = []
    for i, result in enumerate(results):
        if i % 3 == 0:
            losses.append(result.mul_(weight).sum())
        elif i % 3 == 1:
            losses.append((result.requires_grad_() ** 2).sum())
        else:
            losses.append((weight * result).sum())  # keeps the result for backward
            continue
    for i, result in enumerate(results):
        if i % 3 == 0:
            assert torch.equal(result, items[i] * 3)
    for loss in losses:
        loss.backward()
    expected = sum(items[i].sum() for i in range(12) if i % 3 != 1)
    assert weight.grad == expected
    assert all(torch.equal(results[i].grad, 2 * items[i]) for i in range(1, 12, 3))


def all_gone(watched):
    """Whether they go as soon as threads that are on their way out of a copy have left it."""
    give_up_s = time.perf_counter() + _WAIT_S
    while any(each() is not None for each in watched):
        if time.perf_counter() > give_up_s:
            return False
        time.sleep(1e-3)
    return True


@pytest.mark.parametrize("way", [way for way in WAYS if way != "to_host_async"])
@pytest.mark.parametrize("sizes", [(0, 1, 2, 4), (4,), (1000,)])
@pytest.mark.usefixtures("company", "no_collector")
def test_a_result_that_the_caller_drops_is_gone(pipeline, way, sizes):
    for result in WAYS[way](pipeline, [torch.ones(sizes[i % len(sizes)]) for i in range(12)]):
        watched = [weakref.ref(result)]
        del result
        assert all_gone(watched)


# -- out and pin ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("company")
def test_memory_around_out_is_left_alone(pipeline):
    whole = torch.full((12, 7, 5), -1.0)
    out = [each[2:5, 1::2] for each in whole]
    list(pipeline.to_host([torch.full((3, 2), float(i)) for i in range(12)], out))
    for i, each in enumerate(whole):
        assert each.unique().tolist() == [-1, i]
        assert (each == i).sum() == 6


@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.usefixtures("company")
def test_one_stacked_tensor_takes_results_row_by_row(pipeline, size):
    items = [torch.rand(size) for _ in range(12)]
    out = torch.zeros(12, size)
    for i, row in enumerate(pipeline.to_host(items, out)):
        assert row.data_ptr() == out[i].data_ptr()
    assert torch.equal(out, torch.stack(items))


@pytest.mark.usefixtures("company")
def test_out_may_be_longer_and_is_taken_as_it_is_needed(pipeline):
    out = (torch.zeros(3, dtype=torch.int64) for _ in range(99))
    assert first_elements(pipeline.to_host(numbers(7, 3), out)) == list(range(7))
    assert len(list(out)) == 92


def test_out_is_no_more_touched_once_a_turn_is_broken_off(gate, monkeypatch):
    """Closing waits for the worker who is at it; here that is the second item."""
    out = [torch.zeros(1 << 18) for _ in range(3)]
    move = ring.move_bytes

    def hold_back(to, *source_size_threads):
        if to == out[1].data_ptr():
            gate()
        move(to, *source_size_threads)

    monkeypatch.setattr(ring, "move_bytes", hold_back)
    monkeypatch.setattr(ring, "_MOVED_BY_CALLER_BYTES", 0)
    with CopyPipeline("cpu", slots=3, slot_bytes=1 << 20, threads=2) as pipeline:
        results = pipeline.to_host([torch.ones(1 << 18) for _ in range(3)], out)
        next(results)
        assert gate.begun.wait(_WAIT_S)
        opening = threading.Timer(0.05, gate.open)
        opening.start()
        results.close()
        out[1].fill_(-1)
        opening.join()
    assert out[1].unique().tolist() == [-1]


def test_what_backward_needs_is_not_overwritten_in_silence(pipeline):
    out = [torch.zeros(300)]
    weight = torch.ones(300, requires_grad=True)
    (result,) = pipeline.to_host([torch.ones(300)], out)
    loss = (weight * result).sum()
    list(pipeline.to_host([torch.zeros(300)], out))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


BAD_PLACES = {
    "shape": (lambda: torch.zeros(5), ValueError, r"\(5,\).*expected \(4,\) of torch.float32"),
    "dtype": (lambda: torch.zeros(4).int(), ValueError, r"torch.int32; expected \(4,\)"),
    "device": (lambda: torch.zeros(4, device="meta"), ValueError, "on meta; expected it on cpu"),
    "grad": (lambda: torch.zeros(4, requires_grad=True), ValueError, "requires grad.*detach"),
    "sparse": (lambda: torch.zeros(4).to_sparse(), TypeError, "sparse tensor.*to_dense"),
    "no tensor": (lambda: [0.0] * 4, TypeError, "of type list; expected a tensor on cpu"),
    "overlapping": (lambda: torch.zeros(1).expand(4), ValueError, "elements that share memory"),
}


@pytest.mark.parametrize("bad", BAD_PLACES)
@pytest.mark.parametrize("where", [0, 3, 11])
@pytest.mark.usefixtures("company")
def test_a_place_that_does_not_fit_is_named(pipeline, bad, where):
    make, error, match = BAD_PLACES[bad]
    out = [torch.zeros(4) for _ in range(12)]
    out[where] = make()
    got = []
    with pytest.raises(error, match=rf"out\[{where}\].*{match}") as caught:
        got.extend(pipeline.to_host([torch.full((4,), float(i)) for i in range(12)], out))
    assert f"in item {where} of to_host from cpu" in caught.value.__notes__
    assert first_elements(out[:where]) == list(range(where))
