"""What traced code draws: it may draw from any generator outside, and do nothing else with it."""

import pytest
import torch
from tracing_checks import numbers, same

from autopar import TaskGraph
from autopar.torch_private import TRACES_GENERATORS


def of_own(seed=0):
    return torch.Generator().manual_seed(seed)


def seeded_after(x, generator):
    y = x + torch.rand(2, generator=generator)
    generator.manual_seed(1)
    return y


def put_back(x, generator):
    before = generator.get_state()
    y = torch.rand(2, generator=generator)
    generator.set_state(before)
    return x + y


def forks(x, generator):
    with torch.random.fork_rng():
        return x + torch.rand(2)


MAKES, SEEDS = "from a generator that it makes.*Make it before", "seeds torch's random numbers"
MORE_THAN_DRAWING = [
    (MAKES, lambda x, _: x + torch.rand(2, generator=of_own())),
    (MAKES, lambda x, generator: x[torch.randperm(2, generator=generator.clone_state())]),
    (SEEDS, lambda x, generator: x + torch.rand(2, generator=generator.manual_seed(1))),
    (SEEDS, lambda x, generator: x + torch.rand(2, generator=torch.manual_seed(7))),
    *((SEEDS, fn) for fn in (seeded_after, put_back, forks)),
]
needs_generators = pytest.mark.skipif(
    not TRACES_GENERATORS, reason="this torch traces no given generators"
)


@needs_generators
@pytest.mark.parametrize(("reason", "fn"), MORE_THAN_DRAWING)
def test_code_that_does_more_than_draw_is_refused_and_no_state_changes(reason, fn):
    """Also if the state is already what the code sets it to."""
    for seed in (1, 7):
        generator = of_own(seed)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            with pytest.raises(ValueError, match=rf"can't trace .*{reason}"):
                TaskGraph.trace(fn, numbers(2), generator)
            assert torch.rand(2).equal(torch.rand(2, generator=of_own(seed)))
        assert torch.rand(2, generator=generator).equal(torch.rand(2, generator=of_own(seed)))


def draws(x, generator):
    with torch.random.fork_rng():  # and nothing is drawn there
        torch.manual_seed(1)
    own = torch.rand(2, generator=torch.default_generator) + torch.rand(2)
    return x + own, torch.rand(2, generator=generator), torch.rand(2, generator=generator)


@needs_generators
def test_generators_from_outside_go_on_from_run_to_run():
    generators = of_own(), of_own()
    graph, result = TaskGraph.trace(draws, x := numbers(2), generators[0])
    for run in (graph.run, graph.run_serial):
        torch.manual_seed(3)
        wanted = draws(x, generators[1])
        torch.manual_seed(3)
        same(run()[result], wanted)


def test_a_torch_that_traces_no_given_generators_is_named(monkeypatch):
    monkeypatch.setattr("autopar.graph.chance.TRACES_GENERATORS", False)
    with pytest.raises(ValueError, match=r"can't trace .* torch 2\..* given a gen.*torch 2\.13"):
        TaskGraph.trace(lambda x: torch.rand(2, generator=of_own()), numbers(2))
    TaskGraph.trace(lambda x: x + torch.rand(2), numbers(2))  # from the default one
