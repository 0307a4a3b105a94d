"""Claims: a verdict on any machine, from raw samples, and never a crash."""

import json
import math

import pytest

import autopar as ap
from autopar.records.claim import CLAIMS_TO


def record_of(samples):
    """A record of an experiment that returns these samples."""

    def experiment():
        return ap.Findings([ap.Measurement(label, each) for label, each in samples.items()])

    return ap.observed(experiment, name="doors", parameters={})


QUIET = {"one": (2.0, 2.02, 1.98, 2.01, 1.99), "two": (1.0, 1.01, 0.99, 1.0, 1.0)}
NOISY = {"one": (2.0, 3.0, 1.0, 2.5, 1.5), "two": (1.0, 2.0, 0.5, 1.5, 0.7)}


def speedup(seconds):
    return seconds["one"] / seconds["two"]


def test_an_estimate_lies_in_its_interval_and_the_interval_in_what_samples_allow():
    estimate = record_of(QUIET).estimate(speedup)
    assert estimate.value == 2.0
    assert 1.98 / 1.01 <= estimate.low < 2.0 < estimate.high <= 2.02 / 0.99
    assert estimate.samples == 5


def test_an_interval_is_the_same_each_time_and_wider_with_more_noise():
    quiet, again, noisy = (record_of(s).estimate(speedup) for s in (QUIET, QUIET, NOISY))
    assert (quiet.low, quiet.high) == (again.low, again.high)
    assert noisy.high - noisy.low > 10 * (quiet.high - quiet.low)


def test_rounds_are_drawn_together_so_a_drift_that_both_ways_share_leaves_no_doubt():
    drift = (1.0, 1.2, 1.4, 1.6, 1.8)
    both = {"one": tuple(2 * s for s in drift), "two": drift}
    estimate = record_of(both).estimate(speedup)
    assert estimate.low == pytest.approx(estimate.high) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({"at_least": 1.8}, "holds"),
        ({"at_least": 2.5}, "does not hold here"),
        ({"at_most": 2.5}, "holds"),
        ({"at_most": 1.8}, "does not hold here"),
        ({"between": (1.8, 2.5)}, "holds"),
        ({"between": (2.5, 3)}, "does not hold here"),
        ({"between": (1, 1.5)}, "does not hold here"),
    ],
)
def test_a_quiet_machine_gets_a_verdict(bounds, verdict):
    record = record_of(QUIET)
    made = ap.claim("One takes longer than two.", record.estimate(speedup), **bounds)
    assert made.verdict == verdict
    assert str(made).startswith(f"Claim {verdict}: One takes longer than two.")
    assert verdict in made._repr_html_()


def test_a_claim_in_doubt_says_so_and_changes_nothing_that_a_page_has_shown():
    """A page that measured on for a claim would show two sets of samples under one label."""
    runs = []

    def experiment():
        runs.append(1)
        return ap.Findings([ap.Measurement(label, each) for label, each in NOISY.items()])

    record = ap.observed(experiment, name="noisy", parameters={})
    before = str(ap.compare(record.measurements))
    made = ap.claim("It takes longer.", record.estimate(speedup), at_least=1.9)
    assert made.verdict == "too noisy to tell"
    assert made.estimate.samples == 5
    assert str(ap.compare(record.measurements)) == before
    assert runs == [1]


@pytest.mark.parametrize("change", ["measurements", "timelines"])
def test_what_was_found_is_final(change):
    with pytest.raises(TypeError):
        getattr(record_of(QUIET), change)["one"] = None


@pytest.mark.parametrize(
    ("value", "bounds", "unit", "shown"),
    [
        (0.79996, {"at_least": 0.8}, "%", "79.996 %; at least 80.0 %."),
        (0.8, {"at_least": 0.8}, "%", "80.0 %; at least 80.0 %."),
        (1.800001, {"at_most": 1.8}, "×", "1.800001 ×; at most 1.8 ×."),
        (2.00004, {"between": (1, 2)}, "", "2.00004; between 1 and 2."),
    ],
)
def test_a_figure_is_never_rounded_to_a_bound_that_it_misses(value, bounds, unit, shown):
    assert str(ap.claim("So.", value, unit=unit, **bounds)).endswith(shown)


def test_a_number_has_no_interval():
    made = ap.claim("Most copies hide.", 0.98, at_least=0.9, unit="%")
    assert str(made) == "Claim holds: Most copies hide. 98.0 %; at least 90.0 %."


@pytest.mark.parametrize("figure", [math.nan, float("nan")])
def test_what_is_no_number_can_not_be_told(figure):
    assert ap.claim("It is so.", figure, at_least=1).verdict == "too noisy to tell"


def test_a_figure_that_divides_by_zero_can_not_be_told():
    nothing = record_of(QUIET).estimate(lambda s: s["one"] / (s["one"] - s["one"]))
    assert ap.claim("It is so.", nothing, at_least=1).verdict == "too noisy to tell"


def test_a_share_that_no_run_can_have_can_not_be_told_and_stops_no_page():
    record = record_of({"part": (2.0, 2.1, 1.9), "other": (1.0, 1.0, 1.0), "both": (1.0, 1.1, 0.9)})
    share = record.estimate(lambda s: ap.hidden_share([s["part"], s["other"]], s["both"]))
    assert ap.claim("It hides.", share, at_least=0.5).verdict == "too noisy to tell"


def test_a_label_that_is_not_there_is_named():
    with pytest.raises(KeyError, match="three"):
        record_of(QUIET).estimate(lambda s: s["three"])


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"at_least": 1, "at_most": 2},
        {"at_most": math.nan},
        {"at_least": "1"},
        {"between": 3},
        {"between": (3, 1)},
        {"between": (1, 2, 3)},
    ],
)
def test_a_claim_needs_one_bound(bounds):
    with pytest.raises(ValueError, match="bounds"):
        ap.claim("It is so.", 1.0, **bounds)


@pytest.mark.parametrize("value", ["3", None, [1.0]])
def test_a_claim_needs_a_figure(value):
    with pytest.raises(TypeError, match="value is .*; expected a number"):
        ap.claim("It is so.", value, at_least=1)


def test_a_claim_needs_a_sentence():
    with pytest.raises(ValueError, match="label"):
        ap.claim(" ", 1.0, at_least=1)


def test_claims_of_a_page_are_collected(monkeypatch, tmp_path):
    monkeypatch.setenv(CLAIMS_TO, str(tmp_path / "page.claims.json"))
    ap.claim("One is <enough>.", 1, at_least=1)
    made = ap.claim("Two are more.", record_of(QUIET).estimate(speedup), at_least=3)
    lines = [json.loads(line) for line in (tmp_path / "page.claims.json").read_text().splitlines()]
    assert [each["verdict"] for each in lines] == ["holds", "does not hold here"]
    assert lines[1]["origin"] == made.estimate.origin != ""
    assert lines[1]["machine"]


def test_a_page_shows_a_sentence_as_text():
    page = ap.claim("a < b & c", 1, at_least=1)._repr_html_()
    assert "a &lt; b &amp; c" in page


def test_several_things_are_shown_together(capsys, monkeypatch):
    one, two = (ap.claim(sentence, 1, at_least=1) for sentence in ("One.", "Two."))
    shown = ap.show(one, two)
    assert capsys.readouterr().out == f"{one}\n\n{two}\n\n"
    assert shown._repr_html_() == f"{one._repr_html_()}\n{two._repr_html_()}"


@pytest.mark.parametrize("samples", range(3, 8))
def test_fewer_than_six_samples_have_a_range_and_no_interval(samples):
    values_s = tuple(1.0 + i for i in range(samples))
    estimate = record_of({"a": values_s}).estimate(lambda seconds: seconds["a"])
    said = ap.claim("So.", estimate, at_most=9).measured
    if samples < 6:
        assert (estimate.low, estimate.high) == (values_s[0], values_s[-1])
        assert said.endswith(f": range, {samples} samples)")
    else:
        assert said.endswith(f": 95 % interval, {samples} samples)")
