"""What traced code changes in objects of any kind: it is refused, and they are as they were."""

import queue
from collections import deque

import pytest
import torch

from autopar import TaskGraph

X = torch.ones(3)


class Items(list):
    """A container with attributes."""

    count = 0


class Names(dict):
    """Another one."""


def counting():
    items = Items()
    items.count = 1

    def count(x):
        items.count += 1
        return x * items.count

    return count, lambda: items.count


def appending():
    items = []
    append = items.append  # a method that C has made holds the list

    def add(x):
        append(x * 2)
        return x * len(items)

    return add, lambda: [*items]


def queueing():
    waiting = queue.Queue()
    return (lambda x: (waiting.put(x * 2), x)[1]), waiting.qsize


def rotating():
    last = deque([1, 2])
    return (lambda x: (last.rotate(), x * last[0])[1]), lambda: [*last]


def scaling():
    scaler = torch.amp.GradScaler("cpu")
    return scaler.scale, lambda: scaler._scale


@pytest.mark.parametrize("make", [counting, appending, queueing, rotating, scaling])
def test_what_changes_is_refused_and_as_it_was(make):
    code, state = make()
    before = state()
    with pytest.raises(ValueError, match="a run only repeats operators"):
        TaskGraph.trace(code, X)
    assert state() == before


def test_a_tensor_that_such_an_object_holds_is_changed_in_each_run():
    names = Names()
    names.mean = torch.zeros(3)

    def update(x):
        names.mean = names.mean + x
        return names.mean * 2

    graph, result = TaskGraph.trace(update, X)
    assert names.mean.tolist() == [0, 0, 0]
    assert [graph.run()[result].tolist() for _ in range(2)] == [[2, 2, 2], [4, 4, 4]]


def test_what_is_only_read_is_traced():
    items, waiting = Items([2.0]), queue.Queue()
    graph, result = TaskGraph.trace(lambda x: x * items[0] + waiting.qsize() + items.count, X)
    assert graph.run()[result].tolist() == [2, 2, 2]


def test_a_task_is_no_iterator():
    """Classes of other libraries ask so what they are given, as transformers' results do."""

    with pytest.raises(TypeError, match="not iterable"):
        iter(TaskGraph().add(torch.add, X, 1))
