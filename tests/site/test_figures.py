"""Figures on the site: what it says of them, which is a page's picture, and its thumbnail."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest

from autopar import Measurement, Span, Timeline, draw, plot


@pytest.fixture
def hooks(extension):
    return extension("gallery_hooks")


@pytest.fixture
def thumbnails(extension):
    return extension("thumbnails")


def test_lines_are_told_by_their_ends_and_guides_are_not_told(hooks):
    figure, (left, right) = plt.subplots(1, 2)
    left.plot([1, 2, 3], [8.0, 5.0, 4.0], label="one GPU")
    left.axhline(3.0, label="limit")
    left.axvline(2.0, label="a mark")
    left.axhline(1.0)
    left.set(title="Left", ylabel="ms", xlabel="slots\nrecorded")
    right.plot([1, 2, 3], [0.5, 0.25, 0.125])
    right.set(xlabel="MiB")
    figure.suptitle("recorded on\ntwo GPUs")
    assert hooks.described(figure) == (
        "Left. ms by slots, from left to right: one GPU 8 to 4, limit 3. "
        "ms by MiB, from left to right: 0.5 to 0.125. recorded on two GPUs"
    )


def test_bars_are_told_by_the_figures_beside_them(hooks):
    ways = [Measurement("slow", (2.0, 2.0, 2.0)), Measurement("fast", (1.0, 1.0, 1.0))]
    ax = plot.bars(ways, limit_s=0.5, title="Two ways")
    assert hooks.described(ax.figure) == "Two ways. slow 2.000 s, fast 1.000 s"


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
        run.texts.append(text)
        return text.partition(".. container:: ")[2].split("\n")[0].split()

    run.conf, run.thumbnails, run.texts = conf, thumbnails, []
    return run


DRAWING = draw(Timeline([Span("mm", "GPU 0", 0, 1)]), title="t")


def test_the_first_figure_is_the_page_s_picture_and_thumbnail_and_no_other_is(hooks, page):
    assert page("ap.show_timelines(run)", DRAWING) == [hooks.IMAGE, hooks.PICTURE]
    assert page("ap.show_timelines(run)", DRAWING) == [hooks.IMAGE]
    assert page("ap.plot.bars(runs)") == []
    ways = ['<figure class="autopar-way"' in text for text in page.texts]
    assert ways == [True, True, False]  # to stand beside code, be it of the picture or not
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


def test_a_chart_whose_page_does_not_say_what_to_look_at_does_so_itself(hooks):
    ways = [Measurement(name, (time_s,) * 3) for name, time_s in (("a", 2), ("b", 1), ("c", 3))]
    said = hooks.to_look_at(plot.bars(ways).figure)
    assert said == "Look at the longest bar, 'c': 3.000 s; and the shortest, 'b': 1.000 s."
    noisy = [*ways, Measurement("d", (3, 4, 6))]
    assert "longest bar, 'd': 4.000 s (noisy);" in hooks.to_look_at(plot.bars(noisy).figure)
    figure, ax = plt.subplots()
    ax.plot([1, 2, 3], [8.0, 5.0, 4.0])
    ax.set(ylabel="GB/s")
    assert hooks.to_look_at(figure) == "Look at the line, from left to right: 8 to 4 GB/s."
    ax.set_axis_off()  # a drawing
    assert hooks.to_look_at(figure) == hooks.described(figure) == ""


RUN = Timeline([Span("mm", f"GPU {i} stream 7", 0, 1 + i) for i in range(9)])


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


def test_values_without_a_unit_get_that_of_the_axis_and_lines_are_not_charted(thumbnails):
    figure, ax = plt.subplots()
    ax.plot([1, 2])
    assert thumbnails.charted(figure) is None
    _, chart = plt.subplots()
    chart.bar_label(chart.barh(["slow", "fast"], [1.5, 52.7]), fmt=" %.1f")
    chart.set_xlabel("GB/s (dashed: the bus alone)")
    (ax,) = thumbnails.charted(chart.figure).axes
    texts = [text.get_text().strip() for text in ax.texts[1:]]
    assert texts == ["fast: 52.7 GB/s", "slow: 1.5 GB/s"]
