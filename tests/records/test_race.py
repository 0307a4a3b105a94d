"""Race: ways are checked before they are timed, and seen as they are timed."""

import time

import pytest
import torch

import autopar as ap

_X = torch.arange(4.0)


def test_all_ways_and_parts_are_timed_where_all_are_equal():
    found = ap.race(
        {"twice": lambda: _X + _X, "doubled": lambda: 2 * _X},
        parts={"once": lambda: +_X},
        repeats=3,
        flops={"once": 4},
    )
    assert found.checks == {"doubled: equal to twice": True}
    assert [each.label for each in found.measurements] == ["once", "twice", "doubled"]
    assert found.measurements[0].flops == 4
    assert not found.timelines


def test_nothing_is_timed_where_one_differs():
    calls = []

    def wrong():
        calls.append(1)
        return _X + 1

    found = ap.race({"right": lambda: 2 * _X, "wrong": wrong})
    assert found.checks == {"wrong: equal to right": False}
    assert not found.measurements
    assert len(calls) == 1
    with pytest.raises(RuntimeError, match="wrong: equal to right"):
        ap.observed(lambda: found, name="a race", parameters={})


@pytest.mark.parametrize("result", [None, [], [_X], [_X, _X, _X], [_X, _X[:2]], [_X, -_X]])
def test_other_numbers_of_results_differ(result):
    found = ap.race({"way": lambda: result}, expected=[_X, _X])
    assert found.checks == {"way: equal to what is expected": False}


def test_a_result_that_an_earlier_way_has_left_is_no_result():
    buffer = torch.empty(4)

    def filled():
        return buffer.copy_(2 * _X)

    ways = {"filled": filled, "forgotten": lambda: buffer}
    assert ap.race(ways, reset=lambda: buffer.fill_(torch.nan)).checks == {
        "forgotten: equal to filled": False
    }
    assert ap.race(ways, repeats=3).checks == {"forgotten: equal to filled": True}


def test_a_baseline_that_writes_in_place_is_compared_as_it_was():
    buffer = torch.zeros(4)
    found = ap.race({"first": lambda: buffer.add_(1), "then": lambda: buffer.add_(1)})
    assert found.checks == {"then: equal to first": False}


def test_ways_that_add_in_another_order_may_be_close():
    ways = {"sum": lambda: _X.sum(), "near": lambda: _X.sum() * (1 + 1e-6)}
    assert ap.race(ways).checks == {"near: equal to sum": False}
    assert ap.race(ways, close={"near": 1e-5}, repeats=3).checks == {
        "near: within 1e-05 of sum": True
    }
    ways["near"] = lambda: _X.sum() * 1.1
    assert ap.race(ways, close={"near": 1e-5}).checks == {"near: within 1e-05 of sum": False}


def test_not_a_number_is_not_close():
    found = ap.race({"way": lambda: _X * torch.nan}, expected=_X, close={"way": 0.1})
    assert not any(found.checks.values())


def test_tasks_on_lanes_are_waited_for_compared_and_seen():
    def slow(x):
        time.sleep(0.01)
        return 2 * x

    with ap.cpu_lane(name="one") as one, ap.cpu_lane(name="two") as two:
        ways = {
            "here": lambda: (2 * _X, 2 * _X),
            "on lanes": lambda: [lane.submit(slow, _X) for lane in (one, two)],
        }
        found = ap.race(ways, see=["on lanes"], repeats=3)
    assert found.checks == {"on lanes: equal to here": True}
    _, on_lanes = found.measurements
    assert min(on_lanes.values_s) >= 0.01
    assert {span.lane for span in found.timelines["on lanes"].spans} == {"one", "two"}
    assert found.values["on lanes: timeline over clock"] > 0


def test_an_error_of_a_task_comes_out():
    with ap.cpu_lane() as lane, pytest.raises(ZeroDivisionError):
        ap.race({"way": lambda: lane.submit(lambda: 1 / 0)}, expected=1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"parts": {"way": lambda: 1}}, "labels of ways and of parts"),
        ({"see": ["other"]}, "see has \\['other'\\]; expected labels of the ways, in a list: way"),
        ({"see": "way"}, "see has 'way'; expected labels"),
        ({"close": {"way": torch.inf}}, r"close\['way'\] is inf; expected a number"),
        ({"close": {"way": -1}}, r"close\['way'\] is -1; expected a number"),
        ({"close": {"other": 1e-3}}, "close has \\['other'\\]"),
        ({"repeats": 1}, "repeats is 1"),
    ],
)
def test_slips_are_refused_by_name(wrong, said):
    with pytest.raises(ValueError, match=said):
        ap.race({"way": lambda: 1}, expected=1, **wrong)


@pytest.mark.parametrize("ways", [{}, [lambda: 1], {"way": 1}])
def test_ways_that_are_none_are_refused(ways):
    with pytest.raises((TypeError, ValueError), match="ways"):
        ap.race(ways)


@pytest.mark.gpu
def test_ways_on_a_gpu_are_seen_by_the_profiler():
    x = torch.ones(512, 512, device="cuda")
    with ap.cuda_lane("cuda", name="side") as lane:
        ways = {"plain": lambda: [x @ x], "lane": lambda: [lane.submit(torch.mm, x, x)]}
        found = ap.race(ways, see=list(ways))
    assert found.checks == {"lane: equal to plain": True}
    for label in ways:
        assert found.timelines[label].busy_s("compute") > 0


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
    ],
)
def test_results_are_the_same_in_shape_type_and_bits(value, wanted, is_same, close):
    found = ap.race({"way": lambda: value}, expected=wanted, close=close, repeats=3)
    assert [*found.checks.values()] == [is_same]


def test_a_way_that_nothing_is_seen_of_says_why():
    with pytest.warns(UserWarning, match="nothing is to be seen of 'way'|the timeline is empty"):
        found = ap.race({"way": lambda: _X}, expected=_X, see=["way"], repeats=3)
    assert not found.values


def test_one_way_alone_is_no_race():
    with pytest.raises(ValueError, match="expected a baseline"):
        ap.race({"way": lambda: 1})


def test_results_are_compared_by_key_whatever_their_order():
    ways = {
        "one": lambda: {"sum": _X, "product": -_X},
        "in another order": lambda: {"product": -_X, "sum": _X},
        "under other keys": lambda: {"product": _X, "sum": -_X},
    }
    assert [*ap.race(ways).checks.values()] == [True, False]


def test_a_baseline_that_returns_nothing_is_compared_with():
    found = ap.race({"nothing": lambda: None, "something": lambda: _X})
    assert found.checks == {"something: equal to nothing": False}


def test_what_is_expected_is_kept_as_it_was():
    buffer = torch.full((4,), 2.0)
    ways = {"right": lambda: buffer.fill_(2), "wrong": lambda: buffer.fill_(3)}
    assert [*ap.race(ways, expected=buffer).checks.values()] == [True, False]


@pytest.mark.parametrize(
    "make", [lambda: _X.to_sparse(), lambda: torch.quantize_per_tensor(_X, 1, 0, torch.qint8)]
)
@pytest.mark.filterwarnings("ignore:.*(prototype|quantize|torch.ao|deprecated)")
def test_tensors_without_plain_bits_are_refused(make):
    with pytest.raises(TypeError, match="expected a dense one"):
        ap.race({"one": make, "other": make})


def test_a_baseline_of_an_array_is_kept_as_it_was():
    array = _X.numpy().copy()

    def filled(number):
        array.fill(number)
        return array

    found = ap.race({"two": lambda: filled(2), "three": lambda: filled(3)})
    assert found.checks == {"three: equal to two": False}


def test_each_sample_is_set_up_and_each_check_is_reset():
    log = []
    ways = {"one": lambda: log.append("one"), "other": lambda: log.append("other")}
    settings = {"reset": lambda: log.append("reset"), "setup": lambda: log.append("setup")}
    ap.race(ways, parts={"part": lambda: log.append("part")}, warmup=0, repeats=3, **settings)
    checked = ["reset", "one", "reset", "other"]
    assert log == checked + ["setup", "part", "setup", "one", "setup", "other"] * 3
