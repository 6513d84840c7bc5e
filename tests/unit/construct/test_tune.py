from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from backends.errors import ConflictError, InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.hplms import HplmRequest, create_hplm
from builder.construct.tune import EncodedSet, TuneSettings, rate_share, tune
from tiny_home import ignore, write_task


@pytest.mark.parametrize("steps", [1, 2, 3, 9, 10, 11, 20, 21, 100])
def test_the_learning_rate_rises_to_its_highest_and_falls_to_nothing(steps: int) -> None:
    shares = [rate_share(step, steps) for step in range(steps + 1)]
    top = shares.index(max(shares))
    assert shares[top] == 1
    assert shares[: top + 1] == sorted(shares[: top + 1])
    assert shares[top:] == sorted(shares[top:], reverse=True)
    assert min(shares[:-1]) > 0
    assert shares[-1] == pytest.approx(0, abs=1e-12)
    assert top + 1 == max(1, round(steps / 10))


@pytest.mark.parametrize("epochs", [1, 2, 10, 20])
def test_any_number_of_steps(built_home: Home, epochs: int) -> None:
    root = RootFolder(built_home.root("tiny"))
    rows = [torch.randn(4, root.geometry.hidden_size).half() for _ in range(6)]
    dataset = EncodedSet(rows, torch.tensor([0, 1] * 3))
    settings = TuneSettings(bottleneck=4, epochs=epochs, patience=epochs)
    assert tune(root.upper(), root.geometry, 2, dataset, dataset, settings, ignore).metrics["best_epoch"] >= 1


def test_a_bottleneck_that_no_slot_holds_is_refused() -> None:
    assert TuneSettings(bottleneck=64)
    with pytest.raises(InvalidArgumentError, match="the widest is 64"):
        TuneSettings(bottleneck=65)


class HesitantRegistry(Registry):
    """Waits after it has said whether an hPLM exists."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry._engine)
        self.asked, self.go_on = threading.Event(), threading.Event()

    def has_hplm(self, hplm: str) -> bool:
        answer = super().has_hplm(hplm)
        self.asked.set()
        self.go_on.wait()
        return answer


def test_two_creations_of_one_hplm_make_one_version(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    hesitant = HesitantRegistry(registry)
    train, dev = write_task(tmp_path, "topic", seed=50, train=40)
    request = HplmRequest("new/one", "tiny", "farm", train, dev, tune=TuneSettings(bottleneck=4, epochs=1))
    refused: list[ConflictError] = []

    def create(with_registry: Registry) -> None:
        try:
            create_hplm(tiny_home, with_registry, request, ignore)
        except ConflictError as error:
            refused.append(error)

    thread = threading.Thread(target=create, args=(hesitant,))
    thread.start()
    hesitant.asked.wait()
    create(registry)
    hesitant.go_on.set()
    thread.join()
    assert len(refused) == 1
    assert registry.hplm("new/one").version == 1
