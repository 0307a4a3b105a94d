"""Timelines of real GPUs, held against the host's clock."""

import time

import pytest
import torch

from autopar import annotate, cpu_lane, cuda_lane, timeline_of, timeline_of_handles
from autopar.device import gpu, synchronize
from autopar.timeline.span import Timeline
from autopar.workload import matrix

pytestmark = pytest.mark.gpu
_SLACK_S = 50e-6  # drift between the two clocks, and the launch
_SIZE, _COUNT = 4096, 8  # about 20 ms on an H200
_TRIES = 4
_PRODUCT_S = 5e-4  # every product takes longer; all else that runs here is shorter


def products_of(timeline, number):
    lanes = [lane for lane in timeline.lanes if lane.startswith(f"GPU {number} stream")]
    spans = [span for lane in lanes for span in timeline.select(lane)]
    return Timeline(tuple(span for span in spans if span.duration_s > _PRODUCT_S))


def test_the_timeline_is_as_long_as_the_work_and_on_the_hosts_clock():
    x = matrix(_SIZE, gpu(0))
    readings = []

    def work():
        x.mm(x)  # the session's first launch takes long
        synchronize(gpu(0))
        readings.append(time.perf_counter())
        for _ in range(_COUNT):
            x.mm(x)
        synchronize(gpu(0))
        readings.append(time.perf_counter())

    differences = []  # of some sessions: a GPU may work for another process meanwhile
    for _ in range(_TRIES):
        readings.clear()
        timeline = timeline_of(work)
        products = Timeline(products_of(timeline, 0).spans[1:])
        assert len(products.spans) == _COUNT
        error_s = timeline.alignment_error_s + _SLACK_S
        assert readings[0] - error_s <= products.start_s
        assert products.end_s <= readings[1] + error_s
        differences.append(1 - products.makespan_s / (readings[1] - readings[0]))
    assert min(map(abs, differences)) <= 0.02
    assert timeline.origin.startswith("measured live on")
    assert torch.cuda.get_device_name(0) in timeline.origin


@pytest.mark.gpu(2)
def test_both_gpus_are_on_one_clock_and_overlap():
    inputs = [matrix(_SIZE, gpu(i)) for i in range(2)]

    def work():
        for x in inputs:
            for _ in range(_COUNT):
                x.mm(x)

    timeline_of(work)
    timeline = timeline_of(work)
    first, second = (products_of(timeline, i) for i in range(2))
    assert (len(first.spans), len(second.spans)) == (_COUNT, _COUNT)
    assert first.merged(second).overlap_s(first.lanes[0], second.lanes[0]) > 0


def test_copies_have_lanes_of_their_own():
    x = torch.rand(2**22, device=gpu(0))
    pinned = torch.empty(2**22, pin_memory=True)

    def work():
        with annotate("out and back"):
            pinned.copy_(x, non_blocking=True)
            x.copy_(pinned, non_blocking=True)

    timeline = timeline_of(work)
    out, back = (timeline.select(f"GPU 0 copies {way} host") for way in ("to", "from"))
    assert (len(out), len(back)) == (1, 1)
    assert out[0].kind == back[0].kind == "copy"
    assert out[0].end_s <= back[0].start_s + 1e-6
    assert "out and back" in {span.name for span in timeline.select("host")}


@pytest.mark.gpu(2)
def test_copies_to_a_peer():
    x = torch.rand(2**22, device=gpu(0))
    x.to(gpu(1))
    copies = timeline_of(lambda: x.to(gpu(1))).select("copy")
    assert any(span.lane.endswith("copies to a peer") for span in copies)


def test_lanes_of_the_cpu_and_the_gpu_are_in_one_timeline(spin):
    def work():
        with cpu_lane(name="worker") as worker, cuda_lane(gpu(0)) as lane:
            summed = worker.submit(lambda: matrix(512).mm(matrix(512)).sum(), name="sum")
            lane.submit(spin, 5)
            summed.result()
        return timeline_of_handles([summed])

    timeline = timeline_of(work)
    assert [span.name for span in timeline.select("worker")] == ["sum"]
    assert any(span.duration_s > 1e-3 for span in timeline.select("compute"))


def test_many_sessions_in_one_process(spin):
    for _ in range(10):
        timeline = timeline_of(lambda: [spin(0.1) for _ in range(100)])
        assert len(timeline.select("compute")) == 100


def test_a_program_ends_whose_last_act_on_a_gpu_was_a_timeline(run_program):
    run_program("ends_with_a_timeline.py", check=True)
