"""Pipelines that can be made to fail, and what their tests are held to."""

import functools
import itertools
import re
import threading
import weakref
from collections import deque

import torch
from pipeline_ways import comes_true

from autopar import CopyPipeline
from autopar.transfer import parcel, ring, to_device
from autopar.transfer import pipeline as transfer
from autopar.transfer.parcel import Parcels
from autopar.transfer.to_device import ToDeviceParcels
from autopar.transfer.use import LEFT

_WAIT_S = 10  # for what should come at once, so that a broken pipeline fails instead of hanging
SLOT_BYTES = 256
# How many numbers of four bytes an item has. Packed ones share a slot, chunked ones take three.
NUMBERS = {"alone": 8, "packed": 8, "chunked": 3 * SLOT_BYTES // 4}
SIZES = list(NUMBERS)


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
        for parcels in (Parcels, ToDeviceParcels):
            self.patch.setattr(parcels, "_small_bytes", 1 << 18 if size == "packed" else 0)
        self.patch.setattr(to_device, "_DIRECT_BYTES", 0)
        self.patch.setattr(ring, "_MOVED_BY_CALLER_BYTES", 0)
        self.patch.setattr(transfer, "copy_stream", self._copy_stream)
        self.patch.setattr(ring, "move_bytes", self._asking_move)
        return CopyPipeline(device, slots=slots, slot_bytes=SLOT_BYTES, threads=threads)

    _copy_stream_of = staticmethod(transfer.copy_stream)

    def _copy_stream(self, device):
        stream = self._copy_stream_of(device)
        pinned, copy, outlives = stream.pinned, stream.copy, stream.outlives

        def pinned_slot(size_bytes):
            slot = self.watch(pinned(size_bytes).zero_())  # its gaps held other tests' numbers
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

    def _asking_move(self, to, sources):
        for source in sources:
            self._ask("move", source)
        self._move(to, sources)

    _move = staticmethod(ring.move_bytes)

    def _ask(self, kind, source):
        if kind in self.hooks:
            self.hooks[kind](source)

    def opening(self, gate, pipeline):
        """A thread that opens a gate once a pipeline is left, and begins with nothing any more.

        Its `seen` are the numbers that copies begin with from then on.
        """

        def is_left():
            rings = (*pipeline._rings.values(),)
            left = not rings or any(ring._left for ring in rings)
            return pipeline._use.state == LEFT and left

        def open_it():
            comes_true(is_left)
            thread.seen = self.copied_from_now_on()
            gate.open()

        thread = threading.Thread(target=open_it)
        thread.seen = []
        thread.start()
        return thread

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
        numbers = torch.arange(NUMBERS[self.size], dtype=torch.int32) + (1000 * i + 1)
        return self.watch(numbers.to(device, copy=True))

    def pinned(self, tensor):
        """A copy in pinned memory; on the CPU, one that is taken for such."""
        if self.device.type == "cuda":
            return self.watch(tensor.pin_memory())
        self.said_to_be_pinned[tensor.data_ptr()] = weakref.ref(tensor)
        return tensor

    def source(self, verb, fault=None, at=None, kind="fresh"):
        """Items for a verb; a fault is called when it is its turn."""
        device = "cpu" if verb in FROM_HOST else self.device
        at = -1 if fault is None else at
        return SOURCES[kind](functools.partial(self.tensor, device=device), self.count, at, fault)

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


def _kept(*given):
    for tensor in _fresh(*given):  # noqa: UP028  (held here till the next one is asked for)
        yield tensor


class _Listed(list):
    def __init__(self, make, *given):
        super().__init__(make(i) for i in range(given[0]))
        self._given = given

    def __iter__(self):
        return _fresh(self.__getitem__, *self._given)


SOURCES = {"fresh": _fresh, "kept": _kept, "list": _Listed}


def blanks(bench):
    return (torch.zeros(NUMBERS[bench.size], dtype=torch.int32) for _ in itertools.count())


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


VERBS = {
    "to_host": lambda pipeline, source, bench: pipeline.to_host(source),
    "to_host out": lambda pipeline, source, bench: pipeline.to_host(source, out=blanks(bench)),
    "to_host pin": lambda pipeline, source, bench: pipeline.to_host(source, pin=True),
    "to_host pinned out": lambda pipeline, source, bench: pipeline.to_host(
        source, out=map(bench.pinned, blanks(bench))
    ),
    "prefetch": lambda pipeline, source, bench: pipeline.prefetch(source),
    "prefetch pinned": lambda pipeline, source, bench: pipeline.prefetch(map(bench.pinned, source)),
    "prefetch mixed": _mixed,
    "map": lambda pipeline, source, bench: pipeline.map(torch.neg, source),
    "to_host_async": _asynchronous,
}
STREAMING = [verb for verb in VERBS if verb != "to_host_async"]
STAGED = ["to_host", "to_host out", "prefetch", "map"]  # through slots only
FROM_HOST = {"prefetch", "prefetch pinned", "prefetch mixed", "map"}
_SIGNS = {verb: -1 if verb == "map" else 1 for verb in VERBS}


def named(error):
    """Whether everything that an error's notes say about items is about this one."""
    notes = " ".join(error.__notes__)
    found = re.findall(r"\bitems? '?(\d+)(?: to (\d+))?", notes)
    assert found, notes
    firsts = [int(first) for first, _ in found]
    lasts = [int(last or first) for first, last in found]
    return range(max(firsts), min(lasts) + 1)


def ends(test):
    """Run a test in another thread, so that it fails if it hangs."""

    @functools.wraps(test)
    def run(bench, **arguments):
        bench.in_time(functools.partial(test, bench, **arguments), _WAIT_S)

    return run


def number_in(size, k):
    """A number in item k; in a chunked item, in its first, middle or last chunk."""
    return 1000 * k + 1 + ((0, 100, 191)[k % 3] if size == "chunked" else 0)
