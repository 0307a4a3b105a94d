"""Race: several ways to one result, checked, timed in turn, and seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from autopar.device import synchronize
from autopar.effects.memory import is_array
from autopar.lanes.handle import Handle, timeline_of_handles
from autopar.records.record import Findings
from autopar.timeline.span import Timeline
from autopar.timing.measurement import check_positive
from autopar.timing.timer import Devices, check_ways, measure_in_turn
from autopar.torch_private import pytree
from autopar.traces.profiler import timelines_of

Ways = Mapping[str, Callable[[], object]]


def race(
    ways: Ways,
    *,
    parts: Ways | None = None,
    expected: object = None,
    close: Mapping[str, float] | None = None,
    reset: Callable[[], object] | None = None,
    setup: Callable[[], object] | None = None,
    see: Sequence[str] = (),
    devices: Devices | None = None,
    warmup: int = 1,
    repeats: int = 7,
    flops: Mapping[str, float] | None = None,
) -> Findings:
    """Check that several ways give one result, time them in turn, and see what ran when.

    First each way runs once, and its result is compared bit for bit with the expected one: if they
    differ, nothing is timed. Then all ways and parts are timed by `measure_in_turn`. At last those
    to be seen run under the profiler, and how long each timeline is beside the clock's median is
    kept, so that a page can tell whether both saw the same.

    A way that hands work to lanes returns their handles, alone or in containers: they are waited
    for, their results are compared, and their spans are part of the timeline.

    Args:
        ways: Label to work, called without arguments. The first is the baseline.
        parts: Label to what the ways are made of, timed beside them to tell the limit.
        expected: What each way is to return: tensors, or containers of them. If not given, what
            the baseline returns.
        close: Label to the largest difference of floating-point numbers, relative to the largest
            number of that tensor, for ways that add up in another order.
        reset: Called before each way is checked, as to fill buffers with NaN.
        setup: Called before each sample of each way and part, outside the clock.
        see: Labels of the ways whose timelines are taken.
        devices: What to wait for, as in `measure`.
        warmup: Rounds before the first that counts.
        repeats: Rounds, at least three.
        flops: Label to floating-point operations, for the ways and parts that are to have a rate.

    Returns:
        Measurements, timelines and checks, for `recorded` or `observed`.

    Raises:
        TypeError: As `measure_in_turn` does.
        ValueError: The same; a label stands for a way and for a part, or for none of the ways.

    >>> x = torch.ones(2, 2)
    >>> findings = race({"twice": lambda: x + x, "doubled": lambda: 2 * x})
    >>> findings.checks
    {'doubled: equal to twice': True}
    """
    parts, close = parts or {}, close or {}
    check_ways(ways, {})
    if both := ways.keys() & parts.keys():
        msg = f"{sorted(both)} are labels of ways and of parts; expected different ones."
        raise ValueError(msg)
    for name, labels in (("see", see), ("close", close)):
        if isinstance(labels, str) or (unknown := set(labels) - set(ways)):
            given = labels if isinstance(labels, str) else sorted(unknown)
            msg = (
                f"{name} has {given!r}; expected labels of the ways, in a list: {', '.join(ways)}."
            )
            raise ValueError(msg)
    for label, tolerance in close.items():
        check_positive(f"close[{label!r}]", tolerance)
    if expected is None and len(ways) == 1:
        msg = f"ways has {[*ways]} alone; expected a baseline before it, or `expected`."
        raise ValueError(msg)
    checks = _checks(ways, expected, close, reset)
    if not all(checks.values()):
        return Findings([], {}, checks)
    timed = {label: _waited_for(work) for label, work in {**parts, **ways}.items()}
    measurements = measure_in_turn(
        timed, devices=devices, warmup=warmup, repeats=repeats, setup=setup, flops=flops
    )
    timelines = _seen({label: way for label, way in ways.items() if label in see})
    median_s = {measurement.label: measurement.median_s for measurement in measurements}
    values = {
        f"{label}: timeline over clock": timeline.makespan_s / median_s[label]
        for label, timeline in timelines.items()
        if timeline.spans
    }
    return Findings(measurements, timelines, checks, values)


def _checks(
    ways: Ways,
    expected: object,
    close: Mapping[str, float],
    reset: Callable[[], object] | None,
) -> dict[str, bool]:
    """Run each way once, and compare its result with what is expected, or with the first one's.

    That is kept as a copy, as other ways may write to the same memory.
    """
    checks, than, is_known = {}, "what is expected", expected is not None
    expected = pytree.tree_map(_copy_of, expected)
    for label, way in ways.items():
        if reset is not None:
            reset()
        result = pytree.tree_map_only(Handle, Handle.result, way())
        synchronize()
        if not is_known:
            expected, than = pytree.tree_map(_copy_of, result), label
            is_known = True
        elif label in close:
            name = f"{label}: within {close[label]:g} of {than}"
            checks[name] = _is_same(result, expected, close[label])
        else:
            checks[f"{label}: equal to {than}"] = _is_same(result, expected)
    return checks


def _is_same(result: object, expected: object, tolerance: float = 0.0) -> bool:
    """Whether both hold the same values in the same places, on whatever device each lies."""
    leaves, wanted = _by_place(result), _by_place(expected)
    return leaves.keys() == wanted.keys() and all(
        _is_equal(leaf, wanted[place], tolerance) for place, leaf in leaves.items()
    )


def _by_place(values: object) -> dict[str, object]:
    """What nested containers hold, by where it is: by key in a dict, by number in a list."""
    return {pytree.keystr(path): leaf for path, leaf in pytree.tree_flatten_with_path(values)[0]}


def _copy_of(value: object) -> object:
    """A tensor or an array in memory of its own; all else as it is."""
    value = _as_tensor(value)
    return value.clone() if isinstance(value, torch.Tensor) else value


def _is_equal(value: object, wanted: object, tolerance: float) -> bool:
    """Whether both are the same bit for bit, or close; other things than tensors by `==`."""
    value, wanted = _as_tensor(value), _as_tensor(wanted)
    if not isinstance(value, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return type(value) is type(wanted) and bool(value == wanted)
    if value.shape != wanted.shape or value.dtype != wanted.dtype:
        return False
    value, wanted = value.detach().to(wanted.device), wanted.detach()
    if not tolerance or not (value.is_floating_point() or value.is_complex()):
        return _bits(value).equal(_bits(wanted))
    numbers = wanted[wanted.isfinite()].abs()
    largest = numbers.max().item() if numbers.numel() else 0.0
    return torch.allclose(value, wanted, rtol=0.0, atol=tolerance * largest, equal_nan=True)


def _as_tensor(value: object) -> object:
    """An array as a tensor; tensors of which bits can't be compared are refused."""
    if is_array(value):
        return torch.from_numpy(value)
    if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_quantized):
        msg = (
            f"a way returned a tensor of {value.layout} and {value.dtype}; expected a dense one. "
            f"Return x.to_dense() or x.dequantize()."
        )
        raise TypeError(msg)
    return value


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor's memory holds, so that a NaN is equal to itself."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def _waited_for(work: Callable[[], object]) -> Callable[[], object]:
    """The same work, which ends when the tasks do that it has handed to lanes."""

    def waited() -> object:
        result = work()
        for handle in _handles(result):
            handle.wait()
        return result

    return waited


def _seen(ways: Ways) -> dict[str, Timeline]:
    """A timeline for each way: kernels and copies by the profiler, CPU lanes by their handles."""

    def lanes(way: Callable[[], object]) -> Timeline:
        return timeline_of_handles(
            handle for handle in _handles(way()) if handle.device.type == "cpu"
        )

    return timelines_of({label: partial(lanes, way) for label, way in ways.items()}) if ways else {}


def _handles(result: object) -> list[Handle[Any]]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Handle)]
