"""What tests of the site share: the extensions of its build, each imported by its name."""

import importlib
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "_ext"))


@pytest.fixture
def extension():
    """Imports an extension; figures that it leaves are closed."""
    plt.switch_backend("agg")
    yield importlib.import_module
    plt.close("all")
