"""Faults in copy pipelines: errors name their item, nothing hangs or leaks, and work goes on."""

import contextlib
import ctypes
import functools
import gc
import itertools
import linecache
import re
import signal
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from concurrent.futures import CancelledError

import pytest
import torch

import autopar
from autopar import CopyPipeline
from autopar.transfer import load, parcel, ring
from autopar.transfer import pipeline as transfer

pytestmark = pytest.mark.stress
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
_WAIT_S = 10  # for what should come at once, so that a broken pipeline fails instead of hanging
_PROMPT_S = 0.5  # what a wait may take to end once Ctrl-C was pressed
_SLOT_BYTES = 256
# How many numbers of four bytes an item has. Packed ones share a slot, chunked ones take three.
_NUMBERS = {"alone": 8, "packed": 8, "chunked": 3 * _SLOT_BYTES // 4}
_PLACES = {"first": 0, "middle": 100, "last": 191}  # in a chunked item

SIZES = list(_NUMBERS)
THREADS = [1, 2]


def _moments(slots):
    return sorted({0, 1, slots - 1, slots, slots + 1, _count(slots) - 1})


def _count(slots):
    """How many items a source has."""
    return 2 * slots + 4


AT = [(slots, k) for slots in (1, 2, 3) for k in _moments(slots)]
HELD = [("copy", 1), ("move", 1), ("move", 2)]  # what is held back, or fails, and the threads
FEW_AT = [(1, 0), (1, 1), (2, 2), (2, 7), (3, 4)]


class Broken(Exception):
    """What goes wrong on purpose."""


def breaks(error):
    try:
        raise error
    finally:
        del error  # or it and this frame would keep each other


# -- pipelines that can be made to fail -----------------------------------------------------------


def bytes_at(address, size_bytes):
    """Memory of the host's as a tensor."""
    return torch.frombuffer((ctypes.c_uint8 * size_bytes).from_address(address), dtype=torch.uint8)


class NoRoom(torch.overrides.TorchFunctionMode):
    """There is no room for one of the tensors that this thread allocates."""

    allocating = (
        *(torch.empty, torch.empty_like, torch.empty_strided, torch.zeros),
        *(torch.cat, torch.stack, torch.Tensor.clone),
    )

    def __init__(self, call, kind):
        super().__init__()
        self.calls_left, self.kind = call, kind

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in self.allocating:
            self.calls_left -= 1
            if self.calls_left == -1:
                raise self.kind("no room for a tensor")
        return function(*args, **(kwargs or {}))


class Bench:
    """Makes pipelines on a device, and keeps an eye on the memory that they take."""

    def __init__(self, monkeypatch, in_time):
        self.patch, self.in_time = monkeypatch, in_time
        self.watched = []  # weakly
        self.slots = []  # weakly
        self.hooks = {}  # called with the bytes to copy, by the kind of copy
        self.on_stream = {}  # replaced methods of copy streams
        self.destinations = {}  # where the memory lies that an item was copied to
        self.outlived = set()  # where the memory lies that copies under way may outlive
        self.said_to_be_pinned = {}  # on the CPU, by where the memory lies; weakly

    def watch(self, tensor):
        self.watched.append(weakref.ref(tensor.untyped_storage()))
        return tensor

    def alive(self):
        """How much of what is watched is in memory."""
        return sum(reference() is not None for reference in self.watched)

    def pipeline(self, device, size="alone", slots=2, threads=1):
        """A new one, for items of some size; how many travel together depends on no clock."""
        self.device, self.size, self.count = torch.device(device), size, _count(slots)
        self.patch.setattr(parcel, "_SOON_S", 1e9)
        self.patch.setattr(parcel, "_BLOCK_BYTES", 0)
        self.patch.setattr(parcel, "_SMALL_BYTES", 1 << 18 if size == "packed" else 0)
        self.patch.setattr(ring, "_TOO_SMALL_TO_SHARE_BYTES", 128)
        self.patch.setattr(transfer, "copy_stream", self._copy_stream)
        self.patch.setattr(ring, "move_bytes", self._asking_move)
        return CopyPipeline(device, slots=slots, slot_bytes=_SLOT_BYTES, threads=threads)

    _copy_stream_of = staticmethod(transfer.copy_stream)

    def _copy_stream(self, device):
        stream = self._copy_stream_of(device)
        pinned, copy, outlives = stream.pinned, stream.copy, stream.outlives

        def pinned_slot(size_bytes):
            slot = self.watch(pinned(size_bytes))
            self.slots.append(self.watched[-1])
            return slot

        def asking_copy(to, source):
            self._ask("copy", source)
            if source.numel():
                item = abs(int(source.view(torch.int32).flatten()[0])) // 1000
                self.destinations[item] = to.untyped_storage().data_ptr()
            copy(to, source)

        def noted_outlives(tensor):
            self.outlived.add(tensor.untyped_storage().data_ptr())
            outlives(tensor)

        stream.pinned, stream.copy, stream.outlives = pinned_slot, asking_copy, noted_outlives
        if device.type == "cpu":
            stream.is_pinned = self._is_said_to_be_pinned
        for name, method in self.on_stream.items():
            setattr(stream, name, functools.partial(method, getattr(stream, name)))
        return stream

    def _is_said_to_be_pinned(self, tensor):
        return self.said_to_be_pinned.get(tensor.data_ptr(), lambda: None)() is not None

    def _asking_move(self, to, source, size_bytes, *threads):
        self._ask("move", bytes_at(source, size_bytes))
        self._move_bytes(to, source, size_bytes, *threads)

    _move_bytes = staticmethod(ring.move_bytes)

    def _ask(self, kind, source):
        if kind in self.hooks:
            self.hooks[kind](source)

    def copied_from_now_on(self):
        """A list that grows with the numbers that copies begin with."""
        seen, before = [], self.hooks.get("copy", lambda source: None)

        def hook(source):
            seen.append(int(source.view(torch.int32).flatten()[0]))
            before(source)

        self.hooks["copy"] = hook
        return seen

    def when(self, kind, number, act, sign=1):
        """Act once, when the memory that holds a number is about to be copied."""
        left = [act]

        def hook(source):
            if left and bool((source.view(torch.int32) == sign * number).any()):
                left.pop()()

        self.hooks[kind] = hook

    def tensor(self, i, device="cpu"):
        numbers = torch.arange(_NUMBERS[self.size], dtype=torch.int32) + (1000 * i + 1)
        return self.watch(numbers.to(device, copy=True))

    def pinned(self, tensor):
        """A copy in pinned memory; on the CPU, one that is taken for such."""
        if self.device.type == "cuda":
            return self.watch(tensor.pin_memory())
        self.said_to_be_pinned[tensor.data_ptr()] = weakref.ref(tensor)
        return tensor

    def source(self, verb, fault=None, at=None, kind="fresh"):
        """Items for a verb; a fault is called when it is its turn."""
        device = "cpu" if verb in _FROM_HOST else self.device
        at = -1 if fault is None else at
        return _SOURCES[kind](functools.partial(self.tensor, device=device), self.count, at, fault)

    def equal(self, verb, i, result):
        assert result.device == (
            self.device if verb.startswith("prefetch") else torch.device("cpu")
        )
        return torch.equal(result.cpu(), self.tensor(i) * _SIGNS[verb])

    def take(self, verb, results, start=0, most=10**6):
        """How many right results come before the error, and the error."""
        for i in itertools.count(start):
            if i == most:
                return i, None
            try:
                result = next(results)
            except StopIteration:
                return i, None
            except BaseException as error:
                return i, error
            assert self.equal(verb, i, result), f"item {i} is {result}"
            del result
        raise AssertionError

    def run(self, verb, pipeline, fault=None, at=None, kind="fresh"):
        try:
            results = VERBS[verb](pipeline, self.source(verb, fault, at, kind), self)
        except Exception as error:
            return 0, error
        return self.take(verb, results)

    def works(self, pipeline):
        """Whether it gives right results, in both directions."""
        self.hooks.clear()
        self.count = 5
        assert self.run("to_host", pipeline) == (5, None)
        assert self.run("prefetch", pipeline) == (5, None)
        return torch.equal(
            pipeline.to_host_async(self.tensor(9, self.device)).result(), self.tensor(9)
        )

    def a_new_one_works(self):
        self.on_stream.clear()
        with self.pipeline(self.device, self.size) as pipeline:
            return self.works(pipeline)


def _fresh(make, count, at, fault):
    for i in range(count):
        if i == at:
            fault()
        yield make(i)


def _kept(make, count, at, fault):
    for i in range(count):
        if i == at:
            fault()
        tensor = make(i)
        yield tensor


class _Iterator:
    def __init__(self, make, count, at, fault):
        self.make, self.count, self.at, self.fault, self.i = make, count, at, fault, -1

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        if self.i == self.at:
            self.fault()
        if self.i == self.count:
            raise StopIteration
        return self.make(self.i)


class _Listed(list):
    def __init__(self, make, count, at, fault):
        super().__init__(make(i) for i in range(count))
        self.at, self.fault = at, fault

    def __iter__(self):
        for i, tensor in enumerate(super().__iter__()):
            if i == self.at:
                self.fault()
            yield tensor


_SOURCES = {"fresh": _fresh, "kept": _kept, "iterator": _Iterator, "list": _Listed}


def _blanks(bench):
    return (torch.zeros(_NUMBERS[bench.size], dtype=torch.int32) for _ in itertools.count())


def _mixed(pipeline, source, bench):
    """Batches of one tensor that is pinned and one that is not."""
    batches = ((bench.pinned(tensor), tensor.clone()) for tensor in source)
    for one, other in pipeline.prefetch(batches):
        assert torch.equal(one, other)
        yield other


def _asynchronous(pipeline, source, bench):
    handles = deque(pipeline.to_host_async(tensor) for tensor in source)
    while handles:
        yield handles.popleft().result()


def _pinned_blanks(bench):
    return (bench.pinned(blank) for blank in _blanks(bench))


VERBS = {
    "to_host": lambda pipeline, source, bench: pipeline.to_host(source),
    "to_host out": lambda pipeline, source, bench: pipeline.to_host(source, out=_blanks(bench)),
    "to_host pin": lambda pipeline, source, bench: pipeline.to_host(source, pin=True),
    "to_host pinned out": lambda pipeline, source, bench: pipeline.to_host(
        source, out=_pinned_blanks(bench)
    ),
    "prefetch": lambda pipeline, source, bench: pipeline.prefetch(source),
    "prefetch pinned": lambda pipeline, source, bench: pipeline.prefetch(map(bench.pinned, source)),
    "prefetch mixed": _mixed,
    "map": lambda pipeline, source, bench: pipeline.map(torch.neg, source),
    "to_host_async": _asynchronous,
}
STREAMING = [verb for verb in VERBS if verb != "to_host_async"]
STAGED = ["to_host", "to_host out", "prefetch", "map", "to_host_async"]  # through slots only
_FROM_HOST = {"prefetch", "prefetch pinned", "prefetch mixed", "map"}
_SIGNS = {verb: -1 if verb == "map" else 1 for verb in VERBS}


def named(error):
    """Whether everything that an error's notes say about items is about this one."""
    notes = " ".join(error.__notes__)
    found = re.findall(r"\bitems? '?(\d+)(?: to (\d+))?", notes)
    assert found, notes
    firsts = [int(first) for first, _ in found]
    lasts = [int(last or first) for first, last in found]
    return range(max(firsts), min(lasts) + 1)


# -- what every test is held to -------------------------------------------------------------------


def _memory():
    """Bytes that are in use: of pinned memory, and of each device's."""
    if not torch.cuda.is_initialized():
        return 0, 0
    torch.cuda.synchronize()
    autopar.empty_pinned_pool()
    pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return pinned, torch.cuda.memory_allocated(0)


@pytest.fixture
def bench(request, monkeypatch, in_time):
    """A bench, whose pipelines must leave no threads and no memory behind."""
    if request.node.get_closest_marker("gpu"):
        torch.zeros(1, device="cuda:0").cpu()
    threads, memory = set(threading.enumerate()), _memory()
    gc.freeze()  # what was there before need not be searched for garbage
    bench = Bench(monkeypatch, in_time)
    yield bench
    monkeypatch.undo()
    gc.collect()
    assert set(threading.enumerate()) <= threads
    assert bench.alive() == 0
    assert all(now <= before for now, before in zip(_memory(), memory, strict=True))


def ends(test):
    """Run a test in another thread, so that it fails if it hangs."""

    @functools.wraps(test)
    def run(bench, **arguments):
        bench.in_time(functools.partial(test, bench, **arguments), _WAIT_S)

    return run


# -- the source fails -----------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("slots", "k"), AT)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_an_error_of_the_source_comes_after_the_items_before_it(
    bench, verb, size, slots, k, device
):
    with bench.pipeline(device, size, slots, threads=1 + k % 2) as pipeline:
        broken = Broken("on purpose")
        received, error = bench.run(verb, pipeline, lambda: breaks(broken), k)
        assert error is broken
        assert received == k
        assert named(error) == range(k, k + 1)
        assert traceback.extract_tb(error.__traceback__)[-1].name == "breaks"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["kept", "iterator", "list"])
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("size", ["alone", "packed"])
@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map"])
@ends
def test_an_error_of_any_kind_of_source_does(bench, verb, size, slots, k, kind, device):
    with bench.pipeline(device, size, slots) as pipeline:
        received, error = bench.run(verb, pipeline, lambda: breaks(Broken("on purpose")), k, kind)
        assert isinstance(error, Broken)
        assert received == k
        assert named(error) == range(k, k + 1)
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_a_source_that_raises_stop_iteration_has_failed(bench, verb, slots, k, device):
    with bench.pipeline(device, "packed", slots) as pipeline:
        received, error = bench.run(verb, pipeline, lambda: breaks(StopIteration()), k)
        assert isinstance(error, RuntimeError)
        assert isinstance(error.__cause__, StopIteration)
        assert received == k
        assert named(error) == range(k, k + 1)
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize(("slots", "k"), [(1, 1), (3, 4)])
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_an_exit_in_the_source_is_not_held_up(bench, verb, slots, k, kind, device):
    with bench.pipeline(device, "chunked", slots) as pipeline:
        received, error = bench.run(verb, pipeline, lambda: breaks(kind()), k)
        assert isinstance(error, kind)
        assert received <= k
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


def _bad(bench, what):
    good = bench.tensor(0, bench.device)
    return {
        "a list": good.tolist,
        "nothing": lambda: None,
        "sparse": good.to_sparse,
        "grad": lambda: good.float().requires_grad_(),
        "elsewhere": lambda: good.to("meta"),
    }[what]()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", ["a list", "nothing", "sparse", "grad", "elsewhere"])
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("size", ["alone", "packed"])
@pytest.mark.parametrize("out", [False, True])
@ends
def test_an_item_that_cannot_be_copied_is_named(bench, out, size, slots, k, what, device):
    with bench.pipeline(device, size, slots) as pipeline:
        source = bench.source("to_host")
        items = itertools.chain(itertools.islice(source, k), [_bad(bench, what)], source)
        results = pipeline.to_host(items, out=_blanks(bench) if out else None)
        received, error = bench.take("to_host", results)
        assert isinstance(error, (TypeError, ValueError))
        assert f"tensors[{k}]" in str(error)
        assert received == k
        assert named(error) == range(k, k + 1)
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", ["sparse", "grad", "elsewhere"])
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@ends
def test_a_batch_that_cannot_be_copied_is_named(bench, slots, k, what, device):
    with bench.pipeline(device, slots=slots) as pipeline:
        source = bench.source("prefetch")
        bad = (3, {"x": bench.tensor(0), "y": _bad(bench, what)})
        items = itertools.chain(itertools.islice(source, k), [bad], source)
        received, error = bench.take("prefetch", pipeline.prefetch(items))
        assert isinstance(error, (TypeError, ValueError))
        assert f"batches[{k}]" in str(error)
        assert received == k
        assert named(error) == range(k, k + 1)
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", ["missing", "shape", "dtype", "raises"])
@pytest.mark.parametrize(("slots", "k"), AT)
@pytest.mark.parametrize("size", ["alone", "packed"])
@ends
def test_a_result_that_has_no_place_is_named(bench, size, slots, k, what, device):
    def places():
        yield from itertools.islice(_blanks(bench), k)
        if what == "raises":
            breaks(Broken("on purpose"))
        if what != "missing":
            dtype = torch.int64 if what == "dtype" else torch.int32
            yield torch.zeros(_NUMBERS[size] + (what == "shape"), dtype=dtype)
        yield from _blanks(bench) if what != "missing" else ()

    with bench.pipeline(device, size, slots) as pipeline:
        results = pipeline.to_host(bench.source("to_host"), out=places())
        received, error = bench.take("to_host", results)
        assert isinstance(error, Broken if what == "raises" else ValueError)
        assert received == k
        assert named(error) == range(k, k + 1)
        assert bench.works(pipeline)


# -- fn fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("slots", "k"), AT)
@pytest.mark.parametrize("size", SIZES)
@ends
def test_an_error_of_fn_comes_after_the_results_before_it(bench, size, slots, k, threads, device):
    calls, closed = itertools.count(), []

    def fn(batch):
        if next(calls) == k:
            breaks(Broken("on purpose"))
        return -batch

    def source():
        try:
            yield from bench.source("map")
        finally:
            closed.append(True)

    with bench.pipeline(device, size, slots, threads) as pipeline:
        received, error = bench.take("map", pipeline.map(fn, source()))
        assert isinstance(error, Broken)
        assert closed
        assert received == k
        assert named(error) == range(k, k + 1)
        assert traceback.extract_tb(error.__traceback__)[-1].name == "breaks"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("result", [None, 3, "elsewhere"])
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@ends
def test_a_result_of_fn_that_cannot_be_copied_is_named(bench, slots, k, result, device):
    calls = itertools.count()

    def fn(batch):
        if next(calls) != k:
            return -batch
        return batch.to("meta") if result == "elsewhere" else result

    with bench.pipeline(device, slots=slots) as pipeline:
        received, error = bench.take("map", pipeline.map(fn, bench.source("map")))
        assert isinstance(error, (TypeError, ValueError))
        assert received == k
        assert named(error) == range(k, k + 1)
        assert bench.works(pipeline)


# -- a copy fails ---------------------------------------------------------------------------------

# A verb, and the sign of the numbers in the direction that fails: `map` turns them over between.
DIRECTIONS = [(verb, 1) for verb in VERBS] + [("map", -1)]


def _number(size, k):
    """A number in item k; in a chunked item, in its first, middle or last chunk."""
    return 1000 * k + 1 + ((0, 100, 191)[k % 3] if size == "chunked" else 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), HELD)
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("verb", "sign"), DIRECTIONS)
@ends
def test_a_copy_that_fails_is_named(bench, verb, sign, size, slots, k, kind, threads, device):
    with bench.pipeline(device, size, slots, threads) as pipeline:
        if kind == "move" and "pin" in verb:
            return  # what is pinned is not moved
        broken = Broken("on purpose")
        bench.when(kind, _number(size, k), lambda: breaks(broken), sign)
        received, error = bench.run(verb, pipeline)
        assert error is broken
        assert received == k or (size == "packed" and received < k)
        assert k in named(error) or (verb == "to_host_async" and 0 in named(error))
        assert traceback.extract_tb(error.__traceback__)[-1].name == "breaks"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", range(8))
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_an_event_that_cannot_be_recorded_is_an_error(bench, verb, call, device):
    calls = itertools.count()

    def mark(own, **options):
        if next(calls) == call:
            breaks(Broken("on purpose"))
        return own(**options)

    bench.on_stream["mark"] = mark
    with bench.pipeline(device, "chunked") as pipeline:
        received, error = bench.run(verb, pipeline)
        assert isinstance(error, Broken)
        assert received in named(error) or verb == "to_host_async"
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), HELD)
@pytest.mark.parametrize("verb", [verb for verb in STAGED if verb != "to_host_async"])
@ends
def test_the_first_error_is_the_first_also_if_a_later_one_is_there_before(
    bench, gate, verb, kind, threads, device
):
    """Item 1 is held back until the source has failed at item 3."""

    def copy():
        gate()
        breaks(Broken("item 1"))

    def fault():
        gate.open()
        breaks(Broken("item 3"))

    with bench.pipeline(device, "alone", slots=3, threads=threads) as pipeline:
        if verb in _FROM_HOST and kind == "move":
            gate.open()  # their source is only asked for more once an item was read
        bench.when(kind, _number("alone", 1), copy)
        opening = threading.Timer(0.05, gate.open)  # of `slots` items, none may be taken before
        opening.start()
        received, error = bench.run(verb, pipeline, fault, 3)
        opening.join()
        assert str(error) == "item 1"
        assert received == 1
        assert named(error) == range(1, 2)
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("verb", STAGED)
@ends
def test_a_stream_that_cannot_be_used_is_an_error(bench, verb, threads, device):
    bench.on_stream["begin"] = lambda own: breaks(Broken("on purpose"))
    with contextlib.suppress(Broken), bench.pipeline(device, threads=threads) as pipeline:
        received, error = bench.run(verb, pipeline)
        assert isinstance(error, Broken)
        assert received == 0
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fault", ["source", "copy", "move", "memory"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", ["to_host", "to_host out", "prefetch", "map"])
@ends
def test_what_a_fault_held_is_free_at_once(bench, verb, size, fault, device):
    """Without a search for garbage: until then, there could be no room to go on."""
    with bench.pipeline(device, size) as pipeline:
        gc.disable()
        try:
            if fault in ("copy", "move"):
                bench.when(fault, 2001, lambda: breaks(Broken("on purpose")))
            fails = (lambda: breaks(Broken("on purpose"))) if fault == "source" else None
            with NoRoom(6 if fault == "memory" else 10**6, RuntimeError):
                _, error = bench.run(verb, pipeline, fails, 2)
            del error
            until_s = time.perf_counter() + 1  # the ring's own threads let go of things, too
            while bench.alive() > len(bench.slots) and time.perf_counter() < until_s:
                time.sleep(1e-3)
            assert bench.alive() == len(bench.slots)
        finally:
            gc.enable()
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", STAGED)
@ends
def test_of_two_errors_of_one_item_the_first_counts(bench, verb, device):
    """Two movers fail, the second one later, while the caller is busy."""
    calls, late = itertools.count(1), threading.Event()

    def hook(source):
        number = next(calls)
        if number > 1:
            time.sleep(0.02)
            late.set()
        breaks(Broken(str(number)))

    def busy():
        late.wait(0.2)
        time.sleep(0.02)

    with bench.pipeline(device, "chunked", threads=2) as pipeline:
        bench.hooks["move"] = hook
        _, error = bench.run(verb, pipeline, busy, 1)
        assert str(error) == "1"
        assert len(error.__notes__) == len(set(error.__notes__))
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_once_all_is_taken_only_slots_are_held(bench, verb, size, threads, device):
    """The iterator has not ended yet, and nothing searches for garbage."""
    with bench.pipeline(device, size, threads=threads) as pipeline:
        gc.disable()
        try:
            results = VERBS[verb](pipeline, bench.source(verb), bench)
            assert bench.take(verb, results, most=bench.count) == (bench.count, None)
            until_s = time.perf_counter() + 1
            while bench.alive() > len(bench.slots) and time.perf_counter() < until_s:
                time.sleep(1e-3)
            assert bench.alive() == len(bench.slots)
        finally:
            gc.enable()
        assert list(results) == []


# -- out of memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError, MemoryError])
@pytest.mark.parametrize(("slots", "call"), [(1, 0), (2, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_no_room_for_a_slot_says_so_and_is_no_end(bench, verb, slots, call, kind, device):
    calls = itertools.count()

    def pinned(own, size_bytes):
        if next(calls) == call:
            raise kind("no room for a slot")
        return own(size_bytes)

    bench.on_stream["pinned"] = pinned
    with bench.pipeline(device, "packed", slots) as pipeline:
        with pytest.raises(kind, match="no room for a slot") as caught:
            list(VERBS[verb](pipeline, bench.source(verb), bench))
        note = f"while pinning {slots} slots of {_SLOT_BYTES} bytes; give fewer slots or a smaller"
        assert any(note in each for each in caught.value.__notes__)
        del caught
        gc.collect()
        assert [slot() for slot in bench.slots] == [None] * call
        assert bench.works(pipeline)
        assert bench.run(verb, pipeline)[1] is None


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_slots_that_no_machine_has_room_for(bench, verb, device):
    bench.pipeline(device)
    with CopyPipeline(device, slot_bytes=1 << 50) as pipeline:
        with pytest.raises(RuntimeError) as caught:
            list(VERBS[verb](pipeline, bench.source(verb), bench))
        assert "give fewer slots or a smaller slot_bytes" in caught.value.__notes__[0]
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_an_item_that_no_machine_has_room_for(bench, verb, device):
    """A tensor of few bytes that would be many on the other side."""

    def huge():
        on = "cpu" if verb in _FROM_HOST else device
        breaks_later = torch.zeros(1, dtype=torch.int32, device=on).expand(1 << 50)
        yield from itertools.islice(bench.source(verb), 2)
        yield breaks_later

    with bench.pipeline(device, "alone") as pipeline:
        received, error = bench.take(verb, VERBS[verb](pipeline, huge(), bench))
        assert isinstance(error, RuntimeError)
        assert received == (0 if verb == "to_host_async" else 2)
        assert 2 in named(error) or verb == "to_host_async"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("call", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("verb", ["to_host", "to_host pinned out", "prefetch", "map"])
@ends
def test_no_room_for_a_tensor_is_named(bench, verb, call, given, size, kind, device):
    """On either side: for a result, for what small ones travel in, or for a clone."""
    with bench.pipeline(device, size) as pipeline:
        tensors = list(bench.source(verb))
        results = VERBS[verb](pipeline, tensors if given else iter(tensors), bench)
        with NoRoom(call, kind) as room:
            received, error = bench.take(verb, results)
        if room.calls_left >= 0:
            assert (received, error) == (bench.count, None)
        else:
            assert error is None or received in named(error)  # there may be another way without
        del tensors, error
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.gpu
@pytest.mark.parametrize("verb", ["to_host", "prefetch", "map", "to_host_async"])
@ends
def test_a_full_gpu_gives_the_items_before_and_works_again(bench, verb):
    """The allocator itself refuses: this process may take no more than a little."""
    total = torch.cuda.get_device_properties(0).total_memory
    large = 1 << 24

    def source():
        on = "cpu" if verb in _FROM_HOST else "cuda:0"
        yield from itertools.islice(bench.source(verb), 3)
        big = torch.zeros(large, dtype=torch.int32, device=on)
        torch.cuda.empty_cache()
        allowed = torch.cuda.memory_reserved(0) + (8 << 20)  # for what is small
        torch.cuda.set_per_process_memory_fraction(allowed / total, 0)
        yield big  # a copy of it finds no room

    with bench.pipeline("cuda:0", "alone") as pipeline:
        try:
            received, error = bench.take(verb, VERBS[verb](pipeline, source(), bench))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, 0)
        assert isinstance(error, torch.OutOfMemoryError)
        assert received == (0 if verb == "to_host_async" else 3)
        assert 3 in named(error) or verb == "to_host_async"
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("call", range(4))
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_no_more_threads(bench, verb, call, device):
    """Two movers and a leader are wanted, by `map` twice."""
    calls, start = itertools.count(), threading.Thread.start

    def start_some(thread):
        if next(calls) == call:
            raise RuntimeError("can't start new thread")
        start(thread)

    with bench.pipeline(device, threads=2) as pipeline:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", start_some)
            if call < 3 or verb == "map":
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    list(VERBS[verb](pipeline, bench.source(verb), bench))
        assert bench.works(pipeline)
        assert bench.run(verb, pipeline)[1] is None


# -- the consumer stops ---------------------------------------------------------------------------


def _stop(how, bench, verb, results, k):
    """Take k items, or one less where the last one is taken by the loop, and stop."""
    if how == "break":
        for i, result in enumerate(results):
            assert bench.equal(verb, i, result)
            if i == k:
                break
    elif how == "raise":
        with pytest.raises(Broken):
            for i, result in enumerate(results):
                assert bench.equal(verb, i, result)
                if i == k:
                    breaks(Broken("in the body of the loop"))
    else:
        assert bench.take(verb, results, most=k) == (k, None)
        if how == "close":
            results.close()
            assert list(results) == []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", ["break", "raise", "close", "drop"])
@pytest.mark.parametrize(("slots", "k"), [(1, 0), (2, 2), (3, 4)])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_a_consumer_that_stops_leaves_nothing_behind(bench, verb, size, slots, k, how, device):
    closed = []

    def source():
        try:
            yield from bench.source(verb)
        finally:
            closed.append(True)

    with bench.pipeline(device, size, slots, threads=1 + k % 2) as pipeline:
        results = VERBS[verb](pipeline, source(), bench)
        _stop(how, bench, verb, results, k)
        del results
        gc.collect()
        assert closed or (how in ("close", "drop") and k == 0)  # it had not begun
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_a_loop_that_leaves_the_pipeline_too(bench, verb, size, slots, k, device):
    pipeline = bench.pipeline(device, size, slots, threads=1 + k % 2)
    with pytest.raises(Broken) as caught, pipeline:
        for i, result in enumerate(VERBS[verb](pipeline, bench.source(verb), bench)):
            assert bench.equal(verb, i, result)
            if i == k:
                breaks(Broken("in the body of the loop"))
    assert not hasattr(caught.value, "__notes__")
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), HELD)
@pytest.mark.parametrize("verb", ["to_host", "to_host out", "to_host_async"])
@ends
def test_left_by_an_error_it_waits_for_what_runs_and_drops_the_rest(
    bench, gate, verb, kind, threads, device
):
    """The first chunk of item 2 is held back until the pipeline is being left."""
    opening = threading.Timer(0.1, gate.open)
    pipeline = bench.pipeline(device, "chunked", slots=2, threads=threads)
    with pytest.raises(Broken), pipeline:
        bench.when(kind, 2001, gate)
        bench.count = 6  # no more of them can be under way
        results = VERBS[verb](pipeline, bench.source(verb, kind="list"), bench)
        assert bench.take(verb, results, most=1) == (1, None)
        assert gate.begun.wait(_WAIT_S)
        opening.start()
        seen = bench.copied_from_now_on()
        breaks(Broken("on purpose"))
    assert gate.finished, "work outlived its pipeline"
    opening.join()
    assert [number for number in seen if number > 3000] == []
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("slots", "k"), [(2, 0), (2, 1), (3, 2)])
@pytest.mark.parametrize("how", ["break", "copy fails", "last copy fails", "source exits"])
@pytest.mark.parametrize("verb", ["prefetch", "prefetch pinned"])
@ends
def test_copies_under_way_outlive_what_is_given_up(bench, verb, how, slots, k, device):
    """Their memory must not be used for anything else before they have ended."""
    with bench.pipeline(device, "chunked", slots) as pipeline:
        if "fails" in how:
            number = 1000 * k + (192 if how == "last copy fails" else 1)
            bench.when("copy", number, lambda: breaks(Broken("on purpose")))
        exits = functools.partial(breaks, SystemExit()) if how == "source exits" else None
        results = VERBS[verb](pipeline, bench.source(verb, exits, k + 1), bench)
        received, _ = bench.take(verb, results, most=k if how == "break" else bench.count)
        del results, _
        gc.collect()
    given_up = {place for item, place in bench.destinations.items() if item >= received}
    assert given_up <= bench.outlived
    assert (
        given_up
        or how in ("break", "copy fails")
        or (how, verb) == ("last copy fails", "prefetch pinned")
    )


# -- Ctrl-C ---------------------------------------------------------------------------------------


def ended_s(begun, rescue, wait, patience_s=4 * _PROMPT_S):
    """Press Ctrl-C once something has begun; the seconds until a wait of this thread's ended."""
    sent_s, ended = [], threading.Event()

    def press():
        if begun.wait(_WAIT_S):
            time.sleep(0.02)  # the wait has begun by then
            sent_s.append(time.perf_counter())
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        if not ended.wait(patience_s):
            rescue()

    pressing = threading.Thread(target=press)
    pressing.start()
    interrupted_s = None
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)  # not so in the background
    try:
        try:
            wait()
        finally:
            if not sent_s:
                pressing.join(_WAIT_S)  # it ended too soon: Ctrl-C is still to come
    except KeyboardInterrupt:
        interrupted_s = time.perf_counter()
    finally:
        ended.set()
        pressing.join()
        signal.signal(signal.SIGINT, heard)
    assert sent_s, "what was to be waited for never began"
    assert interrupted_s is not None, "nothing was interrupted"
    return interrupted_s - sent_s[0]


def _raising(error):
    if error is not None:
        raise error


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), [*HELD, ("source", 1)])
@pytest.mark.parametrize(("slots", "k"), [(1, 0), (3, 5)])
@pytest.mark.parametrize("source", ["fresh", "list"])
@pytest.mark.parametrize(("verb", "sign"), [*((verb, 1) for verb in STAGED), ("map", -1)])
def test_ctrl_c_ends_a_wait_at_once(
    bench, gate, verb, sign, source, slots, k, kind, threads, device
):
    def wait():
        fault = gate if kind == "source" else None
        results = VERBS[verb](pipeline, bench.source(verb, fault, k, source), bench)
        received, error = bench.take(verb, results)
        assert received <= k
        _raising(error)

    with bench.pipeline(device, "chunked", slots, threads) as pipeline:
        if kind != "source":
            bench.when(kind, _number("chunked", k), gate, sign)
        # What moves host memory is waited for: the caller may use that memory for other things.
        patience_s = 0.1 if kind == "move" else 4 * _PROMPT_S
        assert ended_s(gate.begun, gate.open, wait, patience_s) < _PROMPT_S
        assert gate.finished or kind != "move" or verb == "to_host_async"
        gate.open()
        bench.in_time(lambda: bench.works(pipeline))
        bench.works(pipeline)
    bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), HELD)
@pytest.mark.parametrize("verb", STAGED)
def test_ctrl_c_that_leaves_the_pipeline_waits_for_what_runs(
    bench, gate, verb, kind, threads, device
):
    opening = threading.Timer(0.2, gate.open)

    def wait():
        with bench.pipeline(device, "chunked", threads=threads) as pipeline:
            bench.when(kind, 1001, gate)
            opening.start()
            _raising(bench.run(verb, pipeline)[1])

    ended_s(gate.begun, gate.open, wait)
    assert gate.finished, "work outlived its pipeline"
    opening.join()
    bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("kind", ["copy", "move"])
@pytest.mark.parametrize("items", ["many", "one"])
def test_ctrl_c_while_leaving_drops_what_has_not_begun(bench, items, kind, threads, device):
    """There is more work than Ctrl-C may take, in as many items as there can be or in one."""
    leaving, handles = threading.Event(), []

    def leave():
        with bench.pipeline(device, "alone", threads=threads) as pipeline:
            bench.hooks[kind] = lambda source: time.sleep(0.2 if items == "many" else 5e-3)
            if items == "many":
                handles.extend(pipeline.to_host_async(bench.tensor(i, device)) for i in range(4))
            else:
                large = torch.arange(1000 * _SLOT_BYTES // 4, device=device, dtype=torch.int32)
                handles.append(pipeline.to_host_async(large))
            leaving.set()

    assert ended_s(leaving, bench.hooks.clear, leave) < _PROMPT_S
    with pytest.raises(CancelledError):
        handles[-1].result()
    bench.a_new_one_works()


def interrupted_at(line, run):
    """Run something, but for a Ctrl-C at a line of the pipeline's own; whether it came to that."""
    own = {module.__file__ for module in (transfer, parcel, ring, load)}
    left, before = [None] * line, sys.gettrace()

    def trace(frame, event, argument):
        path = frame.f_code.co_filename
        if path not in own:
            return None
        # Python hears no signal between a block's end and the release of its lock.
        deaf = linecache.getline(path, frame.f_lineno).lstrip().startswith(("with ", "except "))
        if event == "line" and not deaf:
            if not left:
                sys.settrace(None)
                raise KeyboardInterrupt
            left.pop()
        return trace

    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("part", range(3))
def test_ctrl_c_at_any_line(bench, verb, part, device):
    """The iterator is interrupted in whatever it is doing, at some lines per case."""

    def run():
        received, error = bench.run(verb, pipeline)
        _raising(error)
        assert received == bench.count

    def interrupt(line):
        nonlocal pipeline
        with bench.pipeline(device, "alone") as pipeline:
            bench.count = 3
            assert bench.run(verb, pipeline) == (3, None)
            came = interrupted_at(line, run)
            assert bench.works(pipeline)
        return came

    pipeline = None
    for line in itertools.count(13 * part, 41):
        if not bench.in_time(functools.partial(interrupt, line)):
            break
    assert line > 80


# -- used after it was closed, or from two threads ------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", ["not open yet", "left", "left by an error"])
@pytest.mark.parametrize("verb", VERBS)
@ends
def test_a_pipeline_that_is_not_open_says_so(bench, verb, state, device):
    pipeline = bench.pipeline(device)
    if state != "not open yet":
        with contextlib.suppress(Broken), pipeline:
            assert bench.works(pipeline)
            if state == "left by an error":
                breaks(Broken("on purpose"))
    match = "is not open yet" if state == "not open yet" else "was left.*Make a new one"
    source = bench.source(verb)
    for call in (lambda use: use(), bench.in_time):  # from another thread, too
        with pytest.raises(RuntimeError, match=match):
            call(lambda: next(VERBS[verb](pipeline, source, bench)))
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_error", [False, True])
@pytest.mark.parametrize(("slots", "k"), FEW_AT)
@pytest.mark.parametrize("size", ["packed", "chunked"])
@pytest.mark.parametrize("verb", STREAMING)
@ends
def test_an_iterator_of_a_pipeline_that_was_left_says_so(
    bench, verb, size, slots, k, by_error, device
):
    with contextlib.suppress(Broken), bench.pipeline(device, size, slots) as pipeline:
        results = VERBS[verb](pipeline, bench.source(verb), bench)
        unused = VERBS[verb](pipeline, bench.source(verb), bench)
        assert bench.take(verb, results, most=k) == (k, None)
        if by_error:
            breaks(Broken("on purpose"))
    assert bench.slots or k == 0
    assert [slot() for slot in bench.slots if slot() is not None] == []
    received, error = bench.take(verb, results, start=k)
    assert received == k or size == "packed"  # some were there already
    assert "was left" in str(error)
    assert list(results) == []
    with pytest.raises(RuntimeError, match="was left"):
        next(unused)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
@ends
def test_handles_outlive_the_pipeline(bench, size, slots, device):
    with bench.pipeline(device, size, slots) as pipeline:
        handles = [pipeline.to_host_async(bench.tensor(i, device)) for i in range(5)]
    assert all(torch.equal(handles[i].result(), bench.tensor(i)) for i in range(5))
    with pytest.raises(RuntimeError, match="was left"), pipeline:
        pass


@pytest.mark.parametrize("device", DEVICES)
@ends
def test_a_pipeline_is_entered_once(bench, device):
    with bench.pipeline(device) as pipeline:
        with pytest.raises(RuntimeError, match="is open"), pipeline:
            pass
        assert bench.works(pipeline)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "threads"), [*HELD, ("source", 1)])
@pytest.mark.parametrize("other", VERBS)
@pytest.mark.parametrize("verb", [verb for verb in STAGED if verb != "to_host_async"])
@ends
def test_a_second_thread_is_refused_and_the_first_unharmed(
    bench, gate, verb, other, kind, threads, device
):
    found = []

    def first():
        found.append(bench.run(verb, pipeline, gate if kind == "source" else None, 0))

    with bench.pipeline(device, "chunked", threads=threads) as pipeline:
        before = VERBS[other](pipeline, bench.source(other), bench)
        if kind != "source":
            bench.when(kind, 1, gate)
        thread = threading.Thread(target=first)
        thread.start()
        assert gate.begun.wait(_WAIT_S)
        with pytest.raises(RuntimeError, match="in use by another thread"):
            next(VERBS[other](pipeline, bench.source(other), bench))
        with pytest.raises(RuntimeError, match="in use by another thread"):
            next(before)
        gate.open()
        thread.join(_WAIT_S)
        assert found == [(bench.count, None)]
        assert bench.works(pipeline)
    assert bench.a_new_one_works()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("by_error", [False, True])
@pytest.mark.parametrize("k", [0, 1, 4])
@pytest.mark.parametrize(("kind", "threads"), [*HELD, ("source", 1), ("slots", 1)])
@pytest.mark.parametrize("verb", STAGED)
@ends
def test_left_while_another_thread_is_inside(bench, gate, verb, kind, threads, k, by_error, device):
    """The other thread gets its results, or is told."""
    found = []

    def pinned(own, size_bytes):
        gate()
        return own(size_bytes)

    if kind == "slots":
        bench.on_stream["pinned"] = pinned

    def first():
        found.append(bench.run(verb, pipeline, gate if kind == "source" else None, k))

    opening = threading.Timer(0.05, gate.open)
    thread = threading.Thread(target=first, daemon=True)
    with contextlib.suppress(Broken), bench.pipeline(device, threads=threads) as pipeline:
        if kind in ("copy", "move"):
            bench.when(kind, 1000 * k + 1, gate)
        thread.start()
        assert gate.begun.wait(_WAIT_S)
        opening.start()
        seen = bench.copied_from_now_on()
        if by_error:
            breaks(Broken("on purpose"))
    assert gate.finished or kind in ("source", "slots"), "work outlived its pipeline"
    assert [n for n in seen if abs(n) > 1000 * (k + 3)] == [] or not by_error
    opening.join()
    thread.join(_WAIT_S / 2)
    ((received, error),) = found
    assert received <= bench.count
    assert error is None or isinstance(error, (RuntimeError, CancelledError))
    assert bench.a_new_one_works()


# -- how much is tried ----------------------------------------------------------------------------


def test_at_least_500_faults_are_tried_on_each_device(request):
    chosen = request.config.option
    if chosen.keyword or chosen.markexpr != "stress" or "::" in "".join(request.config.args):
        pytest.skip("only some were asked for")
    names = [item.name for item in request.session.items if item.path == request.path]
    for device in ("cpu", "cuda:0"):
        assert sum(device in name for name in names) >= 500
