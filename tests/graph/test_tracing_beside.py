"""What tracing leaves alone: other threads, what torch has compiled, and how warnings are taken."""

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from autopar import TaskGraph

X = torch.ones(3)


def by_data(x):
    return x if x.sum() > 0 else -x


def test_a_thread_that_starts_another_meanwhile_holds_nothing_of_the_trace(monkeypatch):
    begin, inside, go_on = (threading.Lock() for _ in range(3))
    for lock in (begin, inside, go_on):
        lock.acquire()

    def start(thread):
        inside.release()
        go_on.acquire()

    def fn(x):
        doubled = x * 2
        begin.release()
        inside.acquire()  # until the other thread is in what stands for `start`
        return doubled

    other = threading.Thread(target=lambda: (begin.acquire(), threading.Thread().start()))
    other.start()
    monkeypatch.setattr(threading.Thread, "start", start)
    graph, result = TaskGraph.trace(fn, X)
    assert graph.run()[result].tolist() == [2, 2, 2]
    go_on.release()
    other.join()


@pytest.mark.parametrize("compiled", [False, True])
def test_torchs_compiler_goes_on_after_a_refusal(compiled):
    def call(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    if compiled:
        call(X)
    with pytest.raises(ValueError, match="calls compiled code.*torch.cond"):
        TaskGraph.trace(call, X)
    assert torch.equal(call(X), X.sin())


def test_what_was_compiled_is_not_compiled_again_after_a_refusal():
    compiled = []

    def backend(module, inputs):
        compiled.append(module)
        return module.forward

    double = torch.compile(lambda x: 2 * x, backend=backend)
    double(X)
    with pytest.raises(ValueError, match="depends on the data"):
        TaskGraph.trace(by_data, X)
    with pytest.raises(ValueError, match="calls compiled code"):
        TaskGraph.trace(double, X)
    assert double(X).tolist() == [2, 2, 2]
    assert len(compiled) == 1


# On a machine with GPUs torch's compiler would load more, and some of that warns.
PROGRAM = """
import torch
from autopar import TaskGraph

torch.cuda.is_available = lambda: True

def seeds(x):
    return x + torch.rand(3, generator=torch.manual_seed(3))

def by_data(x):
    return x if x.sum() > 0 else -x

for fn in (seeds, by_data):
    try:
        TaskGraph.trace(fn, torch.ones(3))
    except ValueError as error:
        print(error)
"""


def test_refusals_come_through_where_warnings_are_errors(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-W", "error", "program.py"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert told.stderr == ""
    first, second = told.stdout.splitlines()
    assert first.startswith("can't trace seeds: line 8 of program.py")
    assert "depends on the data" in second


def test_ctrl_c_comes_out_at_the_next_function_as_torch_may_not_let_it_out_elsewhere(capsys):
    """Where its C++ asks for the size of a tensor without memory, it would abort the process."""
    before = signal.getsignal(signal.SIGINT)

    def code(x):
        os.kill(os.getpid(), signal.SIGINT)
        print("held back")  # a list would be as before, as all that the code has changed
        x = x.exp()
        print("too late")
        return x

    with pytest.raises(KeyboardInterrupt):
        TaskGraph.trace(code, torch.ones(2))
    assert capsys.readouterr().out == "held back\n"
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_handler_that_raises_nothing_is_called_each_time_and_the_code_is_traced(times):
    heard = []

    def code(x):
        x = x.exp()
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        return x

    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        graph, result = TaskGraph.trace(code, torch.zeros(2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert graph.run()[result].tolist() == [1, 1]
    assert len(heard) == times
