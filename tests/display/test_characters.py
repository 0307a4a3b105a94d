"""Names of any characters, such as half a pair of UTF-16: no writer of text fails on them."""

import pytest

import autopar as ap

_BAD = "bad \ud800\x00\x1b[31m\ufffe"
_RUN = ap.Timeline([ap.Span(_BAD, _BAD, 0.0, 1.0, kind) for kind in ("compute", "host")], 0, _BAD)
_TIMED = ap.Measurement(_BAD, (1.0, 1.0, 1.0), origin=_BAD)


@pytest.mark.parametrize(
    "shown",
    [ap.draw(_RUN, title=_BAD), ap.compare([_TIMED]), ap.claim(_BAD, 2.0, at_least=1.0)],
    ids=lambda shown: type(shown).__name__,
)
def test_what_is_shown_has_none_that_neither_a_page_nor_a_terminal_may_have(shown):
    for text in (str(shown), repr(shown), shown._repr_html_()):
        assert "bad \ufffd" in text
        assert not {*_BAD} & {*text} - {*"bad [31m"}


def test_bars_are_drawn_and_saved(tmp_path):
    ap.plot.save(ap.plot.bars([_TIMED], title=_BAD), tmp_path / "bars.png")
    assert (tmp_path / "bars.png").stat().st_size > 1000
