"""CUDA graphs of task graphs: right results for new inputs, branches where they pay, refusals."""

import contextlib
import gc
import random
import threading

import pytest
import torch
from graph_checks import Case
from graph_programs import Program

from autopar import TaskGraph, gpu
from autopar.graph.capture import BRANCHES

pytestmark = pytest.mark.gpu


def numbers(*shape, seed=0, device=0):
    dice = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=dice).float().to(gpu(device))


def products(count=8, m=64):
    graph, w = TaskGraph(), numbers(m, m, seed=99)
    xs = [numbers(m, m, seed=i) for i in range(count)]
    return graph, xs, [graph.add(torch.mm, x, w) for x in xs], w


def require_right_replays(seed=90):
    """A new graph can be captured, and its replays are right."""
    graph, xs, tasks, w = products(4)
    new = [numbers(64, 64, seed=seed + i) for i in range(4)]
    captured = graph.capture(xs)
    assert all(map(torch.equal, captured.replay(*new)[tasks], [x.mm(w) for x in new]))


def test_replays_give_what_a_run_gives_for_new_inputs():
    graph, xs, tasks, w = products()
    captured = graph.capture(xs[:2])
    for seed in range(5):
        new = [numbers(64, 64, seed=50 + seed + i) for i in range(2)]
        found = captured.replay(*new)[tasks]
        wanted = [x.mm(w) for x in (*new, *xs[2:])]
        assert all(map(torch.equal, found, wanted))
    assert all(torch.equal(x, numbers(64, 64, seed=i)) for i, x in enumerate(xs))


def test_the_trial_has_a_chain_and_branches():
    graph, _, _, _ = products()
    captured = graph.capture()
    assert list(captured.trials) == [1, *BRANCHES]
    kept, chain = captured.trials[captured.branches], captured.trials[1]
    assert kept.median_s <= chain.median_s
    assert len(set(chain.values_s)) > 1, "raw samples, not a median"


@pytest.mark.parametrize("branches", [1, 2, 4, 8])
def test_every_number_of_branches_gives_the_bits_of_the_program(monkeypatch, branches):
    """Random programs, which change tensors in place: these are as before until a replay."""
    monkeypatch.setattr("autopar.graph.capture.BRANCHES", (branches,))
    monkeypatch.setattr("autopar.graph.capture._GAIN", -1e9)  # whatever the trial says
    for seed in range(20):
        program = Program(random.Random(seed), ["cuda:0"], homes=["cuda:0"])
        case = Case(program, on=lambda x, home: x.to(home))
        assert case.wrong(case.graph.capture().replay().__getitem__) == [], seed


def test_memory_that_is_given_back_is_none_of_the_graphs():
    """Libraries' workspaces are dropped by torch now and then, and so may be what was given."""
    graph, x, tasks = TaskGraph(), numbers(256, 256), []
    for i in range(8):
        tasks.append(graph.add(torch.mm, x, numbers(256, 256, seed=i)))
    captured = graph.capture([x])
    wanted = [captured.replay(x)[task].clone() for task in tasks]
    del graph
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    rubbish = [torch.full((1 << 20,), float("nan"), device=gpu(0)) for _ in range(200)]
    found = captured.replay(x)[tasks]
    torch.cuda.synchronize()
    assert all(map(torch.equal, found, wanted))
    del rubbish


def test_replays_queue_on_the_current_stream():
    graph, xs, tasks, w = products(2)
    captured = graph.capture(xs)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        new = [numbers(64, 64, seed=70 + i) for i in range(2)]
        found = [each.clone() for each in captured.replay(*new)[tasks]]
    stream.synchronize()
    assert all(map(torch.equal, found, [x.mm(w) for x in new]))


# -- refusals -------------------------------------------------------------------------------------


def test_an_input_that_no_task_is_given_is_refused():
    with pytest.raises(ValueError, match=r"inputs\[0\] is no argument"):
        products(2)[0].capture([numbers(3)])


def waits(x):
    return x.sum().item()


def waits_and_says_nothing(x):
    with contextlib.suppress(RuntimeError):
        x.sum().item()
    return x + 1


def fails(x):
    if torch.cuda.is_current_stream_capturing():
        msg = "not while capturing"
        raise LookupError(msg)
    return x + 1


def fails_for_a_reason(x):
    try:
        return {}["nothing"]
    except KeyError:
        return fails(x)


class FailsOnBranches:
    """Fails in each second capture, that with two branches, once both have begun."""

    def __init__(self):
        self.captures = 0

    def __call__(self, x):
        self.captures += torch.cuda.is_current_stream_capturing()
        return fails(x) if self.captures % 2 == 0 else x + 1


REFUSED = {  # a task, and what the message has to tell
    "waits": (lambda: waits, "operation not permitted when stream is capturing"),
    "waits and says nothing": (lambda: waits_and_says_nothing, "CUDA error"),
    "fails": (lambda: fails, "not while capturing"),
    "fails on branches": (FailsOnBranches, "not while capturing"),
}


def refused_graph(kind):
    """Tasks that draw random numbers and write, and, among them, one that can't be captured."""
    graph, x, total = TaskGraph(), numbers(64), torch.zeros(64, device=gpu(0))
    noise = graph.add(torch.rand_like, x, name="draws")
    graph.add(torch.Tensor.add_, total, 1, writes=[total])
    graph.add(torch.neg, x, name="beside")
    graph.add(REFUSED[kind][0](), noise, name="the cause")
    after = graph.add(torch.neg, noise, name="after")
    graph.add(torch.exp, after, name="the last")
    return graph, total


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_capture_names_its_task_and_leaves_all_as_it_was_for_others(kind):
    torch.manual_seed(11)
    graph, total = refused_graph(kind)
    stream, state = torch.cuda.current_stream(), torch.cuda.get_rng_state()
    with pytest.raises(
        RuntimeError, match=f"^task 'the cause' can't be captured: .*{REFUSED[kind][1]}"
    ):
        graph.capture()
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert total.unique().tolist() == [0]
    found = torch.rand(1000, device=gpu(0)), torch.randn(1000, device=gpu(0))
    torch.manual_seed(11)
    wanted = torch.rand(1000, device=gpu(0)), torch.randn(1000, device=gpu(0))
    assert all(map(torch.equal, found, wanted))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="'the cause'"):
            graph.capture()
        require_right_replays()


@pytest.mark.parametrize("kind", ["waits", "fails on branches"])
def test_the_memory_of_refused_captures_is_given_back(kind):
    def refused():
        graph, x = TaskGraph(), numbers(1024, 1024)
        big = [graph.add(torch.neg, x) for _ in range(4)]
        graph.add(REFUSED[kind][0](), big[0])
        with pytest.raises(RuntimeError, match="can't be captured"):
            graph.capture()

    def reserved():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    refused()
    before = reserved()
    for _ in range(5):
        refused()
    assert reserved() == before


def test_a_refused_capture_does_not_cut_off_the_random_numbers_of_earlier_ones():
    graph, x = TaskGraph(), numbers(100)
    task = graph.add(torch.rand_like, x)
    earlier = graph.capture()
    with pytest.raises(RuntimeError, match="'the cause'"):
        refused_graph("waits")[0].capture()
    for seed in range(3):
        torch.manual_seed(seed)
        found = earlier.replay()[task].clone()
        torch.manual_seed(seed)
        assert torch.equal(found, torch.rand_like(x))


def test_the_error_behind_a_refusal_is_the_tasks_own():
    graph, x = TaskGraph(), numbers(4)
    graph.add(fails_for_a_reason, x, name="the cause")
    with pytest.raises(RuntimeError, match="'the cause' can't be captured: not while") as caught:
        graph.capture()
    assert type(caught.value.__cause__) is LookupError


def test_what_fails_before_it_is_captured_is_raised_as_it_is():
    graph, x = TaskGraph(), numbers(4)
    graph.add(lambda x: {}["nothing"], x, name="the cause")
    with pytest.raises(KeyError) as caught:
        graph.capture()
    assert "in task 'the cause'" in caught.value.__notes__[0]
    assert torch.rand(3, device=gpu(0)).shape == (3,)


def test_capture_inside_of_another_is_refused_and_breaks_nothing():
    graph, xs, tasks, w = products(2)
    outer, x = torch.cuda.CUDAGraph(), numbers(10)
    (x + 1).sum()
    with torch.cuda.graph(outer):
        y = x + 1
        with pytest.raises(RuntimeError, match="the current stream is being captured"):
            graph.capture(xs)
    outer.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, x + 1)
    assert all(map(torch.equal, graph.capture(xs).replay(*xs)[tasks], [x.mm(w) for x in xs]))


# -- what a capture leaves alone ------------------------------------------------------------------


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("refused", [False, True])
def test_random_numbers_go_on_as_if_nothing_had_been_captured(own, refused):
    given = torch.Generator(device=gpu(0)) if own else None
    torch.cuda.init()
    generator = given if own else torch.cuda.default_generators[0]

    def draw():
        return torch.rand(100, generator=given, device=gpu(0))

    graph = TaskGraph()
    task = graph.add(draw, device=gpu(0), name="draws")
    if refused:
        graph.add(waits, task)
    generator.manual_seed(7)
    state, of_cpu = generator.get_state(), torch.get_rng_state()
    with pytest.raises(RuntimeError, match="'waits'") if refused else contextlib.nullcontext():
        captured = graph.capture()
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(torch.get_rng_state(), of_cpu)
    found = [draw() if refused else captured.replay()[task].clone() for _ in range(3)]
    generator.manual_seed(7)
    assert all(map(torch.equal, found, [draw() for _ in range(3)]))


def test_buffers_of_modules_have_their_values_again_after_the_trial():
    norm = torch.nn.BatchNorm1d(8).to(gpu(0))
    graph, x = TaskGraph(), numbers(16, 8)
    result = graph.add(norm, x)
    with torch.no_grad():
        captured = graph.capture([x])
    assert norm.num_batches_tracked.item() == 0
    assert norm.running_mean.unique().tolist() == [0]
    twin = torch.nn.BatchNorm1d(8).to(gpu(0))
    for seed in range(3):
        new = numbers(16, 8, seed=seed)
        with torch.no_grad():
            torch.testing.assert_close(captured.replay(new)[result], twin(new))
        torch.testing.assert_close(norm.running_mean, twin.running_mean)
        assert norm.num_batches_tracked.item() == seed + 1


def test_what_tasks_write_without_saying_so_is_in_order_in_replays():
    """What reads has more to come after it, so it would go first."""
    hidden, one = (torch.full((100,), value, device=gpu(0)) for value in (0.0, 1.0))
    graph = TaskGraph()
    graph.add(lambda x: hidden.add_(x) * 1, one, name="writes")
    read = graph.add(lambda: hidden * 1, device=gpu(0), name="reads")
    last = read
    for _ in range(5):
        last = graph.add(torch.mul, last, 2)
    captured = graph.capture()
    assert hidden.unique().tolist() == [0]
    for times in range(1, 4):
        assert captured.replay()[read].unique().tolist() == [times]
        assert captured[last].unique().tolist() == [32 * times]


def test_other_threads_may_allocate_copy_and_wait_meanwhile():
    stop, started, errors = threading.Event(), threading.Event(), []

    def work():
        streams = [torch.cuda.Stream(gpu(0)) for _ in range(32)]  # all that torch hands out
        try:
            kept = []
            while not stop.is_set():
                for stream in streams:
                    with torch.cuda.stream(stream):
                        kept = [*kept[-3:], torch.ones(1 << (10 + len(kept)), device=gpu(0))]
                        assert kept[-1].sum().item() == kept[-1].numel()
                        torch.ones(1000).pin_memory().to(gpu(0), non_blocking=True)
                        stream.record_event().synchronize()
                started.set()
        except BaseException as error:
            errors.append(error)
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert started.wait(20)
        for seed in range(5):
            require_right_replays(seed)
    finally:
        stop.set()
        thread.join(20)
    assert errors == []
