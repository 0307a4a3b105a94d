"""What the clock covers on a GPU, held against the GPU's own events."""

import pytest
import torch

from autopar import Benchmark, gpu, measure, synchronize

pytestmark = pytest.mark.gpu
_ROUNDING = 1e-6  # seconds; events are float32 milliseconds


class Work:
    """Spins on GPUs and keeps how long each GPU took, by its own events."""

    def __init__(self, spin, *ms):
        self.spin = spin
        self.ms = ms
        self.events = []

    def __call__(self):
        pairs = []
        for i, ms in enumerate(self.ms):
            with torch.cuda.device(i):
                pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                pair[0].record()
                self.spin(ms)
                pair[1].record()
            pairs.append(pair)
        self.events.append(pairs)

    def elapsed_s(self, device):
        synchronize()
        return [pairs[device][0].elapsed_time(pairs[device][1]) / 1e3 for pairs in self.events]


@pytest.mark.parametrize("devices", [None, [gpu(0)], ["cuda:0", "cpu"]])
def test_a_sample_covers_the_work(spin, devices):
    work = Work(spin, 5)
    measured = measure(work, label="spin", devices=devices, warmup=1, repeats=5)
    for sample_s, elapsed_s in zip(measured.values_s, work.elapsed_s(0)[1:], strict=True):
        assert sample_s >= elapsed_s - _ROUNDING
    assert torch.cuda.get_device_name(0) in measured.origin


def test_without_devices_it_is_the_time_to_issue(spin):
    work = Work(spin, 20)
    measured = measure(work, label="issue", devices=(), warmup=1, repeats=5)
    for sample_s, elapsed_s in zip(measured.values_s, work.elapsed_s(0)[1:], strict=True):
        assert sample_s < elapsed_s


@pytest.mark.gpu(2)
@pytest.mark.parametrize(("waited", "not_waited"), [(1, 0), (0, 1)])
def test_only_the_named_gpu_is_inside_the_clock(spin, waited, not_waited):
    work = Work(spin, *(5 if i == waited else 60 for i in range(2)))
    measured = measure(work, label="one", devices=[gpu(waited)], warmup=1, repeats=3)
    long_s, short_s = work.elapsed_s(not_waited)[1:], work.elapsed_s(waited)[1:]
    for sample_s, least_s, most_s in zip(measured.values_s, short_s, long_s, strict=True):
        assert least_s - _ROUNDING <= sample_s < most_s


@pytest.mark.gpu(2)
def test_without_names_every_gpu_is_inside_the_clock(spin, capsys):
    work = Work(spin, 5, 20)
    measured = measure(work, label="both", warmup=1, repeats=3)
    for sample_s, elapsed_s in zip(measured.values_s, work.elapsed_s(1)[1:], strict=True):
        assert sample_s >= elapsed_s - _ROUNDING
    with Benchmark("GPU2 time") as benchmark:
        work()
    assert benchmark.elapsed_s >= work.elapsed_s(1)[-1] - _ROUNDING
    assert capsys.readouterr().out.startswith("GPU2 time: 0.0")


def test_benchmark_is_not_charged_for_the_block_before(spin):
    before, inside = Work(spin, 60), Work(spin, 60)
    before()
    with Benchmark("nothing") as benchmark:
        pass
    assert benchmark.elapsed_s < before.elapsed_s(0)[0]
    before()
    with Benchmark("issue", ()) as benchmark:  # which waits for nothing
        inside()
    assert benchmark.elapsed_s < inside.elapsed_s(0)[0]
