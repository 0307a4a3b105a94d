"""The chapter's manner of working, by the book's own names: anywhere, and on two GPUs."""

import re

import pytest
import torch

import autopar as d2l


def multiply(x):
    return [x.mm(x) for _ in range(10)]


def to_cpu(results, non_blocking=False):
    return [y.to("cpu", non_blocking=non_blocking) for y in results]


def test_the_chapters_manner_runs_on_whatever_is_here(capsys):
    devices = d2l.try_all_gpus()
    inputs = [torch.rand(size=(100, 100), device=device) for device in devices]
    multiply(inputs[0])  # warm-up
    with d2l.Benchmark("GPU1 time"):
        multiply(inputs[0])
    with d2l.Benchmark():
        multiply(inputs[-1])
    first, second = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"GPU1 time: \d+\.\d{4} sec", first)
    assert re.fullmatch(r"Done: \d+\.\d{4} sec", second)


def test_the_printed_time_is_the_clocks(monkeypatch, capsys):
    readings = iter([5.0, 5.13094])
    monkeypatch.setattr("autopar.timing.timer.time.perf_counter", lambda: next(readings))
    with d2l.Benchmark("GPU1 time") as benchmark:
        pass
    assert capsys.readouterr().out == "GPU1 time: 0.1309 sec\n"
    assert benchmark.elapsed_s == pytest.approx(0.13094)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_devices_by_the_books_names(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    gpus = [torch.device("cuda", i) for i in range(count)]
    assert d2l.num_gpus() == count
    assert d2l.try_all_gpus() == (gpus or [d2l.cpu()])
    assert d2l.try_gpu() == (gpus[0] if gpus else d2l.cpu())
    assert d2l.try_gpu(5) == d2l.cpu() == torch.device("cpu")
    assert d2l.gpu(1) == torch.device("cuda:1")


def test_stopwatch(monkeypatch):
    readings = iter([0.0, 1.0, 10.0, 13.0, 20.0, 22.0])
    monkeypatch.setattr("autopar.timing.timer.time.perf_counter", lambda: next(readings))
    timer = d2l.Timer()
    assert timer.stop() == 1.0
    for expected in (3.0, 2.0):
        timer.start()
        assert timer.stop() == expected
    assert timer.times == [1.0, 3.0, 2.0]
    assert (timer.avg(), timer.sum(), timer.cumsum()) == (2.0, 6.0, [1.0, 4.0, 6.0])


def test_stopwatch_that_was_never_stopped():
    timer = d2l.Timer()
    assert (timer.sum(), timer.cumsum()) == (0, [])
    with pytest.raises(ValueError, match=r"call stop\(\)"):
        timer.avg()


@pytest.mark.gpu(2)
def test_both_gpus_and_the_bare_waits(capsys):
    devices = d2l.try_all_gpus()
    first, second = (torch.rand(size=(1000, 1000), device=device) for device in devices[:2])
    multiply(first)
    multiply(second)
    torch.cuda.synchronize(devices[0])
    torch.cuda.synchronize(devices[1])
    with d2l.Benchmark("GPU1 time"):
        multiply(first)
        torch.cuda.synchronize(devices[0])
    with d2l.Benchmark("GPU2 time"):
        multiply(second)
        torch.cuda.synchronize(devices[1])
    with d2l.Benchmark("GPU1 & GPU2"):
        multiply(first)
        multiply(second)
        torch.cuda.synchronize()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["GPU1 time", "GPU2 time", "GPU1 & GPU2"]
    assert all(re.fullmatch(r".+: \d+\.\d{4} sec", line) for line in lines)


@pytest.mark.gpu
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_to_the_cpu(non_blocking, capsys):
    device = d2l.try_gpu()
    assert device == d2l.gpu(0)
    x = torch.rand(size=(500, 500), device=device)
    with d2l.Benchmark("Run and copy to CPU"):
        results = multiply(x)
        copies = to_cpu(results, non_blocking)
        torch.cuda.synchronize()
    assert all(torch.equal(copy, y.cpu()) for copy, y in zip(copies, results, strict=True))
    assert capsys.readouterr().out.startswith("Run and copy to CPU: ")
