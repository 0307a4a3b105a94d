"""Timer: D2L's stopwatch and benchmark with their waits mended, and `measure` for tables."""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

import torch

from autopar.device import present, synchronize
from autopar.machine import processor_names
from autopar.timing.measurement import MIN_SAMPLES, Measurement, check_label
from autopar.timing.progress import progress

Devices = Iterable[torch.device | str | int]


class Timer:
    """D2L's stopwatch: it starts when made, and keeps every time in `times` (seconds).

    It reads the host's clock and waits for no device: for GPU work take `Benchmark` or `measure`.

    Raises:
        ValueError: `avg` of a timer that was never stopped.
    """

    def __init__(self) -> None:
        self.times: list[float] = []
        self.start()

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
        devices: Devices to wait for; all if not given; with `()` none, which times the issuing.

    Raises:
        ValueError: A device that is not on this machine.
    """

    def __init__(self, description: str = "Done", devices: Devices | None = None) -> None:
        self.description = description
        self.devices = _present(devices)
        self.elapsed_s: float | None = None

    def __enter__(self) -> Benchmark:
        _wait(self.devices)
        self.timer = Timer()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            return  # a time of half the work would only mislead
        _wait(self.devices)
        self.elapsed_s = self.timer.stop()
        print(f"{self.description}: {self.elapsed_s:.4f} sec")


def measure(
    fn: Callable[[], object],
    *,
    label: str,
    devices: Devices | None = None,
    warmup: int = 3,
    repeats: int = 20,
    setup: Callable[[], object] | None = None,
    flops: float | None = None,
    size_bytes: float | None = None,
) -> Measurement:
    """Time `fn()` over and over, and keep every sample.

    Before each sample all devices are idle. The clock is read again once `fn` has returned and
    the named devices have finished. What `fn` returns is freed after that reading, and Python's
    garbage collector rests meanwhile.

    Args:
        fn: The work; called without arguments.
        label: Its name in tables and figures.
        devices: Devices to wait for before the last reading; all if not given; with `()` none,
            which times the issuing.
        warmup: Calls before the first sample.
        repeats: Samples, at least three.
        setup: Called before each call of `fn`, outside the clock.
        flops: Floating-point operations of one call, for a rate.
        size_bytes: Bytes that one call moves, for a bandwidth.

    Raises:
        ValueError: An empty label, too few repeats, a negative warm-up, a device not here.
    """
    check_label(label)
    _check_counts(repeats, warmup)
    waited = _present(devices)
    values_s = []
    for i in progress(range(-warmup, repeats), label):
        if setup is not None:
            setup()
        sample_s = _sample(fn, waited)
        if i >= 0:
            values_s.append(sample_s)
    return Measurement(label, tuple(values_s), flops, size_bytes, _origin(waited))


def measure_in_turn(
    ways: Mapping[str, Callable[[], object]],
    *,
    devices: Devices | None = None,
    warmup: int = 3,
    repeats: int = 20,
    flops: Mapping[str, float] | None = None,
) -> tuple[Measurement, ...]:
    """Time several ways, one sample of each in every round, so that they can be compared.

    A machine whose speed drifts, as shared ones do, then drifts for all of them alike. Samples
    are taken as `measure` does.

    Args:
        ways: Label to work; called without arguments, in this order.
        devices: As in `measure`, for all ways.
        warmup: Rounds before the first that counts.
        repeats: Rounds, at least three.
        flops: Label to floating-point operations, for the ways that are to have a rate.

    Returns:
        A measurement for each way, in order.

    Raises:
        ValueError: As `measure` does, or `flops` for a way that is not there.
    """
    for label in ways:
        check_label(label)
    _check_counts(repeats, warmup)
    flops = flops or {}
    if unknown := set(flops) - set(ways):
        msg = f"flops has {sorted(unknown)}; expected labels of the ways: {', '.join(ways)}"
        raise ValueError(msg)
    waited = _present(devices)
    values_s: dict[str, list[float]] = {label: [] for label in ways}
    for i in progress(range(-warmup, repeats), "rounds"):
        for label, way in ways.items():
            sample_s = _sample(way, waited)
            if i >= 0:
                values_s[label].append(sample_s)
    return tuple(
        Measurement(label, tuple(taken_s), flops.get(label), origin=_origin(waited))
        for label, taken_s in values_s.items()
    )


def _sample(fn: Callable[[], object], devices: list[torch.device] | None) -> float:
    """Seconds that `fn` and the devices take, from idle to done."""
    synchronize()
    collecting = gc.isenabled()
    gc.disable()
    try:
        start_s = time.perf_counter()
        kept = fn()
        _wait(devices)
        elapsed_s = time.perf_counter() - start_s
    finally:
        if collecting:
            gc.enable()
    synchronize()
    del kept  # freed here, outside the clock
    return elapsed_s


def _check_counts(repeats: int, warmup: int) -> None:
    if repeats < MIN_SAMPLES or warmup < 0:
        msg = (
            f"repeats is {repeats} and warmup {warmup}; expected at least {MIN_SAMPLES} repeats, "
            f"so that there is a spread, and no negative warm-up."
        )
        raise ValueError(msg)


def _present(devices: Devices | None) -> list[torch.device] | None:
    return None if devices is None else [present(device) for device in devices]


def _origin(devices: list[torch.device] | None) -> str:
    return f"measured live on {processor_names(devices)}"


def _wait(devices: list[torch.device] | None) -> None:
    if devices is None:
        synchronize()
    elif devices:
        synchronize(*devices)
