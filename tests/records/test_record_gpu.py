"""Recording on a machine that has a GPU."""

import pytest
import torch

import autopar as ap
from autopar.records.experiment import RECORD_TO
from autopar.records.store import load_record


def experiment(size):
    x = ap.workload.matrix(size, ap.gpu(0))
    product = ap.measure(lambda: x.mm(x), label="product", repeats=5, devices=[ap.gpu(0)])
    equal = torch.equal(x.mm(x), x.mm(x))
    return ap.Findings([product], {"product": ap.timeline_of(lambda: x.mm(x))}, {"equal": equal})


@pytest.mark.gpu
def test_a_record_of_what_this_gpu_did(tmp_path, monkeypatch):
    monkeypatch.setenv(RECORD_TO, str(tmp_path))
    live = ap.recorded(experiment, name="product", parameters={"size": 1024}, gpus=1)
    (path,) = tmp_path.glob("*/product.json")
    loaded = load_record(path)
    assert (live.live, loaded.live) == (True, False)
    assert loaded.digest == live.digest
    assert loaded.measurements["product"].median_s == pytest.approx(
        live.measurements["product"].median_s, abs=1e-9
    )
    assert loaded.timelines["product"].select("compute")
    assert torch.cuda.get_device_name(0) in loaded.origin
    assert loaded.hardware["gpus"]
