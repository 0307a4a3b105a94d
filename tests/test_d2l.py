"""The chapter's manner of working, by the book's own names, on GPUs."""

import re

import pytest
import torch

import autopar as d2l


def multiply(x):
    return [x.mm(x) for _ in range(10)]


def to_cpu(results, non_blocking=False):
    return [y.to("cpu", non_blocking=non_blocking) for y in results]


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
