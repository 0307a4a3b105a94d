"""What a watched task must be known to leave alone, or it keeps the order of the program."""

import collections
import functools
import logging
import math
import threading
import time
import types
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autopar import TaskGraph
from autopar.graph.node import ancestors

pytestmark = pytest.mark.usefixtures("threads_gone")


class Box:
    count = 0

    def __init__(self, value=0):
        self.value = value

    @property
    def gone(self):
        return 1

    @gone.deleter
    def gone(self):
        Box.count += 1


class Handler(logging.Handler):
    def __init__(self):
        super().__init__()
        self.got = []

    def emit(self, record):
        self.got.append(record.getMessage())


SEEN, BOX, USER, EVENT, SET = [], Box(), collections.UserDict(), threading.Event(), set()
SET.add(SEEN.append)
MODULE = types.ModuleType("autopar_of_the_program_too")
LOG = logging.getLogger("autopar of the tests")
LOG.addHandler(Handler())
BUFFER = torch.zeros(3)
HOOKED = torch.ones(1, requires_grad=True)
HOOKED.register_hook(SEEN.append)


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        SEEN.append(1)
        return gradient


@functools.lru_cache(maxsize=0)
def uncached():
    SEEN.append(1)


def puts_back():
    object.__setattr__(BOX, "value", 1)
    object.__setattr__(BOX, "value", 0)


def the_same_again():
    BOX.value = BOX.value


def patches():
    relu = torch.relu
    torch.relu = F.gelu
    torch.relu = relu


def other_dtype():
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(dtype)


def warns():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("x", stacklevel=1)


def in_a_thread():
    thread = threading.Thread(target=BUFFER.sum)
    thread.start()
    thread.join()


CHANGING = {
    "a method of a list": (SEEN.append, 1),
    "one in a partial": (functools.partial(SEEN.append, 1),),
    "one in a set": (lambda: [call(1) for call in SET],),
    "a dict of a class": (lambda: USER.update(a=1),),
    "an event": (EVENT.set,),
    "a cache": (uncached,),
    "a property's deleter": (lambda: delattr(BOX, "gone"),),
    "what is put back": (puts_back,),
    "what stays the same": (the_same_again,),
    "an attribute of torch": (patches,),
    "of a module that is given": (lambda module: setattr(module, "x", 1), MODULE),
    "an import": (lambda: __import__("math"),),
    "a log": (lambda: LOG.warning("x"),),
    "the default dtype": (other_dtype,),
    "how warnings are shown": (warns,),
    "numbers of a tensor": (lambda: BUFFER.tolist(),),
    "a thread": (in_a_thread,),
    "a hook": (lambda: torch.autograd.grad(HOOKED * 2, HOOKED),),
    "a function's way back": (lambda: torch.autograd.grad(Backward.apply(HOOKED), HOOKED),),
    "a mathematical constant": (lambda: setattr(math, "tau", math.tau),),
}

X = torch.ones(2, 8)
KNOWN = {
    "an operator": (torch.relu, X),
    "a lambda": (lambda x: (x @ x.t()).softmax(-1), X),
    "a loop": (lambda x: sum(x * i for i in range(3)), X),
    "what only looks": (lambda x: x * max(len(x), BOX.value, round(math.sqrt(2))), X),
    "a wait": (lambda x: (time.sleep(0), x + 1)[1], X),
    "a layer": (nn.Linear(8, 8), X),
    "layers": (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()), X),
    "a transformer": (nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), X[None]),
    "a recurrent one": (nn.LSTM(8, 8), X),
    "without gradients": (torch.no_grad()(lambda x: x * 2), X),
    "a function of torch's in Python": (F.interpolate, X[None], 4),
}


def waits(kind):
    graph = TaskGraph(cpu_lanes=2)
    other, task = graph.add(lambda x: x + 1, X), graph.add(*kind)
    graph.check()
    return other.number in ancestors(graph.plan().nodes, task.number)


@pytest.mark.parametrize("kind", CHANGING)
def test_who_does_what_is_not_known_to_be_harmless_keeps_the_order(kind):
    assert waits(CHANGING[kind])


@pytest.mark.parametrize("kind", KNOWN)
def test_who_only_computes_does_not(kind):
    assert not waits(KNOWN[kind])
