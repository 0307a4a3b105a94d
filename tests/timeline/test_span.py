"""Overlap by unions of intervals."""

import math
from dataclasses import replace

import pytest

from autopar import Span, Timeline

_RUN = Timeline(
    (
        Span("d2h 1", "bus", 3, 5, "copy"),
        Span("mm 1", "stream 7", 0, 4),
        Span("mm 2", "stream 8", 2, 4),  # overlaps the first: must not count twice
        Span("d2h 2", "bus", 5, 6, "copy"),  # touches the copy before
        Span("wait", "host", 0, 8, "host"),
    ),
    alignment_error_s=0.5,
)


def test_figures_of_a_timeline():
    assert _RUN.lanes == ("stream 7", "host", "stream 8", "bus")
    assert (_RUN.start_s, _RUN.end_s, _RUN.makespan_s) == (0, 8, 8)
    assert _RUN.busy_s() == 8
    assert _RUN.busy_s("compute") == 4
    assert _RUN.busy_s("copy") == 3
    assert _RUN.busy_s("stream 8") == 2
    assert _RUN.overlap_s("copy", "compute") == 1
    assert _RUN.hidden() == pytest.approx(1 / 3)
    assert _RUN.exposed_s() == 2
    assert _RUN.hidden("stream 8", "stream 7") == 1
    assert [span.name for span in _RUN.select("bus")] == ["d2h 1", "d2h 2"]
    assert Timeline((Span("mark", "a", 1, 1, "copy"), Span("mm", "b", 0, 2))).hidden() == 0.0
    many = [Span("mm", f"stream {i % 3}", i, i + 1) for i in range(5000)]
    assert repr(Timeline(many, 0.0, "here")) == "<Timeline: lanes 3, spans 5,000, 5000 s, here>"


def test_selecting_what_is_not_there_says_what_is():
    with pytest.raises(KeyError, match="'GPU 3'.*stream 7, host.*compute, copy, host"):
        _RUN.select("GPU 3")
    with pytest.raises(KeyError, match=r"\(none\)"):
        Timeline(()).select("copy")


def test_a_timeline_without_spans_has_no_times():
    empty = Timeline(())
    assert (empty.lanes, empty.busy_s(), repr(empty)) == ((), 0, "<Timeline: lanes 0, spans 0>")
    assert empty.rebased() == empty
    for figure in ("start_s", "end_s", "makespan_s"):
        with pytest.raises(ValueError, match="no spans"):
            getattr(empty, figure)


def test_a_range_holds_what_started_in_it_each_time_it_was_there():
    ranges = Span("step", "host", 0, 3, "host"), Span("step", "host", 5, 9, "host")
    first, second = replace(_RUN, spans=_RUN.spans + ranges).within("step")
    assert [span.name for span in first.spans] == ["mm 1", "mm 2"]
    assert [span.name for span in second.spans] == ["d2h 2"]
    assert first.alignment_error_s == 0.5
    with pytest.raises(KeyError, match="no range 'mm 1'; this timeline has ranges wait"):
        _RUN.within("mm 1")


def test_merging_keeps_the_larger_error_and_the_origin():
    other = Timeline((Span("early", "CPU lane", -1, 0),), 0.25, "here")
    for both in (_RUN.merged(other), other.merged(_RUN)):
        assert both.spans[0].name == "early"
        assert len(both.spans) == 6
        assert (both.alignment_error_s, both.origin) == (0.5, "here")


def test_rebasing_moves_all_spans_alike():
    late = Timeline((Span("a", "x", 10, 11), Span("b", "y", 12, 15)))
    moved = late.rebased()
    assert [(span.start_s, span.end_s) for span in moved.spans] == [(0, 1), (2, 5)]
    assert late.makespan_s == moved.makespan_s == 5
    assert [span.duration_s for span in late.spans] == [1, 3]


_ORDER = "expected start_s <= end_s, both within 1e12 s"
_SEVERAL = r"spans.* is .*; expected .*Timeline\(\[Span\("


@pytest.mark.parametrize(
    ("error", "match", "made", "given"),
    [
        (ValueError, _ORDER, Span, ("a", "x", 2, 1)),
        (ValueError, _ORDER, Span, ("a", "x", 0, math.nan)),
        (ValueError, _ORDER, Span, ("a", "x", math.nan, 0)),
        (ValueError, _ORDER, Span, ("a", "x", 0, math.inf)),
        (ValueError, "read from, and its unit", Span, ("a", "x", 1.7e18, 1.8e18)),  # nanoseconds
        (ValueError, "named lane", Span, ("a", "", 0, 1)),
        (ValueError, "compute, copy, communication, host", Span, ("a", "x", 0, 1, "waiting")),
        (TypeError, "start_s is of type str; expected seconds", Span, ("a", "x", "0", 1)),
        (TypeError, "end_s is of type NoneType; expected seconds", Span, ("a", "x", 0.0, None)),
        (TypeError, "name is of type int; expected text", Span, (1, "x", 0, 1)),
        (TypeError, "lane is of type NoneType; expected text", Span, ("a", None, 0, 1)),
        *[(TypeError, _SEVERAL, Timeline, (it,)) for it in (Span("a", "x", 0, 1), [1], "ab")],
        *[
            (ValueError, "alignment_error_s is .*; expected seconds, from 0", Timeline, ((), it))
            for it in (math.nan, math.inf, -1, "x")
        ],
        (TypeError, "origin is of type int; expected text", Timeline, ((), 0, 5)),
        (TypeError, "other is of type list; expected a Timeline", _RUN.merged, ([_RUN],)),
        (ValueError, "expected a start before the end", _RUN.between, (3.0, 3.0)),
        (TypeError, "start_s is of type str; expected seconds", _RUN.between, ("a", 3.0)),
        (ValueError, "of and behind are both 'copy'; expected two", _RUN.hidden, ("copy", "copy")),
    ],
)
def test_refuses_what_cannot_be(error, match, made, given):
    with pytest.raises(error, match=match):
        made(*given)
