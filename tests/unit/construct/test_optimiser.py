"""The optimiser of trainings, against PyTorch's own."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy

import torch
from torch import nn

from builder.construct.training.optimiser import AdamW, ParameterGroup

SHARES = (0.5, 1.0, 0.75, 0.1)
NEVER_USED = 2


def parameters() -> list[nn.Parameter]:
    rng = torch.Generator().manual_seed(8)
    return [nn.Parameter(torch.randn(shape, generator=rng)) for shape in ((4, 3), (5,), (2,), (6, 2))]


def groups_of(learning: list[nn.Parameter]) -> list[ParameterGroup]:
    decayed, plain = dict(enumerate(learning[:2])), dict(enumerate(learning[2:]))
    named = [{str(number): one for number, one in each.items()} for each in (decayed, plain)]
    return [ParameterGroup(named[0], 1e-2, 0.1), ParameterGroup(named[1], 3e-3, 0.0)]


def set_gradients(learning: list[nn.Parameter], step: int) -> None:
    rng = torch.Generator().manual_seed(step)
    for number, one in enumerate(learning):
        gradient = torch.randn(one.shape, generator=rng)
        one.grad = None if number == NEVER_USED else gradient


def theirs_of(learning: list[nn.Parameter]) -> torch.optim.AdamW:
    groups = groups_of(learning)
    described = [{"params": [*group.parameters.values()], "weight_decay": group.weight_decay} for group in groups]
    return torch.optim.AdamW(described, fused=True)


def step_theirs(optimiser: torch.optim.AdamW, learning: list[nn.Parameter], share: float) -> None:
    for group, known in zip(optimiser.param_groups, groups_of(learning), strict=True):
        group["lr"] = known.learning_rate * share
    optimiser.step()


def test_it_learns_bit_for_bit_what_pytorch_s_does() -> None:
    mine, theirs = parameters(), parameters()
    my_optimiser, their_optimiser = AdamW(groups_of(mine)), theirs_of(theirs)
    for step, share in enumerate(SHARES):
        for learning in (mine, theirs):
            set_gradients(learning, step)
        my_optimiser.step(share)
        step_theirs(their_optimiser, theirs, share)
        assert all(map(torch.equal, mine, theirs))
    my_optimiser.clear_gradients()
    assert all(one.grad is None for one in mine)


def test_it_goes_on_from_a_checkpoint_of_either() -> None:
    """One of PyTorch's optimiser is what an earlier release wrote."""
    theirs = parameters()
    their_optimiser, states = theirs_of(theirs), []
    for step, share in enumerate(SHARES):
        states.append((deepcopy(their_optimiser.state_dict()), [one.detach().clone() for one in theirs]))
        set_gradients(theirs, step)
        step_theirs(their_optimiser, theirs, share)
    mine = [nn.Parameter(each) for each in states[2][1]]
    first = AdamW(groups_of(mine))
    first.load_state_dict(states[2][0])
    for step in (2, 3):
        going_on = AdamW(groups_of(mine))
        going_on.load_state_dict(first.state_dict())
        set_gradients(mine, step)
        going_on.step(SHARES[step])
        first = going_on
    assert all(map(torch.equal, mine, theirs))


def test_a_training_does_not_wait_for_a_compiler_to_be_imported() -> None:
    program = """
import sys
import torch
from torch import nn
import builder.construct.hplm.hplms
from builder.construct.training.optimiser import AdamW, ParameterGroup

one = nn.Parameter(torch.ones(2))
one.grad = torch.ones(2)
AdamW([ParameterGroup({"one": one}, 0.1, 0.0)]).step(1.0)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
