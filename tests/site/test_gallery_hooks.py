"""What the site says of a figure to those who don't see it."""

import importlib
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from autopar import plot
from autopar.timing.measurement import Measurement

pytest.importorskip("sphinx_gallery", reason="it comes with the group docs")


@pytest.fixture
def described(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "docs" / "_ext"))
    yield importlib.import_module("gallery_hooks").described
    plt.close("all")


def test_lines_are_told_by_their_ends_and_guides_are_not_told(described):
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2, 3], [8.0, 5.0, 4.0], label="one GPU")
    left.axhline(3.0, label="limit")
    left.axvline(2.0, label="a mark")
    left.axhline(1.0)
    left.set(title="Left", ylabel="ms", xlabel="slots\nrecorded")
    right.plot([1, 2, 3], [0.5, 0.25, 0.125])
    right.set(xlabel="MiB")
    figure.suptitle("recorded on\ntwo GPUs")
    parts = (
        "Left",
        "ms by slots, from left to right: one GPU 8 to 4, limit 3",
        "ms by MiB, from left to right: 0.5 to 0.125",
        "recorded on two GPUs",
    )
    assert described(figure) == ". ".join(parts)


def test_bars_are_told_by_the_figures_beside_them(described):
    ways = [Measurement("slow", (2.0, 2.0, 2.0)), Measurement("fast", (1.0, 1.0, 1.0))]
    ax = plot.bars(ways, limit_s=0.5, title="Two ways")
    assert described(ax.figure) == "Two ways. slow 2.000 s, fast 1.000 s"
