"""Copy pipelines on the CPU: what is refused, and what that says."""

import pytest
import torch
from pipeline_ways import first_elements, numbers

from autopar.transfer.pipeline import CopyPipeline

pytestmark = pytest.mark.usefixtures("threads_gone")


@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_tensor_of_a_batch_that_cannot_be_copied_is_named(pipeline, before):
    batch = {"good": torch.ones(2), "bad": (3, torch.ones(4, requires_grad=True))}
    results = pipeline.prefetch([*numbers(before), batch, torch.ones(3)])
    assert first_elements(next(results) for _ in range(before)) == list(range(before))
    match = rf"tensor 2 of batches\[{before}\] requires grad"
    with pytest.raises(ValueError, match=match) as caught:
        next(results)
    assert f"in item {before} of prefetch to cpu" in caught.value.__notes__
    assert first_elements(pipeline.prefetch(numbers(3))) == [0, 1, 2]


@pytest.mark.parametrize("argument", ["slots", "slot_bytes", "threads"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True])
def test_counts_are_at_least_one(argument, value):
    said = f"{argument} is {value!r}; expected a whole number of at least 1"
    with pytest.raises(ValueError, match=said):
        CopyPipeline("cpu", **{argument: value})


@pytest.mark.parametrize(
    ("argument", "most"), [("slots", 1 << 10), ("slot_bytes", 1 << 50), ("threads", 1 << 10)]
)
def test_counts_that_no_machine_has_are_refused(argument, most):
    with pytest.raises(ValueError, match=f"{argument} is {most + 1}; .*, and at most {most:,}"):
        CopyPipeline("cpu", **{argument: most + 1})
    CopyPipeline("cpu", **{argument: most})


@pytest.mark.parametrize(
    ("device", "match"), [("meta", "'meta'"), (99, "cuda:99"), ("nonsense", "'nonsense'")]
)
def test_the_device_has_to_be_there(device, match):
    with pytest.raises(ValueError, match=f"device is {match}"):
        CopyPipeline(device)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (
            *(lambda p: p.to_host(torch.ones(3)), TypeError),
            r"tensors is a single tensor; expected an iterable of them. Pass to_host_async\(x\)",
        ),
        (lambda p: p.prefetch(torch.ones(3)), TypeError, r"batches is a single.*\[x\] for"),
        (lambda p: p.map(torch.neg, torch.ones(3)), TypeError, "batches is a single tensor"),
        (lambda p: p.to_host(3), TypeError, "tensors is 3; expected an iterable, such as a list"),
        (lambda p: p.prefetch(None), TypeError, "batches is None; expected an iterable"),
        (lambda p: p.map(torch.neg, 3), TypeError, "batches is 3; expected an iterable"),
        (
            *(lambda p: p.map(torch.ones(1), [torch.ones(3)]), TypeError),
            r"fn is of type Tensor; expected a function. Write map\(fn, batches\)",
        ),
        (
            *(lambda p: p.to_host([], out=[], pin=True), ValueError),
            "out and pin are both given; expected one",
        ),
        (lambda p: p.map(torch.neg, [], [], True), ValueError, "out and pin are both given"),
        (lambda p: p.to_host([], out=3), TypeError, "out is 3; expected an iterable"),
    ],
)
def test_calls_that_can_only_be_mistakes_are_refused_at_once(pipeline, call, error, match):
    with pytest.raises(error, match=match):
        call(pipeline)
