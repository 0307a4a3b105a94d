"""The findings of several ranks as one."""

from dataclasses import replace

import pytest

import autopar as ap


def found(seconds, *, start_s=0.0, held=True, label="step", **values):
    spans = (
        ap.Span("mm", "GPU 0 stream 7", start_s, start_s + 1),
        ap.Span("x", "host", 0, 1, "host"),
    )
    return ap.Findings(
        [ap.Measurement(label, tuple(seconds), flops=2.0)],
        {"step": ap.Timeline(spans, start_s / 100, "here")},
        {"right": held},
        values,
        {f"{start_s}": b"trace"},
    )


def test_a_sample_is_the_time_of_the_slowest_rank():
    both = ap.findings_of_ranks([found([1, 5, 2]), found([3, 1, 2])])
    (step,) = both.measurements
    assert step.values_s == (3, 5, 2)
    assert (step.flops, step.size_bytes) == (4.0, None)


def test_ranks_are_seen_together_and_largest_values_kept():
    both = ap.findings_of_ranks(
        [found([1] * 3, exposed_s=2.0), found([1] * 3, start_s=7.0, exposed_s=1.0)]
    )
    timeline = both.timelines["step"]
    assert [(span.lane, span.start_s) for span in timeline.spans] == [
        ("rank 0 GPU 0 stream 7", 0.0),
        ("rank 1 GPU 0 stream 7", 7.0),
    ]
    assert (timeline.alignment_error_s, timeline.origin) == (0.07, "here")
    assert both.values == {"exposed_s": 2.0}
    assert both.files == {"0.0": b"trace", "7.0": b"trace"}


def test_a_check_must_hold_on_each_rank():
    for right in ((True, False), (False, True)):
        assert ap.findings_of_ranks([found([1] * 3, held=it) for it in right]).checks == {
            "right": False
        }
    assert ap.findings_of_ranks([found([1] * 3), found([1] * 3)]).checks == {"right": True}
    own = ap.Findings(found([1] * 3).measurements, {}, {"its own": False})
    assert ap.findings_of_ranks([replace(found([1] * 3), timelines={}), own]).failed == ["its own"]


def test_ranks_that_measured_different_things_are_refused():
    others = found([1] * 3, label="other"), found([1] * 3, exposed_s=1.0)
    for each in ([], *([found([1] * 3), other] for other in others)):
        with pytest.raises(ValueError, match="expected the same, in the same order"):
            ap.findings_of_ranks(each)
