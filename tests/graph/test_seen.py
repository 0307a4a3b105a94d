"""What a graph sees of a task before it runs, which runs no code of what it looks at."""

import dataclasses
import functools
import operator
import unittest.mock
import warnings

import pytest
import torch
import torch.nn.functional as F

from autopar import TaskGraph

HOMES = [torch, torch.Tensor, F, torch.linalg, torch.fft, torch.special, torch.ops.aten, operator]
FORMS = {
    "tasks": lambda fn, task, x: ((fn, task, task), {}),
    "a tensor": lambda fn, task, x: ((fn, x), {}),
    "out": lambda fn, task, x: ((fn, task), {"out": x}),
    "a partial": lambda fn, task, x: ((functools.partial(fn, x), task), {}),
    "nothing": lambda fn, task, x: ((fn,), {}),
}


def functions_of(home):
    """All that can be called there, and is no class; names that are no longer there warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in dir(home):
            function = getattr(home, name, None)
            if callable(function) and not isinstance(function, type):
                yield name, function


@pytest.mark.filterwarnings("ignore")
@pytest.mark.stress
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("form", FORMS)
def test_every_function_of_torchs_can_be_added_or_is_refused_in_words(home, form):
    failed, x = [], torch.ones(2, 2)
    functions = dict(functions_of(home))
    if home is torch.Tensor:
        functions |= {f"bound {name}": getattr(x, name) for name in functions}
    for name, fn in functions.items():
        graph = TaskGraph()
        args, kwargs = FORMS[form](fn, graph.add(torch.add, x, 1), x)
        try:
            graph.add(*args, **kwargs)
        except Exception as error:
            if not isinstance(error, (TypeError, ValueError)) or "expected" not in str(error):
                failed.append((name, error))
    assert not failed


# -- what is looked at is not run -----------------------------------------------------------------


@dataclasses.dataclass
class Held:
    x: object


def refuse(*_):
    raise LookupError


class Refuses:
    """Raises at whatever it is asked."""

    __getattribute__ = __iter__ = __len__ = __eq__ = __hash__ = refuse

    def __call__(self):
        return torch.ones(1)


class RefusesAsDict(dict):
    __iter__ = keys = values = items = refuse
    __getattr__ = dict.__getitem__


UNASKED = {
    "what refuses": Refuses,
    "what lies of its class": type("Lies", (Refuses,), {"__class__": property(refuse)}),
    "a dict that refuses": lambda: RefusesAsDict(a=1),
    "a list that refuses": lambda: type("L", (list,), {"__iter__": refuse, "__eq__": refuse})([1]),
    "a mock": lambda: unittest.mock.MagicMock(spec=torch.Tensor),
}


@pytest.mark.parametrize("kind", UNASKED)
def test_nothing_that_is_looked_at_is_run(kind):
    graph, held = TaskGraph(), UNASKED[kind]()
    graph.add(lambda: held and held.x)
    graph.add(lambda a=held: a)
    graph.add(print, held)
    graph.add(functools.partial(print, [held], end=held))
    graph.add(Held(held).__eq__, 1)
    graph = TaskGraph()
    for _ in range(2):  # a run that is observed
        graph.add(lambda: (held, torch.ones(1))[1], writes=())
    graph.check()
