"""Plots: what lies on the axes, and what showing does at a terminal, on a page and in a window."""

import sys
from types import SimpleNamespace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex
from plan_pictures import tasks

from autopar import Measurement, Span, Timeline, plot, show
from autopar.display.rows import COLOURS
from autopar.records.record import EARLIER

pytestmark = pytest.mark.usefixtures("no_windows")
ORIGIN = "recorded on two GPUs"
RUN = Timeline(
    [
        Span("mm", "stream", 10.0, 10.004),
        Span("mm", "stream", 10.004, 10.008),
        Span("D2H", "GPU 0 to host, $x^$", 10.007, 10.01, "copy"),
        Span("mm", "GPU 0", 10.004, 10.006),
    ],
    origin=ORIGIN,
)
SLOW = Measurement("slow", (0.2, 0.2, 0.21), origin=ORIGIN)
FAST = Measurement("fast", (0.1, 0.2, 0.3), origin=ORIGIN)


def texts(ax):
    return "\n".join(text.get_text() for text in ax.texts)


def rows(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def test_timelines_are_on_one_scale_with_what_the_drawings_have():
    longer = Timeline([Span("mm", "stream", 0.0, 0.02)], origin=ORIGIN)
    ax = plot.timeline({"short": RUN, "long": longer}, limit_s=0.007, title="Two runs")
    bars = [one for one in ax.collections if isinstance(one, PolyCollection)]
    extents = [[path.get_extents().extents for path in one.get_paths()] for one in bars]
    spans = [[(x0, x1) for x0, _, x1, _ in row] for row in extents]
    expected = [[(4, 6)], [(7, 10)], [(0, 4), (4, 8)], [(0, 20)]]
    for row, ends in zip(spans, expected, strict=True):
        np.testing.assert_allclose(row, ends, atol=1e-9)
    assert ax.yaxis_inverted()
    tops = [row[0][1] for row in extents]
    assert tops == sorted(tops)
    assert ax.get_xlim()[1] >= 20
    assert (ax.get_xlabel(), ax.get_title()) == ("time (ms)", "Two runs")
    said = {ORIGIN, "limit 7.000 ms", "short: 10.00 ms", "GPU 0, computing", "2 × mm"}
    assert said <= {*texts(ax).splitlines()}
    limit = ax.lines[0].get_xdata()
    np.testing.assert_allclose(limit, 7.0)
    kinds = ["compute", "copy", "compute", "compute"]
    assert [to_hex(row.get_facecolor()[0]) for row in bars] == [COLOURS[kind] for kind in kinds]
    assert bars[2].get_facecolor()[:, 3].tolist() == [1, 0.75]  # as they touch
    assert [bool(row.get_hatch()) for row in bars] == [kind == "copy" for kind in kinds]
    bracket = next(text for text in ax.texts if getattr(text, "arrow_patch", None))
    assert bracket.get_position()[0] - bracket.xy[0] == pytest.approx(3.0)
    assert "3.000 ms of copying not hidden" in texts(ax)


def test_bars_show_medians_samples_and_limits():
    ax = plot.bars([SLOW, FAST], limit_s={"fast": 0.5}, title="$x^$")
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([200.0, 200.0])
    assert rows(ax) == ["slow", "fast"]
    dots = [one for one in ax.collections if isinstance(one, PathCollection)]
    np.testing.assert_allclose(dots[1].get_offsets()[:, 0], [100, 200, 300])
    (mark,) = (one for one in ax.collections if isinstance(one, LineCollection))
    np.testing.assert_allclose(mark.get_segments()[0][:, 0], 500)
    assert ax.get_xlim() == pytest.approx((0, 600))
    places = {text.get_text(): text.xy[0] for text in ax.texts}
    assert places["200.0 ms"] == pytest.approx(210)  # beside the dots, or beyond the limit
    assert places["200.0 ms*"] == pytest.approx(500)  # the star is of the noisy one
    assert f"{ORIGIN}\n* noisy: look at the dots" in places
    assert ax.get_xlabel() == "time (ms); dashed: the limit"
    here = Measurement("slow", (0.4, 0.4, 0.4), origin="this machine")
    apart = plot.bars({"a": SLOW, "b": here})
    assert rows(apart) == ["slow\nrecorded on two GPUs", "slow\nthis machine"]
    assert apart.get_xlabel() == "time (ms)"


def test_axes_given_are_axes_returned_and_styles_stay_as_they_are():
    before = dict(matplotlib.rcParams)
    _, axes = plt.subplots(4)
    assert plot.timeline({"a": RUN, "b": RUN}, axes[0]) is axes[0]
    assert plot.bars([SLOW], axes[1]) is axes[1]
    assert plot.graph(tasks(()), axes[2]) is axes[2]
    mark = plot.timeline(Timeline([Span("mark", "lane", 3.0, 3.0)]), axes[3])  # of no length
    assert mark.get_xlim()[1] > 0
    assert len(plt.get_fignums()) == 1
    assert dict(matplotlib.rcParams) == before
    assert dir(plot) == ["bars", "graph", "save", "show", "timeline"]


@pytest.mark.parametrize("inches", [4.6, 7.0])
def test_figures_have_the_width_of_matplotlibs_setting_and_nothing_is_cut_off(inches):
    span = Span("mm", "GPU 0, copying from the host", 0.0, 1.0)
    where = "recorded on 2 GPUs, 2026-11-23, torch 2.11.0+cu130"
    long = Timeline([span], origin=where)
    noisy = Measurement("a way with a name", (1.0, 1.0, 1.6), origin=f"{where}, {EARLIER}")
    with plt.rc_context({"figure.figsize": (inches, 1.0)}):
        axes = [plot.timeline(RUN, title="t", limit_s=0.008)]
        axes.append(plot.timeline(long, title="a word " * 20))
        axes.append(plot.bars([SLOW, FAST, noisy], limit_s=0.1, title="t"))
    for ax in axes:
        ax.figure.canvas.draw()
        width, height = ax.figure.canvas.get_width_height()
        assert width == round(inches * ax.figure.dpi)
        for text in (*ax.texts, ax.title):
            (left, lower), (right, upper) = np.asarray(text.get_window_extent())
            assert 0 <= left <= right <= width
            assert 0 <= lower <= upper <= height


def test_figures_are_written_at_twice_the_dots_and_closed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AUTOPAR_RICH", raising=False)
    figure = plot.timeline(RUN).figure
    other = plot.bars([SLOW])
    plot.show("overlap", "from there")
    assert texts(other).endswith("from there")
    plot.save(plot.bars([SLOW]), str(tmp_path / "bars.png"))
    names = ["bars.png", "overlap-2.png", "overlap.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert capsys.readouterr().out == "wrote overlap.png\nwrote overlap-2.png\n"
    assert plt.get_fignums() == []
    width = plt.imread(tmp_path / "overlap.png").shape[1]
    assert width == pytest.approx(2 * figure.get_figwidth() * 100, abs=2)


def test_what_to_look_at_is_returned_for_a_page_and_printed_where_none_is(monkeypatch, capsys):
    monkeypatch.setenv("AUTOPAR_RICH", "1")
    assert plot.show("overlap") is None
    note = plot.show("overlap", look=[SLOW])
    assert note == "Look at 'slow': 200.0 ms."
    noisy = Measurement("noisy", (1.0, 2.0, 3.0))  # as its bar's star says
    assert plot.show("overlap", look=[noisy]).endswith(" (noisy).")
    assert plot.show("x", look="a < b")._repr_html_().endswith(">a &lt; b</p>")
    assert capsys.readouterr().out == ""
    monkeypatch.delenv("AUTOPAR_RICH")
    plot.show("overlap", look="Look at it.")
    assert capsys.readouterr().out == "Look at it.\n\n"


@pytest.mark.parametrize("rich", [True, False])
def test_figures_are_left_to_the_page_or_to_a_window_where_there_is_one(
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
    ("where", "out"),
    [
        ("terminal", "3\n\n"),
        ("rank 1", ""),  # of several ranks the first prints
        ("docs", ""),
        ("notebook", ""),
        ("IPython that was only imported", "3\n\n"),
    ],
)
def test_a_thing_is_returned_and_printed_unless_a_page_renders_it(where, out, monkeypatch, capsys):
    monkeypatch.delenv("AUTOPAR_RICH", raising=False)
    monkeypatch.setenv("RANK", "1" if where == "rank 1" else "0")
    if where == "docs":
        monkeypatch.setenv("AUTOPAR_RICH", "1")
    shell = SimpleNamespace(get_ipython=lambda: object() if where == "notebook" else None)
    monkeypatch.setitem(sys.modules, "IPython", None if where == "terminal" else shell)
    thing = 3
    assert show(thing) is thing
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(
    ("draws", "error"),
    [
        (lambda: plot.timeline(RUN, [1]), "ax is of type list; expected"),
        (lambda: plot.show(5), "name is of type int; expected a file's name"),
        (lambda: plot.timeline(RUN, title=None), "title is of type NoneType; expected"),
        (lambda: plot.timeline(RUN, limit_s=0.0), r"limit_s is 0\.0"),
        (lambda: plot.timeline(Timeline(())), "no spans"),
        (lambda: plot.timeline([RUN]), "timelines is of type list; expected"),
        (lambda: plot.bars([SLOW], "ax"), "ax is of type str; expected"),
        (lambda: plot.save([plot.timeline(RUN)], "a.png"), "ax is of type list; expected"),
        (lambda: plot.save(plot.bars([SLOW]), "a.svg"), r"a\.svg'; expected .* ends in \.png"),
        *((lambda name=name: plot.show(name), "name is") for name in ("", "a/b", "..", ".")),
    ],
)
def test_what_cannot_be_drawn_or_written_is_refused(draws, error):
    with pytest.raises(TypeError if "of type" in error else ValueError, match=error):
        draws()
