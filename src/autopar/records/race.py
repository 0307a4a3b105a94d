"""Race: several ways to one result, checked, timed in turn, and seen."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import torch

from autopar.device import synchronize
from autopar.display.format import shortened
from autopar.effects.access import ByteRange, Places
from autopar.effects.memory import ranges_of
from autopar.lanes.handle import Handle
from autopar.lanes.outcome import noting
from autopar.records.record import Findings
from autopar.refusal import check_work, positive, several, what
from autopar.timeline.span import Timeline
from autopar.timing.measurement import by_label, require_labels
from autopar.timing.timer import Devices, check_ways, measure_in_turn
from autopar.torch_private import pytree
from autopar.traces.profiler import timelines_of

Ways = Mapping[str, Callable[[], object]]

_CLOSE = (
    "a share of the largest number, above 0 and below 1, as 1e-5. Leave it out to compare bit for "
    "bit."
)
_ROUNDING = 1e-5  # of the largest number: sums in float32 differ by less, mistakes by more
_UNLIKE = 1.0  # a difference that no share is told for
_ARRAYS = (torch.Tensor, np.ndarray)
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


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
    zeros and what NaNs hold aside. If they differ, a warning says in what, and whether `close`
    would let it pass, nothing is timed, and `failed` of the findings names the check. The first
    result is copied before another way runs. A way whose result lies in the memory of the first
    one's, or of the one before it, is refused without `reset`: what that one has left there would
    count as its result.

    Then all ways and parts are timed by `measure_in_turn`. After that, results are compared once
    more, with each other if nothing is expected: a way that has used up what it was given does
    other work by then. Where all do so alike, as steps of training do, a warning says that the
    baseline's result has changed. At last those to be seen run under the profiler, and how long
    each timeline is beside the clock's median is kept, so that a page can tell whether both saw
    the same.

    A way that hands work to lanes returns their handles, alone or in containers: they are waited
    for, their results are compared, and their spans, with those of tasks that they waited for, are
    part of the timeline. A Timeline beside them is shown, too, and not compared.

    Args:
        ways: Label to work, called without arguments. The first is the baseline.
        parts: Label to what the ways are made of, timed beside them to tell the limit.
        expected: What each way is to return: tensors, arrays, numbers or texts, or lists, tuples
            and dicts of them. If not given, what the baseline returns.
        close: Label to the largest difference of floating-point numbers, as a share of the largest
            finite one of that tensor: 1e-5, for ways that add up in another order. Small numbers
            beside large ones may so differ altogether.
        reset: Called before each way is checked, as to fill buffers with NaN: for ways that return
            the same memory, which may still hold what another has written. It comes before
            `setup`, which puts back what a way reads where both are the same memory.
        setup: Called before each way is checked and is seen, and before each sample of each way and
            part, outside the clock: for ways that use up or change what they are given.
        see: Labels of the ways whose timelines are taken.
        devices: What to wait for, as in `measure`.
        warmup: Rounds before the first that counts.
        repeats: Rounds, at least three.
        calls: Calls in each sample, for work of microseconds, as in `measure`.
        flops: Label to floating-point operations, for the ways and parts that are to have a rate.

    Raises:
        Exception: What a way raises, with a note that names it.
        TypeError: As `measure_in_turn` does; a way returns what can't be compared, as a module.
        ValueError: The same; a label stands for a way and for a part, or for none of the ways; the
            baseline returns nothing; two ways return the same memory without `reset`.

    >>> import torch
    >>> import autopar as ap
    >>> x = torch.ones(2, 2)
    >>> findings = ap.race({"twice": lambda: x + x, "doubled": lambda: 2 * x})
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
    labels, compared = [*ways], [*ways][expected is None :]
    by_label("flops", flops, [*parts, *ways])
    by_label("close", close, compared, partial(positive, expected=_CLOSE, below=1))
    see = several("see", see, "labels of the ways, in a list.")
    require_labels("see", see, labels)
    wanted = None
    if expected is not None:
        wanted = _comparable("expected", _leaves(lambda: expected), _copied)
    for argument, work in (("reset", reset), ("setup", setup)):
        if work is not None:
            check_work(argument, work)
    compare = partial(_compared, ways, wanted, close, setup, reset)
    checks, failed, before = compare()
    if failed:
        words = f"nothing was timed, as results differ. {failed} Mend the way that is wrong."
        warnings.warn(words, stacklevel=2)
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
    checks, failed, after = compare()
    again = (
        "A way that uses up or changes what it is given does other work in later calls: let it "
        "make that anew, or let `setup` put it back."
    )
    if failed:
        words = f"no time is kept, as results differed after it, and not before. {failed} {again}"
        warnings.warn(words, stacklevel=2)
        return Findings([], {}, checks)
    loosest = max(close.values(), default=0.0)
    shares = {place: max(loosest, _rounding(leaf)) for place, leaf in before.items()}
    if why := _difference(labels[0], after, before, shares):
        words = f"{labels[0]!r} returns something else after the timing than before: {why}. {again}"
        warnings.warn(words, stacklevel=2)
    seen = {
        label: partial(noting, f"while {label!r} was seen", way)
        for label, way in ways.items()
        if label in see
    }
    timelines = timelines_of(seen, setup=setup) if seen else {}
    median_s = {measurement.label: measurement.median_s for measurement in measurements}
    values = {
        f"{label}: timeline over clock": timeline.makespan_s / median_s[label]
        for label, timeline in timelines.items()
        if timeline.spans
    }
    return Findings(measurements, timelines, checks, values)


def _compared(
    ways: Ways,
    wanted: Mapping[str, Any] | None,
    close: Mapping[str, float],
    setup: Callable[[], object] | None,
    reset: Callable[[], object] | None,
) -> tuple[dict[str, bool], str, Mapping[str, Any]]:
    """Run each way once: which checks hold, what the others have to say, and what was wanted."""
    checks, failed, than = dict[str, bool](), list[str](), "what is expected"
    held: list[tuple[str, dict[str, Any]]] = []  # what is gone may have given its memory away
    for label, way in ways.items():
        leaves = noting(f"while {label!r} was checked", _leaves, way, reset, setup)
        if reset is None:
            for earlier, result in held:
                _refuse_shared(result, leaves, (earlier, label))
            held = [*held[:1], (label, leaves)]
        who = f"the way {label!r}"
        if wanted is not None:
            values, share = _comparable(who, leaves, lambda leaf: leaf), close.get(label, 0.0)
            check = f"{label}: {f'within {share:g} of' if share else 'equal to'} {than}"
            why = _difference(label, values, wanted, dict.fromkeys(wanted, share))
            checks[check] = not why
            failed += [f"{check}: no, {why}."] * bool(why)
            continue
        wanted, than = _comparable(who, leaves, _copied), label
        if all(value is None for value in wanted.values()):
            msg = (
                f"the way {label!r} returned nothing that a result can be compared with; "
                f"expected what it computes. Return that, or pass `expected`."
            )
            raise ValueError(msg)
    return checks, " ".join(failed), wanted or {}


def _refuse_shared(
    first: Mapping[str, Any], second: Mapping[str, Any], labels: Sequence[str]
) -> None:
    """Refuse two results of which arrays or tensors lie in the same memory."""
    memory = Places()
    for place in _places(first):
        memory.add(place, 0)
    if any(memory.at(place) for place in _places(second)):
        msg = (
            f"the ways {' and '.join(map(repr, labels))} return the same memory, so what one has "
            f"left there would count as the result of both; expected `reset`, which spoils it "
            f"before each way. Pass reset=lambda: result.fill_(torch.nan), for an array "
            f"result.fill(numpy.nan), or return other memory."
        )
        raise ValueError(msg)


def _places(leaves: Mapping[str, Any]) -> Iterable[ByteRange]:
    arrays = [_dense_of(leaf) for leaf in leaves.values() if isinstance(leaf, _ARRAYS)]
    counts = [leaf.size if isinstance(leaf, np.ndarray) else leaf.numel() for leaf in arrays]
    return ranges_of([*compress(arrays, counts)])  # as what is empty shares nothing


def _leaves(way: Callable[[], object], *before: Callable[[], object] | None) -> dict[str, Any]:
    """What a way's result is made of, by place, once its tasks and all GPUs are done."""
    for prepare in filter(None, before):
        prepare()
    result = pytree.tree_map_only(Handle, Handle.result, way())
    synchronize()
    leaves, _ = pytree.tree_flatten_with_path(result)
    named = {f"result{pytree.keystr(path)}": leaf for path, leaf in leaves}
    return {place: leaf for place, leaf in named.items() if not isinstance(leaf, Timeline)}


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)


def _told(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{tuple(leaf.shape) if leaf.dim() else leaf.item()} ({leaf.dtype})"
    return f"{shortened(repr(leaf))} ({type(leaf).__name__})"


def _dense_of(array: Any) -> Any:
    """The numbers of a sparse tensor that it holds; of what is not sparse, that itself."""
    layout = getattr(array, "layout", None)
    if layout == torch.sparse_coo:
        return array._values()
    return array.values() if layout in _COMPRESSED else array


def _comparable(who: str, leaves: Mapping[str, Any], kept: Callable[[Any], Any]) -> dict[str, Any]:
    """Leaves, of which arrays and numbers with a point become tensors; objects are refused."""
    values = {}
    for place, leaf in leaves.items():
        kind: Any = type(leaf)
        with _refusing(who, place, leaf):
            if isinstance(leaf, (np.ndarray, np.generic, float, complex)):
                values[place] = torch.from_numpy(np.array(leaf, order="C"))
            elif isinstance(leaf, torch.Tensor) and not leaf.is_meta:
                values[place] = kept(leaf.detach())
            elif leaf is None or kind.__eq__ not in (object.__eq__, torch.Tensor.__eq__):
                values[place] = kept(leaf)
            else:
                raise TypeError
    return values


@contextmanager
def _refusing(who: str, place: str, leaf: object) -> Iterator[None]:
    """Whatever a comparison raises, refuse what can't be compared, and say whose it is."""
    try:
        yield
    except Exception as error:
        msg = (
            f"{who} has a {place} {what(leaf)}, of which no values can be compared; expected "
            f"tensors, arrays of numbers, numbers or texts, in lists, tuples and dicts. Return "
            f"list(generator) or module.state_dict()."
        )
        raise TypeError(msg) from error


def _difference(
    label: str, values: Mapping[str, Any], wanted: Mapping[str, Any], shares: Mapping[str, float]
) -> str:
    """In what a way's result differs from the wanted one; nothing where it doesn't."""
    if values.keys() != wanted.keys():
        made, should = (shortened(", ".join(places) or "nothing") for places in (values, wanted))
        return f"it is made of {made} instead of {should}"
    first, near = "", _UNLIKE if any(shares.values()) else 0.0
    for place, value in values.items():
        with _refusing(f"the way {label!r}", place, value):
            if why := _unlike(value, wanted[place], shares[place]):
                first = first or f"{place}: {why}"
                rounding = _rounding(wanted[place])
                is_near = rounding < _UNLIKE and not _unlike(value, wanted[place], rounding)
                near = max(near, rounding if is_near else _UNLIKE)
    hint = f"; if it only adds up in another order, pass close={{{label!r}: {near:g}}}"
    return first + hint * (0 < near < _UNLIKE)


def _rounding(one: Any) -> float:
    """The share of the largest number that sums in another order differ by, in this dtype."""
    is_coarse = isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex())
    return max(_ROUNDING, torch.finfo(one.dtype).resolution if is_coarse else 0.0)


def _unlike(value: Any, one: Any, share: float) -> str:
    """In what two leaves differ; nothing where they don't."""
    if not isinstance(value, torch.Tensor) or not isinstance(one, torch.Tensor):
        is_same = type(value) is type(one) and bool(value == one)
        return "" if is_same else f"{_told(value)} instead of {_told(one)}"
    near = 0.0
    if value.dtype == one.dtype and (one.is_floating_point() or one.is_complex()):
        if one.element_size() == 1:  # float8, for which torch has no comparison
            value, one = value.float(), one.float()
        if share:
            numbers = _dense_of(one)
            finite = numbers[numbers.isfinite()].abs()
            near = share * finite.max().item() if finite.numel() else 0.0
    try:
        torch.testing.assert_close(value.to(one.device), one, rtol=0.0, atol=near, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split()).rstrip(".")
    return ""
