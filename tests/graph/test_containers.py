"""Containers that tasks are given: made anew by each run, so that no task may change one."""

import collections

import pytest
import torch

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")


def test_iterators_that_tasks_make_are_gone_through_in_order():
    graph = TaskGraph(cpu_lanes=3)
    numbers = graph.add(iter, (1, 2, 3))
    tasks = [graph.add(next, numbers) for _ in range(3)]
    graph.check()
    assert graph.run()[tasks] == [1, 2, 3]
    assert [graph.plan().nodes[each.number].before >= {each.number - 1} for each in tasks[1:]]


@pytest.mark.parametrize("give", [lambda x: ({"x": x},), lambda x: ([x],), lambda x: ([[x]],)])
def test_a_container_that_is_made_anew_is_not_to_be_changed(give):
    def changes(held):
        if isinstance(held, dict):
            held["x"] = held["x"] + 1
        else:
            held.append(torch.ones(1))

    graph = TaskGraph()
    graph.add(changes, *give(torch.zeros(3)))
    with pytest.raises(RuntimeError, match="task 'changes' changes a list or a dict"):
        graph.check()


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda held, i: held.append(i), collections.deque([2])),
        (lambda held, i: held.reverse(), [2, 3]),
        (lambda held, i: held[1].append(held[0].pop()), [[2, 3], [4]]),
    ],
)
def test_what_is_put_there_may_be_an_argument_and_order_counts(change, given):
    graph = TaskGraph()
    graph.add(change, given, 1)
    with pytest.raises(RuntimeError, match="changes a list or a dict"):
        graph.check()


def test_numbers_that_would_be_lost_are_refused_and_an_option_may_be_taken_out():
    graph = TaskGraph()
    graph.add(lambda held: held.append(3), collections.deque([1]))
    with pytest.raises(RuntimeError, match="return what it makes"):
        graph.check()
    graph = TaskGraph()
    graph.add(lambda options: options.pop("rate"), {"rate": 0.1, "x": torch.zeros(1)})
    assert graph.check() == []


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda held: held.update(b=held.pop("a")), {"a": 3}),
        (lambda held: held.pop(), [torch.zeros(1)]),
    ],
    ids=["another key", "a tensor lost"],
)
def test_containers_keep_their_form_and_their_tensors(change, given):
    graph = TaskGraph()
    graph.add(change, given)
    with pytest.raises(RuntimeError, match="changes a list or a dict"):
        graph.check()


def test_what_is_said_of_a_view_holds_for_the_result_that_it_shows():
    graph = TaskGraph(cpu_lanes=2)
    made = graph.add(torch.zeros, 4)
    view = graph.add(torch.Tensor.view, made, 2, 2)
    graph.add(lambda view, made: view.add_(1), view, made, writes=[view])
    for _ in range(2):
        assert graph.run()[made].tolist() == [1] * 4
