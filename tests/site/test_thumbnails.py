"""Thumbnails: what stands on a card, and that the page's own figures stay as they are."""

import matplotlib.pyplot as plt
import pytest

from autopar import Measurement, Span, Timeline, draw, plot

RUN = Timeline([Span("mm", f"GPU {i} stream 7", 0, 1 + i) for i in range(9)])


@pytest.fixture
def thumbnails(extension):
    return extension("thumbnails")


@pytest.mark.parametrize(
    "panels", [RUN, {"one": RUN, "two $x^$": RUN}, dict.fromkeys("abcdef", RUN)]
)
def test_timelines_have_few_rows_and_large_letters(thumbnails, panels):
    (ax,) = thumbnails.drawn(draw(panels, title="Nine GPUs at once")).axes
    words = [text.get_text() for text in ax.texts]
    assert words[0].startswith("Nine" if panels is RUN else next(iter(panels)))
    assert 2 <= len(words) + len(ax.collections) <= 8
    assert min(text.get_fontsize() for text in ax.texts) >= 14


def test_what_is_no_drawing_is_its_figure_at_the_size_of_a_card(thumbnails, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOPAR_RICH", "1")
    figure = plot.timeline(RUN, title="Nine GPUs").figure
    plot.show("nine", "recorded there")
    (note,) = thumbnails.beneath(figure)
    inches = tuple(figure.get_size_inches())
    thumbnails.save(figure, None, tmp_path / "thumb" / "a.png")
    thumbnails.save(figure, draw(RUN, title="t"), tmp_path / "thumb" / "b.png")
    one, other = (plt.imread(tmp_path / "thumb" / f"{name}.png") for name in "ab")
    assert one.shape == other.shape
    assert (one != other).any()
    assert tuple(figure.get_size_inches()) == inches
    assert note.get_text() == "recorded there"
    assert plt.get_fignums() == [figure.number]


@pytest.mark.parametrize("count", [2, 30])
def test_bars_have_their_names_and_values_in_large_letters(thumbnails, count):
    ways = [Measurement(f"way {i}", (1e-3 * (i + 1),) * 5, origin="there") for i in range(count)]
    chart = plot.bars(ways, limit_s=5e-4, title="Some ways")
    (ax,) = thumbnails.charted(chart.figure).axes
    title, first, *_, last = (text.get_text().strip() for text in ax.texts)
    assert (title, first) == ("Some ways", "way 0: 1.000 ms")
    assert last == f"way {count - 1}: {count}.{'000' if count < 10 else '00'} ms"
    assert len(ax.texts) == len(ax.patches) + 1 <= 10
    assert [line.get_xdata()[0] for line in ax.lines] == [0.5]
    assert min(text.get_fontsize() for text in ax.texts) >= 13


def test_values_without_a_unit_get_that_of_the_axis(thumbnails):
    _, chart = plt.subplots()
    chart.bar_label(chart.barh(["slow", "fast"], [1.5, 52.7]), fmt=" %.1f")
    chart.set_xlabel("GB/s (dashed: the bus alone)")
    (ax,) = thumbnails.charted(chart.figure).axes
    assert [text.get_text().strip() for text in ax.texts[1:]] == [
        "fast: 52.7 GB/s",
        "slow: 1.5 GB/s",
    ]


def test_what_has_no_bars_is_not_charted(thumbnails):
    figure, ax = plt.subplots()
    ax.plot([1, 2])
    assert thumbnails.charted(figure) is None
