"""Ctrl-C in copy pipelines: it ends waits, nothing leaks, and work goes on."""

import signal
import threading
import time

import pytest
from lane_forms import WAIT_S
from pipeline_faults import HELD, STAGED, VERBS, number_in
from pipeline_ways import DEVICES

pytestmark = pytest.mark.stress
_PROMPT_S = 0.5  # what a wait may take to end once Ctrl-C was pressed


def ended_s(begun, rescue, wait, patience_s=4 * _PROMPT_S):
    """Press Ctrl-C once something has begun; the seconds until a wait of this thread's ended."""
    sent_s, ended = [], threading.Event()

    def press():
        if begun.wait(WAIT_S):
            time.sleep(0.02)  # the wait has begun by then
            sent_s.append(time.perf_counter())
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if not ended.wait(patience_s):
            rescue()

    pressing = threading.Thread(target=press)
    pressing.start()
    interrupted_s = None
    try:
        try:
            wait()
        finally:
            if not sent_s:
                pressing.join(WAIT_S)  # it ended too soon: Ctrl-C is still to come
    except KeyboardInterrupt:
        interrupted_s = time.perf_counter()
    finally:
        ended.set()
        pressing.join()
    assert sent_s, "what was to be waited for never began"
    assert interrupted_s is not None, "nothing was interrupted"
    return interrupted_s - sent_s[0]


def _raising(error):
    if error is not None:
        raise error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), [*HELD, ("source", 1)])
@pytest.mark.parametrize(("slots", "k"), [(1, 0), (3, 5)])
@pytest.mark.parametrize("source", ["fresh", "list"])
@pytest.mark.parametrize(("verb", "sign"), [*((verb, 1) for verb in STAGED), ("map", -1)])
def test_ctrl_c_ends_a_wait_at_once(
    bench, gate, verb, sign, source, slots, k, kind, threads, device
):
    def wait():
        fault = gate if kind == "source" else None
        results = VERBS[verb](pipeline, bench.source(verb, fault, k, source), bench)
        received, error = bench.take(verb, results)
        assert received <= k
        _raising(error)

    with bench.pipeline(device, "chunked", slots, threads) as pipeline:
        if kind != "source":
            bench.when(kind, number_in("chunked", k), gate, sign)
        # What moves host memory is waited for: the caller may use that memory for other things.
        patience_s = 0.1 if kind == "move" else 4 * _PROMPT_S
        assert ended_s(gate.begun, gate.open, wait, patience_s) < _PROMPT_S
        assert not gate.running
        gate.open()
        bench.in_time(lambda: bench.works(pipeline))
        bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), HELD)
@pytest.mark.parametrize("verb", STAGED)
def test_ctrl_c_that_leaves_the_pipeline_waits_for_what_runs(
    bench, gate, verb, kind, threads, device
):
    opening = threading.Timer(0.2, gate.open)

    def wait():
        with bench.pipeline(device, "chunked", threads=threads) as pipeline:
            bench.when(kind, 1001, gate)
            opening.start()
            _raising(bench.run(verb, pipeline)[1])

    ended_s(gate.begun, gate.open, wait)
    assert not gate.running, "work outlived its pipeline"
    opening.join()
