"""Recording on a machine that has a GPU."""

import json

import pytest
import torch

from autopar.device import gpu
from autopar.records.experiment import RECORD_TO, recorded
from autopar.records.record import Findings
from autopar.records.store import load_record
from autopar.timing.measurement import Measurement
from autopar.timing.timer import measure
from autopar.traces.profiler import timeline_of
from autopar.workload import matrix, product_flops


def experiment(size):
    x = matrix(size, gpu(0))
    product = measure(
        lambda: x.mm(x), label="product", repeats=5, flops=product_flops(size), devices=[gpu(0)]
    )
    equal = torch.equal(x.mm(x), x.mm(x))
    return Findings([product], {"product": timeline_of(lambda: x.mm(x))}, {"equal": equal})


@pytest.mark.gpu
def test_a_record_of_what_this_gpu_did(tmp_path, monkeypatch):
    monkeypatch.setenv(RECORD_TO, str(tmp_path))
    live = recorded(experiment, name="product", parameters={"size": 1024}, gpus=1)
    (path,) = tmp_path.glob("*/product.json")
    loaded = load_record(path)
    assert (live.live, loaded.live) == (True, False)
    assert loaded.digest == live.digest
    assert isinstance(loaded.measurements["product"], Measurement)
    assert loaded.measurements["product"].values_s == pytest.approx(
        live.measurements["product"].values_s, abs=1e-9
    )
    assert loaded.timelines["product"].select("compute")
    assert torch.cuda.get_device_name(0) in loaded.origin
    assert json.loads(path.read_text())["hardware"]["gpus"]
