"""Copy pipelines on GPUs: how much memory they take, pinned and on the device."""

import gc

import pytest
import torch
from lane_forms import equals

from autopar import CopyPipeline, empty_pinned_pool

pytestmark = pytest.mark.gpu
_GPU = torch.device("cuda", 0)
_N = 2**21 + 128  # numbers of four bytes: too large to travel with others
_MIB = 2**20


def pinned_memory():
    """How often pinned memory was allocated, how much torch's pool owns, and all it says."""
    stats = torch.cuda.host_memory_stats()
    owned = [stats.get(f"{kind}_bytes.current", 0) for kind in ("allocated", "reserved")]
    return stats["num_host_alloc"], max(owned), dict(stats)


@pytest.fixture
def _no_garbage():
    torch.zeros(1, device=_GPU)
    gc.collect()
    torch.cuda.synchronize()
    empty_pinned_pool()


@pytest.mark.usefixtures("_no_garbage")
@pytest.mark.parametrize("threads", [1, 4])
def test_pinned_memory_is_a_ring_for_each_direction_and_allocated_once(threads):
    slots, slot_bytes = 3, 4 * _MIB
    sizes = (1000, 1000, 3 * _MIB + 384, 1, 0, _MIB + 128, 5000)
    items = [torch.full((n,), float(i), device=_GPU) for i, n in enumerate(sizes)]

    def everything(pipeline):
        hosts = list(pipeline.to_host(iter(items)))
        out = [torch.empty_like(host) for host in hosts]
        for _ in pipeline.to_host(items, out=out):
            pass
        for _ in pipeline.prefetch(iter(hosts)):
            pass
        for _ in pipeline.map(lambda x: x + 1, iter(hosts)):
            pass

    def one_by_one(pipeline):
        handles = [pipeline.to_host_async(x) for x in items]
        assert all(
            torch.equal(each.result(), x.cpu()) for each, x in zip(handles, items, strict=True)
        )

    _, before, _ = pinned_memory()
    options = {"slots": slots, "slot_bytes": slot_bytes, "threads": threads}
    with CopyPipeline(_GPU, **options) as pipeline:
        everything(pipeline)
        count, owned, stats = pinned_memory()
        assert 0 < owned - before <= 2 * slots * slot_bytes + 2 * _MIB, stats
        for _ in range(5):
            everything(pipeline)
        again, still_owned, stats = pinned_memory()
        assert (again, still_owned) == (count, owned), stats
        for _ in range(5):
            one_by_one(pipeline)
        _, owned, stats = pinned_memory()
        assert owned - still_owned <= 2 * slots * slot_bytes + 2 * _MIB, stats


@pytest.mark.usefixtures("_no_garbage")
def test_pinned_results_take_their_own_size_and_are_reused():
    slots, slot_bytes, count = 2, _MIB, 6
    length = 4 * 2**20  # too large to travel with others; torch rounds up to powers of two

    def results(pipeline):
        source = (torch.full((length,), float(i), device=_GPU) for i in range(count))
        found = list(pipeline.to_host(source, pin=True))
        assert all(each.is_pinned() and equals(each, i) for i, each in enumerate(found))

    _, before, _ = pinned_memory()
    with CopyPipeline(_GPU, slots=slots, slot_bytes=slot_bytes) as pipeline:
        results(pipeline)
        allocations, owned, stats = pinned_memory()
        assert owned - before <= slots * slot_bytes + count * 4 * length + 2 * _MIB, stats
        for _ in range(3):
            results(pipeline)
        again, _, stats = pinned_memory()
    assert again == allocations, stats


@pytest.mark.usefixtures("_no_garbage")
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("verb", ["prefetch", "to_host", "to_host kept", "map"])
def test_device_memory_is_bounded_by_the_slots(late_copies, verb, slots):
    late_copies(1)
    count, item_bytes = 20, 4 * _N
    hosts = (torch.full((_N,), float(i)) for i in range(count))

    def kept():
        for i in range(count):
            x = torch.full((_N,), float(i), device=_GPU)
            yield x

    before = torch.cuda.memory_allocated(_GPU)
    torch.cuda.reset_peak_memory_stats(_GPU)
    with CopyPipeline(_GPU, slots=slots) as pipeline:
        if verb == "prefetch":
            results = pipeline.prefetch(hosts)
        elif verb == "map":
            results = pipeline.map(lambda x: x + 1, hosts)
        elif verb == "to_host":
            results = pipeline.to_host(
                torch.full((_N,), float(i), device=_GPU) for i in range(count)
            )
        else:
            results = pipeline.to_host(kept())
        assert sum(1 for _ in results) == count
        del results
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated(_GPU) - before
    most = slots + max(slots, 2) + 2  # one is used by the caller, and one is being made
    rings = 2 if verb == "map" else 1
    assert slots * item_bytes <= peak <= rings * most * item_bytes + _MIB
    assert torch.cuda.memory_allocated(_GPU) == before
