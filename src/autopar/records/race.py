"""Race: several ways to one result, checked, timed in turn, and seen."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from autopar.device import synchronize
from autopar.display.format import shortened
from autopar.effects.access import ByteRange
from autopar.effects.memory import ranges_of
from autopar.lanes.handle import Handle
from autopar.records.record import Findings
from autopar.refusal import check_work, positive, several, what
from autopar.timeline.span import Timeline
from autopar.timing.measurement import by_label, require_label
from autopar.timing.timer import Devices, check_ways, measure_in_turn
from autopar.torch_private import pytree
from autopar.traces.profiler import timelines_of

Ways = Mapping[str, Callable[[], object]]

_WHOLE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
_CLOSE = (
    "a share of the largest number, above 0 and below 1, as 1e-5. Leave it out to compare bit for "
    "bit."
)


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
    calls: int = 1,
    flops: Mapping[str, float] | None = None,
) -> Findings:
    """Check that several ways give one result, time them in turn, and see what ran when.

    First each way runs once, and its result is compared bit for bit with the expected one, signs of
    zeros and what NaNs hold aside: if they differ, a warning says in what, nothing is timed, and
    `failed` of the findings names the check.
    Then all ways and parts are timed by `measure_in_turn`. At last those
    to be seen run under the profiler, and how long each timeline is beside the clock's median is
    kept, so that a page can tell whether both saw the same.

    A way that hands work to lanes returns their handles, alone or in containers: they are waited
    for, their results are compared, and their spans are part of the timeline, with those of the
    tasks that they waited for. A Timeline beside them is shown, too, and not compared.

    Args:
        ways: Label to work, called without arguments. The first is the baseline.
        parts: Label to what the ways are made of, timed beside them to tell the limit.
        expected: What each way is to return: tensors, arrays, numbers or texts, or lists, tuples
            and dicts of them. If not given, what the baseline returns.
        close: Label to the largest difference of floating-point numbers, as a share of the largest
            finite one of that tensor: 1e-5, for ways that add up in another order. Small numbers
            beside large ones may so differ altogether.
        reset: Called before each way is checked, as to fill buffers with NaN: for ways that return
            the same memory, which may still hold what another has written. Without it such ways
            run once more, with the last bit of each floating-point number there flipped before.
        setup: Called before each sample of each way and part, outside the clock, and before each
            way that is to be seen.
        see: Labels of the ways whose timelines are taken.
        devices: What to wait for, as in `measure`.
        warmup: Rounds before the first that counts.
        repeats: Rounds, at least three.
        calls: Calls in each sample, for work of microseconds, as in `measure`.
        flops: Label to floating-point operations, for the ways and parts that are to have a rate.

    Returns:
        Measurements, timelines and checks, for `recorded` or `observed`.

    Warns:
        UserWarning: The result of a way differs, or nothing is to be seen of one.

    Raises:
        TypeError: As `measure_in_turn` does; a way returns what can't be compared, as a generator.
        ValueError: The same; a label stands for a way and for a part, or for none of the ways; the
            baseline returns nothing; of memory that two ways return one is not seen to fill what
            the other does, without `reset`.

    >>> x = torch.ones(2, 2)
    >>> findings = race({"twice": lambda: x + x, "doubled": lambda: 2 * x})
    >>> findings.checks
    {'doubled: equal to twice': True}
    """
    parts, close, flops = parts or {}, close or {}, flops or {}
    check_ways("ways", ways)
    if parts:
        check_ways("parts", parts)
    if both := ways.keys() & parts.keys():
        msg = f"{sorted(both)} are labels of ways and of parts; expected different ones."
        raise ValueError(msg)
    if expected is None and len(ways) == 1:
        msg = f"ways has {[*ways]} alone; expected a baseline before it, or `expected`."
        raise ValueError(msg)
    by_label("flops", flops, [*parts, *ways])
    by_label(
        "close", close, [*ways][expected is None :], partial(positive, expected=_CLOSE, below=1)
    )
    see = several("see", see, "labels of the ways, in a list.")
    for label in see:
        require_label("see", label, [*ways])
    if reset is not None:
        check_work("reset", reset)
    differences = _differences(ways, expected, close, reset)
    checks = {check: not difference for check, difference in differences.items()}
    if failed := [f"{check}: no, {why}." for check, why in differences.items() if why]:
        words = " ".join(["nothing was timed, as results differ.", *failed])
        warnings.warn(f"{words} Mend the way that is wrong.", stacklevel=2)
        return Findings([], {}, checks)
    measurements = measure_in_turn(
        {**parts, **ways},
        devices=devices,
        warmup=warmup,
        repeats=repeats,
        setup=setup,
        flops=flops,
        calls=calls,
    )
    seen = {label: way for label, way in ways.items() if label in see}
    timelines = timelines_of(seen, setup=setup) if seen else {}
    median_s = {measurement.label: measurement.median_s for measurement in measurements}
    values = {
        f"{label}: timeline over clock": timeline.makespan_s / median_s[label]
        for label, timeline in timelines.items()
        if timeline.spans
    }
    return Findings(measurements, timelines, checks, values)


def _differences(
    ways: Ways,
    expected: object,
    close: Mapping[str, float],
    reset: Callable[[], object] | None,
) -> dict[str, str]:
    """Run each way once, and tell by what its result differs from what is expected, or the first's.

    That is kept as a copy, as other ways may write to the same memory.
    """
    differences, than = dict[str, str](), "what is expected"
    wanted = None
    if expected is not None:
        wanted = copy.deepcopy(_values(_leaves(expected), "expected has"))
    returned: list[tuple[ByteRange, str, object]] = []  # memory, by which way, and what keeps it
    for label, way in ways.items():
        if reset is not None:
            reset()
        try:
            leaves = _leaves(way())
            values = _values(leaves)
        except Exception as error:
            error.add_note(f"This is of the way {label!r}, which runs once to be checked.")
            raise
        returned = [one for one in returned if not _is_gone(one[2])]
        lies = [(at, leaf) for leaf in leaves.values() for at in _lies(leaf)]
        if wanted is None:
            wanted, than = copy.deepcopy(values), label
            if all(leaf is None for leaf in leaves.values()):
                msg = (
                    f"the way {label!r} returned nothing that a result can be compared with; "
                    f"expected what it computes. Return that, or pass `expected`."
                )
                raise ValueError(msg)
        else:
            share = close.get(label, 0.0)
            kind = f"within {share:g} of" if share else "equal to"
            difference = _difference(values, wanted, share)
            differences[f"{label}: {kind} {than}"] = difference
            for at, leaf in lies if not difference and reset is None else ():
                first = next((by for there, by, _ in returned if there.meets(at)), None)
                if first is not None and not _is_filled(leaf, way, ways[first]):
                    msg = (
                        f"the ways {first!r} and {label!r} return the same memory, so what one has "
                        f"left there counts as the result of both; expected each to fill it. Pass "
                        f"reset=lambda: result.fill_(torch.nan), for an array "
                        f"result.fill(numpy.nan), or return other memory."
                    )
                    raise ValueError(msg)
        returned += [(at, label, _kept(leaf)) for at, leaf in lies]
    return differences


def _leaves(result: Any) -> dict[Any, Any]:
    """What a result is made of, by place, once its tasks and all GPUs are done."""
    result = pytree.tree_map_only(Handle, Handle.result, result)
    synchronize()
    leaves, _ = pytree.tree_flatten_with_path(result)
    return {path: leaf for path, leaf in leaves if not isinstance(leaf, Timeline)}


def _values(leaves: Mapping[Any, Any], who: str = "a way returned") -> dict[Any, Any]:
    return {path: _comparable(leaf, who) for path, leaf in leaves.items()}


def _lies(leaf: Any) -> Iterable[ByteRange]:
    """Where a result lies, if it can change."""
    if isinstance(leaf, (torch.Tensor, np.ndarray)):
        return ranges_of(leaf) if math.prod(leaf.shape) else ()
    return () if isinstance(leaf, Hashable) else (ByteRange(("object", id(leaf))),)


def _kept(leaf: Any) -> object:
    """What is kept of a result, so that nothing else comes to its memory.

    Of memory that is torch's own nothing, as it may be large, but what tells that it is there.
    """
    if not isinstance(leaf, torch.Tensor):
        return leaf
    storage = leaf.untyped_storage()
    return StorageWeakRef(storage) if storage.resizable() else storage


def _is_gone(kept: object) -> bool:
    return isinstance(kept, StorageWeakRef) and bool(kept.expired())


def _is_filled(memory: Any, way: Callable[[], object], other: Callable[[], object]) -> bool:
    """Whether a way writes all numbers in some memory that another way writes."""
    bits = _bits_in(memory)
    return bits is not None and not (_written(bits, other) & ~_written(bits, way)).any()


def _bits_in(memory: Any) -> Any:
    """Floating-point numbers as whole ones in their place; of others a change could do harm."""
    if isinstance(memory, np.ndarray) and memory.dtype.kind == "f" and memory.itemsize <= 8:
        return memory.view(memory.dtype.str.replace("f", "i")) if memory.flags.writeable else None
    if isinstance(memory, torch.Tensor) and memory.is_floating_point() and not memory.is_neg():
        steps = [step for size, step in zip(memory.shape, memory.stride(), strict=True) if size > 1]
        return memory.data.view(_WHOLE[memory.itemsize]) if all(steps) else None
    return None


def _written(bits: Any, way: Callable[[], object]) -> Any:
    """Which numbers a way writes: the last bit of each is flipped, and then no more."""
    was = copy.deepcopy(bits)
    try:
        with torch.inference_mode():  # in which tensors of it and others may be changed
            bits ^= 1
        flipped = copy.deepcopy(bits)
        synchronize()
        _leaves(way())
        return bits != flipped
    finally:
        with torch.inference_mode():
            bits[...] = was


def _comparable(value: Any, who: str) -> Any:
    """A tensor for numbers with a point; refuses what `==` tells nothing of."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        try:  # of this machine's order of bytes, and none reversed
            return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), "C"))
        except TypeError as error:
            msg = (
                f"{who} an array of {array.dtype}, which no tensor can hold; expected numbers. "
                f"Return array.tolist() for objects and texts, or convert it: array.astype(float)."
            )
            raise TypeError(msg) from error
    if isinstance(value, (float, complex)):
        dtype = torch.float64 if isinstance(value, float) else torch.complex128
        return torch.tensor(value, dtype=dtype)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_nested or value.is_quantized or value.is_meta:
            form = "nested" if value.is_nested else "quantized" if value.is_quantized else ""
            msg = (
                f"{who} a tensor that is {form or f'{value.layout} on {value.device}'}; "
                f"expected a dense one in memory. Return to_dense() of a sparse one, dequantize() "
                f"or int_repr() of a quantized one, unbind() of a nested one."
            )
            raise TypeError(msg)
        return value.detach()
    kind: Any = type(value)
    if value is not None and kind.__eq__ is object.__eq__:
        msg = (
            f"{who} an object of type {kind.__name__}, of which no values can be "
            f"compared; expected tensors, arrays of numbers, numbers or texts, in lists, tuples "
            f"and dicts. Return list(generator) or module.state_dict()."
        )
        raise TypeError(msg)
    return value


def _difference(values: Mapping[Any, Any], wanted: Mapping[Any, Any], share: float) -> str:
    """By what a result differs from the wanted one; nothing where it doesn't."""
    if values.keys() != wanted.keys():
        return f"it is made of {_places(values)} instead of {_places(wanted)}"
    found = {path: _of_one(value, wanted[path], share) for path, value in values.items()}
    differ = [f"{_places([path])} {why}" for path, why in found.items() if why]
    return differ[0] + f", and {len(differ) - 1} more" * (len(differ) > 1) if differ else ""


def _places(paths: Iterable[Any]) -> str:
    return shortened(", ".join(f"result{pytree.keystr(path)}" for path in paths) or "nothing")


def _of_one(value: Any, wanted: Any, share: float) -> str:
    """In how many numbers one isn't equal, or close, and by how much at most.

    A NaN is equal to itself. Other things than numbers are compared by `==`.
    """
    if not isinstance(value, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        is_same = type(value) is type(wanted) and bool(value == wanted)
        return "" if is_same else f"is {what(value)} instead of {what(wanted)}"
    for name in ("shape", "dtype"):
        if (has := getattr(value, name)) != (should := getattr(wanted, name)):
            return f"has {name} {has} instead of {should}"
    value, near = value.to(wanted.device), 0.0
    is_whole = not (value.is_floating_point() or value.is_complex())
    if value.is_floating_point() and value.element_size() == 1:  # torch doesn't calculate with it
        value, wanted = value.float(), wanted.float()
    if share and not is_whole:
        numbers = wanted[wanted.isfinite()].abs()
        near = share * numbers.max().item() if numbers.numel() else 0.0
    apart = ~torch.isclose(value, wanted, rtol=0.0, atol=near, equal_nan=True).reshape(-1)
    if not apart.any():
        return ""
    one, other = (it.reshape(-1)[apart] for it in (value, wanted))
    if is_whole:
        most = max(abs(a - b) for a, b in zip(one.tolist(), other.tolist(), strict=True))
    else:
        exact = torch.complex128 if value.is_complex() else torch.float64
        most = (one.to(exact) - other.to(exact)).abs().max().item()
    return f"differs in {len(one):,} of {value.numel():,} numbers, by {most:.3g} at most"
