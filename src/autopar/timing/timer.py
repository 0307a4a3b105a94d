"""Timer: D2L's stopwatch and benchmark with their waits mended, and `measure` for tables."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import CoroutineType, GeneratorType

import torch

from autopar.device import present, synchronize
from autopar.lanes.handle import handles_in
from autopar.lanes.outcome import note
from autopar.machine import processor_names
from autopar.refusal import check_type, check_words, check_work, what, whole_number
from autopar.timing.measurement import LABEL, MIN_SAMPLES, Measurement, by_label
from autopar.units import format_seconds

Device = torch.device | str | int
Devices = Device | Iterable[Device]
Work = Callable[[], object]


class Timer:
    """D2L's stopwatch: it starts when made, and keeps every time in `times` (seconds).

    It reads the host's clock and waits for no device: for GPU work take `Benchmark` or `measure`.

    Raises:
        ValueError: `avg` of a timer that was never stopped.

    >>> import autopar as ap
    >>> timer = ap.Timer()
    >>> timer.times == [timer.stop()]
    True
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.start()

    def __repr__(self) -> str:
        return f"<Timer: times {len(self.times)}, sum {format_seconds(self.sum())}>"

    def start(self) -> None:
        """Start the stopwatch."""
        self.tik = time.perf_counter()

    def stop(self) -> float:
        """Stop it, keep the time since `start`, and return it in seconds."""
        self.times.append(time.perf_counter() - self.tik)
        return self.times[-1]

    def avg(self) -> float:
        """Mean of the times, in seconds."""
        if not self.times:
            msg = "avg of a Timer with no times; call stop() at least once before avg()"
            raise ValueError(msg)
        return self.sum() / len(self.times)

    def sum(self) -> float:
        """Sum of the times, in seconds."""
        return sum(self.times)

    def cumsum(self) -> list[float]:
        """Running sums of the times, in seconds."""
        return list(itertools.accumulate(self.times))


class Benchmark:
    """Time a block and print `description: 0.1309 sec`, as D2L's does.

    D2L's starts and stops its clock without waiting, so it can charge one block for the work of
    another. This one waits before both readings.

    Args:
        description: Printed before the time.
        devices: A device or several to wait for; all if not given; with `()` none, which times the
            issuing.

    Raises:
        ValueError: A device that is not on this machine.

    >>> import autopar as ap
    >>> with ap.Benchmark("CPU time"):  # doctest: +ELLIPSIS
    ...     _ = sum(range(1_000))
    CPU time: 0.0... sec
    """

    def __init__(self, description: str = "Done", devices: Devices | None = None) -> None:
        self.description = description
        self.devices = _present(devices)
        self.elapsed_s: float | None = None

    def __repr__(self) -> str:
        time = "not timed" if self.elapsed_s is None else format_seconds(self.elapsed_s)
        return f"<Benchmark: {self.description}, {time}>"

    def __enter__(self) -> Benchmark:
        _wait(self.devices)
        self.timer = Timer()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # a time of half the work would only mislead
            _wait(self.devices)
            self.elapsed_s = self.timer.stop()
            print(f"{self.description}: {self.elapsed_s:.4f} sec")


def measure(
    fn: Work,
    *,
    label: str,
    devices: Devices | None = None,
    warmup: int = 3,
    repeats: int = 20,
    calls: int = 1,
    setup: Work | None = None,
    flops: float | None = None,
    size_bytes: float | None = None,
) -> Measurement:
    """Time `fn()` over and over, and keep every sample.

    Before each sample all devices are idle. The clock is read again once `fn` has returned, the
    tasks of lanes whose handles it returns, alone or in containers, are done, and the named devices
    have finished. What `fn` returns is freed after that reading, and Python's garbage collector
    rests meanwhile.

    Args:
        fn: The work; called without arguments.
        label: Its name in tables and figures.
        devices: A device or several to wait for before the last reading; all if not given; with
            `()` none, nor any task, which times the issuing.
        warmup: Samples to take and drop first.
        repeats: Samples, at least three.
        calls: Calls of `fn` in each sample, for work of microseconds. The sample is the time of
            one call, their mean; what all but the last return is freed inside the clock, and the
            tasks of the last are waited for.
        setup: Called before each sample, outside the clock.
        flops: Floating-point operations of one call, for a rate.
        size_bytes: Bytes that one call moves, for a bandwidth.

    Raises:
        Exception: What `fn` raises, with a note that names the label.
        TypeError: `fn` or `setup` can't be called, or `fn` returns a generator or coroutine.
        ValueError: An empty label, too few repeats or calls, a negative warm-up, an amount
            that is not positive, a device not here.

    >>> import autopar as ap
    >>> sums = ap.measure(lambda: sum(range(1_000)), label="a sum", calls=100)
    >>> 0 < sums.median_s < 1e-3
    True
    """
    # Made before anything runs, so that a label or an amount is refused then.
    planned = Measurement(label, (1.0,) * MIN_SAMPLES, flops, size_bytes)
    check_work("fn", fn)
    (timed,) = measure_in_turn(
        {label: fn}, devices=devices, warmup=warmup, repeats=repeats, setup=setup, calls=calls
    )
    return replace(planned, values_s=timed.values_s, origin=timed.origin)


def measure_in_turn(
    ways: Mapping[str, Work],
    *,
    devices: Devices | None = None,
    warmup: int = 3,
    repeats: int = 20,
    setup: Work | None = None,
    calls: int = 1,
    flops: Mapping[str, float] | None = None,
) -> tuple[Measurement, ...]:
    """Time several ways, one sample of each in every round, so that they can be compared.

    A machine whose speed drifts, as shared ones do, then drifts for all of them alike. Samples
    are taken as `measure` does; the measurements come in the order of the ways.

    Args:
        ways: Label to work; called without arguments, in this order.
        devices: As in `measure`, for all ways.
        warmup: Rounds before the first that counts.
        repeats: Rounds, at least three.
        setup: Called before each sample of each way, outside the clock.
        calls: As in `measure`, for all ways.
        flops: Label to floating-point operations, for the ways that are to have a rate.

    Raises:
        Exception: What a way raises, with a note that names it.
        TypeError: `ways` is no mapping, or it or `setup` has something that can't be called.
        ValueError: As `measure` does, there are no ways, or `flops` for one that is not there.

    >>> import autopar as ap
    >>> ways = {"in a loop": lambda: [n for n in range(9)], "at once": lambda: list(range(9))}
    >>> [way.label for way in ap.measure_in_turn(ways, repeats=5)]
    ['in a loop', 'at once']
    """
    check_ways("ways", ways)
    flops = by_label("flops", flops or {}, [*ways])
    if setup is not None:
        check_work("setup", setup)
    whole_number("repeats", repeats, MIN_SAMPLES, of=", so that there is a spread")
    whole_number("warmup", warmup, 0)
    whole_number("calls", calls, of=" in each sample")
    waited = _present(devices)
    samples_s: dict[str, list[float]] = {label: [] for label in ways}
    try:
        for i in range(-warmup, repeats):
            for label, way in ways.items():
                sample_s = _sample(way, calls, waited, setup)
                if i >= 0:
                    samples_s[label].append(sample_s / calls)
    except BaseException as error:
        note(error, f"while {label!r} was measured")
        raise
    origin = f"measured live on {processor_names(waited)}"
    return tuple(
        Measurement(label, tuple(values_s), flops.get(label), origin=origin)
        for label, values_s in samples_s.items()
    )


def check_ways(argument: str, ways: Mapping[str, Work]) -> None:
    """Refuse ways that can't be measured in turn, before any is called."""
    expected = "label -> work, as in {'serial': serial, 'overlapped': overlapped}."
    check_type(argument, ways, Mapping, expected)
    if not ways:
        msg = f"{argument} is empty; expected at least one label -> work, to be measured in turn."
        raise ValueError(msg)
    for label, way in ways.items():
        check_words("label", label, LABEL)
        check_work(f"{argument}[{label!r}]", way)


def _sample(fn: Work, calls: int, devices: list[torch.device] | None, setup: Work | None) -> float:
    """Seconds that calls of `fn` and the devices take, from idle to done."""
    if setup is not None:
        setup()
    synchronize()
    collecting = gc.isenabled()
    gc.disable()
    try:
        start_s = time.perf_counter()
        for _ in itertools.repeat(None, calls - 1):  # the least that a loop takes
            fn()
        kept = fn()
        _wait(devices)
        end_s = time.perf_counter()
        for handle in handles_in(kept):  # looked for outside the clock, as that may take long
            handle.wait()
            if devices != []:
                end_s = time.perf_counter()
    finally:
        if collecting:
            gc.enable()
    if isinstance(kept, (GeneratorType, CoroutineType)):
        kept.close()  # it would warn that nobody awaited it
        msg = (
            f"its result is {what(kept)}, which has not begun with its work; expected work that is "
            f"done. Measure list() of a generator, and asyncio.run() of a coroutine."
        )
        raise TypeError(msg)
    if devices is not None:  # others were not waited for yet
        synchronize()
    del kept  # freed here, outside the clock
    return end_s - start_s


def _present(devices: Devices | None) -> list[torch.device] | None:
    if devices is None:
        return None
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        devices = [devices]
    return [present(device) for device in devices]


def _wait(devices: list[torch.device] | None) -> None:
    if devices is None or devices:  # without a name, `synchronize` waits for all
        synchronize(*(devices or ()))
