"""What copy pipelines refuse, and what that says."""

import pytest
import torch
from pipeline_ways import first_elements, numbers

from autopar.transfer.pipeline import CopyPipeline


@pytest.mark.parametrize("before", [0, 7])
def test_a_tensor_of_a_batch_that_cannot_be_copied_is_named(pipeline, before):
    batch = {"good": torch.ones(2), "bad": (3, torch.ones(4, requires_grad=True))}
    results = pipeline.prefetch([*numbers(before), batch, torch.ones(3)])
    assert first_elements(next(results) for _ in range(before)) == list(range(before))
    match = rf"tensor 2 of batches\[{before}\] requires grad"
    with pytest.raises(ValueError, match=match) as caught:
        next(results)
    assert f"in item {before} of prefetch to cpu" in caught.value.__notes__
    assert first_elements(pipeline.prefetch(numbers(3))) == [0, 1, 2]


CANNOT_BE = [
    ("device", "meta", "device is 'meta'"),
    ("device", 99, "device is cuda:99"),
    ("device", "nonsense", "device is 'nonsense'"),
    ("slots", 10**9, "slots is 1000000000; expected .* at most 1,024 in a ring"),
]
CANNOT_BE += [
    (argument, value, f"{argument} is {value!r}; expected a whole number of at least 1")
    for argument in ("slots", "slot_bytes", "threads")
    for value in (0, 2.0, "3", True)
]


@pytest.mark.parametrize(("argument", "value", "message"), CANNOT_BE)
def test_a_pipeline_that_cannot_be_is_refused(argument, value, message):
    with pytest.raises(ValueError, match=message):
        CopyPipeline(**{"device": "cpu", argument: value})


SLIPS = [
    (lambda p: p.to_host(torch.ones(3)), r"tensors is a single tensor.*Pass to_host_async\(x\)"),
    (lambda p: p.prefetch(torch.ones(3)), r"batches is a single tensor.*\[x\] for"),
    (lambda p: p.map(torch.neg, torch.ones(3)), "batches is a single tensor"),
    (lambda p: p.to_host(3), "tensors is 3; expected an iterable"),
    (lambda p: p.prefetch({"x": torch.ones(1)}), "batches is of type dict; expected an iterable"),
    (lambda p: p.prefetch("x"), "batches is 'x'; expected an iterable"),
    (lambda p: p.map(torch.ones(1), [torch.ones(3)]), r"fn is of type Tensor.*map\(fn, batches\)"),
    (lambda p: next(p.map(lambda x: 1, [torch.ones(1)])), "what fn returned for item 0 is 1"),
    (lambda p: p.to_host([], pin="yes"), "pin is 'yes'"),
    (lambda p: p.to_host([], out=torch.tensor(1.0)), "out is a single tensor"),
    (lambda p: p.to_host([], out=3), "out is 3; expected an iterable"),
]


@pytest.mark.parametrize(("call", "message"), SLIPS)
def test_slips_are_named(pipeline, call, message):
    with pytest.raises(TypeError, match=message):
        call(pipeline)


@pytest.mark.parametrize(
    "call", [lambda p: p.to_host([], [], True), lambda p: p.map(torch.neg, [], [], True)]
)
def test_out_and_pin_exclude_each_other(pipeline, call):
    with pytest.raises(ValueError, match="out and pin are both given; expected one"):
        call(pipeline)
