"""Plots: what lies on the axes, and what `show` does with figures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from autopar import plot
from autopar.display.rows import COLOURS
from autopar.graph.schedule import Job, Resource, schedule
from autopar.timeline.span import Span, Timeline
from autopar.timing.measurement import Measurement

ORIGIN = "recorded on two GPUs"
run = Timeline(
    (
        Span("mm", "stream", 10.0, 10.004),
        Span("mm", "stream", 10.004, 10.008),
        Span("D2H", "bus", 10.004, 10.006, "copy"),
    ),
    origin=ORIGIN,
)
slow = Measurement("slow", (0.2, 0.2, 0.21), origin=ORIGIN)
fast = Measurement("fast", (0.1, 0.2, 0.3), origin=ORIGIN)


@pytest.fixture(autouse=True)
def _no_windows() -> Iterator[None]:
    plt.switch_backend("agg")
    yield
    plt.close("all")


def texts(ax: Axes) -> str:
    return "\n".join(text.get_text() for text in ax.texts)


def extents(ax: Axes, i: int) -> list[list[float]]:
    """Left, lower, right and upper end of each bar of a collection."""
    return [list(path.get_extents().extents) for path in ax.collections[i].get_paths()]


def boxes(ax: Axes, i: int) -> list[tuple[float, float]]:
    """Start and end of each bar of a collection."""
    return [(left, right) for left, _, right, _ in extents(ax, i)]


def test_timeline_has_a_row_for_each_lane_from_zero() -> None:
    ax = plot.timeline(run, limit_s=0.007, title="One run")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["stream", "bus"]
    assert ax.yaxis_inverted()
    np.testing.assert_allclose(boxes(ax, 0), [(0, 4), (4, 8)], atol=1e-9)
    np.testing.assert_allclose(boxes(ax, 1), [(4, 6)], atol=1e-9)
    assert ax.get_xlabel() == "time (ms)"
    assert ax.get_title() == "One run"
    assert ORIGIN in texts(ax)
    assert "limit 7.000 ms" in texts(ax)
    np.testing.assert_allclose(np.asarray(ax.lines[0].get_xdata(), dtype=float), 7.0)


def test_colours_are_those_of_the_drawings_and_copies_are_hatched() -> None:
    compute, copy = plot.timeline(run).collections
    assert to_hex(np.asarray(compute.get_facecolor())[0]) == COLOURS["compute"]
    assert to_hex(np.asarray(copy.get_facecolor())[0]) == COLOURS["copy"]
    assert copy.get_hatch()
    assert not compute.get_hatch()


def test_axes_given_are_axes_returned() -> None:
    _, (upper, lower) = plt.subplots(2)
    assert plot.timeline(run, upper) is upper
    assert plot.bars([slow], lower) is lower
    assert len(plt.get_fignums()) == 1


def test_panels_share_one_scale() -> None:
    longer = Timeline((Span("mm", "stream", 0.0, 0.02),), origin=ORIGIN)
    for named in ({"short": run, "long": longer}, {"long": longer, "short": run}):
        axes = plot.timelines(named, title="Two")
        assert axes[0].get_xlim() == axes[1].get_xlim()
        assert axes[0].get_xlim()[1] >= 20
    assert [ax.get_title(loc="left") for ax in axes] == ["long: 20.00 ms", "short: 8.000 ms"]
    assert texts(axes[1]).count(ORIGIN) == 1  # once beneath, for both
    assert ORIGIN not in texts(axes[0])
    with pytest.raises(ValueError, match="named is empty"):
        plot.timelines({})


def test_bars_show_medians_samples_and_limits() -> None:
    ax = plot.bars([slow, fast], limit_s={"fast": 0.05})
    assert [bar.get_width() for bar in ax.patches if isinstance(bar, Rectangle)] == pytest.approx(
        [200.0, 200.0]
    )
    assert [label.get_text() for label in ax.get_yticklabels()] == ["slow", "fast"]
    dots = [one for one in ax.collections if isinstance(one, PathCollection)]
    np.testing.assert_allclose(np.asarray(dots[1].get_offsets())[:, 0], [100, 200, 300])
    marks = [one for one in ax.collections if isinstance(one, LineCollection)]
    assert len(marks) == 1
    np.testing.assert_allclose(np.asarray(marks[0].get_segments())[0][:, 0], 50)
    assert marks[0].get_linestyle()[0][1]  # dashed, as on timelines
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["limit"]
    shown = texts(ax)
    assert "200.0 ms*" in shown  # the noisy one
    assert "* noisy" in shown
    assert ORIGIN in shown


def test_bars_from_two_places_say_which() -> None:
    here = Measurement("slow", (0.4, 0.4, 0.4), origin="this machine")
    ax = plot.bars({"a": slow, "b": here}, limit_s=0.3)
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["slow\nrecorded on two GPUs", "slow\nthis machine"]


def test_what_is_no_timeline_or_limit_is_refused() -> None:
    with pytest.raises(TypeError, match="timeline is of type list; expected a Timeline"):
        plot.timeline([run])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no spans"):
        plot.timeline(Timeline(()))
    with pytest.raises(ValueError, match="limit_s is -1"):
        plot.timeline(run, limit_s=-1.0)


def test_nested_ranges_are_in_layers_with_their_names() -> None:
    step, forward = Span("step", "host", 0, 4, "host"), Span("forward $x^$\0", "host", 0, 2, "host")
    backward, brief = Span("backward", "host", 2, 4, "host"), Span("brief", "host", 2, 2.01, "host")
    ax = plot.timeline(Timeline((forward, brief, backward, step, Span("k", "stream", 0, 4))))
    layers = [boxes(ax, i) for i in range(4)]
    assert layers == [[(0, 4)], [(0, 2), (2, 4)], [(2, 2.01)], [(0, 4)]]
    for upper, lower in pairwise(range(4)):
        assert extents(ax, upper)[0][3] < extents(ax, lower)[0][1]  # the axis goes downwards
    named = {text.get_text(): text for text in ax.texts}
    assert named.keys() - {"k"} == {"step", "forward $x^$\ufffd", "backward"}, (
        "there is no room for the other"
    )
    ax.figure.canvas.draw()
    for name, (layer, at) in {
        "step": (0, 0),
        "forward $x^$\ufffd": (1, 0),
        "backward": (1, 1),
    }.items():
        left, _, right, lower = extents(ax, layer)[at]
        assert named[name].get_position() == (left, lower)
        clip = named[name].get_clip_box()
        assert clip is not None
        assert clip.x1 == pytest.approx(ax.transData.transform((right, lower))[0])


def test_spans_without_length_are_drawn() -> None:
    ax = plot.timeline(Timeline((Span("mark", "lane", 3.0, 3.0),)))
    assert ax.get_xlim()[1] > 0
    assert len(ax.collections) == 1


def test_styles_stay_as_they_are() -> None:
    before = dict(matplotlib.rcParams)
    plot.timeline(run)
    plot.bars([slow])
    plot.timelines({"a": run})
    plot.graph(SimpleNamespace(schedule=schedule([Job("a", "cpu", 1.0)], {"cpu": Resource()})))
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("inches", [4.6, 7.0])
def test_figures_have_the_width_of_matplotlibs_setting_and_nothing_is_cut_off(
    inches: float,
) -> None:
    long = Timeline(
        (Span("mm", "GPU 0, copying from the host", 0.0, 1.0),),
        origin="recorded on 2 GPUs, 2026-11-23, torch 2.11.0+cu130",
    )
    with plt.rc_context({"figure.figsize": (inches, 1.0)}):
        axes = [
            plot.timeline(run, limit_s=0.008),
            plot.timeline(long),
            plot.bars([slow, fast], limit_s=0.1),
        ]
    for ax in axes:
        figure = ax.figure
        figure.canvas.draw()
        width, height = figure.canvas.get_width_height()
        assert width == round(inches * figure.dpi)
        for text in ax.texts:
            (left, lower), (right, upper) = np.asarray(text.get_window_extent())
            assert 0 <= left <= right <= width
            assert 0 <= lower <= upper <= height


def test_show_writes_each_figure_at_twice_the_dots_and_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOPAR_RICH", raising=False)
    figures = [plot.timeline(run).figure, plot.bars([slow]).figure]
    plot.show("overlap")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["overlap-2.png", "overlap.png"]
    assert capsys.readouterr().out == "wrote overlap.png\nwrote overlap-2.png\n"
    assert plt.get_fignums() == []
    width = plt.imread(tmp_path / "overlap.png").shape[1]
    assert width == pytest.approx(2 * figures[0].get_figure(root=True).get_figwidth() * 100, abs=2)


def test_show_leaves_figures_to_the_page_when_documentation_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOPAR_RICH", "1")
    plot.timeline(run)
    plot.show("overlap")
    assert list(tmp_path.iterdir()) == []
    assert len(plt.get_fignums()) == 1


def test_show_opens_a_window_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOPAR_RICH", raising=False)
    monkeypatch.setattr(plt, "get_backend", lambda: "TkAgg")
    monkeypatch.setattr(plt, "show", lambda: shown.append(True))
    plot.timeline(run)
    plot.show("overlap")
    assert shown == [True]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", "."])
def test_show_wants_a_file_name(name: str) -> None:
    with pytest.raises(ValueError, match="name is"):
        plot.show(name)


def test_completion_offers_what_is_public() -> None:
    assert dir(plot) == ["bars", "graph", "save", "show", "timeline", "timelines"]


@pytest.mark.parametrize(
    "draws",
    [
        lambda: plot.timeline(run, [1]),  # type: ignore[arg-type]
        lambda: plot.timeline(run, title=None),  # type: ignore[arg-type]
        lambda: plot.bars([Measurement("a", (1.0, 2.0, 3.0))], "ax"),  # type: ignore[arg-type]
        lambda: plot.save(plot.timelines(run), "a.png"),  # type: ignore[arg-type]
    ],
)
def test_axes_are_one_and_titles_are_text(draws: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="(ax|title) is of type .*; expected"):
        draws()


def test_one_timeline_is_a_panel() -> None:
    assert plot.timelines(run)[0].get_title(loc="left") == "makespan: 8.000 ms"


def test_importing_leaves_matplotlib_alone() -> None:
    code = "import sys, autopar; autopar.plot; assert 'matplotlib' not in sys.modules"
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_very_many_spans_are_drawn_as_few_and_palest_where_least_busy() -> None:
    spans = tuple(Span("k", "lane", i * 1e-5, i * 1e-5 + 5e-6) for i in range(5_000))
    (one,) = plot.timeline(Timeline(spans)).collections
    assert len(one.get_paths()) < 50
    assert np.asarray(one.get_facecolor())[0][3] == pytest.approx(0.5, abs=0.01)
