"""Race: ways are checked before they are timed, and seen as they are timed."""

import time

import numpy
import pytest
import torch

import autopar as ap

_X = torch.arange(4.0)

pytestmark = pytest.mark.filterwarnings("ignore:nothing was timed, as results differ")


def test_all_ways_and_parts_are_timed_where_all_are_equal():
    findings = ap.race(
        {"twice": lambda: _X + _X, "doubled": lambda: 2 * _X},
        parts={"once": lambda: +_X},
        repeats=3,
        flops={"once": 4},
    )
    assert findings.checks == {"doubled: equal to twice": True}
    assert [timed.label for timed in findings.measurements] == ["once", "twice", "doubled"]
    assert findings.measurements[0].flops == 4
    assert not findings.timelines


def test_nothing_is_timed_where_one_differs():
    calls = []

    def wrong():
        calls.append(1)
        return _X + 1

    findings = ap.race({"right": lambda: 2 * _X, "same": lambda: _X + _X, "wrong": wrong})
    assert findings.checks == {"same: equal to right": True, "wrong: equal to right": False}
    assert not findings.measurements
    assert len(calls) == 1
    assert findings.failed == ["wrong: equal to right"]


@pytest.mark.parametrize(
    ("value", "wanted", "said"),
    [
        (_X + 2, _X + 1, "no, result differs in 4 of 4 numbers, by 1 at most."),
        ([_X, _X * 1.5], [_X, _X], r"no, result\[1\] differs in 3 of 4 numbers, by 1.5 at most."),
        ([-_X, _X * 2], [_X, _X], "by 6 at most, and 1 more."),
        (_X * (1 - 2j), _X * (1 + 0j), "in 3 of 4 numbers, by 6 at most."),
        (_X == 1, _X == 2, "in 2 of 4 numbers, by 1 at most."),
        (torch.tensor([2**60 + 1]), torch.tensor([2**60]), "in 1 of 1 numbers, by 1 at most."),
        (_X * torch.nan, _X, "in 4 of 4 numbers, by nan at most."),
        (_X.double(), _X, "result has dtype torch.float64 instead of torch.float32."),
        (_X[:2], _X, r"result has shape torch.Size\(\[2\]\) instead of torch.Size\(\[4\]\)."),
        ([_X], {"u": _X}, r"made of result\[0\] instead of result\['u'\]."),
        ("b", "a", "result is 'b' instead of 'a'."),
    ],
)
def test_a_warning_says_by_what_a_way_differs_and_that_nothing_was_timed(value, wanted, said):
    words = f"^nothing was timed, as results differ. way: equal to one: {'.*' * (said[0] != 'n')}"
    with pytest.warns(UserWarning, match=f"{words}{said} Mend the way") as warned:
        ap.race({"one": lambda: wanted, "way": lambda: value})
    assert warned[0].filename == __file__


def test_a_difference_within_what_is_close_is_none_and_beyond_it_is_told():
    ways = {"one": lambda: _X, "near": lambda: _X + 0.01, "far": lambda: _X + torch.eye(4)[0]}
    with pytest.warns(UserWarning, match="far: within 0.1 of one: no, result differs in 1 of 4"):
        checks = ap.race(ways, close={"near": 0.1, "far": 0.1}).checks
    assert [*checks.values()] == [True, False]


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (numpy.arange(3.0)[::-1], torch.tensor([2.0, 1.0, 0.0]).double()),
        (numpy.arange(3, dtype=">i4"), torch.arange(3, dtype=torch.int32)),
        (numpy.arange(4, dtype=">f8")[::-2], numpy.array([3.0, 1.0])),
    ],
)
def test_arrays_reversed_or_of_another_order_of_bytes_are_compared(array, wanted):
    for value, expected in ((array, wanted), (wanted, array)):
        assert ap.race(
            {"way": lambda value=value: value}, expected=expected, repeats=3
        ).measurements
    assert ap.race({"way": lambda: array + 1}, expected=wanted).failed


@pytest.mark.parametrize(
    "array", [numpy.array([None, 1]), numpy.array(["a"]), numpy.zeros(1, "f4, i4")]
)
def test_arrays_of_other_things_than_numbers_are_refused(array):
    with pytest.raises(TypeError, match="^a way returned an array of .*; expected numbers. Return"):
        ap.race({"one": lambda: array, "other": lambda: array})
    with pytest.raises(TypeError, match="^expected has an array of .*; expected numbers"):
        ap.race({"one": lambda: 1}, expected=[array])
    assert ap.race({"one": lambda: 1}, expected=array.tolist()).failed


def test_equal_results_in_memory_of_their_own_are_timed():
    for make in (_X.clone, lambda: numpy.ones(3), lambda: numpy.float32(1), lambda: {1}, dict):
        assert ap.race(
            {"one": lambda make=make: [make(), 1], "other": lambda make=make: [make(), 1]},
            repeats=3,
        ).measurements


@pytest.mark.parametrize(
    ("value", "wanted", "close", "is_close"),
    [
        (_X.sum() * (1 + 1e-6), _X.sum(), 1e-5, True),
        (_X.sum() * 1.1, _X.sum(), 1e-5, False),
        (1 + 1e-6, 1.0, 1e-5, True),
        (numpy.float32(1 + 1e-6), numpy.float32(1), 1e-5, True),
        (torch.tensor([1.5, 1000.5]), torch.tensor([1.0, 1000.0]), 1e-3, True),  # of the largest
        (_X * torch.nan, _X, 0.1, False),
    ],
)
def test_ways_that_add_in_another_order_may_be_close(value, wanted, close, is_close):
    ways = {"sum": lambda: wanted, "near": lambda: value}
    assert ap.race(ways).checks == {"near: equal to sum": False}
    checks = ap.race(ways, close={"near": close}, repeats=3).checks
    assert checks == {f"near: within {close:g} of sum": is_close}


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
        expected = [lane.submit(slow, _X) for lane in (one, two)]
        assert all(ap.race({"way": ways["here"]}, expected=expected, repeats=3).checks.values())
    assert findings.checks == {"on lanes: equal to here": True}
    _, on_lanes = findings.measurements
    assert min(on_lanes.values_s) >= 0.01
    assert {span.lane for span in findings.timelines["on lanes"].spans} == {"one", "two"}
    assert findings.values["on lanes: timeline over clock"] > 0


def test_tasks_that_others_waited_for_are_seen_and_a_timeline_beside_is_not_compared():
    with ap.cpu_lane(name="one") as one, ap.cpu_lane(name="two") as two:

        def way():
            model = two.submit(abs, one.submit(int, 3, name="prep"), name="model")
            return model, ap.timeline_of_handles([model])

        seen = ap.race({"plain": lambda: (3,), "lanes": way}, see=["lanes"], repeats=3)
    assert [*seen.checks.values()] == [True]
    assert [span.name for span in seen.timelines["lanes"].spans] == ["prep", "model"]


def test_an_error_of_a_task_comes_out_and_names_its_way():
    with ap.cpu_lane() as lane, pytest.raises(ZeroDivisionError) as error:
        ap.race({"one": lambda: _X, "other": lambda: lane.submit(lambda: 1 / 0)})
    assert "the way 'other'" in error.value.__notes__[-1]


@pytest.mark.parametrize(
    ("error", "wrong", "said"),
    [
        (ValueError, {"parts": {"other": lambda: 1}}, "labels of ways and of parts"),
        (ValueError, {"see": ["no"]}, "see names 'no'; expected one of the labels 'one', 'other'"),
        (ValueError, {"close": {"one": 0.1}}, "close names 'one'; .* 'other'"),  # the baseline
        (ValueError, {"flops": {"no": 1}}, "flops names 'no'"),
        *[
            (
                ValueError,
                {"close": {"other": share}},
                rf"\['other'\] is {share!r}; expected a share",
            )
            for share in (torch.inf, -1, 1, "1e-5")
        ],
        (ValueError, {"ways": {}}, "ways is empty"),
        (ValueError, {"ways": {"one": lambda: 1}}, "expected a baseline"),
        (TypeError, {"ways": [lambda: 1]}, "ways is of type list"),
        (TypeError, {"ways": {"way": 1}}, r"ways\['way'\] is of type int"),
        (TypeError, {"parts": [lambda: 1]}, "parts is of type list; expected label -> work"),
        (TypeError, {"parts": {"part": 1}}, r"parts\['part'\] is of type int; expected a function"),
        (TypeError, {"close": 1e-5}, "close is of type float; expected label -> number"),
        (TypeError, {"see": "one"}, "see is 'one'; expected labels of the ways, in a list"),
        (TypeError, {"reset": 1}, "reset is of type int; expected a function"),
    ],
)
def test_slips_are_refused_by_name_before_a_way_runs(error, wrong, said):
    ways = {"one": lambda: pytest.fail("it ran"), "other": lambda: pytest.fail("it ran")}
    with pytest.raises(error, match=said):
        ap.race(**{"ways": ways, **wrong})


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
        (torch.ones(2), torch.ones(2).double(), False),
        (torch.ones(0), torch.ones(0), True),
        (torch.ones(2) * torch.nan, torch.ones(2) * torch.nan, True),
        (torch.ones(2), torch.ones(2) * torch.nan, False),
        (torch.ones(2, 3).t(), torch.ones(3, 2), True),
        (torch.ones(2).numpy(), -torch.ones(2).numpy(), False),
        (1, 1.0, False),
        ("a", "a", True),
        (torch.tensor([True]), torch.tensor([False]), False),
        (torch.tensor([torch.inf, 1]), torch.tensor([torch.inf, 5]), False),
        (torch.tensor([torch.inf, 5]), torch.tensor([torch.inf, 5]), True),
        (torch.tensor([torch.inf]), torch.tensor([-torch.inf]), False),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), True),
        (torch.nan, torch.nan, True),
        (0.0, -0.0, True),
        (torch.zeros(2), -torch.zeros(2), True),
        (torch.zeros(2), torch.tensor([0, 1e-45]), False),
        (torch.tensor([65535], dtype=torch.uint16), torch.tensor([1], dtype=torch.uint16), False),
        (1.0, 2.0, False),
        (1 + 2j, 1 + 2j, True),
        (torch.ones(2).numpy()[:1], torch.ones(1).numpy(), True),
        (numpy.float32(1), numpy.float64(1), False),
        (None, [_X, _X], False),
        ([_X], [_X, _X], False),
        ([_X, _X, _X], [_X, _X], False),
        ({"b": -_X, "a": _X}, {"a": _X, "b": -_X}, True),
        ({"b": _X, "a": -_X}, {"a": _X, "b": -_X}, False),
        ([[]], [()], True),
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


@pytest.mark.parametrize("nothing", [None, [], {}, ([], {"a": None})])
def test_a_baseline_that_returns_nothing_is_refused(nothing):
    with pytest.raises(
        ValueError, match="the way 'nothing' returned .*; expected what it computes"
    ):
        ap.race({"nothing": lambda: nothing, "also nothing": lambda: nothing})


def _later():
    return _X


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: (x for x in [_X]),
        lambda: iter([_X]),
        lambda: torch.nn.Linear(2, 2),
        lambda: _later,
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.ones(2, device="meta"),
    ],
)
def test_results_without_values_to_compare_are_refused(make):
    with pytest.raises(TypeError, match="a way returned .*; expected"):
        ap.race({"one": make, "other": make})


def test_each_sample_is_set_up_and_each_check_is_reset():
    log = []
    ways = {"one": lambda: (log.append("one"), 1), "other": lambda: (log.append("other"), 1)}
    settings = {"reset": lambda: log.append("reset"), "setup": lambda: log.append("setup")}
    ap.race(ways, parts={"part": lambda: log.append("part")}, warmup=0, repeats=3, **settings)
    checked = ["reset", "one", "reset", "other"]
    assert log == checked + ["setup", "part", "setup", "one", "setup", "other"] * 3
