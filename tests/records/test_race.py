"""Race: ways are checked before they are timed, and seen as they are timed."""

import collections
import copy
import dataclasses
import time

import numpy
import pytest
import torch

import autopar as ap

_X = torch.arange(4.0)


@dataclasses.dataclass
class Pair:
    one: object


def test_all_ways_and_parts_are_timed_where_all_are_equal():
    findings = ap.race(
        {"twice": lambda: _X + _X, "doubled": lambda: 2 * _X},
        parts={"once": lambda: +_X},
        repeats=3,
        flops={"once": 4},
    )
    assert findings.checks == {"doubled: equal to twice": True}
    assert [measurement.label for measurement in findings.measurements] == [
        "once",
        "twice",
        "doubled",
    ]
    assert findings.measurements[0].flops == 4
    assert not findings.timelines


def test_nothing_is_timed_where_one_differs():
    calls = []

    def wrong():
        calls.append(1)
        return _X + 1

    findings = ap.race({"right": lambda: 2 * _X, "wrong": wrong})
    assert findings.checks == {"wrong: equal to right": False}
    assert not findings.measurements
    assert len(calls) == 1
    with pytest.raises(RuntimeError, match="wrong: equal to right"):
        ap.observed(lambda: findings, name="a race", parameters={})


@pytest.mark.parametrize("result", [None, [], [_X], [_X, _X, _X], [_X, _X[:2]], [_X, -_X]])
def test_other_numbers_of_results_differ(result):
    findings = ap.race({"way": lambda: result}, expected=[_X, _X])
    assert findings.checks == {"way: equal to what is expected": False}


def test_a_result_that_an_earlier_way_has_left_is_no_result():
    buffer = torch.empty(4)

    def filled():
        return buffer.copy_(2 * _X)

    ways = {"filled": filled, "forgotten": lambda: buffer}
    assert ap.race(ways, reset=lambda: buffer.fill_(torch.nan)).checks == {
        "forgotten: equal to filled": False
    }
    with pytest.raises(ValueError, match="'filled' and 'forgotten' return the same memory.*reset="):
        ap.race(ways)


def test_an_array_that_an_earlier_way_has_left_is_no_result():
    array = _X.numpy().copy()
    ways = {"filled": lambda: array.__imul__(2), "forgotten": lambda: array[:]}
    with pytest.raises(ValueError, match="return the same memory"):
        ap.race(ways)


def test_a_baseline_that_writes_in_place_is_compared_as_it_was():
    buffer = torch.zeros(4)
    findings = ap.race({"first": lambda: buffer.add_(1), "then": lambda: buffer.add_(1)})
    assert findings.checks == {"then: equal to first": False}


def test_ways_that_add_in_another_order_may_be_close():
    ways = {"sum": lambda: _X.sum(), "near": lambda: _X.sum() * (1 + 1e-6)}
    assert ap.race(ways).checks == {"near: equal to sum": False}
    assert ap.race(ways, close={"near": 1e-5}, repeats=3).checks == {
        "near: within 1e-05 of sum": True
    }
    ways["near"] = lambda: _X.sum() * 1.1
    assert ap.race(ways, close={"near": 1e-5}).checks == {"near: within 1e-05 of sum": False}
    assert ap.race({"way": lambda: 1 + 1e-6}, expected=1.0, close={"way": 1e-5}, repeats=3).checks
    small = torch.tensor([1.0, 1000.0])  # shares are of the largest
    assert all(
        ap.race({"way": lambda: small + 0.5}, expected=small, close={"way": 1e-3}).checks.values()
    )


def test_single_numbers_of_numpy_may_be_close():
    ways = {"one": lambda: numpy.float32(1), "near": lambda: numpy.float32(1 + 1e-6)}
    assert ap.race(ways, close={"near": 1e-5}, repeats=3).checks == {
        "near: within 1e-05 of one": True
    }


def test_not_a_number_is_not_close():
    findings = ap.race({"way": lambda: _X * torch.nan}, expected=_X, close={"way": 0.1})
    assert not any(findings.checks.values())


def test_tasks_on_lanes_are_waited_for_compared_and_seen():
    def slow(x):
        time.sleep(0.01)
        return 2 * x

    with ap.cpu_lane(name="one") as one, ap.cpu_lane(name="two") as two:
        ways = {
            "here": lambda: (2 * _X, 2 * _X),
            "on lanes": lambda: [lane.submit(slow, _X) for lane in (one, two)],
        }
        findings = ap.race(ways, see=["on lanes"], repeats=3)
    assert findings.checks == {"on lanes: equal to here": True}
    _, on_lanes = findings.measurements
    assert min(on_lanes.values_s) >= 0.01
    assert {span.lane for span in findings.timelines["on lanes"].spans} == {"one", "two"}
    assert findings.values["on lanes: timeline over clock"] > 0


def test_an_error_of_a_task_comes_out():
    with ap.cpu_lane() as lane, pytest.raises(ZeroDivisionError):
        ap.race({"way": lambda: lane.submit(lambda: 1 / 0)}, expected=1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"parts": {"way": lambda: 1}}, "labels of ways and of parts"),
        ({"see": ["other"]}, "see has \\['other'\\]; expected labels of the ways, in a list: way"),
        ({"see": "way"}, "see has 'way'; expected labels"),
        ({"close": {"way": torch.inf}}, r"close\['way'\] is inf; expected a share"),
        ({"close": {"way": -1}}, r"close\['way'\] is -1; expected a share"),
        ({"close": {"way": 1}}, r"close\['way'\] is 1; expected a share"),
        ({"close": {"way": "1e-5"}}, r"close\['way'\] is '1e-5'; expected a share"),
        ({"see": [["way"]]}, "see has \\[\\['way'\\]\\]; expected labels"),
        ({"see": None}, "see has None; expected labels"),
        ({"flops": {"other": 1}}, "flops has \\['other'\\]"),
        ({"close": {"other": 1e-3}}, "close has \\['other'\\]"),
        ({"repeats": 1}, "repeats is 1"),
    ],
)
def test_slips_are_refused_by_name(wrong, said):
    with pytest.raises(ValueError, match=said):
        ap.race({"way": lambda: 1}, expected=1, **wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"close": 1e-5}, "close is of type float; expected label -> share"),
        ({"parts": [lambda: 1]}, "parts is of type list; expected label -> work"),
        ({"parts": {"part": 1}}, "parts\\['part'\\] is of type int; expected a function"),
        ({"reset": 1}, "reset is of type int; expected a function"),
    ],
)
def test_arguments_of_another_type_are_refused_before_a_way_runs(wrong, said):
    ways = {"one": lambda: pytest.fail("it ran"), "other": lambda: pytest.fail("it ran")}
    with pytest.raises(TypeError, match=said):
        ap.race(ways, **wrong)


def test_the_baseline_has_nothing_to_be_close_to():
    with pytest.raises(ValueError, match="close has \\['one'\\]; expected .*: other"):
        ap.race({"one": lambda: 1.0, "other": lambda: 1.0}, close={"one": 0.1})


@pytest.mark.parametrize("ways", [{}, [lambda: 1], {"way": 1}])
def test_ways_that_are_none_are_refused(ways):
    with pytest.raises((TypeError, ValueError), match="ways"):
        ap.race(ways)


@pytest.mark.gpu
def test_ways_on_a_gpu_are_seen_by_the_profiler():
    x = torch.ones(512, 512, device="cuda")
    with ap.cuda_lane("cuda", name="side") as lane:
        ways = {"plain": lambda: [x @ x], "lane": lambda: [lane.submit(torch.mm, x, x)]}
        findings = ap.race(ways, see=list(ways))
    assert findings.checks == {"lane: equal to plain": True}
    for label in ways:
        assert findings.timelines[label].busy_s("compute") > 0


@pytest.mark.parametrize("close", [{}, {"way": 0.1}])
@pytest.mark.parametrize(
    ("value", "wanted", "is_same"),
    [
        (torch.ones(1), torch.ones(2), False),
        (torch.ones(2, 2), torch.ones(2), False),
        (torch.ones(2), torch.ones(3), False),
        (torch.ones(()), torch.ones(3), False),
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(0), torch.ones(0), True),
        (torch.ones(2) * torch.nan, torch.ones(2) * torch.nan, True),
        (torch.ones(2), torch.ones(2) * torch.nan, False),
        (torch.ones(2, 3).t(), torch.ones(3, 2), True),
        (torch.ones(2).numpy(), torch.ones(2).numpy(), True),
        (torch.ones(2).numpy(), -torch.ones(2).numpy(), False),
        (1, 1.0, False),
        ("a", "a", True),
        (torch.tensor([True]), torch.tensor([True]), True),
        (torch.tensor([True]), torch.tensor([False]), False),
        (torch.tensor([torch.inf, 1]), torch.tensor([torch.inf, 5]), False),
        (torch.tensor([torch.inf, 5]), torch.tensor([torch.inf, 5]), True),
        (torch.tensor([torch.inf]), torch.tensor([-torch.inf]), False),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), True),
        (torch.nan, torch.nan, True),
        (1.0, 2.0, False),
        (1 + 2j, 1 + 2j, True),
        (torch.ones(2).numpy()[::-1], torch.ones(2).numpy(), True),
        (numpy.array(["a"]), numpy.array(["a"]), True),
        (numpy.array(["a"]), numpy.array(["b"]), False),
        (numpy.arange(3, dtype=">f4"), numpy.arange(3, dtype=">f4"), True),
        (numpy.arange(3, dtype=">f4"), numpy.arange(3, dtype="<f4"), False),
        (numpy.zeros(2, "i4, f4"), numpy.zeros(2, "i4, f4"), True),
        (numpy.float32(1), numpy.float32(1), True),
        (numpy.float32(1), numpy.float64(1), False),
        ([], {}, False),
        ([[]], [()], True),
        ({"a": []}, {"a": {}}, False),
        (Pair(_X), Pair(_X.clone()), True),
        (Pair(_X), Pair(-_X), False),
        ({1}, {2}, False),
        (torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2).to(torch.float8_e4m3fn), True),
        (torch.ones(2).to(torch.float8_e4m3fn), torch.zeros(2).to(torch.float8_e4m3fn), False),
    ],
)
def test_results_are_the_same_in_shape_type_and_bits(value, wanted, is_same, close):
    findings = ap.race({"way": lambda: value}, expected=wanted, close=close, repeats=3)
    assert [*findings.checks.values()] == [is_same]


def test_a_way_that_nothing_is_seen_of_says_why():
    with pytest.warns(UserWarning, match="nothing is to be seen of 'way'|the timeline is empty"):
        findings = ap.race({"way": lambda: _X}, expected=_X, see=["way"], repeats=3)
    assert not findings.values


def test_one_way_alone_is_no_race():
    with pytest.raises(ValueError, match="expected a baseline"):
        ap.race({"way": lambda: 1})


def test_results_are_compared_by_key_whatever_their_order():
    ways = {
        "one": lambda: {"sum": _X.clone(), "product": -_X},
        "in another order": lambda: {"product": -_X, "sum": _X.clone()},
        "under other keys": lambda: {"product": _X.clone(), "sum": -_X},
    }
    assert [*ap.race(ways).checks.values()] == [True, False]


@pytest.mark.parametrize("nothing", [None, [], {}, ([], {"a": None})])
def test_a_baseline_that_returns_nothing_is_refused(nothing):
    with pytest.raises(
        ValueError, match="the way 'nothing' returned .*; expected what it computes"
    ):
        ap.race({"nothing": lambda: nothing, "also nothing": lambda: nothing})


@pytest.mark.parametrize(
    "change",
    [
        lambda held: held.add(4),
        lambda held: held.extend(b"4"),
        lambda held: held.one.append(4),
        lambda held: held.update(a=4),
        lambda held: held.appendleft(4),
    ],
)
def test_what_ways_share_is_compared_as_it_was(change):
    kinds = [{1}, bytearray(b"1"), Pair([1]), {"a": 1}, collections.deque([1])]
    for held in kinds:
        try:
            change(copy.copy(held))
        except (AttributeError, TypeError, ValueError):
            continue
        ways = {"one": lambda held=held: held, "other": lambda held=held: (change(held), held)[1]}
        assert ap.race(ways).checks == {"other: equal to one": False}
        return
    pytest.fail("no container takes this change")


def test_what_is_expected_is_kept_as_it_was():
    buffer = torch.full((4,), 2.0)
    ways = {"right": lambda: buffer.fill_(2), "wrong": lambda: buffer.fill_(3)}
    assert [*ap.race(ways, expected=buffer).checks.values()] == [True, False]


async def _later():
    return _X


@pytest.mark.parametrize(
    "make",
    [
        lambda: _X.to_sparse(),
        lambda: torch.quantize_per_tensor(_X, 1, 0, torch.qint8),
        lambda: _X.to("meta"),
        lambda: torch.nested.nested_tensor([_X, _X[:2]]),
        lambda: (x for x in [_X]),
        lambda: iter([_X]),
        lambda: torch.nn.Linear(2, 2),
        lambda: _later,
        lambda: numpy.array([object()]),
        _later,
    ],
)
@pytest.mark.filterwarnings("ignore:.*(prototype|quantize|torch.ao|deprecated|never awaited)")
def test_results_without_values_to_compare_are_refused(make):
    with pytest.raises(TypeError, match="a way returned .*; expected"):
        ap.race({"one": make, "other": make})


def test_an_error_names_its_way():
    with pytest.raises(ZeroDivisionError) as error:
        ap.race({"one": lambda: _X, "other": lambda: 1 / 0})
    assert "the way 'other'" in error.value.__notes__[0]


def test_handles_are_waited_for_in_what_is_expected():
    with ap.cpu_lane() as lane:
        findings = ap.race({"way": lambda: _X}, expected=lane.submit(lambda: _X), repeats=3)
    assert findings.checks == {"way: equal to what is expected": True}


def test_a_baseline_of_an_array_is_kept_as_it_was():
    array = _X.numpy().copy()

    def filled(number):
        array.fill(number)
        return array

    found = ap.race({"two": lambda: filled(2), "three": lambda: filled(3)})
    assert found.checks == {"three: equal to two": False}


def test_each_sample_is_set_up_and_each_check_is_reset():
    log = []
    ways = {"one": lambda: (log.append("one"), 1), "other": lambda: (log.append("other"), 1)}
    settings = {"reset": lambda: log.append("reset"), "setup": lambda: log.append("setup")}
    ap.race(ways, parts={"part": lambda: log.append("part")}, warmup=0, repeats=3, **settings)
    checked = ["reset", "one", "reset", "other"]
    assert log == checked + ["setup", "part", "setup", "one", "setup", "other"] * 3
