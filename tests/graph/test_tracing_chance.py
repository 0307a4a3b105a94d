"""What traced code draws: by torch's default generators, and it does nothing else with them."""

import pytest
import torch
from tracing_checks import numbers, same

from autopar import TaskGraph

pytestmark = pytest.mark.usefixtures("threads_gone")


def put_back(x):
    before = torch.get_rng_state()
    y = torch.rand(2)
    torch.set_rng_state(before)
    return x + y


def forks(x):
    with torch.random.fork_rng():
        return x + torch.rand(2)


def seeds(x):
    torch.manual_seed(7)
    return x + torch.rand(2)


def seeds_after(x):
    y = x + torch.rand(2)
    torch.manual_seed(7)
    return y


@pytest.mark.parametrize("fn", [put_back, forks, seeds, seeds_after])
@pytest.mark.parametrize("seed", [1, 7])
def test_code_that_does_more_than_draw_is_refused_and_no_state_changes(fn, seed):
    """Also if the state is already what the code sets it to."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with pytest.raises(ValueError, match="can't trace .*seeds torch's random numbers"):
            TaskGraph.trace(fn, numbers(2))
        assert torch.rand(2).equal(torch.rand(2, generator=torch.Generator().manual_seed(seed)))


def draws(x):
    with torch.random.fork_rng():  # and nothing is drawn there
        torch.manual_seed(1)
    return x + torch.rand(2), torch.randn(2)


def test_random_numbers_go_on_from_run_to_run():
    graph, result = TaskGraph.trace(draws, x := numbers(2))
    torch.manual_seed(3)
    found = [run()[result] for run in (graph.run, graph.run_serial)]
    torch.manual_seed(3)
    same(found, [draws(x), draws(x)])
