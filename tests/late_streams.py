"""Streams and moves that are late, random work for them, and what has to come out."""

import copy
import operator
import random
import threading
import time
from collections import deque

import torch
from pipeline_ways import filled
from torch.utils import _pytree as pytree

from autopar.transfer import ring
from autopar.transfer.copy_stream import CopyStream
from autopar.transfer.layout import flat

_POISON = 0xAA
_DTYPES = (
    *(torch.bool, torch.uint8, torch.int16, torch.uint32, torch.int64, torch.bfloat16),
    *(torch.float8_e5m2, torch.float32, torch.float64, torch.complex64, torch.complex128),
)


class Mark:
    """The end of what a queue was given; it stands for a CUDA event."""

    def __init__(self, work):
        self.work, self._place = work, work.taken

    def synchronize(self):
        self.work.run_until(self._place)

    def query(self):
        if threading.current_thread() is threading.main_thread():  # which waits by asking
            self.synchronize()
        return self.work.done >= self._place


class Work:
    """Work that is done in order, once somebody waits for the end of it."""

    def __init__(self):
        self.taken = self.done = 0
        self._waiting = deque()
        self._working = threading.RLock()

    def __call__(self, task):
        with self._working:
            self._waiting.append(task)
            self.taken += 1

    def run_until(self, place):
        with self._working, torch.inference_mode():
            while self.done < place and self._waiting:
                self._waiting.popleft()()
                self.done += 1


class LateStream(CopyStream):
    """Does its work once somebody waits for it, and so does the caller's stream."""

    pinned_memory: set = set()  # noqa: RUF012

    def __init__(self, device):
        super().__init__(device)
        self.queue, self.compute = Work(), Work()
        self.log = []

    def pinned(self, size_bytes):
        return poisoned(super().pinned(size_bytes))

    def is_pinned(self, tensor):
        return tensor.untyped_storage().data_ptr() in self.pinned_memory

    def wait(self, end):
        self.log.append(end)
        if isinstance(end, Mark):
            self.queue(end.synchronize)
        else:
            end.synchronize()

    def copy(self, to, source):
        self.log.append("copy")
        with torch.inference_mode():
            flat(to).fill_(_POISON)
        self.queue(lambda: to.copy_(source))

    def mark(self, **_):
        return Mark(self.queue)

    def caller_mark(self):
        return Mark(self.compute)

    def caller_receives(self, end, tensors):
        end.synchronize()

    def outlives(self, tensor):
        self.log.append(tensor.data_ptr())


class ErraticStream(LateStream):
    """Does its work at odd moments too, in a thread of its own."""

    def __init__(self, device):
        super().__init__(device)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._thread.join()

    def _work(self):
        chance = random.Random(0)
        while not self._stopped.wait(chance.choice((0, 0, 1e-4, 1e-3))):
            self.queue.run_until(self.queue.done + 1)


class EarlyStream(LateStream):
    """Does its work at once."""

    def copy(self, to, source):
        super().copy(to, source)
        self.mark().synchronize()


class LateCallers(LateStream):
    """A stream of the caller's that comes to what it receives later."""

    def caller_receives(self, end, tensors):
        self.compute(end.synchronize)


def make_moves_late(patch):
    """Workers take over whatever they can, and dawdle over it; so does who waits for them."""
    chance = random.Random(0)

    def late(function):
        def later(*args):
            time.sleep(3e-4 * chance.random())
            return function(*args)

        return later

    patch.setattr(ring, "_MOVED_BY_CALLER_BYTES", 32)
    patch.setattr(ring.Ring, "_move", late(ring.Ring._move))
    patch.setattr(ring, "_is_done_aside", late(ring._is_done_aside))


def poisoned(tensor):
    """The tensor, with all of its memory filled."""
    if tensor.device.type == "cpu":
        with torch.inference_mode():
            torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(_POISON)
    return tensor


def poisoning(make):
    return lambda *args, **options: poisoned(make(*args, **options))


def tensor_by(chance, largest=400):
    """Any bits of any dtype, in any shape and layout."""
    dtype = chance.choice(_DTYPES)
    length = chance.randrange(largest)
    shape = chance.choice(((), (0,), (3, 0), (1,), (2, 3), (2, 3, 4, 2), (length,), (length,)))
    values = filled((2, *shape), dtype, chance.randrange(1 << 30))
    pairs = values.reshape(*shape, 2)
    kinds = [values[0], values[1], pairs[..., 1]]
    if len(shape) > 1:
        kinds.append(values[1].transpose(0, -1))
    if 0 not in shape and shape:
        kinds.append(values[0][:1].expand(shape))
    if dtype.is_complex:
        kinds += [values[0].mT.conj() if len(shape) > 1 else values[0].conj()]
        kinds += [pairs.conj()[..., 0].imag, torch._neg_view(values[1])]
    return chance.choice(kinds)


def batch_by(chance):
    """Tensors in containers, and other things."""

    def leaf():
        return tensor_by(chance, 60)

    kinds = (
        leaf,
        lambda: (leaf(), [leaf(), 3], "x"),
        lambda: {"x": leaf(), "y": {"z": (leaf(), None)}},
        list,
        lambda: [leaf() for _ in range(12)],
    )
    return chance.choice(kinds)()


def out_by(chance, items):
    """Memory to copy to, or none."""
    if chance.random() < 0.5:
        return None
    return [poisoned(torch.empty(item.shape, dtype=item.dtype)) for item in items]


def source_by(chance, items):
    """The items, in memory of their own that may be pinned, from sources with all the rights."""
    lent = copy.deepcopy(items)
    for tensor in pytree.tree_leaves(lent):
        if isinstance(tensor, torch.Tensor) and tensor.numel() and chance.random() < 0.3:
            LateStream.pinned_memory.add(tensor.untyped_storage().data_ptr())

    def overwriting():
        for item in lent:
            yield item
            pytree.tree_map_only(torch.Tensor, poisoned, item)

    def giving_away():
        while lent:
            yield lent.pop(0)

    return chance.choice((overwriting, giving_away, lambda: lent))()


def bits_of(tensor):
    row = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    bits = row.view(torch.uint8).numpy().tobytes()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    strides = [stride for n, stride in steps if n > 1 and tensor.numel()]
    return f"{tensor.dtype} {tuple(tensor.shape)} by {strides}", bits


def read(batch):
    """What has to be equal."""
    return pytree.tree_map_only(torch.Tensor, bits_of, batch)


def by_torch(tensor):
    """What has to come of it, by torch's own copy."""
    return torch.empty_like(tensor).copy_(tensor)


def check(items, results, out=None):
    """Hold results to torch's own copies, each as it comes, and all once more at the end."""
    if out is None:
        wanted = read(pytree.tree_map_only(torch.Tensor, by_torch, items))
    else:
        pairs = zip(items, out, strict=True)
        wanted = [read(torch.empty_like(o).copy_(by_torch(item))) for item, o in pairs]
    taken = []
    for want, result in zip(wanted, results, strict=True):
        assert read(result) == want
        taken.append(result)
    assert [read(result) for result in taken] == wanted
    assert out is None or all(map(operator.is_, taken, out))


def to_host(pipeline, chance):
    items = [tensor_by(chance) for _ in range(12)]
    out = out_by(chance, items)
    check(items, pipeline.to_host(source_by(chance, items), out), out)


def prefetch(pipeline, chance):
    batches = [batch_by(chance) for _ in range(8)]
    check(batches, pipeline.prefetch(source_by(chance, batches)))


def mapped(pipeline, chance):
    items = [tensor_by(chance) for _ in range(12)]
    out = out_by(chance, items)
    fn = chance.choice((torch.clone, lambda x: x, lambda x: x.copy_(x.clone())))
    check(items, pipeline.map(fn, source_by(chance, items), out), out)


def one_by_one(pipeline, chance):
    items = [tensor_by(chance) for _ in range(8)]
    handles = [pipeline.to_host_async(item) for item in copy.deepcopy(items)]
    order = list(range(8))
    chance.shuffle(order)
    results = {i: handles[i].result() for i in order}
    check(items, [results[i] for i in range(8)])


VERBS = (to_host, prefetch, mapped, one_by_one)
