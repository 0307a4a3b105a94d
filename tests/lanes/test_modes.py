"""What holds in a thread holds in what it gives away, and only there."""

import contextlib
import functools
import threading

import pytest
import torch
from lane_forms import WAIT_S
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autopar import TaskGraph, cpu_lane
from autopar import torch_private as private
from autopar.lanes.modes import caller_modes


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def settings_of_autocast(dtype, caches):
    """What holds for who enters autocast without settings of its own."""
    before = torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    torch.set_autocast_dtype("cpu", dtype)
    torch.set_autocast_cache_enabled(caches)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", before[0])
        torch.set_autocast_cache_enabled(before[1])


_packed = threading.local()


def hooks(name):
    def pack(x):
        _packed.by = name
        return x

    return saved_tensors_hooks(pack, lambda x: x)


def saved_by():
    """Whose hooks see a tensor that is saved for backward."""
    _packed.by = None
    with torch.enable_grad():
        torch.ones(1, requires_grad=True).exp()
    return _packed.by


def allows_hooks():
    with contextlib.suppress(RuntimeError), hooks("probe"):
        return True
    return False


def probe():
    """What an ordinary program sees of all modes."""
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": torch.get_autocast_dtype("cpu"),
        "product": (torch.ones(2, 2) @ torch.ones(2, 2)).dtype,
        "caches": torch.is_autocast_cache_enabled(),
        "product under autocast": torch.autocast("cpu")(torch.mm)(
            torch.ones(2, 2), torch.ones(2, 2)
        ).dtype,
        "device": torch.empty(1).device.type,
        "functions": [type(each) for each in torch.overrides._get_current_function_mode_stack()],
        "dispatches": [
            type(each) for each in torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        ],
        "saved": saved_by(),
        "allows hooks": allows_hooks(),
    }


def given_away(seen):
    """What a task sees of that: autocast's cache, which is one for all threads, it goes without."""
    return {**seen, "caches": seen["caches"] and not seen["autocast"]}


_CONTEXTS = {
    "none": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "bfloat16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "uncached": lambda: torch.autocast("cpu", cache_enabled=False),
    "dtype of autocast": lambda: settings_of_autocast(torch.float16, caches=True),
    "no cache of autocast": lambda: settings_of_autocast(torch.bfloat16, caches=False),
    "with device": lambda: torch.device("meta"),
    "default device": default_device,
    "functions": Functions,
    "dispatches": Dispatches,
    "hooks": lambda: hooks("outer"),
    "no hooks": lambda: disable_saved_tensors_hooks("none here"),
}

in_each = pytest.mark.parametrize("context", [*_CONTEXTS])


@in_each
def test_a_task_sees_what_its_submitter_saw_and_nobody_else_anything_of_it(new_lane, context):
    """Whoever runs it: the next task, and the submitter where that is who launches it."""
    plain = probe()
    with new_lane() as lane, cpu_lane() as held:
        for name, other in _CONTEXTS.items():
            if {context, name} == {"hooks", "no hooks"}:
                continue  # torch refuses either within the other
            opened = threading.Event()
            waits = held.submit(opened.wait, WAIT_S)
            with _CONTEXTS[context]():
                now = probe()
                first, later = lane.submit(probe), held.submit(probe, name="later")
                with other():
                    inner = probe()
                    second = lane.submit(probe)
                    after = lane.submit(lambda _: probe(), waits)
                    third = lane.submit(probe)
                    assert probe() == inner, name
            opened.set()
            assert later.result() == first.result() == given_away(now), name
            for task in (second, after, third):
                assert task.result() == given_away(inner), name
            assert lane.submit(probe).result() == plain, name
    assert probe() == plain


@pytest.mark.parametrize("other", [None, "cpu"])
def test_a_task_may_set_another_default_device_and_the_next_one_has_the_submitters(other):
    def switch():
        torch.set_default_device(other)
        return torch.empty(1).device.type

    with default_device(), cpu_lane() as lane:
        for _ in range(2):
            assert lane.submit(switch).result() == "cpu"
            assert lane.submit(torch.empty, 1).result().device.type == "meta"
        assert torch.empty(1).device.type == "meta"


def leaking(context):
    """A task that enters a context for good, and what keeps that from being cleaned up."""
    kept = contextlib.ExitStack()

    def leak():
        kept.enter_context(_CONTEXTS[context]())

    return leak, kept


@in_each
def test_what_a_task_leaves_switched_reaches_no_other_and_not_who_launches_it(new_lane, context):
    plain = probe()
    leak, kept = leaking(context)
    with new_lane() as lane:
        lane.submit(leak)
        assert lane.submit(probe).result() == probe() == plain
        kept.pop_all()


@in_each
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("run", ["run", "run_serial"])
def test_what_a_graphs_task_leaves_switched_reaches_neither_later_tasks_nor_the_caller(
    context, lanes, run
):
    leak, kept = leaking(context)
    graph = TaskGraph(cpu_lanes=lanes)
    tasks = [graph.add(fn) for fn in (probe, leak, probe)]
    plain = probe()
    with torch.no_grad():
        inside = probe()
        assert getattr(graph, run)()[tasks] == [inside, None, inside]
        assert probe() == inside
        kept.pop_all()  # here, as torch goes back to what was as each was entered
    assert probe() == plain


def test_what_fails_when_switched_to_leaves_what_held():
    plain = probe()
    modes = caller_modes()._replace(functions=(Functions(),), hooks=(("no", "hooks", "these"),))
    with pytest.raises(TypeError):
        modes.call(int)
    assert probe() == plain


class StandIn:
    """What a thread of a machine with two GPUs has of CUDA, and what it lets streams wait for."""

    def __init__(self, patch):
        self.is_used, self.gpu, self.numbers, self.waits = True, 0, [0, 0], []
        patch.setattr(torch.cuda, "is_initialized", lambda: self.is_used)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.setattr(torch.cuda, "set_stream", self.set_stream)
        patch.setattr(torch.cuda, "Stream", functools.partial(StreamStandIn, self.waits))
        patch.setattr(private, "current_gpu", lambda: self.gpu)
        patch.setattr(private, "exchange_gpu", functools.partial(setattr, self, "gpu"))
        patch.setattr(private, "current_stream_key", lambda gpu: (self.numbers[gpu], gpu, 1))

    def set_stream(self, stream):
        self.gpu, self.numbers[stream.gpu] = stream.gpu, stream.number

    def leave(self):
        """What a task may do: it uses CUDA, and leaves another stream and another GPU current."""
        self.is_used = True
        self.set_stream(StreamStandIn(self.waits, 7, 1, 1))
        return list(self.numbers)


class StreamStandIn:
    def __init__(self, waits, stream_id, device_index, device_type):
        self.waits, self.number, self.gpu = waits, stream_id, device_index

    def wait_stream(self, other):
        self.waits.append(((self.number, self.gpu), (other.number, other.gpu)))


@pytest.mark.parametrize(("is_used", "number"), [(True, 5), (False, 0)])
def test_streams_and_the_gpu_that_a_task_leaves_current_are_put_back_behind_its_work(
    monkeypatch, is_used, number
):
    cuda = StandIn(monkeypatch)
    cuda.is_used, cuda.numbers = is_used, [3 * is_used, number]
    assert caller_modes().call(cuda.leave) == [3 * is_used, 7]
    assert (cuda.gpu, cuda.numbers) == (0, [3 * is_used, number])
    assert cuda.waits == [((number, 1), (7, 1))], "what the task has queued is part of it"
    assert cuda.is_used


def test_to_put_them_back_nobody_begins_to_use_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA is used"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with cpu_lane() as lane:
        assert lane.submit(max, 1, 2).result() == 2


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # of torch's own, in jvp
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_inside_a_transform_nothing_is_given_away(transform):
    x = torch.ones(3)
    with cpu_lane() as lane:

        def given_away(x):
            return lane.submit(torch.sum, x).result()

        run = getattr(torch.func, transform)
        call = run(given_away) if transform != "jvp" else lambda x: run(given_away, (x,), (x,))
        with pytest.raises(RuntimeError, match="inside a transform of torch.func"):
            call(x)
        assert torch.equal(lane.submit(torch.func.grad(torch.sum), x).result(), x)


def test_the_cache_of_casts_holds_no_weights_of_before():
    weight = torch.ones(4, 4, requires_grad=True)

    def product():
        return (torch.ones(4, 4) @ weight).sum().item()

    def change():
        with torch.no_grad():
            weight.fill_(2)

    with cpu_lane() as lane:
        with torch.autocast("cpu"):
            first = lane.submit(product)
        lane.submit(change)
        with torch.autocast("cpu"):
            second = lane.submit(product)
        assert (first.result(), second.result()) == (64, 128)
