"""What becomes of figures on the site, and what it says of them to those who don't see them."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

from autopar import Span, Timeline, draw, plot
from autopar.timing.measurement import Measurement

pytest.importorskip("sphinx_gallery", reason="it comes with the group docs")


@pytest.fixture
def hooks(extension):
    return extension("gallery_hooks")


@pytest.fixture
def described(hooks):
    return hooks.described


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


class Paths(list):
    """Where the images of a page went."""

    image_path = ""


@pytest.fixture
def page(hooks, tmp_path, monkeypatch):
    """What runs cells of one page, of which each draws one figure, and returns what is marked."""
    paths, conf, thumbnails = Paths(), {}, []
    paths.image_path = str(tmp_path / "images" / "plot_1_{0:03}.png")

    def scraped(*_, **__):
        paths.append("an image")
        plt.close("all")
        return ".. image-sg:: an image\n   :alt: of the page"

    monkeypatch.setattr(hooks, "matplotlib_scraper", scraped)
    monkeypatch.setattr(hooks.thumbnails, "save", lambda *given: thumbnails.append(given))
    shown = {}

    def run(code, last=None):
        plt.figure()
        shown["___"] = last or shown.get("___")  # cells without a value leave the last one there
        variables = {"image_path_iterator": paths, "file_conf": conf, "example_globals": shown}
        variables["src_file"] = "plot_1.py"
        text = hooks.save_figures(SimpleNamespace(content=code), variables, {})
        return text.partition(".. container:: ")[2].split("\n")[0].split()

    run.conf, run.thumbnails = conf, thumbnails
    return run


DRAWING = draw(Timeline([Span("mm", "GPU 0", 0, 1)]), title="t")


def test_the_first_figure_is_the_page_s_picture_and_thumbnail_and_no_other_is(hooks, page):
    assert page("ap.show_timelines(run)", DRAWING) == [hooks.IMAGE, hooks.PICTURE]
    assert page("ap.show_timelines(run)", DRAWING) == [hooks.IMAGE]
    assert page("ap.plot.bars(runs)") == []
    (thumbnail,) = page.thumbnails
    assert thumbnail[1] is DRAWING
    assert page.conf["thumbnail_path"] == str(thumbnail[2])


def test_the_figure_of_a_page_s_number_is_its_picture_and_no_drawing_of_an_earlier_cell(
    hooks, page
):
    page.conf["thumbnail_number"] = 2
    assert page("ap.show_timelines(run)", DRAWING) == [hooks.IMAGE]
    assert page("ap.plot.graph(plan)") == [hooks.PICTURE]
    assert [given[1] for given in page.thumbnails] == [None]
