"""Claims: a verdict on any machine, from raw samples, and never a crash."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import autopar as ap
from autopar.records.claim import CLAIMS_TO

QUIET = {"one": (2.0, 2.02, 1.98, 2.01, 1.99), "two": (1.0, 1.01, 0.99, 1.0, 1.0)}
NOISY = {"one": (2.0, 3.0, 1.0, 2.5, 1.5), "two": (1.0, 2.0, 0.5, 1.5, 0.7)}


def record_of(samples):
    """A record of an experiment that returns these samples."""

    def experiment():
        return ap.Findings([ap.Measurement(*sample) for sample in samples.items()])

    return ap.observed(experiment, name="doors", parameters={})


def speedup(seconds):
    return seconds["one"] / seconds["two"]


def test_an_estimate_lies_in_its_interval_which_is_wider_with_more_noise_and_the_same_each_time():
    quiet, again, noisy = (record_of(s).estimate(speedup) for s in (QUIET, QUIET, NOISY))
    assert quiet.value == 2.0
    assert 1.98 / 1.01 <= quiet.low < 2.0 < quiet.high <= 2.02 / 0.99
    assert quiet == again
    assert quiet.samples == 5
    assert noisy.high - noisy.low > 10 * (quiet.high - quiet.low)
    drift = (1.0, 1.2, 1.4, 1.6, 1.8)  # which both ways share, as rounds are drawn together
    alike = record_of({"one": [2 * s for s in drift], "two": drift}).estimate(speedup)
    assert alike.low == pytest.approx(alike.high) == pytest.approx(2.0)
    assert ap.Findings([]).estimate(lambda _: 3).samples == 0  # of a timeline alone


def test_an_interval_leaves_out_a_fortieth_of_the_resamples_at_either_end():
    figures = []

    def figure(seconds):
        figures.append(seconds["a"])
        return figures[-1]

    estimate = record_of({"a": [float(i * i) for i in range(1, 31)]}).estimate(figure)
    assert estimate.value == figures.pop(0) == pytest.approx((15**2 + 16**2) / 2)
    assert (estimate.low, estimate.high) == tuple(np.quantile(figures, (0.025, 0.975)))


def test_a_record_tells_what_a_way_hides_of_its_parts_and_their_limit():
    parts, ways = {"a": [4.0] * 7, "b": [1.0] * 7}, {"serial": [5.0] * 7, "hidden": [4.25] * 7}
    record = record_of({**parts, **ways})
    assert [record.hidden(way, ["a", "b"]).value for way in ways] == [0, 0.75]
    assert (record.limit_s(["a", "b"]), record.limit_s(["a", "b"], pieces=10)) == (4.0, 4.1)
    assert record.limit_s(["a", "b", "b"], pieces=10) == 4.2


@pytest.mark.parametrize(
    ("error", "asked", "said"),
    [
        (KeyError, lambda r: r.hidden("no", ["one", "two"]), "under 'no'; .* labels 'one', 'two'"),
        (KeyError, lambda r: r.hidden("one", ["two", "no"]), "nothing was measured under 'no'"),
        (KeyError, lambda r: r.limit_s(["no"]), "under 'no'; expected"),
        (KeyError, lambda r: r.estimate(lambda s: s["no"]), "under 'no'; expected"),
        (TypeError, lambda r: r.estimate("one"), "figure is of type str; expected a function"),
        (ValueError, lambda r: r.hidden("one", ["one", "two"]), "way is 'one', one of parts"),
        (ValueError, lambda r: r.hidden("one", ["two"]), r"parts is \['two'\]; .* at least 2"),
        (ValueError, lambda r: r.limit_s([]), r"parts is \[\]; expected .* at least 1"),
        (ValueError, lambda r: r.limit_s(["one"], pieces=-1), "pieces is -1; expected a whole"),
        (TypeError, lambda r: r.limit_s("one"), "parts is 'one'; expected labels"),
    ],
)
def test_a_figure_of_what_was_not_measured_is_refused(error, asked, said):
    with pytest.raises(error, match=said):
        asked(record_of(QUIET))


def test_findings_tell_what_a_record_of_them_does_unless_a_check_has_failed():
    timed = [ap.Measurement(*sample, origin="here") for sample in QUIET.items()]
    findings = ap.Findings(timed)
    record = ap.observed(lambda: findings, name="doors", parameters={})
    for asked in (lambda of: of.limit_s(["one", "two"]), lambda of: of.estimate(speedup).low):
        assert asked(findings) == asked(record)
        with pytest.raises(ValueError, match=r"no timings count, as a check failed: so\."):
            asked(ap.Findings(timed, checks={"so": False}))
    assert findings.estimate(speedup).origin == "here"


@pytest.mark.parametrize(
    ("together_s", "noted"), [(6.0, True), (3.9, True), (5.0, False), (4.0, False)]
)
def test_a_claim_of_a_hidden_share_that_can_not_be_says_that_it_is_noise(together_s, noted):
    record = record_of({"a": [4.0] * 7, "b": [1.0] * 7, "way": [together_s] * 7})
    claim = ap.claim("It hides.", record.hidden("way", ["a", "b"]), at_least=0.5, unit="%")
    for shown in (str(claim), claim._repr_html_()):
        assert ("saved below 0 % or above 100 %: by noise" in shown) == noted


@pytest.mark.parametrize("samples", range(3, 8))
def test_fewer_than_six_samples_have_a_range_and_no_interval(samples):
    values_s = tuple(1.0 + i for i in range(samples))
    estimate = record_of({"a": values_s, "b": [1] * 9}).estimate(lambda seconds: seconds["a"])
    said = ap.claim("So.", estimate, at_most=9).measured
    assert ((estimate.low, estimate.high) == (values_s[0], values_s[-1])) == (samples < 6)
    kind = "range" if samples < 6 else "95 % interval"
    assert said.endswith(f": {kind}, {samples} samples)")


@pytest.mark.parametrize(
    ("bounds", "verdict"),
    [
        ({"at_least": 1.8}, "holds"),
        ({"at_least": 2.5}, "does not hold here"),
        ({"at_most": 2.5}, "holds"),
        ({"at_most": 1.8}, "does not hold here"),
        ({"at_least": 1.8, "at_most": 2.5}, "holds"),
        ({"at_least": 2.5, "at_most": 3}, "does not hold here"),
        ({"at_least": 1, "at_most": 1.5}, "does not hold here"),
        ({"at_least": 2.0}, "too noisy to tell"),
        ({"at_most": 2.0}, "too noisy to tell"),
    ],
)
def test_a_claim_gets_a_verdict_and_says_it_with_its_origin(bounds, verdict):
    record = record_of(QUIET)
    claim = ap.claim("One takes longer than two.", record.estimate(speedup), **bounds)
    assert claim.verdict == verdict
    assert str(claim).startswith(f"Claim {verdict}: One takes longer than two. 2 (")
    assert str(claim).endswith(f"5 samples); {claim.bound}. [{record.origin}]")
    assert verdict in claim._repr_html_()
    with pytest.raises(TypeError, match=f"its verdict, which is '{verdict}'"):
        bool(claim)


def test_an_interval_that_ends_at_the_bound_can_not_be_told():
    estimate = ap.Estimate(1.0, 0.5, 2.0, samples=9)
    for bounds in ({"at_least": 2}, {"at_most": 0.5}):
        assert ap.claim("So.", estimate, **bounds).verdict == "too noisy to tell"
    assert "autopar-live" not in ap.claim("So.", estimate, at_least=2)._repr_html_()  # no origin


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.sampled_from(["", "%", "×"]))
def test_a_figure_is_never_rounded_to_a_bound_that_it_misses(value, bound, unit):
    for bounds in ({"at_least": bound}, {"at_most": bound}, {"at_least": bound, "at_most": 2e9}):
        claim = ap.claim("So.", value, unit=unit, **bounds)
        if not math.isclose(value, bound, rel_tol=1e-9, abs_tol=1e-9):
            assert not claim.bound.endswith(f" {claim.measured}")
        holds = value >= bound if "at_least" in bounds else value <= bound
        assert (claim.verdict == "holds") == holds


_NOT = "does not hold here"


@pytest.mark.parametrize(
    ("value", "bounds", "unit", "shown"),
    [
        (0.79996, {"at_least": 0.8}, "%", f"{_NOT}: 79.996 %; at least 80.0 %."),
        (1.8, {"at_most": 1.8}, "×", "holds: 1.8 ×; at most 1.8 ×."),
        (2.00004, {"at_least": 1, "at_most": 2}, "", f"{_NOT}: 2.00004; between 1 and 2."),
        (-0.0, {"at_least": 0.0}, "×", "holds: 0 ×; at least 0 ×."),
        (1, {"at_least": 0}, "{}", "holds: 1 {}; at least 0 {}."),
        (1, {"at_least": 0}, "%/s", "holds: 1 %/s; at least 0 %/s."),
        (Fraction(1, 2), {"at_least": Fraction(1, 4)}, "", "holds: 0.5; at least 0.25."),
        (1e308, {"at_least": 0}, "", "holds: 1e+308; at least 0."),
    ],
)
def test_a_number_has_no_interval(value, bounds, unit, shown):
    claim = ap.claim("So.", value, unit=unit, **bounds)
    assert str(claim) == f"Claim {shown}".replace(": ", ": So. ")


@pytest.mark.parametrize(
    "figure",
    [
        lambda s: s["one"] / (s["one"] - s["one"]),
        lambda s: s["one"] / (s["one"] - 2.01),  # in some resamples, not in all
        lambda s: ap.hidden_share([s["one"], s["two"]], s["two"]),  # one that no run can have
    ],
)
def test_what_can_not_be_computed_can_not_be_told_and_stops_no_page(figure):
    estimate = record_of(QUIET).estimate(figure)
    for bounds in ({"at_least": -1e9}, {"at_most": -1e9}):
        claim = ap.claim("It is so.", estimate, **bounds)
        assert claim.verdict == "too noisy to tell"
        assert "no interval: the times vary too much" in claim.measured


@pytest.mark.parametrize(
    ("error", "given", "said"),
    [
        (ValueError, {}, "expected at_least=, at_most=, or both"),
        (ValueError, {"at_most": math.nan}, "bounds of the claim are -inf to nan; expected"),
        (TypeError, {"at_least": {}}, "at_least is of type dict; expected a number"),
        (ValueError, {"at_least": 3, "at_most": 1}, "bounds of the claim are 3 to 1; expected"),
        (TypeError, {"value": "3", "at_least": 1}, "value is '3'; expected a number"),
        (TypeError, {"value": ap.Estimate(1, "1", 2), "at_least": 1}, "low is '1'; expected a"),
        (ValueError, {"value": ap.Estimate(1, 2, 0), "at_least": 1}, "value is from 2 to 0; exp"),
        (ValueError, {"value": 10**400, "at_least": 1}, "value is larger than a float can be"),
        (ValueError, {"at_most": 10**400}, "at_most is larger than a float can be"),
        (TypeError, {"at_most": 1, "unit": None}, "unit is of type NoneType; expected text"),
        (TypeError, {"value": True, "at_least": 1}, "value is True; expected a number"),
        (ValueError, {"sentence": " ", "at_least": 1}, "sentence is ' '; expected what"),
    ],
)
def test_a_claim_needs_one_bound_a_figure_and_a_sentence(error, given, said):
    with pytest.raises(error, match=said):
        ap.claim(**{"sentence": "It is so.", "value": 1.0, **given})


def test_claims_of_a_page_are_collected_and_shown_as_text(monkeypatch, tmp_path, capsys):
    path = tmp_path / "page.claims.json"
    monkeypatch.setenv(CLAIMS_TO, str(path))
    one = ap.claim("One is <enough> & more.", 1, at_least=1)
    two = ap.claim("Two are more.", record_of(QUIET).estimate(speedup), at_least=3)
    parts = ("sentence", "verdict", "measured", "bound", "origin", "machine")
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {part: getattr(claim, part, None) or getattr(claim.estimate, part, "") for part in parts}
        for claim in (one, two)
    ]
    assert two.estimate.origin
    assert two.estimate.machine
    assert "One is &lt;enough&gt; &amp; more." in one._repr_html_()
    assert ap.show(one, two)._repr_html_() == f"{one._repr_html_()}\n{two._repr_html_()}"
    assert capsys.readouterr().out == f"{one}\n\n{two}\n\n"
