"""Timing done right: what is inside the clock, what is waited for, and what is kept."""

import contextlib
import functools
import gc
import itertools
import time
import weakref
from types import SimpleNamespace

import pytest
import torch

from autopar import Benchmark, Timer, cpu, cpu_lane, measure, measure_in_turn
from autopar.timing import timer


@pytest.fixture
def log(monkeypatch):
    """What happened in which order: clock readings, and waits with what they waited for."""
    log, ticks = [], itertools.count(1.0)

    def tick():  # so that a sample is how often the clock was read
        log.append("clock")
        return next(ticks)

    named = {
        "time": SimpleNamespace(perf_counter=tick),
        "synchronize": lambda *devices: log.append(devices or "all"),
        "processor_names": lambda devices: "all" if devices is None else (*devices,),
        "present": torch.device,
    }
    for name, stand_in in named.items():
        monkeypatch.setattr(f"autopar.timing.timer.{name}", stand_in)
    return log


GPU = torch.device("cuda:1")
NAMED = [
    (None, ["all"]),
    ([GPU], [(GPU,)]),
    (("cuda:1", "cpu"), [(GPU, cpu())]),
    ("cuda:1", [(GPU,)]),
    ((), []),
]


@pytest.mark.parametrize("calls", [1, 4])
@pytest.mark.parametrize(("devices", "waits"), NAMED)
def test_what_a_sample_is_made_of(log, devices, waits, calls):
    class Result:
        pass

    def fn():
        log.append("fn")
        result = Result()
        weakref.finalize(result, log.append, "freed")
        return result

    counts = {"warmup": 1, "repeats": 3, "calls": calls, "flops": 2e12, "size_bytes": 3}
    setup = functools.partial(log.append, "setup")
    measured = measure(fn, label="work", devices=devices, setup=setup, **counts)
    called = ["fn", "freed"] * (calls - 1)
    others = [] if devices is None else ["all"]
    assert log == ["setup", "all", "clock", *called, "fn", *waits, "clock", *others, "freed"] * 4
    assert measured.values_s == (1 / calls,) * 3
    assert (measured.label, measured.tflops_per_s, measured.size_bytes) == ("work", 2 * calls, 3)
    assert measured.origin == f"measured live on {waits[0] if waits else ()}"


@pytest.mark.parametrize(
    ("counts", "warmup", "repeats"), [({"warmup": 0, "repeats": 3}, 0, 3), ({}, 3, 20)]
)
def test_all_samples_are_kept_and_no_warm_up(log, counts, warmup, repeats):
    calls = []

    def fn():
        for _ in calls:  # each call takes a tick longer than the one before
            timer.time.perf_counter()
        calls.append(None)

    measured = measure(fn, label="work", **counts)
    assert len(calls) == warmup + repeats
    assert measured.values_s == tuple(float(warmup + i + 1) for i in range(repeats))


@pytest.mark.parametrize("collecting", [True, False])
@pytest.mark.parametrize("fails", ["nothing", "fn", "setup", "wait"])
def test_the_garbage_collector_rests_inside_the_clock_only(monkeypatch, collecting, fails):
    seen = []

    def called(what):
        seen.append((what, gc.isenabled()))
        if fails == what:
            raise ZeroDivisionError

    monkeypatch.setattr("autopar.timing.timer._wait", lambda _: called("wait"))
    (gc.enable if collecting else gc.disable)()
    try:
        with contextlib.suppress(ZeroDivisionError):
            measure(lambda: called("fn"), label="w", repeats=3, setup=lambda: called("setup"))
            assert fails == "nothing"
        assert gc.isenabled() == collecting
    finally:
        gc.enable()
    assert {*seen} <= {("setup", collecting), ("fn", False), ("wait", False)}
    assert fails in ("nothing", seen[-1][0])


def ran():
    pytest.fail("it ran")


_WAYS = {"work": ran}


@pytest.mark.parametrize(
    ("error", "changes", "match"),
    [
        (ValueError, {"label": " "}, "expected a few words"),
        (ValueError, {"repeats": 2}, "repeats is 2; expected a whole number of at least 3"),
        (ValueError, {"devices": ["cuda:99"]}, "cuda:99"),
        (ValueError, {"devices": "cuda:99"}, "cuda:99"),
        (TypeError, {"fn": torch.ones(2)}, "fn is of type Tensor.*wrap it: lambda: x @ x"),
        (ValueError, {"ways": {"": ran}}, "expected a few words"),
        (ValueError, {"ways": {}}, "ways is empty; expected at least one label -> work"),
        (TypeError, {"ways": [ran]}, "ways is of type list; expected label -> work, as in"),
        (TypeError, {"ways": {"a": ran, "b": 3}}, r"ways\['b'\] is of type int"),
        (ValueError, {"ways": _WAYS, "flops": {"else": 1.0}}, "flops names 'else'; .* 'work'"),
        (ValueError, {"ways": _WAYS, "flops": {"work": -1.0}}, r"flops\['work'\] is -1.0"),
        (TypeError, {"ways": _WAYS, "flops": 2e12}, "flops is of type float; expected label -> nu"),
    ],
)
def test_refuses_before_running_anything(error, changes, match):
    with pytest.raises(error, match=match) as caught:
        if "ways" in changes:
            measure_in_turn(**changes)
        else:
            measure(**{"fn": ran, "label": "work", **changes})
    assert not hasattr(caught.value, "__notes__")


def test_what_has_not_begun_with_its_work_is_not_timed():
    async def coroutine():
        ran()

    with pytest.raises(
        TypeError, match="result is .*generator, which has not begun.*list"
    ) as caught:
        measure(lambda: (ran() for _ in range(3)), label="three")
    assert caught.value.__notes__ == ["while 'three' was measured"]
    with pytest.raises(TypeError, match="coroutine"):
        measure(coroutine, label="one")
    assert measure(lambda: iter([1]), label="done already", repeats=3).values_s


@pytest.mark.parametrize("fails", ["setup", "fn", "task"])
def test_an_error_says_under_which_label_it_was_raised(fails):
    def fail_in(place, returned=None):
        return lambda: 1 / 0 if fails == place else returned

    with cpu_lane() as lane:
        ways = {"fine": int, "failing": lambda: fail_in("fn", lane.submit(fail_in("task")))()}
        for run, label in (
            (lambda setup: measure(ways["failing"], label="alone", setup=setup), "alone"),
            (lambda setup: measure_in_turn(ways, setup=setup), "failing"),
        ):
            with pytest.raises(ZeroDivisionError) as caught:
                run(fail_in("setup"))
            label = "fine" if fails == "setup" and label == "failing" else label
            assert caught.value.__notes__[-1] == f"while {label!r} was measured"
            assert caught.traceback[-1].path.samefile(__file__)


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize(("devices", "waits"), [(None, ["all"]), ("cpu", [(cpu(),)]), ((), [])])
def test_tasks_of_lanes_are_done_inside_the_clock_unless_issuing_is_timed(
    log, devices, waits, calls
):
    """And in any case before the next sample."""

    def task():
        time.sleep(0.01)
        while not waits and log.count("clock") % 2:  # till the clock was read
            time.sleep(1e-3)
        log.append("task")

    with cpu_lane() as lane:
        given = {"devices": devices, "warmup": 0, "repeats": 3, "calls": calls}
        measure(lambda: {"a": [lane.submit(task)]}, label="task", **given)
        done = ["task"] * calls
        seen = [*waits, "clock", *done, "clock"] if waits else ["clock", *done]
        others = [] if devices is None else ["all"]
        assert log == ["all", "clock", *seen, *others] * 3


@pytest.mark.parametrize(("devices", "waits"), NAMED)
def test_benchmark_waits_before_both_readings(log, devices, waits, capsys):
    with Benchmark("both", devices) as benchmark:
        assert repr(benchmark) == "<Benchmark: both, not timed>"
        log.append("work")
    assert log == [*waits, "clock", "work", *waits, "clock"]
    assert (benchmark.elapsed_s, repr(benchmark)) == (1.0, "<Benchmark: both, 1.000 s>")
    assert capsys.readouterr().out == "both: 1.0000 sec\n"


def test_a_stopwatch_keeps_each_time_and_gives_their_mean_and_sums(monkeypatch):
    readings = iter([0.0, 1.0, 10.0, 13.0, 20.0, 22.0])
    monkeypatch.setattr("autopar.timing.timer.time.perf_counter", lambda: next(readings))
    timer = Timer()
    with pytest.raises(ValueError, match=r"call stop\(\)"):
        timer.avg()
    assert (timer.sum(), timer.cumsum(), timer.stop()) == (0, [], 1.0)
    for expected in (3.0, 2.0):
        timer.start()
        assert timer.stop() == expected
    assert timer.times == [1.0, 3.0, 2.0]
    assert (timer.avg(), timer.sum(), timer.cumsum()) == (2.0, 6.0, [1.0, 4.0, 6.0])
    assert repr(timer) == "<Timer: times 3, sum 6.000 s>"


def test_benchmark_prints_no_time_of_work_that_failed_or_of_a_device_not_there(capsys):
    with pytest.raises(ZeroDivisionError), Benchmark("half") as benchmark:
        _ = 1 / 0
    with pytest.raises(ValueError, match="cuda:99"):
        Benchmark("there", [99])
    assert capsys.readouterr().out == ""
    assert benchmark.elapsed_s is None


def test_in_turn_each_round_has_one_sample_of_every_way_each_set_up(log):
    ways = {"one": lambda: log.append("one"), "other": lambda: log.append("other")}
    given = {"devices": [GPU], "warmup": 1, "repeats": 3, "flops": {"other": 8.0}}
    one, other = measure_in_turn(ways, setup=lambda: log.append("setup"), **given)
    sample = ("setup", "all", "clock", "way", (GPU,), "clock", "all")
    assert log == [way if entry == "way" else entry for way in ways for entry in sample] * 4
    assert [len(way.values_s) for way in measure_in_turn(ways)] == [20, 20]
    assert (one.label, one.values_s, one.flops) == ("one", (1.0,) * 3, None)
    assert (other.label, other.values_s, other.flops) == ("other", (1.0,) * 3, 8.0)
