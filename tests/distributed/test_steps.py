"""Ways to train on ranks, held against one process."""

import itertools

import pytest
import torch
import torch.distributed as dist

import autopar as ap


def checked(device, see):
    """What is found of a way that adds gradients up, of DDP, and of ways that are wrong."""

    def backward(model, x, rows):
        model.zero_grad()
        loss = model(x).pow(2).sum() / rows
        loss.backward()
        return loss

    def adding(model):
        def step(*share):
            loss = backward(model, *share)
            for p in model.parameters():
                if p.requires_grad:
                    dist.all_reduce(p.grad)
            return loss

        return step

    def forgetting(model):
        return lambda *share: backward(model, *share)

    def wrong_on_one(model):
        def step(*share):
            loss = adding(model)(*share)
            if dist.get_rank() == 1:
                model[-1].weight.grad[0] += 1
            return loss

        return step

    torch.manual_seed(0)
    model, batch = ap.workload.network(8, 2, device), [torch.randn(5, 8, device=device)]
    given = {"ddp": {"DDP": {}}, "see": see, "repeats": 3}
    model[0].weight.requires_grad_(False)  # as where a part of a network is trained
    right = ap.race_of_steps({"adding": adding}, backward, model, batch, **given)
    ways = {"forgetting": forgetting}, {"wrong on one": wrong_on_one}
    wrong = [ap.race_of_steps(way, backward, model, batch, repeats=3) for way in ways]
    assert not any(findings.measurements for findings in wrong)
    checks = [(check, held) for findings in wrong for check, held in findings.checks.items()]
    return [one.label for one in right.measurements], right.checks, checks


def test_a_way_that_forgets_to_add_gradients_up_is_found_and_one_that_adds_is_timed():
    for labels, right, wrong in ap.on_ranks(checked, [], ranks=2):
        assert labels == ["computing alone", "adding", "DDP"]
        assert len(right) == 5
        assert all(right.values()), right
        told = {check for check, held in wrong if not held}
        assert told == {
            f"{way}: {what}"
            for way, what in itertools.product(
                ("forgetting", "wrong on one"),
                ("within 0.0001 of what is expected", "losses equal one process's"),
            )
        }, wrong


def test_what_no_rank_calls_and_labels_of_no_way_are_refused():
    with pytest.raises(ValueError, match=r"no process group; .* as by autopar\.on_ranks"):
        ap.race_of_steps({}, None, None, [])
    with pytest.raises(RuntimeError, match=r"ValueError: \['DDP'\] would stand for two ways"):
        ap.on_ranks(lambda _: ap.race_of_steps({"DDP": 1}, 1, 1, [], ddp={"DDP": {}}), ranks=1)
    with pytest.raises(
        RuntimeError, match="see names 'another'; expected one of the labels 'adding', 'DDP'"
    ):
        ap.on_ranks(checked, ["another"], ranks=1)
