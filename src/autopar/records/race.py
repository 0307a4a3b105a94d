"""Race: several ways to one result, checked, timed in turn, and seen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any

import torch

from autopar.device import synchronize
from autopar.effects.memory import is_array
from autopar.lanes.handle import Handle, timeline_of_handles
from autopar.records.record import Findings
from autopar.refusal import check_type, check_work, what
from autopar.timeline.span import Timeline
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
        expected: What each way is to return: tensors, arrays, numbers or texts, or lists, tuples
            and dicts of them. If not given, what the baseline returns.
        close: Label to the largest difference of floating-point numbers, as a share of the largest
            finite one of that tensor: 1e-5, for ways that add up in another order. Small numbers
            beside large ones may so differ altogether.
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
        TypeError: As `measure_in_turn` does; a way returns what can't be compared, as a generator.
        ValueError: The same; a label stands for a way and for a part, or for none of the ways.

    >>> x = torch.ones(2, 2)
    >>> findings = race({"twice": lambda: x + x, "doubled": lambda: 2 * x})
    >>> findings.checks
    {'doubled: equal to twice': True}
    """
    parts, close, flops = parts or {}, close or {}, flops or {}
    check_ways(ways, {})
    check_type("parts", parts, Mapping, "label -> work, as for the ways.")
    check_type("close", close, Mapping, "label -> share, as in {'lanes': 1e-5}.")
    for label, part in parts.items():
        check_work(f"parts[{label!r}]", part)
    check_ways({**parts, **ways}, flops)
    if reset is not None:
        check_work("reset", reset)
    if both := ways.keys() & parts.keys():
        msg = f"{sorted(both)} are labels of ways and of parts; expected different ones."
        raise ValueError(msg)
    if expected is None and len(ways) == 1:
        msg = f"ways has {[*ways]} alone; expected a baseline before it, or `expected`."
        raise ValueError(msg)
    compared = [*ways][expected is None :]
    for name, labels, allowed in (("see", see, [*ways]), ("close", close, compared)):
        is_several = isinstance(labels, Iterable) and not isinstance(labels, str)
        unknown = [label for label in labels if label not in allowed] if is_several else labels
        if unknown or not is_several:
            msg = (
                f"{name} has {unknown!r}; expected labels of the ways, in a list: "
                f"{', '.join(allowed)}."
            )
            raise ValueError(msg)
    for label, share in close.items():
        if not isinstance(share, Real) or isinstance(share, bool) or not 0 < share < 1:
            msg = (
                f"close[{label!r}] is {what(share)}; expected a share of the largest number, above "
                f"0 and below 1, as 1e-5. Leave it out to compare bit for bit."
            )
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
    expected = pytree.tree_map(_copy_of, _results_of(expected))
    for label, way in ways.items():
        if reset is not None:
            reset()
        try:
            result = _results_of(way())
        except Exception as error:
            error.add_note(f"This is of the way {label!r}, which runs once to be checked.")
            raise
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


def _results_of(values: object) -> object:
    """What a way returned, once its tasks are done, as what can be compared."""
    values = pytree.tree_map_only(Handle, Handle.result, values)
    synchronize()
    return pytree.tree_map(_comparable, values)


def _comparable(value: Any) -> object:
    """A tensor for an array; refuses what its identity or memory tells nothing of."""
    kind: Any = type(value)
    what_came = f"an object of type {kind.__name__}"
    if is_array(value):
        with contextlib.suppress(TypeError, ValueError):  # as of texts, which torch doesn't hold
            return torch.from_numpy(value.copy())
    elif isinstance(value, torch.Tensor):
        if value.layout == torch.strided and not (
            value.is_quantized or value.is_meta or value.is_nested
        ):
            return value
        what_came = f"a tensor of {value.layout} and {value.dtype} on {value.device}"
    elif value is None or kind.__eq__ is not object.__eq__:
        return value
    msg = (
        f"a way returned {what_came}, of which no values can be compared; expected dense tensors, "
        f"arrays of numbers, numbers or texts, in lists, tuples and dicts. Return x.to_dense(), "
        f"x.dequantize(), list(generator) or module.state_dict()."
    )
    raise TypeError(msg)


def _copy_of(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _is_equal(value: object, wanted: object, tolerance: float) -> bool:
    """Whether both are the same bit for bit, or close; other things than numbers by `==`."""
    if type(value) is type(wanted) and isinstance(value, float | complex):
        value, wanted = torch.tensor([value, wanted], dtype=torch.complex128)
    if not isinstance(value, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return type(value) is type(wanted) and _is_alike(value, wanted)
    if value.shape != wanted.shape or value.dtype != wanted.dtype:
        return False
    value, wanted = value.detach().to(wanted.device), wanted.detach()
    if not tolerance or not (value.is_floating_point() or value.is_complex()):
        return _bits(value).equal(_bits(wanted))
    if value.element_size() == 1:  # of eight bits, with which torch doesn't calculate
        value, wanted = value.float(), wanted.float()
    numbers = wanted[wanted.isfinite()].abs()
    largest = numbers.max().item() if numbers.numel() else 0.0
    return torch.allclose(value, wanted, rtol=0.0, atol=tolerance * largest, equal_nan=True)


def _is_alike(value: object, wanted: object) -> bool:
    try:
        return bool(value == wanted)
    except Exception as error:  # as of a dataclass that holds tensors
        msg = (
            f"a way returned a {type(value).__name__}, which == can't compare ({error}); expected "
            f"tensors, numbers or texts, in lists, tuples and dicts. Return what it holds."
        )
        raise TypeError(msg) from error


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
