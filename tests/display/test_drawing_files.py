"""A timeline shown in both ways, the drawing and the image, and drawings saved as files."""

import xml.etree.ElementTree as ET

import pytest

from autopar import Measurement, Span, Timeline, draw, plot, show_timelines
from autopar.display.format import printable
from autopar.display.svg import as_svg

pytestmark = pytest.mark.usefixtures("no_windows")
RUN = Timeline((Span("mm", "stream", 0.0, 4.0), Span("D2H", "bus", 3.0, 5.0, "copy")))
ODD = Timeline((Span("k\x00", "half of $x^$ 漢字 \x00", 0.0, 1.0),))


@pytest.mark.parametrize("timelines", [RUN, {"one": RUN, "two": RUN}])
def test_it_is_drawn_and_saved(timelines, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    drawing = show_timelines(timelines, "a_run", title="A run", caption="Read it.", limit_s=4.5)
    assert drawing == draw(timelines, title="A run", caption="Read it.", limit_s=4.5)
    assert (tmp_path / "a_run.png").stat().st_size > 1000
    assert str(drawing) in capsys.readouterr().out


def test_nothing_is_saved_where_there_is_nothing_to_draw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no spans"):
        show_timelines(Timeline(()), "none", title="None")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [str, lambda path: path])
@pytest.mark.parametrize("timelines", [RUN, ODD, {"one": RUN, "$x^$ \x00": ODD}])
def test_a_drawing_is_saved_by_the_ending_of_the_name(timelines, kind, tmp_path):
    drawing = draw(timelines, title="A run of $x^$ \x00", caption="Read it.", limit_s=4.5)
    for ending in ("svg", "html", "png"):
        drawing.save(kind(tmp_path / f"run.{ending}"))
    plot.save(plot.bars([Measurement("one", (1, 1, 1))]), kind(tmp_path / "bars.png"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"run.svg", "run.html", "run.png", "bars.png"}
    assert (tmp_path / "run.svg").read_text() == printable(as_svg(drawing)) + "\n"
    assert ET.parse(tmp_path / "run.svg").getroot().tag.endswith("svg")
    page = (tmp_path / "run.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "Read it." in page
    assert "\x00" not in page
    for name in ("run.png", "bars.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_a_drawing_that_cannot_be_saved_says_what_it_wants(tmp_path):
    drawing = draw(RUN, title="A run")
    with pytest.raises(ValueError, match=r"run\.pdf'; expected a name that ends in \.svg, \.html"):
        drawing.save(tmp_path / "run.pdf")
    for ending in ("svg", "html", "png"):
        with pytest.raises(FileNotFoundError, match=r"no folder .*missing'; make it first"):
            drawing.save(tmp_path / "missing" / f"run.{ending}")
    assert list(tmp_path.iterdir()) == []
