"""Race: ways are checked before they are timed, and seen as they are timed."""

import time
import warnings
from copy import deepcopy
from types import SimpleNamespace

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

    with pytest.warns(UserWarning, match="wrong: equal to right: no, result: .*Mend the") as warned:
        findings = ap.race({"right": lambda: 2 * _X, "same": lambda: _X + _X, "wrong": wrong})
    assert warned[0].filename == __file__
    assert findings.checks == {"same: equal to right": True, "wrong: equal to right": False}
    assert not findings.measurements
    assert len(calls) == 1
    assert findings.failed == ["wrong: equal to right"]


def test_each_sample_and_check_is_set_up_and_each_check_is_reset():
    log = []
    ways = {"one": lambda: (log.append("one"), 1), "other": lambda: (log.append("other"), 1)}
    settings = {"reset": lambda: log.append("reset"), "setup": lambda: log.append("setup")}
    ap.race(ways, parts={"part": lambda: log.append("part")}, warmup=0, repeats=3, **settings)
    checked = ["reset", "setup", "one", "reset", "setup", "other"]
    timed = ["setup", "part", "setup", "one", "setup", "other"] * 3
    assert log == checked + timed + checked


def test_a_way_that_uses_up_what_it_is_given_is_found():
    listed, once = [1.0, 2.0], iter([1.0, 2.0])
    with pytest.warns(UserWarning, match="no time is kept, as results differed after it.*setup"):
        findings = ap.race({"in a list": lambda: sum(listed), "used up": lambda: sum(once)})
    assert findings.failed == ["used up: equal to in a list"]
    assert not findings.measurements


def test_ways_that_all_change_what_they_are_given_are_warned_of_and_none_that_setup_puts_back():
    counts = [0, 0]

    def restart():
        counts[:] = [0, 0]

    def counting(i):
        counts[i] += 1
        return counts[i]

    ways = {"one": lambda: counting(0), "other": lambda: counting(1)}
    with pytest.warns(
        UserWarning, match="'one' returns something else after .* 5 .int. instead of 1"
    ) as w:
        assert ap.race(ways, warmup=0, repeats=3).measurements
    assert w[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ap.race(ways, setup=restart, repeats=3).measurements
        sums = {"one": lambda: _X + 1e-7 * len(counts), "other": lambda: _X + 1e-7 * len(counts)}
        assert ap.race(sums, setup=lambda: counts.append(0), repeats=3, close={"other": 1e-5})


@pytest.mark.parametrize(("close", "is_told"), [(1e-5, True), (1e-2, False)])
def test_a_result_that_changes_is_told_by_its_own_rounding_or_by_what_may_differ(close, is_told):
    """A coarse tensor beside it doesn't count."""
    calls = []

    def way():
        return _X.half(), _X + 1e-4 * (len(calls) > 3)  # from the timing on

    ways, shares = dict.fromkeys(["one", "other", "third"], way), {"other": close, "third": 1e-5}
    given = {"setup": lambda: calls.append(0), "close": shares, "repeats": 3}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert not ap.race(ways, **given).failed
    assert ["something else after" in str(one.message) for one in told] == [True] * is_told


@pytest.mark.parametrize("fails", ["way", "reset", "setup", "timed", "seen"])
def test_an_error_says_in_which_way_it_was_raised(fails):
    calls = []

    def failing():
        calls.append(1)
        if len(calls) > {"way": 0, "timed": 1, "seen": 1 + 1 + 3 + 1}.get(fails, 9):
            raise ZeroDivisionError
        return _X

    def fail_in(place):
        return lambda: 1 / 0 if fails == place else None

    ways = {"fine": _X.clone, "failing": failing}
    with pytest.raises(ZeroDivisionError) as caught:
        given = {"see": ["failing"], "warmup": 1, "repeats": 3}
        ap.race(ways, reset=fail_in("reset"), setup=fail_in("setup"), **given)
    said = {"way": "'failing' was checked", "timed": "'failing' was measured"}
    said |= {"reset": "'fine' was checked", "setup": "'fine' was checked"}
    said["seen"] = "'failing' was seen"
    assert caught.value.__notes__ == [f"while {said[fails]}"]
    assert caught.traceback[-1].path.samefile(__file__)
    with pytest.raises(TypeError, match="of which no values") as caught:
        ap.race({"object": lambda: [torch.nn.Linear(2, 2)], "other": failing})
    assert not hasattr(caught.value, "__notes__"), "it names the way itself"


# -- what is compared -----------------------------------------------------------------------------


@pytest.mark.parametrize("close", [{}, {"way": 0.1}])
@pytest.mark.parametrize(
    ("value", "wanted", "said"),
    [
        (torch.ones(2) * torch.nan, torch.ones(2) * torch.nan, ""),
        (torch.ones(2, 3).t(), torch.ones(3, 2), ""),
        (torch.tensor([torch.inf, 5]), torch.tensor([torch.inf, 5]), ""),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), ""),
        (torch.zeros(2), -torch.zeros(2), ""),
        (torch.ones(2).numpy()[:1], torch.ones(1).numpy(), ""),
        (numpy.arange(3.0)[::-1], torch.tensor([2.0, 1.0, 0.0]).double(), ""),
        (torch.nan, torch.nan, ""),
        ("a", "a", ""),
        ({"b": -_X, "a": _X}, {"a": _X, "b": -_X}, ""),
        ([[]], [()], ""),
        ([_X, _X * 1.5], [_X, _X], r"result\[1\]: .* 3 / 4 .*difference: 1.5"),
        (_X == 1, _X == 2, "2 / 4"),
        (torch.tensor([2**60 + 1]), torch.tensor([2**60]), "1 / 1 .*difference: 1 at"),
        (torch.tensor([torch.inf, 1]), torch.tensor([torch.inf, 5]), "1 / 2"),
        (torch.tensor([torch.inf]), torch.tensor([-torch.inf]), "inf"),
        (torch.ones(2), torch.ones(2) * torch.nan, "nan"),
        (_X.to(torch.float8_e5m2), _X.to(torch.float8_e5m2), ""),
        ((_X * torch.nan).to(torch.float8_e5m2), _X.to(torch.float8_e5m2), "4 / 4"),
        (_X.to(torch.float8_e5m2), _X, "dtype"),
        (_X.to_sparse(), _X.to_sparse(), ""),
        (2 * _X.to_sparse(), _X.to_sparse(), "3 / 3"),
        (_X.double(), _X, "'dtype' do not match: torch.float64 != torch.float32. Mend"),
        (numpy.float32(1), numpy.float64(1), "dtype"),
        (torch.ones(1), torch.ones(2), "shape"),
        (1.0, 2.0, "not (equal|close)"),
        (1, 1.0, r"1 \(int\) instead of 1.0 \(torch.float64\)"),
        (torch.tensor(1), 1, r"1 \(torch.int64\) instead of 1 \(int\)"),
        (_X, 1, r"\(4,\) \(torch.float32\) instead of 1 \(int\)"),
        ("b", "a", r"'b' \(str\) instead of 'a' \(str\)"),
        ({1}, {2}, r"\{1\} \(set\) instead of \{2\} \(set\)"),
        ([_X], {"u": _X}, r"made of result\[0\] instead of result\['u'\]"),
        ([_X], [_X, _X], "made of"),
        (None, [_X, _X], "of result instead of"),
    ],
)
def test_results_are_compared_in_shape_type_and_bits(value, wanted, said, close):
    ways, given = {"way": lambda: value}, {"close": close, "expected": wanted, "repeats": 3}
    if said:
        with pytest.warns(UserWarning, match=f"as results differ. way: .*{said}"):
            assert ap.race(ways, **given).failed
    else:
        assert ap.race(ways, **given).measurements


@pytest.mark.parametrize(
    ("value", "wanted", "close", "is_close"),
    [
        (_X.sum() * (1 + 1e-6), _X.sum(), 1e-5, True),
        (_X.sum() * 1.1, _X.sum(), 1e-5, False),
        (1 + 1e-6, 1.0, 1e-5, True),
        (torch.tensor([1.5, 1000.5]), torch.tensor([1.0, 1000.0]), 1e-3, True),  # of the largest
        (torch.tensor([1.5, torch.inf]), torch.tensor([1.0, torch.inf]), 1e-3, False),
        (torch.tensor([1000]), torch.tensor([1001]), 0.1, False),  # whole numbers
        (torch.tensor([10**9]), torch.tensor([10**9 + 1]), 1e-5, False),
        (_X.sum() * (1 + 1e-3), _X.sum(), 1e-2, True),
        ([_X * (1 + 1e-6), _X * 1.1], [_X, _X], 1e-5, False),
        (_X * torch.nan, _X, 0.1, False),
    ],
)
def test_ways_that_add_in_another_order_may_be_close(value, wanted, close, is_close):
    ways = {"sum": lambda: wanted, "near": lambda: value}
    with pytest.warns(UserWarning, match=r"near: equal to sum: no, result") as warned:
        assert ap.race(ways).checks == {"near: equal to sum": False}
    is_told = "if it only adds up in another order, pass close={'near': 1e-05}." in str(warned[0])
    assert is_told == (is_close and close == 1e-5)
    checks = ap.race(ways, close={"near": close}, repeats=3).checks
    assert checks == {f"near: within {close:g} of sum": is_close}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "sparse",
    [
        lambda values: torch.sparse_coo_tensor([[0, 5], [1, 2]], values, (10**6, 10**6)),
        lambda values: torch.sparse_csr_tensor([0, 1, 2], [0, 1], values, (2, 10**12)),
    ],
    ids=["coordinates", "compressed"],
)
def test_sparse_tensors_of_any_size_are_compared_by_what_they_hold(sparse):
    ways = dict.fromkeys(["one", "other"], lambda: sparse(torch.ones(2)))
    assert ap.race(ways, repeats=3).checks == {"other: equal to one": True}
    shared = torch.ones(2)
    ways["one"] = ways["other"] = lambda: sparse(shared)
    with pytest.raises(ValueError, match="'one' and 'other' return the same memory"):
        ap.race(ways, repeats=3)


@pytest.mark.parametrize(
    ("dtype", "apart", "told"),
    [
        (torch.float64, 1e-7, "1e-05"),
        (torch.float16, 5e-4, "0.001"),
        (torch.bfloat16, 5e-3, "0.01"),
        (torch.complex64, 1e-6, "1e-05"),
        (torch.float16, 1e-2, None),
        (torch.bfloat16, 1e-1, None),
        (torch.float8_e4m3fn, 1e-1, None),  # so coarse that a mistake may be as small
    ],
)
def test_rounding_is_told_by_the_resolution_of_the_dtype_that_differs(dtype, apart, told):
    one, near = ((16 * _X * (1 + by)).to(dtype) for by in (0, apart))
    ways = {"one": lambda: [one, _X.bfloat16()], "near": lambda: [near, _X.bfloat16()]}
    with pytest.warns(UserWarning, match=r"near: equal to one: no, result\[0\]: ") as warned:
        assert ap.race(ways).failed
    assert ("in another order" in str(warned[0])) == bool(told)
    assert not told or f"pass close={{'near': {told}}}." in str(warned[0])


_WITHOUT_VALUES = (
    torch.nn.Linear(2, 2),
    torch.empty(3, device="meta"),
    torch.nested.nested_tensor([_X, _X[1:]], layout=torch.jagged),
    *(numpy.array(["a"]), numpy.array([None]), numpy.datetime64("2026-11-21")),
    *(numpy.zeros(2, "i4, f4"), SimpleNamespace(x=numpy.ones(2))),  # whose copies can't be compared
)
_SAID = r"a result\[0\] of type .*, of which no values"


@pytest.mark.parametrize(
    ("error", "make", "said"),
    [
        (ValueError, lambda: None, "the way 'one' returned nothing.*; expected what it computes"),
        (ValueError, lambda: ([], {"a": None}), "the way 'one' returned nothing"),
        (TypeError, lambda: iter([_X]), "the way 'one' has a result of type .*; expected"),
        *((TypeError, lambda leaf=leaf: [deepcopy(leaf)], _SAID) for leaf in _WITHOUT_VALUES),
    ],
)
def test_results_without_values_to_compare_are_refused(error, make, said):
    with pytest.raises(error, match=said):
        ap.race({"one": make, "other": make})


# -- memory that ways share -----------------------------------------------------------------------

_BUFFER, _ALONE = torch.empty(4), numpy.empty(4)


@pytest.mark.parametrize(
    ("filled", "forgotten"),
    [
        (lambda: _BUFFER.copy_(2 * _X), lambda: _BUFFER),
        (lambda: _BUFFER.copy_(2 * _X), lambda: _BUFFER.view(4)),
        (lambda: [_BUFFER.copy_(2 * _X)[2:]], lambda: [_BUFFER[2:]]),
        (lambda: _BUFFER.copy_(2 * _X).numpy(), lambda: _BUFFER.numpy()),
        (lambda: numpy.copyto(_ALONE, 3) or _ALONE, lambda: _ALONE[:]),
        (lambda: numpy.copyto(_ALONE, 3) or _ALONE, lambda: torch.from_numpy(_ALONE).numpy()),
    ],
)
def test_a_result_that_an_earlier_way_has_left_is_no_result(filled, forgotten):
    ways = {"filled": filled, "own": lambda: deepcopy(filled()), "forgotten": forgotten}
    with pytest.raises(ValueError, match="'filled' and 'forgotten' return the same memory.*reset="):
        ap.race(ways)

    def reset():
        _BUFFER.fill_(torch.nan)
        _ALONE.fill(numpy.nan)

    checks = ap.race(ways, reset=reset).checks
    assert checks == {"own: equal to filled": True, "forgotten: equal to filled": False}


def test_what_reset_spoils_is_put_back_before_a_way_reads_it():
    x = torch.ones(4)
    ways = {"in place": lambda: x.add_(1), "wrong": lambda: x.add_(2)}
    with pytest.warns(UserWarning, match="nothing was timed"):
        findings = ap.race(ways, reset=lambda: x.fill_(torch.nan), setup=lambda: x.fill_(1))
    assert findings.failed == ["wrong: equal to in place"]


def test_ways_with_memory_of_their_own_need_no_reset():
    """Also where all lies in one piece, and where an earlier result is gone."""
    rows = torch.zeros(2, 4)
    for one, other in (
        (lambda: rows[0].copy_(_X), lambda: rows[1].copy_(_X)),
        (_X.clone, _X.clone),
        (lambda: numpy.ones(3), lambda: numpy.ones(3)),
        (lambda: {1}, lambda: {1}),
        (lambda: rows[:0], lambda: rows[:0]),
        (lambda: _X[4:].numpy(), lambda: _X[4:].numpy()),
    ):
        ways = {"one": lambda one=one: [one(), 1], "other": lambda other=other: [other(), 1]}
        assert ap.race(ways, repeats=3).measurements


@pytest.mark.parametrize("expected", [None, 2 * torch.ones(4)])
def test_what_is_wanted_is_kept_as_it_was(expected):
    buffer = torch.full((4,), 2.0) if expected is None else expected
    ways = {"right": lambda: buffer.fill_(2), "wrong": lambda: buffer.fill_(3)}
    checks = ap.race(ways, expected=expected, reset=buffer.zero_).checks
    assert [*checks.values()] == [True, False][expected is None :]


# -- lanes and timelines --------------------------------------------------------------------------


def test_tasks_on_lanes_are_waited_for_compared_and_seen():
    def slow(x):
        time.sleep(0.01)
        return 2 * x

    with ap.cpu_lane(name="one") as one, ap.cpu_lane(name="two") as two:
        ways = {
            "here": lambda: (2 * _X, 2 * _X),
            "on lanes": lambda: [lane.submit(slow, _X) for lane in (one, two)],
        }
        expected = [lane.submit(slow, _X) for lane in (one, two)]
        findings = ap.race(ways, expected=expected, see=["on lanes"], repeats=3)
    assert [*findings.checks.values()] == [True, True]
    _, on_lanes = findings.measurements
    assert min(on_lanes.values_s) >= 0.01
    assert {span.lane for span in findings.timelines["on lanes"].spans} == {"one", "two"}
    assert findings.values["on lanes: timeline over clock"] > 0


def test_a_timeline_beside_a_result_is_not_compared():
    with ap.cpu_lane(name="one") as lane:

        def way():
            task = lane.submit(int, 3, name="task")
            return task, ap.timeline_of_handles([task])

        seen = ap.race({"plain": lambda: (3,), "lane": way}, see=["lane"], repeats=3)
    assert [*seen.checks.values()] == [True]
    assert [span.name for span in seen.timelines["lane"].spans] == ["task"]


def test_a_way_that_nothing_is_seen_of_says_why():
    with pytest.warns(UserWarning, match="nothing is to be seen of 'way'|the timeline is empty"):
        findings = ap.race({"way": lambda: _X}, expected=_X, see=["way"], repeats=3)
    assert not findings.values


@pytest.mark.parametrize(
    ("error", "wrong", "said"),
    [
        (ValueError, {"parts": {"other": lambda: 1}}, "labels of ways and of parts"),
        (ValueError, {"see": ["no"]}, "see names 'no'; expected one of the labels 'one', 'other'"),
        (ValueError, {"close": {"one": 0.1}}, "close names 'one'; .* 'other'"),  # the baseline
        (ValueError, {"close": {"other": 1}}, r"\['other'\] is 1; expected a share"),
        (ValueError, {"close": {"other": "1e-5"}}, r"\['other'\] is '1e-5'; expected a share"),
        (ValueError, {"flops": {"no": 1}}, "flops names 'no'"),
        (ValueError, {"ways": {}}, "ways is empty"),
        (ValueError, {"ways": {"one": lambda: 1}}, "expected a baseline"),
        (TypeError, {"ways": [lambda: 1]}, "ways is of type list"),
        (TypeError, {"parts": {"part": 1}}, r"parts\['part'\] is of type int; expected a function"),
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
