"""What tests of the site share: the extensions of its build, each imported by its name."""

import importlib
from pathlib import Path

import matplotlib.pyplot as plt
import pytest


@pytest.fixture
def extension(monkeypatch):
    """Imports an extension; figures that it leaves are closed."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "_ext"))
    plt.switch_backend("agg")
    yield importlib.import_module
    plt.close("all")
