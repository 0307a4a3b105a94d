"""CUDA graphs of task graphs: right results for new inputs, branches where they pay, refusals."""

import pytest
import torch

from autopar import TaskGraph, gpu
from autopar.capture import BRANCHES

pytestmark = pytest.mark.gpu


def numbers(*shape, seed=0, device=0):
    dice = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=dice).float().to(gpu(device))


def products(count=8, m=64):
    graph, w = TaskGraph(), numbers(m, m, seed=99)
    xs = [numbers(m, m, seed=i) for i in range(count)]
    return graph, xs, [graph.add(torch.mm, x, w) for x in xs], w


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
def test_every_number_of_branches_is_right(monkeypatch, branches):
    """Random graphs with joins and forks, and with changes in place."""
    monkeypatch.setattr("autopar.capture.BRANCHES", (branches,))
    monkeypatch.setattr("autopar.capture._GAIN", -1e9)  # whatever the trial says
    chance = torch.Generator().manual_seed(branches)
    for seed in range(20):
        graph, twin = TaskGraph(), TaskGraph()
        x, own = numbers(32, 32, seed=seed), numbers(32, 32, seed=seed)
        tasks, of_twin = [], []
        for i in range(20):
            a, b = (int(torch.randint(-1, i, (), generator=chance)) if i else -1 for _ in "ab")
            fn = (torch.add, torch.mm, torch.sub)[int(torch.randint(3, (), generator=chance))]
            for made, each, start in ((graph, tasks, x), (twin, of_twin, own)):
                first, second = (start if k < 0 else each[k] for k in (a, b))
                task = made.add(fn, first, second)
                each.append(made.add(torch.clamp, task, -9, 9))
                if i % 7 == 3:
                    made.add(torch.Tensor.mul_, each[-1], -1, writes=[each[-1]])
        captured = graph.capture([x])
        wanted = twin.run_serial()[of_twin]
        found = captured.replay(x)[tasks]
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, wanted)), seed


def test_what_tasks_write_has_its_value_again_after_the_trial_and_changes_with_each_replay():
    graph, x = TaskGraph(), torch.ones(100, device=gpu(0))
    graph.add(torch.Tensor.add_, x, 1, writes=[x])
    captured = graph.capture()
    assert x.unique().tolist() == [1]
    captured.replay().replay()
    assert x.unique().tolist() == [3]


def test_a_traced_model_replays():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    model.to(gpu(0))
    x = numbers(16, 64)
    graph, result = TaskGraph.trace(model, x)
    captured = graph.capture([x])
    for seed in range(3):
        new = numbers(16, 64, seed=seed)
        torch.testing.assert_close(captured.replay(new)[result], model(new).detach())


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


def test_tasks_elsewhere_are_refused_by_name():
    graph, x = TaskGraph(), numbers(4)
    graph.add(torch.neg, x)
    graph.add(torch.neg, torch.ones(3), name="on the CPU")
    with pytest.raises(ValueError, match="'on the CPU'.*expected all tasks on one GPU"):
        graph.capture()


def test_no_tasks_are_refused():
    with pytest.raises(ValueError, match="no tasks"):
        TaskGraph().capture()


def test_wrong_inputs_are_refused():
    graph, xs, _, _ = products(2)
    with pytest.raises(ValueError, match=r"inputs\[0\] is no argument"):
        graph.capture([numbers(3)])
    captured = graph.capture(xs)
    with pytest.raises(ValueError, match="given 1 inputs; expected 2"):
        captured.replay(xs[0])
    with pytest.raises(ValueError, match=r"inputs\[1\] is \(3,\)"):
        captured.replay(xs[0], numbers(3))


def test_a_task_that_waits_for_the_gpu_is_refused_by_name():
    graph, x = TaskGraph(), numbers(4)
    graph.add(lambda x: x.sum().item(), x, name="waits")
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="task 'waits' can't be captured"):
        graph.capture()
    assert torch.cuda.current_stream() == before
    torch.cuda.synchronize()
    assert torch.equal(numbers(4) + 1, numbers(4) + 1)
