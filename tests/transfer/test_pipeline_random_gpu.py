"""Random copy pipelines on GPUs, with each lane late on purpose in turn, and seeded faults.

Whoever reads too early finds poison. CSAN can't see all of it (see programs/transfer_csan.py).
"""

import contextlib
import ctypes
import functools
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from pipeline_ways import blank, filled

from autopar import CopyPipeline
from autopar.transfer import pipeline as transfer
from autopar.transfer import ring, to_device, to_host
from autopar.transfer.copy_stream import CopyStream, CudaCopyStream
from autopar.transfer.load import Load

pytestmark = pytest.mark.gpu
_GPU = torch.device("cuda", 0)
_POISON = 0xAA
_DTYPES = [torch.uint8, torch.bool, torch.int16, torch.bfloat16, torch.float32, torch.float64]
_DTYPES.append(torch.complex64)
_two = pytest.mark.gpu(2)
LANES = ["compute before", "compute after", "copies", "workers", "caller"]
TO_HOST = ["to_host", "to_host kept", "to_host given", "out", "out pinned", "pin", "async"]
TO_DEVICE = ["prefetch", "prefetch pinned"]
VERBS = [*TO_HOST, *TO_DEVICE, "map"]


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def same(one, other):
    """Whether two host tensors are equal bit for bit, and laid out alike."""
    kinds = [(x.dtype, x.shape, x.stride() if x.numel() > 1 else None) for x in (one, other)]
    return kinds[0] == kinds[1] and torch.equal(bits(one), bits(other))


# -- random pipelines -----------------------------------------------------------------------------


class Work:
    """What a random pipeline is given to copy, and how."""

    def __init__(self, seed, verbs=VERBS):
        chance, self.verb = random.Random(seed), verbs[seed % len(verbs)]
        self.slots, self.threads = chance.randint(1, 4), chance.choice((1, 2, 4, 8))
        self.slot_bytes = chance.choice((2**12, 2**15, 2**18))
        alike, kind = chance.random() < 0.5, self._kind(chance)
        self.items = []
        for _ in range(chance.randint(2, 8)):
            self.items.append(noise(*kind, 100 * seed + len(self.items)))
            kind = kind if alike else self._kind(chance)
        self.batches, rest = [], list(self.items)
        while rest:
            count = 1 if self.verb == "map" else chance.randint(1, 3)
            self.batches.append(rest[:count])
            del rest[:count]
        self.name = f"{self.verb} {seed}"

    def _kind(self, chance):
        """Type, size and whether turned, of an item of up to 3.5 slots."""
        most = chance.choice((0, 100, self.slot_bytes, int(3.5 * self.slot_bytes)))
        return chance.choice(_DTYPES), chance.randint(0, most), chance.random() < 0.3

    def pipeline(self, device):
        return CopyPipeline(
            device, slots=self.slots, slot_bytes=self.slot_bytes, threads=self.threads
        )


def noise(dtype, size_bytes, turned, seed):
    """A tensor of random bits; a turned one has its strides the other way round."""
    count = size_bytes // dtype.itemsize
    if turned:
        count = 3 * max(2, count // 3)
    flat = filled((count,), dtype, seed)
    return flat.view(3, -1).t() if turned else flat


class Late:
    """Makes one lane late by random times: a stream by kernels, a thread by sleep."""

    def __init__(self, lane, spin, most_ms=1.5):
        self._lane, self._spin, self._most_ms = lane, spin, most_ms
        self._chance = random.Random(lane)

    def on_stream(self, lane):
        if lane == self._lane:
            self._spin(self._some_ms())

    def on_thread(self, lane):
        if lane == self._lane:
            time.sleep(self._some_ms() / 1e3)

    def _some_ms(self):
        return self._chance.choice((0, 1, 1)) * self._chance.uniform(0, self._most_ms)


@contextlib.contextmanager
def lateness(late):
    """Delays inside all pipelines; the workers get even crumbs, and slots hold poison until filled.

    A slot that was emptied holds nothing of use until the next copy is done.
    """
    slots = []

    def is_slot(address):
        return any(slot.data_ptr() <= address < slot.data_ptr() + len(slot) for slot in slots)

    def late_copy(copy):
        def delayed(stream, to, source):
            if is_slot(to.data_ptr()):
                to.fill_(_POISON)
            late.on_thread("caller")
            late.on_stream("copies")
            copy(stream, to, source)

        return delayed

    def noted(pinned):
        def slot(stream, size_bytes):
            slots.append(pinned(stream, size_bytes))
            return slots[-1]

        return slot

    move = ring.move_bytes

    def late_move(to, sources):
        for piece in to:
            if is_slot(piece.data_ptr()):
                ctypes.memset(piece.data_ptr(), _POISON, piece.nbytes)
        late.on_thread("workers")
        move(to, sources)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ring, "_MOVED_BY_CALLER_BYTES", 0)
        patch.setattr(to_device, "_DIRECT_BYTES", 0)
        patch.setattr(ring, "move_bytes", late_move)
        for kind in (CopyStream, CudaCopyStream):
            patch.setattr(kind, "copy", late_copy(kind.copy))
            patch.setattr(kind, "pinned", noted(kind.pinned))
        yield


def written(x, late):
    """A copy on the same device, written late, in memory that holds poison until then."""
    torch.full((x.nbytes,), _POISON, dtype=torch.uint8, device=x.device)  # freed at once
    late.on_stream("compute before")
    y = x.clone()
    late.on_stream("compute after")
    return y


def outcome(work, device, late):
    """What a random pipeline gives, item by item, each as a few tensors that should be alike."""
    with work.pipeline(device) as pipeline:
        if work.verb == "map":
            results = pipeline.map(lambda x: written(x[0], late), given_batches(work, late))
            return list(arrived(results, late))
        if work.verb in TO_DEVICE:
            return list(used(pipeline.prefetch(given_batches(work, late)), late))
        there = [item.to(device, copy=True) for item in work.items]
        if work.verb == "async":
            return [each.result() for each in list(handles(pipeline, there, late))]
        out, cuda = None, torch.device(device).type == "cuda"
        if work.verb.startswith("out"):
            out = [blank(x.contiguous(), cuda and work.verb == "out pinned") for x in work.items]
        source = SOURCES.get(work.verb, fresh)(there, late)
        return list(arrived(pipeline.to_host(source, out, work.verb == "pin"), late))


def fresh(there, late):
    """Each one is freed as soon as it was handed over; the next one may get its memory."""
    for x in there:
        yield written(x, late)


def kept(there, late):
    """Each one is overwritten as soon as it was handed over."""
    for x in there:
        y = written(x, late)
        yield y
        y.zero_()


SOURCES = {"to_host kept": kept, "to_host given": lambda *given: list(fresh(*given))}


def handles(pipeline, there, late):
    for x in there:
        y = written(x, late)
        yield pipeline.to_host_async(y)
        y.zero_()


def given_batches(work, late):
    """Each one is overwritten as soon as the next one is asked for."""
    pin = torch.cuda.is_available() and work.verb == "prefetch pinned"
    for batch in work.batches:
        hosts = [blank(item, pin).copy_(item) for item in batch]
        yield hosts
        for host in hosts:
            host.zero_()
        late.on_thread("caller")


def arrived(results, late):
    """Each one as it was when it came, and as it is in the end."""
    for result in results:
        yield result.clone(), result
        late.on_thread("caller")


def used(batches, late):
    """What a kernel reads of each, late; its memory is freed and overwritten at once."""
    for batch in batches:
        late.on_stream("compute before")
        read = [x.clone() for x in batch]
        late.on_stream("compute after")
        late.on_thread("caller")
        sizes, device = [x.nbytes for x in batch], batch[0].device
        del batch
        for size in sizes:
            torch.full((size,), _POISON, dtype=torch.uint8, device=device)
        yield from ((x,) for x in read)
        del read


def wrong(work, device, late):
    """The numbers of the items that came out otherwise than they went in."""
    found = [x if isinstance(x, tuple) else (x,) for x in outcome(work, device, late)]
    results = [[*map(torch.Tensor.cpu, each)] for each in found]
    items = [x.contiguous() if work.verb.startswith("out") else x for x in work.items]
    pairs = enumerate(zip(results, items, strict=True))
    return [i for i, (each, item) in pairs if not all(same(one, item) for one in each)]


@functools.cache
def random_works():
    return [Work(seed) for seed in range(60)]


@pytest.mark.parametrize("lane", LANES)
def test_every_bit_is_right_whichever_lane_is_late(spin, lane):
    late = Late(lane, spin)
    with lateness(late):
        found = {work.name: wrong(work, _GPU, late) for work in random_works()}
    assert not any(found.values()), {name: items for name, items in found.items() if items}


@pytest.mark.parametrize("devices", ["one", pytest.param("two", marks=_two)])
def test_pipelines_run_at_once_in_many_threads(spin, devices):
    """The current device is the first one in each thread, whichever its pipeline's is."""
    late = Late("copies", spin, most_ms=0.5)

    def run(number):
        device = torch.device("cuda", number % 2 if devices == "two" else 0)
        works = random_works()[number::4]
        return {work.name: items for work in works if (items := wrong(work, device, late))}

    with lateness(late), ThreadPoolExecutor(4) as threads:
        assert list(threads.map(run, range(4))) == [{}] * 4


# -- that these tests can fail --------------------------------------------------------------------


def copies_wait_for_no_event(patch):
    wait = CudaCopyStream.wait

    def careless(stream, end):
        if not isinstance(end, torch.cuda.Event):
            wait(stream, end)

    patch.setattr(CudaCopyStream, "wait", careless)


def computing_does_not_wait(patch):
    patch.setattr(CudaCopyStream, "caller_receives", lambda stream, end, tensors: None)


def marks_come_early(patch):
    def early(stream, **options):
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.Stream(stream.device))  # which has nothing to do
        return event

    patch.setattr(CudaCopyStream, "mark", early)


def slots_count_as_free(patch):
    for name in ("TO_HOST", "TO_DEVICE"):
        first, second = getattr(transfer, name)
        patch.setattr(transfer, name, (first._replace(slot="nothing"), second))


def nothing_is_cloned(patch):
    patch.setattr(to_host, "next_owned", lambda source: (next(source), True))


def batches_count_as_read(patch):
    patch.setattr(Load, "lent", property(lambda load: False, lambda load, value: None))


FAULTS = {
    "sources read early": (copies_wait_for_no_event, "compute before", TO_HOST[:1]),
    "results of others read early": (copies_wait_for_no_event, "compute before", ["map"]),
    "memory written early": (copies_wait_for_no_event, "compute before", TO_DEVICE),
    "batches used early": (computing_does_not_wait, "copies", TO_DEVICE),
    "slots emptied early": (marks_come_early, "copies", ["to_host"]),
    "results handed out early": (marks_come_early, "copies", ["out pinned", "pin"]),
    "slots filled early by the host": (slots_count_as_free, "copies", ["prefetch"]),
    "sources overwritten early": (nothing_is_cloned, "copies", ["to_host kept"]),
    "batches overwritten early": (batches_count_as_read, "workers", ["prefetch"]),
    "pinned batches overwritten early": (batches_count_as_read, "copies", ["prefetch pinned"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_missing_wait_is_found(spin, monkeypatch, fault):
    break_it, lane, verbs = FAULTS[fault]
    late = Late(lane, spin, most_ms=8)
    break_it(monkeypatch)
    with lateness(late):
        assert any(wrong(Work(seed, verbs), _GPU, late) for seed in range(50))
    torch.cuda.synchronize()


def test_csan_reports_every_seeded_race_and_nothing_else(run_program):
    done = run_program("transfer_csan.py")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["trouble"] == []
    assert [each["reports"] for each in found["pipelines"]] == [0] * 50, done.stderr
    assert all(each["equal"] for each in found["pipelines"])
    assert all(each["copies"] > 0 for each in found["pipelines"]), "CSAN saw no copies"
    assert len(found["races"]) >= 7
    for race, (without, with_it) in found["races"].items():
        assert without == 0, f"{race}: reported although all is well\n{done.stderr}"
        assert with_it > 0, f"{race}: not reported"
