"""Plots: what lies on the axes, and what `show` does with figures."""

from itertools import pairwise
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex

from autopar import Measurement, Span, Timeline, plot
from autopar.display.rows import COLOURS
from autopar.graph.schedule import Job, Resource, schedule

pytestmark = pytest.mark.usefixtures("no_windows")
ORIGIN = "recorded on two GPUs"
RUN = Timeline(
    [
        Span("mm", "stream", 10.0, 10.004),
        Span("mm", "stream", 10.004, 10.008),
        Span("D2H", "bus", 10.004, 10.006, "copy"),
    ],
    origin=ORIGIN,
)
SLOW = Measurement("slow", (0.2, 0.2, 0.21), origin=ORIGIN)
FAST = Measurement("fast", (0.1, 0.2, 0.3), origin=ORIGIN)
PLAN = SimpleNamespace(schedule=schedule([Job("a", "cpu", 1.0)], {"cpu": Resource()}))


def texts(ax):
    return "\n".join(text.get_text() for text in ax.texts)


def rows(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def bars(ax, i):
    """Of each bar of a collection the left, lower, right and upper end."""
    return np.array([path.get_extents().extents for path in ax.collections[i].get_paths()])


def test_timeline_has_a_row_for_each_lane_from_zero_with_what_the_drawings_have():
    ax = plot.timeline(RUN, limit_s=0.007, title="One run")
    assert rows(ax) == ["stream", "bus"]
    assert ax.yaxis_inverted()
    np.testing.assert_allclose(bars(ax, 0)[:, ::2], [(0, 4), (4, 8)], atol=1e-9)
    np.testing.assert_allclose(bars(ax, 1)[:, ::2], [(4, 6)], atol=1e-9)
    assert (ax.get_xlabel(), ax.get_title()) == ("time (ms)", "One run")
    assert {ORIGIN, "limit 7.000 ms"} <= set(texts(ax).splitlines())
    np.testing.assert_allclose(ax.lines[0].get_xdata(), 7.0)
    compute, copy = ax.collections
    colours = [to_hex(one.get_facecolor()[0]) for one in (compute, copy)]
    assert colours == [COLOURS["compute"], COLOURS["copy"]]
    assert compute.get_facecolor()[:, 3].tolist() == [1, 0.75]  # as they touch
    assert copy.get_hatch()
    assert not compute.get_hatch()


def test_axes_given_are_axes_returned():
    _, (upper, lower) = plt.subplots(2)
    assert plot.timeline(RUN, upper) is upper
    assert plot.bars([SLOW], lower) is lower
    assert len(plt.get_fignums()) == 1


def test_panels_share_one_scale():
    longer = Timeline([Span("mm", "stream", 0.0, 0.02)], origin=ORIGIN)
    for named in ({"short": RUN, "long": longer}, {"long": longer, "short": RUN}):
        axes = plot.timeline(named, title="Two").figure.axes
        assert axes[0].get_xlim() == axes[1].get_xlim()
        assert axes[0].get_xlim()[1] >= 20
    assert [ax.get_title(loc="left") for ax in axes] == ["long: 20.00 ms", "short: 8.000 ms"]
    assert [texts(ax).count(ORIGIN) for ax in axes] == [0, 1]  # once beneath, for both


def test_bars_show_medians_samples_and_limits():
    ax = plot.bars([SLOW, FAST], limit_s={"fast": 0.05})
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([200.0, 200.0])
    assert rows(ax) == ["slow", "fast"]
    dots = [one for one in ax.collections if isinstance(one, PathCollection)]
    np.testing.assert_allclose(dots[1].get_offsets()[:, 0], [100, 200, 300])
    (mark,) = (one for one in ax.collections if isinstance(one, LineCollection))
    np.testing.assert_allclose(mark.get_segments()[0][:, 0], 50)
    assert mark.get_linestyle()[0][1]  # dashed, as on timelines
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["limit"]
    several = plot.bars([SLOW, FAST], limit_s={"slow": 0.1, "fast": 0.05})
    assert [text.get_text() for text in several.get_legend().get_texts()] == ["limit"]
    for words in ("200.0 ms*", "* noisy", ORIGIN):  # the star is of the noisy one
        assert words in texts(ax)
    here = Measurement("slow", (0.4, 0.4, 0.4), origin="this machine")
    apart = plot.bars({"a": SLOW, "b": here}, limit_s=0.3)
    assert rows(apart) == ["slow\nrecorded on two GPUs", "slow\nthis machine"]


def test_nested_ranges_are_in_layers_with_their_names():
    ends = {"step": (0, 4), "forward $x^$\0": (0, 2), "backward": (2, 4), "brief": (2, 2.01)}
    ranges = [Span(name, "host", *pair, "host") for name, pair in ends.items()]
    ax = plot.timeline(Timeline([*ranges, Span("k", "stream", 0, 4)]))
    layers = [bars(ax, i) for i in range(4)]
    spans = [layer[:, ::2].tolist() for layer in layers]
    assert spans == [[[0, 4]], [[0, 2], [2, 4]], [[2, 2.01]], [[0, 4]]]
    for upper, lower in pairwise(layers):
        assert upper[0, 3] < lower[0, 1]  # the axis goes downwards
    ax.figure.canvas.draw()
    named = {text.get_text(): text.get_position() for text in ax.texts if text.get_text() != "k"}
    places = {"step": layers[0][0], "forward $x^$\ufffd": layers[1][0], "backward": layers[1][1]}
    middles = {name: ((x0 + x1) / 2, (y0 + y1) / 2) for name, (x0, y0, x1, y1) in places.items()}
    assert named == middles, "there is no room for the other"


def test_spans_without_length_are_drawn():
    ax = plot.timeline(Timeline([Span("mark", "lane", 3.0, 3.0)]))
    assert ax.get_xlim()[1] > 0
    assert len(ax.collections) == 1


def test_styles_and_what_is_offered_stay_as_they_are():
    before = dict(matplotlib.rcParams)
    plot.timeline(RUN)
    plot.bars([SLOW])
    plot.timeline({"a": RUN})
    plot.graph(PLAN)
    assert dict(matplotlib.rcParams) == before
    assert dir(plot) == ["bars", "graph", "save", "show", "timeline"]


@pytest.mark.parametrize("inches", [4.6, 7.0])
def test_figures_have_the_width_of_matplotlibs_setting_and_nothing_is_cut_off(inches):
    span = Span("mm", "GPU 0, copying from the host", 0.0, 1.0)
    long = Timeline([span], origin="recorded on 2 GPUs, 2026-11-23, torch 2.11.0+cu130")
    with plt.rc_context({"figure.figsize": (inches, 1.0)}):
        axes = [plot.timeline(RUN, limit_s=0.008), plot.timeline(long)]
        axes.append(plot.bars([SLOW, FAST], limit_s=0.1))
    for ax in axes:
        ax.figure.canvas.draw()
        width, height = ax.figure.canvas.get_width_height()
        assert width == round(inches * ax.figure.dpi)
        for text in ax.texts:
            (left, lower), (right, upper) = np.asarray(text.get_window_extent())
            assert 0 <= left <= right <= width
            assert 0 <= lower <= upper <= height


def test_show_writes_each_figure_at_twice_the_dots_and_closes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOPAR_RICH", raising=False)
    figure = plot.timeline(RUN).figure
    plot.bars([SLOW])
    plot.show("overlap")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["overlap-2.png", "overlap.png"]
    assert capsys.readouterr().out == "wrote overlap.png\nwrote overlap-2.png\n"
    assert plt.get_fignums() == []
    width = plt.imread(tmp_path / "overlap.png").shape[1]
    assert width == pytest.approx(2 * figure.get_figwidth() * 100, abs=2)


@pytest.mark.parametrize("rich", [True, False])
def test_show_leaves_figures_to_the_page_or_opens_a_window_where_there_is_one(
    rich, tmp_path, monkeypatch
):
    shown = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOPAR_RICH", "1" * rich)
    monkeypatch.setattr(plt, "get_backend", lambda: "TkAgg")
    monkeypatch.setattr(plt, "show", lambda: shown.append(True))
    plot.timeline(RUN)
    plot.show("overlap")
    assert shown == [True] * (not rich)
    assert list(tmp_path.iterdir()) == []
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("draws", "error"),
    [
        (lambda: plot.timeline(RUN, [1]), "ax is of type list; expected"),
        (lambda: plot.timeline({"a": RUN, "b": RUN}, plt.gca()), "ax is one, for 2 panels"),
        (lambda: plot.show(5), "name is of type int; expected a file's name"),
        (lambda: plot.timeline(RUN, title=None), "title is of type NoneType; expected"),
        (lambda: plot.timeline(RUN, limit_s=0.0), r"limit_s is 0\.0"),
        (lambda: plot.timeline(Timeline(())), "no spans"),
        (lambda: plot.timeline({}), "timelines is empty"),
        (lambda: plot.timeline([RUN]), "timelines is of type list; expected"),
        (lambda: plot.timeline({"two": 2}), r"timelines\['two'\] is of type int; expected a Time"),
        (lambda: plot.bars([SLOW], "ax"), "ax is of type str; expected"),
        (lambda: plot.save([plot.timeline(RUN)], "a.png"), "ax is of type list; expected"),
        (lambda: plot.save(plot.bars([SLOW]), "a.svg"), r"a\.svg'; expected .* ends in \.png"),
        *((lambda name=name: plot.show(name), "name is") for name in ("", "a/b", "..", ".")),
    ],
)
def test_what_cannot_be_drawn_or_written_is_refused(draws, error):
    with pytest.raises(TypeError if "of type" in error else ValueError, match=error):
        draws()
