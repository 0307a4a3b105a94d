"""A timeline shown in both ways: the drawing is returned, and the image is saved under its name."""

import pytest

from autopar import Span, Timeline, draw, show_timelines

RUN = Timeline((Span("mm", "stream", 0.0, 4.0), Span("D2H", "bus", 3.0, 5.0, "copy")))


@pytest.mark.parametrize("timelines", [RUN, {"one": RUN, "two": RUN}])
def test_it_is_drawn_and_saved(timelines, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    drawing = show_timelines(timelines, "a_run", title="A run", caption="Read it.", limit_s=4.5)
    assert drawing == draw(timelines, title="A run", caption="Read it.", limit_s=4.5)
    assert (tmp_path / "a_run.png").stat().st_size > 1000
    assert str(drawing) in capsys.readouterr().out


def test_nothing_is_saved_where_there_is_nothing_to_draw(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="0 spans"):
        show_timelines(Timeline(()), "none", title="None")
    assert list(tmp_path.iterdir()) == []
