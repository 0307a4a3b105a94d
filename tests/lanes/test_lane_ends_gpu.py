"""Lanes on GPUs: errors, leaving, and what holds where a task is submitted."""

import contextlib
import gc
import weakref
from concurrent.futures import CancelledError

import pytest
import torch
from lane_forms import equals, lane_on, require_waits_end

from autopar import cpu_lane, cuda_lane
from autopar.device import gpu, synchronize

pytestmark = pytest.mark.gpu
_N = 2**20
_two = pytest.mark.gpu(2)


# -- errors and leaving ---------------------------------------------------------------------------


def test_an_error_names_the_gpu_and_dependents_say_why():
    def fail():
        raise ValueError("on purpose")

    with cuda_lane(0, name="left") as lane, cpu_lane() as worker:
        broken = lane.submit(fail, name="breaks")
        dependent = worker.submit(int, after=[broken])
        with pytest.raises(RuntimeError, match="'breaks' on lane 'left'.*failed") as caught:
            dependent.result()
        with pytest.raises(ValueError, match="on purpose"):
            broken.result()
        assert equals(lane.submit(torch.ones, 3, device="cuda:0").result(), 1)
    assert caught.value.__cause__.__notes__[0] == "in task 'breaks' on lane 'left' (cuda:0)"


@pytest.mark.parametrize("moves_on", [False, True])
def test_kernels_of_a_task_that_failed_do_not_outlive_the_lane(spin, moves_on):
    def fail():
        spin(100)
        raise ValueError("on purpose")

    with cuda_lane(0) as lane:
        lane.submit(spin, 20)  # not done yet when the error is there
        with pytest.raises(ValueError, match="on purpose"):
            lane.submit(fail).result()
        if moves_on:
            lane.submit(int)
    assert lane.stream.query(), "kernels outlived their lane"


def test_left_by_an_exception_it_drops_what_waits_and_waits_for_what_runs(spin, gate, leave):
    ran = []
    with pytest.raises(ZeroDivisionError), cpu_lane() as worker, cuda_lane(0) as lane:
        held = worker.submit(gate)
        running = lane.submit(spin, 100)
        queued = [lane.submit(ran.append, held), lane.submit(ran.append, 1)]
        leave(queued[1])
    assert running.done()
    assert lane.stream.query(), "kernels outlived their lane"
    assert ran == []
    for handle in queued:
        with pytest.raises(CancelledError, match="dropped"):
            handle.result()


def test_left_in_peace_it_waits_for_kernels_and_for_what_is_not_launched_yet(spin, gate, open_soon):
    with cpu_lane() as worker, cuda_lane(0) as lane:
        handle = lane.submit(spin, 100, after=[worker.submit(gate)])
        open_soon()
    assert handle.done()
    assert lane.stream.query()


def test_a_task_that_waits_for_its_own_lane_is_refused(in_time):
    def run():
        with cuda_lane(0) as lane:
            handle = lane.submit(lambda: lane.submit(int, name="later").result())
            with pytest.raises(RuntimeError, match="'later'.*of its own lane"):
                handle.result()

    in_time(run)


def test_ctrl_c_while_a_task_is_launched_comes_out_of_submit_once():
    def interrupted():
        raise KeyboardInterrupt

    with cuda_lane(0) as lane:
        with pytest.raises(KeyboardInterrupt):
            lane.submit(interrupted)
        assert equals(lane.submit(torch.ones, 3, device="cuda:0").result(), 1)


def test_what_a_failed_task_was_given_is_freed_with_its_error():
    def fail(x):
        raise ValueError("on purpose")

    x = torch.ones(_N, device="cuda:0")
    watched = weakref.ref(x)
    gc.disable()
    try:
        with cuda_lane(0) as lane:
            handle = lane.submit(fail, x)
            del x
            with contextlib.suppress(ValueError):
                handle.result()
            del handle
            lane.submit(int)
        assert watched() is None
    finally:
        gc.enable()


def test_lanes_whose_tasks_wait_for_each_other_are_refused(in_time, gate):
    """The CPU task waits for what the stream's lane is to launch after it."""

    def run():
        with cpu_lane() as worker, cuda_lane(0) as lane:
            known = []
            asks = worker.submit(lambda: (gate(), known[0].result()))
            known.append(lane.submit(int, after=[asks], name="launched later"))
            gate.open()
            with pytest.raises(RuntimeError, match="'launched later'.*No such wait can end"):
                asks.result()
            with pytest.raises(RuntimeError, match="failed"):
                known[0].result()

    in_time(run)


def test_leaving_runs_what_tasks_submit(gate, open_soon):
    ran = []
    with cpu_lane() as worker, cuda_lane(0) as lane:
        held = worker.submit(gate)
        lane.submit(lambda: lane.submit(ran.append, 1), after=[held])
        lane.submit(lambda: worker.submit(ran.append, 2))
        open_soon()
    assert sorted(ran) == [1, 2]


# -- what holds where a task is submitted ---------------------------------------------------------


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
@pytest.mark.parametrize("held", [False, True])
def test_autocast_is_the_submitters_whoever_launches(gate, place, held):
    x = torch.ones(8, 8, device="cuda:0")
    with cpu_lane() as worker, lane_on(place) as lane:
        after = [worker.submit(gate)] if held else []
        with torch.autocast("cuda", dtype=torch.bfloat16):
            low = lane.submit(torch.mm, x, x, after=after)
        full = lane.submit(torch.mm, x, x)
        gate.open()
        assert low.result().dtype == torch.bfloat16
        assert full.result().dtype == torch.float32
    assert not torch.is_autocast_enabled("cuda")
    assert torch.is_autocast_cache_enabled()


def test_no_task_reads_a_weight_that_another_stream_has_yet_to_cast(spin):
    """Autocast keeps casts of weights for all threads, and knows nothing of streams."""
    size = 1024
    weight = torch.ones(size, size, device="cuda:0", requires_grad=True)
    x = torch.ones(size, size, device="cuda:0", dtype=torch.bfloat16)
    synchronize()

    def late():
        spin(30)
        return x @ weight

    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(5):
            with cuda_lane(0) as one, cuda_lane(0) as other:
                # What is freed here is what a cast would get, if it came too late.
                one.submit(torch.full, (size, size), float("nan"), device="cuda:0").result()
                results = [one.submit(late), other.submit(torch.matmul, x, weight)]
                mine = x @ weight
                assert all(equals(each.result(), size) for each in results)
                assert equals(mine, size)


@_two
def test_a_cpu_task_finds_the_submitters_gpu_and_a_stream_its_own():
    def where():
        return torch.cuda.current_device(), torch.ones(1, device="cuda").device.index

    with cpu_lane() as worker, cuda_lane(0) as lane:
        for index in (1, 0, 1):
            with torch.cuda.device(index):
                assert worker.submit(where).result() == (index, index)
                assert lane.submit(where).result() == (0, 0)
                assert torch.cuda.current_device() == index


def test_ctrl_c_ends_every_wait_and_the_next_run_is_unharmed(run_program):
    assert require_waits_end(run_program("interrupted.py", "cuda")) == ["result", "wait"]


def test_a_lane_needs_a_gpu_that_is_there():
    count = torch.cuda.device_count()
    with pytest.raises(ValueError, match=f"cuda:{count}, which is not on this machine"):
        cuda_lane(count)
    with cuda_lane() as lane:
        assert lane.device == gpu(0)
