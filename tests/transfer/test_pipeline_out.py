"""Memory that copy pipelines are given for their results: what goes there, and what is refused."""

import itertools
import threading

import pytest
import torch
from lane_forms import WAIT_S
from pipeline_ways import call, first_elements, numbers

from autopar.transfer import ring
from autopar.transfer.pipeline import CopyPipeline

PLACES = {
    "fresh": torch.zeros,
    "with an offset": lambda shape: torch.zeros(2, *shape)[1],
    "of inference mode": lambda shape: torch.inference_mode()(torch.zeros)(shape),
}


@pytest.mark.parametrize("verb", ["to_host", "map"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(2, 3), (40, 30)])
@pytest.mark.usefixtures("company")
def test_results_go_where_they_are_told_to(pipeline, verb, place, shape):
    for kind in (list, tuple, iter):
        items = [torch.rand(shape[::-1]).T for _ in range(12)]
        out = [PLACES[place](shape) for _ in items]
        results = list(call(pipeline, verb, items, out=kind(out)))
        assert all(result is given for result, given in zip(results, out, strict=True))
        assert all(map(torch.equal, out, items))


@pytest.mark.usefixtures("company")
def test_memory_around_out_is_left_alone(pipeline):
    whole = torch.full((12, 7, 2), -1.0)
    out = [each[2:5] for each in whole]
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

    def hold_back(to, sources):
        if to[0].data_ptr() == out[1].data_ptr():
            gate()
        move(to, sources)

    monkeypatch.setattr(ring, "move_bytes", hold_back)
    monkeypatch.setattr(ring, "_MOVED_BY_CALLER_BYTES", 0)
    with CopyPipeline("cpu", slots=3, slot_bytes=1 << 20, threads=2) as pipeline:
        results = pipeline.to_host([torch.ones(1 << 18) for _ in range(3)], out)
        next(results)
        assert gate.begun.wait(WAIT_S)
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


@pytest.mark.parametrize("source", [list, iter], ids=["list", "generator"])
@pytest.mark.parametrize("size", [4, 1000])
@pytest.mark.parametrize("targets", [1, 2, 4])
def test_targets_that_are_still_on_their_way_are_refused(pipeline, source, size, targets):
    tensors = source([torch.full((size,), i) for i in range(20)])
    out = itertools.cycle([torch.empty(size, dtype=torch.long) for _ in range(targets)])
    received = []
    with pytest.raises(ValueError, match=r"out\[\d+\] shares memory with out\[\d+\]"):
        received.extend(result[0].item() for result in pipeline.to_host(tensors, out=out))
    assert received == list(range(len(received)))


def test_targets_may_lie_beside_each_other(pipeline):
    rows = torch.empty(9, 4)
    tensors = [torch.full((4,), float(i)) for i in range(9)]
    assert len([*pipeline.to_host(tensors[::-1], out=list(rows)[::-1])]) == 9
    assert rows.equal(torch.stack(tensors))


def test_targets_that_lie_across_each_other_are_refused(pipeline):
    memory = torch.empty(40)
    out = [memory[8:12], memory[12:16], memory[4:9], memory[11:13]]
    with pytest.raises(ValueError, match=r"out\[2\] shares memory with out\[0\]"):
        list(pipeline.to_host([torch.ones(4)] * 2 + [torch.ones(5), torch.ones(2)], out))


BAD_PLACES = {
    "shape": (lambda: torch.zeros(5), ValueError, r"\(5,\).*expected \(4,\) of torch.float32"),
    "dtype": (lambda: torch.zeros(4).int(), ValueError, r"torch.int32; expected \(4,\)"),
    "device": (lambda: torch.zeros(4, device="meta"), ValueError, "on meta; expected it on cpu"),
    "grad": (lambda: torch.zeros(4, requires_grad=True), ValueError, "requires grad.*detach"),
    "sparse": (lambda: torch.zeros(4).to_sparse(), TypeError, "sparse_coo tensor.*to_dense"),
    "no tensor": (lambda: [0.0] * 4, TypeError, "of type list; expected a tensor on cpu"),
    "overlapping": (lambda: torch.zeros(1).expand(4), ValueError, "don't lie in order"),
    "with gaps": (lambda: torch.zeros(4, 3)[:, 1], ValueError, "expected a contiguous tensor"),
    "negative": (lambda: torch._neg_view(torch.zeros(4)), ValueError, "expected a contiguous"),
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
