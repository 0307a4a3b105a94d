"""Thumbnails: what stands on a card, and that the page's own figures stay as they are."""

import matplotlib.pyplot as plt
import pytest

from autopar import Span, Timeline, draw, plot

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


def test_what_is_no_drawing_is_its_figure_at_the_size_of_a_card(thumbnails, tmp_path):
    figure = plot.timeline(RUN, title="Nine GPUs").figure
    inches = tuple(figure.get_size_inches())
    thumbnails.save(figure, None, tmp_path / "thumb" / "a.png")
    thumbnails.save(figure, draw(RUN, title="t"), tmp_path / "thumb" / "b.png")
    one, other = (plt.imread(tmp_path / "thumb" / f"{name}.png") for name in "ab")
    assert one.shape == other.shape
    assert (one != other).any()
    assert tuple(figure.get_size_inches()) == inches
    assert plt.get_fignums() == [figure.number]
