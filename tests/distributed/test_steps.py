"""Ways to train on ranks, held against one process."""

import pytest
import torch
import torch.distributed as dist

import autopar as ap


def checked(device, see):
    """What is found of a way that adds gradients up, of one that forgets to, and of DDP."""

    def backward(model, x, rows):
        model.zero_grad()
        loss = model(x).pow(2).sum() / rows
        loss.backward()
        return loss

    def adding(model):
        def step(*share):
            loss = backward(model, *share)
            for p in model.parameters():
                dist.all_reduce(p.grad)
            return loss

        return step

    def forgetting(model):
        return lambda *share: backward(model, *share)

    torch.manual_seed(0)
    model, batch = ap.workload.network(8, 2, device), [torch.randn(5, 8, device=device)]
    given = {"ddp": {"DDP": {}}, "see": see, "repeats": 3}
    right = ap.race_of_steps({"adding": adding}, backward, model, batch, **given)
    wrong = ap.race_of_steps({"forgetting": forgetting}, backward, model, batch, repeats=3)
    return [one.label for one in right.measurements], right.checks, wrong.checks


def test_a_way_that_forgets_to_add_gradients_up_is_found_and_one_that_adds_is_timed():
    for labels, right, wrong in ap.on_ranks(checked, [], ranks=2):
        assert labels == ["computing alone", "adding", "DDP"]
        assert len(right) == 5
        assert all(right.values()), right
        told = {check: held for check, held in wrong.items() if check.startswith("forgetting")}
        assert len(told) == 2
        assert not any(told.values()), told


def test_what_no_rank_calls_and_labels_of_no_way_are_refused():
    with pytest.raises(ValueError, match=r"no process group; .* as by autopar\.on_ranks"):
        ap.race_of_steps({}, None, None, [])
    with pytest.raises(
        RuntimeError, match="see names 'another'; expected one of the labels 'adding', 'DDP'"
    ):
        ap.on_ranks(checked, ["another"], ranks=1)
