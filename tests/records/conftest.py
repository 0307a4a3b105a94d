"""A good record, and a machine of as many GPUs as wanted, for all tests of this room."""

import pytest
from record_sample import NAME, PARAMETERS, experiment

from autopar.records.experiment import RECORD_TO, observed
from autopar.records.store import write_record


@pytest.fixture(autouse=True)
def _not_recording(monkeypatch):
    monkeypatch.delenv(RECORD_TO, raising=False)


@pytest.fixture
def gpus(monkeypatch):
    """Set how many GPUs the room believes in."""
    return lambda count: monkeypatch.setattr("autopar.records.experiment.num_gpus", lambda: count)


@pytest.fixture
def record():
    return observed(experiment, name=NAME, parameters=PARAMETERS)


@pytest.fixture
def path(record, tmp_path, gpus):
    """A good record, on a machine that has no GPU to measure it anew."""
    gpus(0)
    return write_record(record, tmp_path)
