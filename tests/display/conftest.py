"""What tests of pictures share: figures are drawn in memory, and closed."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def _no_windows():
    plt.switch_backend("agg")
    yield
    plt.close("all")
