"""Each recipe runs as it is shown: on a CPU with late streams, and on GPUs."""

import ast
import functools
import importlib.util
import inspect
import os
import re
import threading
import time
from pathlib import Path

import pytest
import torch
from late_cuda import LateCuda

import autopar as ap
from autopar.__main__ import main

_FOLDER = Path(__file__).parents[2] / "docs" / "recipes"
_LONG = 100_000_000  # cycles of a GPU's clock: about a twentieth of a second
_COUNT = 6

gpu = pytest.mark.gpu
each_recipe = pytest.mark.parametrize(
    "path", sorted(_FOLDER.glob("*.py")), ids=lambda path: path.stem
)
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=gpu)])


def load(name, without=None):
    """A recipe as a module; to see that a line is needed, without it."""
    text = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    if without is not None:
        text, count = re.subn(rf"(?m)^( *)[^\n]*{re.escape(without)}[^\n]*$", r"\1pass", text)
        assert count, f"{name} has no {without}"
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, None))
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    return module


@functools.cache
def on_cpu(size):
    return [ap.workload.matrix(size, seed=seed) for seed in range(_COUNT)]


def matrices(device="cpu", size=8):
    return [x.to(device) for x in on_cpu(size)]


def square(x, y=None):
    return x.mm(x if y is None else y)


def late_square(x, y=None):
    """A product that comes late on a GPU, so that who does not wait for it comes too early."""
    ap.workload.delay(x.device, _LONG // 20)
    return square(x, y)


def pinned_like(tensors):
    """Memory with no number in it, which is pinned where there is a GPU."""
    pin = tensors[0].is_cuda
    return [torch.full(x.shape, torch.nan, pin_memory=pin) for x in tensors]


def squares_on_host(recipe, device, fn):
    """What a copy of each result to the host brings, read as soon as it is yielded."""
    xs = matrices(device)
    results = recipe.results_on_host(map(fn, xs), pinned_like(xs), device)
    return [result.clone() for result in results]


def squares_in_a_loop(recipe, device, fn):
    """What a loop computes of the batches it is fed with, each dropped after its use."""
    batches = [[x, x] if device == "cpu" else [x.pin_memory(), x.pin_memory()] for x in matrices()]
    results = []
    for x, y in recipe.fed(batches, device):
        results.append(fn(x, y))
        del x, y
    torch.cuda.synchronize(device)
    return results


def state_after_steps(recipe, device, fn):
    """A state that is sent away after each step, and is back for the next one."""
    state, pinned = matrices(device), pinned_like(matrices(device))
    side, other = torch.cuda.Stream(device), state[0]
    for _ in range(3):
        state = [fn(x) for x in state]
        recipe.send_away(state, pinned, side)
        state.clear()
        state, _ = recipe.bring_back(pinned, side, lambda: fn(other))
    results = [fn(x) for x in state]
    torch.cuda.synchronize(device)
    return results


def squared(times):
    """What the products are, one after another."""
    return [functools.reduce(lambda x, _: x.mm(x), range(times), x) for x in matrices()]


# Of each recipe for streams: how it is used, what comes out, and the lines that it needs for that.
STREAMS = {
    "copy_results_back": (squares_on_host, 1, ["wait_event", "record_stream", "synchronize()"]),
    "feed_a_loop": (squares_in_a_loop, 1, ["wait_stream", "record_stream"]),
    "offload_state": (
        state_after_steps,
        4,
        ["side.wait_stream", "x.record_stream(side)", "current.wait_stream", "record_stream(curr"],
    ),
}


def is_right(results, times, *, close=False):
    pairs = zip(results, squared(times), strict=True)
    check = functools.partial(torch.allclose, rtol=1e-4, atol=1e-5) if close else torch.equal
    return all(check(result.cpu(), wanted) for result, wanted in pairs)


@pytest.mark.parametrize(
    ("name", "line"),
    [(name, line) for name, (*_, lines) in STREAMS.items() for line in (None, *lines)],
)
def test_late_streams_change_a_result_only_where_a_wait_is_left_out(name, line, monkeypatch):
    use, times, _ = STREAMS[name]
    matrices()  # which are there before any stream has work
    with LateCuda(monkeypatch):
        results = use(load(name, without=line), "cpu", square)
    assert is_right(results, times) == (line is None)


@gpu
@pytest.mark.parametrize("name", STREAMS)
def test_streams_on_a_gpu_change_no_result(name):
    use, times, _ = STREAMS[name]
    assert is_right(use(load(name), "cuda:0", late_square), times, close=True)


@gpu
def test_the_first_result_arrives_while_the_gpu_computes():
    recipe, xs = load("copy_results_back"), matrices("cuda:0")

    def fn(x):
        if x is xs[-1]:
            ap.workload.delay(x.device, _LONG)
        return x.mm(x)

    results = recipe.results_on_host(map(fn, xs), pinned_like(xs), "cuda:0")
    next(results)
    assert not torch.cuda.current_stream(0).query(), "it came after the last product"
    assert len(list(results)) == _COUNT - 1


@on_devices
def test_the_pipelines_recipes_do_the_same(device):
    xs = matrices(device)
    results = load("copy_results_back").results_by_pipeline(map(late_square, xs), device)
    assert is_right(results, 1, close=True)
    fed = load("feed_a_loop").fed_by_pipeline(matrices(), device)
    assert is_right([late_square(x) for x in fed], 1, close=True)


def named_by_its_process(folder, samples):
    """A batch, and a file that says which process has prepared it."""
    Path(folder, f"{samples[0]}").write_text(str(os.getpid()))
    return torch.tensor(samples)


@on_devices
def test_python_prepares_the_next_batches_in_other_processes(device, tmp_path):
    prepare = functools.partial(named_by_its_process, tmp_path)
    batches = load("prepare_in_python").prepared_on(device, range(6), prepare, 2, workers=1)
    first, second = next(batches), tmp_path / "2"
    deadline_s = time.monotonic() + 30
    while not (second.exists() and second.read_text()):  # though nobody asks for it
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert second.read_text() != str(os.getpid())
    assert [x.tolist() for x in (first, *batches)] == [[0, 1], [2, 3], [4, 5]]
    torch.set_num_threads(torch.get_num_threads())  # which the loader's pinning thread has set


@on_devices
def test_a_lane_sends_a_state_away_and_brings_it_back(device):
    recipe, state, pinned = load("offload_state"), matrices(device), pinned_like(matrices(device))
    make = functools.partial(ap.cuda_lane, device) if device != "cpu" else ap.cpu_lane
    with make(kind="copy") as lane:
        for _ in range(3):
            state = [late_square(x) for x in state]
            recipe.send_away_on(lane, state, pinned)
            state.clear()
            state, _ = recipe.bring_back_on(lane, pinned, lambda: late_square(matrices(device)[0]))
        state = [late_square(x) for x in state]
    assert is_right(state, 4, close=True)


def test_what_is_timed_is_waited_for(monkeypatch):
    """A clock of a second for each call, and a wait of a hundred."""
    recipe, now, waited = load("time_gpu_code"), [0], []

    def run():
        now[0] += 1

    def synchronize(device):
        waited.append(device)
        now[0] += 100

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(recipe.time, "perf_counter", lambda: now[0])
    assert recipe.median_time_s(run, "cuda:1", repeats=5) == 101
    assert waited == ["cuda:1"] * 16


@on_devices
def test_the_measured_time_is_that_of_the_work(device):
    recipe, x = load("time_gpu_code"), ap.workload.matrix(64, device)
    calls = []
    assert recipe.measured_time_s(lambda: calls.append(x.mm(x)), device) > 0
    assert len(calls) > 20


@gpu
def test_both_times_have_what_the_gpu_does_in_them():
    recipe = load("time_gpu_code")
    work = functools.partial(ap.workload.delay, "cuda:0", _LONG)
    for timed in (recipe.median_time_s, recipe.measured_time_s):
        assert timed(work, "cuda:0") > 10e-3  # the launch alone takes microseconds


def both_models(devices):
    models = [torch.nn.Linear(8, 8).to(device) for device in devices]
    return models, [ap.workload.matrix(8, device) for device in devices]


@pytest.mark.parametrize(
    "devices",
    [["cpu", "cpu"], pytest.param(["cuda:0", "cuda:1"], marks=pytest.mark.gpu(2))],
)
def test_two_models_give_what_each_gives_alone(devices):
    recipe = load("two_models")
    models, inputs = both_models(devices)
    with torch.no_grad():
        wanted = [model(x).cpu() for model, x in zip(models, inputs, strict=True)]
        for both in (recipe.outputs_of, recipe.outputs_by_graph):
            assert all(map(torch.equal, both(models, inputs), wanted))


@pytest.mark.gpu(2)
@pytest.mark.parametrize("way", ["outputs_of", "outputs_by_graph"])
def test_the_second_model_is_launched_while_the_first_computes(way):
    _, inputs = both_models(["cuda:0", "cuda:1"])
    wanted = [inputs[0] + 1, inputs[1] + 2]  # their kernels are loaded, which may wait for a GPU
    done, launched, busy = torch.cuda.Event(), threading.Event(), []

    def first(x):
        ap.workload.delay(x.device, 4 * _LONG)
        done.record(torch.cuda.current_stream(x.device))
        launched.set()
        return x + 1

    def second(x):
        assert launched.wait(10)
        busy.append(not done.query())
        return x + 2

    results = getattr(load("two_models"), way)([first, second], inputs)
    assert busy == [True]
    assert all(map(torch.equal, results, [y.cpu() for y in wanted]))


def branches(device):
    weights = [ap.workload.matrix(64, device, seed=seed) for seed in range(4)]
    return [lambda x, weight=weight: x.mm(weight).relu() for weight in weights]


@gpu
def test_a_graph_with_branches_gives_new_results_for_new_inputs():
    recipe, functions = load("graph_with_branches"), branches("cuda:0")
    x = ap.workload.matrix(64, "cuda:0", seed=9)
    graph, results = recipe.captured_branches(functions, x)
    captured, tasks = recipe.captured_by_graph(functions, x)
    for seed in (10, 11):
        new = ap.workload.matrix(64, "cuda:0", seed=seed)
        x.copy_(new)
        graph.replay()
        wanted = [fn(new) for fn in functions]
        for found in (results, captured.replay(new)[tasks]):
            assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(found, wanted, strict=True))


def test_the_tasks_of_the_branches_run_without_a_capture(monkeypatch):
    kept = []
    monkeypatch.setattr(ap.TaskGraph, "capture", lambda graph, inputs: kept.append(graph))
    functions, x = branches("cpu"), ap.workload.matrix(64, seed=9)
    _, tasks = load("graph_with_branches").captured_by_graph(functions, x)
    found = kept[0].run()[tasks]
    assert all(map(torch.equal, found, [fn(x) for fn in functions]))


def test_a_trace_is_written_and_read(tmp_path, capsys):
    path = tmp_path / "trace.json.gz"
    load("find_out_why").trace_of(lambda: square(ap.workload.matrix(64)), str(path), [])
    main(["timeline", str(path), "--range", "step"])
    assert "Limited to 'step', 1 in all" in capsys.readouterr().out


def test_a_drawing_shows_a_step_and_what_was_named_in_it():
    step = functools.partial(square, ap.workload.matrix(64))
    drawings = map(load("find_out_why").drawing_of, (step, ap.annotate("product")(step)))
    for name, drawing in zip(("step", "product"), drawings, strict=True):
        assert name in [span.name for _, timeline in drawing.panels for span in timeline.spans]


@gpu
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # once a process, by torch 2.11
def test_the_trace_of_one_stream_says_why_nothing_overlaps(tmp_path, capsys):
    xs, path = matrices("cuda:0", size=2000), tmp_path / "trace.json.gz"
    recipe = load("find_out_why")

    def step():
        return [y.to("cpu", non_blocking=True) for y in [x.mm(x) for x in xs]]

    recipe.trace_of(step, str(path), ["cuda:0"])
    main(["timeline", str(path), "--range", "step"])
    assert "Copies share a stream with computing" in capsys.readouterr().out
    assert "copying to the host" in recipe.drawing_of(step)._repr_html_()


@each_recipe
def test_a_function_of_a_recipe_has_at_most_ten_lines_of_code(path):
    parts = ast.parse(path.read_text(encoding="utf-8")).body
    for one in (part for part in parts if isinstance(part, ast.FunctionDef)):
        assert one.end_lineno - one.body[0].end_lineno <= 10, one.name  # behind its docstring


@each_recipe
def test_a_recipe_is_on_the_page(path):
    page = _FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    module = load(path.stem)
    shown = re.findall(rf"recipes/{path.name}\n:pyobject: (\w+)", page)
    own = [name for name, one in vars(module).items() if inspect.isfunction(one)]
    assert shown == [name for name in own if vars(module)[name].__module__ == path.stem]
