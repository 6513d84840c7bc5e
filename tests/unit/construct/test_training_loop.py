"""The training loop that all builds share: interrupted anywhere it ends as if it never had been."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.kit.tiny_home import ignore
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.loop import DivergedError, Schedule, TrainingLoop, Watch
from builder.construct.training.optimiser import ParameterGroup
from builder.progress import Report, Step
from builder.settings.seeds import step_seed

STEPS, ROUND_STEPS = 23, 5
SCHEDULE = Schedule(STEPS, warmup_steps=4, round_steps=ROUND_STEPS, final_share=0.05, seed=3)


class InterruptedRunError(Exception):
    pass


class Rounds(Watch):
    """Counts the rounds, and ends the training after so many."""

    def __init__(self, most: int = 100) -> None:
        self.most, self.steps, self.rounds = most, 0, 0

    def after_step(self, step: int) -> None:
        self.steps += 1

    def end_round(self, number: int) -> None:
        self.rounds = number

    def goes_on(self, rounds: int) -> bool:
        return rounds < self.most

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps, "rounds": self.rounds}

    def restore(self, state: dict[str, Any]) -> None:
        self.steps, self.rounds = state["steps"], state["rounds"]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def batches(after_step: int) -> Iterator[Tensor]:
    for step in range(after_step + 1, STEPS + 1):
        yield torch.randn(6, 4, generator=torch.Generator().manual_seed(step_seed(5, step)))


def loop_of(model: nn.Sequential, watch: Watch | None = None, schedule: Schedule = SCHEDULE) -> TrainingLoop[Tensor]:
    named = dict(model.named_parameters())
    weights = ParameterGroup({name: one for name, one in named.items() if "weight" in name}, 1e-2, 0.1)
    biases = ParameterGroup({name: one for name, one in named.items() if "bias" in name}, 1e-3, 0.0)

    def loss(batch: Tensor, step: int) -> Tensor:
        return functional.mse_loss(model(batch), batch.sum(dim=1, keepdim=True))

    return TrainingLoop("learn", [weights, biases], schedule, batches, loss, watch)


def until(stop: int) -> Report:
    def report(step: Step) -> None:
        if step.done == stop:
            raise InterruptedRunError

    return report


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(ours, theirs) for ours, theirs in zip(one.parameters(), other.parameters(), strict=True))


def test_an_interrupted_training_ends_the_same(tmp_path: Path) -> None:
    """With dropout, whose draws depend on the round."""
    whole = network()
    loop_of(whole).run(None, ignore)
    checkpoint = Checkpoint(tmp_path / "checkpoint", "inputs")
    for stop in sorted(random.Random(8).sample(range(1, STEPS + 1), 6)):
        with pytest.raises(InterruptedRunError):
            loop_of(network(), Rounds()).run(checkpoint, until(stop))
        torch.rand(7)
    resumed, watch, steps = network(), Rounds(), list[Step]()
    loop_of(resumed, watch).run(checkpoint, steps.append)
    assert same(resumed, whole)
    assert (watch.steps, watch.rounds) == (STEPS, 5)
    again, repeated = network(), list[Step]()
    loop_of(again).run(checkpoint, repeated.append)
    assert same(again, whole)
    assert [step.done for step in repeated] == [STEPS]


def test_no_more_than_a_round_is_repeated(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint", "inputs")
    with pytest.raises(InterruptedRunError):
        loop_of(network()).run(checkpoint, until(14))
    steps: list[Step] = []
    seconds = loop_of(network()).run(checkpoint, steps.append)
    assert [step.done for step in steps] == list(range(11, STEPS + 1))
    assert seconds > 0
    assert all("loss" in step.note for step in steps)


def test_a_watch_ends_the_training_and_the_progress_with_it(tmp_path: Path) -> None:
    checkpoint, steps = Checkpoint(tmp_path / "checkpoint", "inputs"), list[Step]()
    short = network()
    loop_of(short, Rounds(most=2)).run(checkpoint, steps.append)
    assert [step.done for step in steps] == [*range(1, 2 * ROUND_STEPS + 1), STEPS]
    again = network()
    loop_of(again, Rounds(most=2)).run(checkpoint, ignore)
    assert same(again, short)


def test_a_training_that_diverges_ends_before_the_weights_change() -> None:
    model = network()
    before = network()
    named = dict(model.named_parameters())

    def loss(batch: Tensor, step: int) -> Tensor:
        return model(batch).sum() * torch.inf

    loop = TrainingLoop("learn", [ParameterGroup(named, 1e-2, 0.0)], SCHEDULE, batches, loss)
    with pytest.raises(DivergedError, match="diverged at step 1; try a lower learning rate"):
        loop.run(None, ignore)
    assert same(model, before)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
@pytest.mark.parametrize("final_share", [0.0, 0.05])
def test_the_rate_rises_to_its_peak_and_falls(decay: Any, final_share: float) -> None:
    schedule = Schedule(20, 5, 1, decay, final_share)
    shares = [schedule.share(step) for step in range(1, 21)]
    assert shares[4] == max(shares) == 1
    assert shares[:5] == sorted(shares[:5]) and shares[4:] == sorted(shares[4:], reverse=True)
    assert shares[-1] == pytest.approx(final_share) if final_share else 0 < shares[-1] < 0.1


def test_a_checkpoint_of_an_earlier_release_is_not_taken_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint", "inputs")
    torch.save({"step": 10, "student": {}, "optimiser": {}, "seconds": 1.0, "inputs": "inputs"}, checkpoint.path)
    steps: list[Step] = []
    loop_of(network()).run(checkpoint, steps.append)
    assert steps[0].done == 1
    assert "written by another release; starting again" in caplog.text
