"""Early answers of regressions: how sure they are, what they lose, and that the engine compares the right number."""

from __future__ import annotations

import json
import math
import queue
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.adapters.bank import HplmArtifact, read_artifact, write_artifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ladder, read_ladder, write_ladder
from backends.clock import now_us
from backends.engine.early_numbers import losses, number_confidences
from backends.engine.exits import Exit, are_same, confidences
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import CorruptFileError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import read_json, write_json
from backends.wire import AUTO, EARLY, FULL, Ticket, encode_tickets, fold_rows
from served_engine import HIDDEN, Responses, running

SCALE = 3.0
LENGTHS = [3, 9, 20, 4, 17, 6]


def test_confidence_is_one_less_the_likely_distance() -> None:
    deviation, temperature = 0.1, 1.7
    outputs = torch.tensor([[40.0, 2 * math.log(deviation)], [0.0, 5.0], [0.0, -80.0]])
    drawn = torch.randn(200_000, generator=torch.Generator().manual_seed(1)).abs().mean() * deviation * temperature
    sure = number_confidences(outputs, np.full(3, temperature))
    assert sure[0] == pytest.approx(1 - float(drawn), abs=1e-3)
    assert sure[1] == 0 and sure[2] == pytest.approx(1)


@pytest.mark.parametrize("output", [[math.nan, -9.0], [1.0, math.nan], [math.inf, -9.0], [1.0, math.inf]])
def test_what_is_no_number_is_not_sure(output: list[float]) -> None:
    assert number_confidences(torch.tensor([output]), np.ones(1)).tolist() == [0.0]


def test_losses_are_distances_in_deviations() -> None:
    early, full = torch.tensor([[1.0, 9.0], [4.0, 9.0], [90.0, 9.0]]), torch.ones(3, 1)
    assert losses(early, full, 4.0).tolist() == [0.0, 0.75, 1.0]


def test_numbers_differ_as_often_as_they_lose() -> None:
    at_exit = Exit(1, Head(torch.ones(2, 4), torch.ones(2)), 1.0, None, scale=4.0)
    same = [are_same(torch.tensor([2.0, 0.0]), torch.tensor([1.0]), at_exit, ()) for _ in range(4_000)]
    assert np.mean(same) == pytest.approx(0.75, abs=0.04)
    assert all(are_same(torch.tensor([1.0, 0.0]), torch.tensor([1.0]), at_exit, ()) for _ in range(100))


def test_numbers_and_labels_of_one_batch_are_judged_apart() -> None:
    """Both have two outputs."""
    head = Head(torch.ones(2, 4), torch.ones(2))
    exits = [Exit(1, head, 2.0, None, scale=each) for each in (None, SCALE, None, SCALE)]
    outputs = [torch.tensor([row, -4.0]) for row in (1.0, 1.0, 3.0, 3.0)]
    sure = confidences(outputs, exits)
    assert sure[1] == sure[3] == pytest.approx(1 - math.sqrt(2 / math.pi) * 2 * math.exp(-2))
    assert sure[0] == pytest.approx(1 / (1 + math.exp(-2.5)))
    assert sure[0] < sure[2]


@pytest.fixture
def worth(tiny_home: Home) -> HplmEntry:
    """A regression that was never tuned."""
    registry, root = Registry.open(tiny_home), RootFolder(tiny_home.root("tiny"))
    like = registry.hplm("acme/topic")
    artifact = read_artifact(tiny_home.path / like.folder, root.fingerprint)
    torch.manual_seed(6)
    head = Head(100 * torch.randn(1, HIDDEN), torch.full((1,), 70_000.0))
    folder = tiny_home.bank("tiny", "acme/worth", 1)
    folder.mkdir(parents=True)
    write_artifact(folder, replace(artifact, hplm="acme/worth", task="regression", labels=(), head=head))
    return registry.publish_hplm("acme/worth", like.domain, "regression", (), tiny_home.relative(folder), {})


def with_ladder(home: Home, entry: HplmEntry, threshold: float) -> Ladder:
    torch.manual_seed(7)
    head = Head(torch.randn(2, HIDDEN) * torch.tensor([[100.0], [0.3]]), torch.tensor([70_000.0, -3.0]))
    ladder = Ladder(EarlyStep(1, head, 1.5, threshold, SCALE), 1.0)
    write_ladder(home.path / entry.folder, ladder, RootFolder(home.root("tiny")).fingerprint)
    return ladder


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.normal(size=(length, HIDDEN)).astype(np.float16) for length in LENGTHS]


def asked(home: Home, entry: HplmEntry, level: str) -> list[dict[str, Any]]:
    with running(home) as service:
        pending: list[Responses] = []
        for row in rows():
            pending.append(queue.Queue())
            ticket = Ticket(entry.key, len(row), False, None, level=level)
            service.submit(fold_rows([row]), encode_tickets([ticket]), [b""], pending[-1].put)
        found = [each.get(timeout=30) for each in pending]
    assert all(isinstance(each, list) for each in found), found
    return [json.loads(each[0]) for each in found if isinstance(each, list)]


def both_outputs(home: Home, entry: HplmEntry, ladder: Ladder) -> tuple[list[Tensor], list[Tensor]]:
    """What the early head and the version's own answer, by a stack of their layers and no exits."""
    root = RootFolder(home.root("tiny"))
    artifact = read_artifact(home.path / entry.folder, root.fingerprint)

    # A head of two outputs is one of labels, but for its exit.
    at_exit = replace(artifact, task="classification", labels=("value", "distance"), head=ladder.early.head)

    def run(after: int, of: HplmArtifact) -> list[Tensor]:
        stack = UpperStack(root, StackSettings(dtype="fp32", num_slots=2))
        stack._layers._upper.layers = stack._layers._upper.layers[:after]  # type: ignore[attr-defined]
        stack._geometry = replace(stack._geometry, num_upper_layers=after)
        ready = [stack.ready(1, lambda: of)] * len(LENGTHS)
        return stack.run(stack.pack([torch.from_numpy(row) for row in rows()], ready), ready)

    return run(1, at_exit), run(2, artifact)


def test_sure_numbers_leave_early_and_say_no_confidence(tiny_home: Home, worth: HplmEntry) -> None:
    """The threshold lies between the confidences of rows; those of two labels would all be above it, or none."""
    early, full = both_outputs(tiny_home, worth, with_ladder(tiny_home, worth, 2.0))
    sure = number_confidences(torch.stack(early), np.full(len(LENGTHS), 1.5))
    threshold = float(np.sort(sure)[2:4].mean())
    assert 0 < threshold < 1
    with_ladder(tiny_home, worth, threshold)
    answered = asked(tiny_home, worth, AUTO)
    assert [each["level"] for each in answered] == [EARLY if one >= threshold else FULL for one in sure]
    assert {each["level"] for each in answered} == {EARLY, FULL}
    assert not any({"confidence", "doubtful"} & each.keys() for each in answered)
    for each, one, other in zip(answered, early, full, strict=True):
        assert each["value"] == pytest.approx(float((one if each["level"] == EARLY else other)[0]), rel=1e-5)
    asked_for = asked(tiny_home, worth, EARLY)
    assert [each.get("doubtful", False) for each in asked_for] == (sure < threshold).tolist()
    assert all("confidence" not in each for each in asked_for)


def test_a_number_that_is_anything_but_sure_is_sent_before_the_deadline(
    tiny_home: Home, worth: HplmEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its likely distance is more than a deviation, so its confidence is 0, as that of what is no number."""
    head = Head(torch.zeros(2, HIDDEN), torch.tensor([5.0, 9.0]))
    fingerprint = RootFolder(tiny_home.root("tiny")).fingerprint
    write_ladder(tiny_home.path / worth.folder, Ladder(EarlyStep(1, head, 1.5, 2.0, SCALE), 1.0), fingerprint)
    run, may_end, answered = UpperStack.run, threading.Event(), Responses()

    def slow(stack: UpperStack, *arguments: Any) -> list[Tensor]:
        found = run(stack, *arguments)
        assert may_end.wait(30)
        return found

    monkeypatch.setattr(UpperStack, "run", slow)
    with running(tiny_home) as service:
        row = rows()[0]
        ticket = Ticket(worth.key, len(row), False, now_us() + 2_000_000)
        service.submit(fold_rows([row]), encode_tickets([ticket]), [b""], answered.put)
        found = answered.get(timeout=30)
        may_end.set()
    assert isinstance(found, list), found
    answer = json.loads(found[0])
    assert (answer["level"], answer["value"]) == (EARLY, pytest.approx(5.0))


def test_a_ladder_of_numbers_is_read_as_it_was_written(tiny_home: Home, worth: HplmEntry) -> None:
    """Its head holds the values' scale, which fp16 may not; releases that know labels only do not read it."""
    ladder = with_ladder(tiny_home, worth, 0.9)
    read = read_ladder(tiny_home.path / worth.folder, RootFolder(tiny_home.root("tiny")).fingerprint)
    assert read is not None and replace(read.early, head=ladder.early.head) == ladder.early
    assert torch.equal(read.early.head.weight, ladder.early.head.weight)
    assert read_json(tiny_home.path / worth.folder / "levels.json")["format_version"] == 2


def artifact_of(home: Home, folder: Path) -> HplmArtifact:
    root = RootFolder(home.root("tiny"))
    ladder = read_ladder(folder, root.fingerprint)
    return read_artifact(folder, root.fingerprint).with_ladder(ladder, root.geometry.num_upper_layers)


@pytest.mark.parametrize("scale", [0.0, -1.0, "nan", None])
def test_a_scale_that_is_none(tiny_home: Home, worth: HplmEntry, scale: object) -> None:
    with_ladder(tiny_home, worth, 0.9)
    folder = tiny_home.path / worth.folder
    manifest = read_json(folder / "levels.json")
    manifest.pop("checksum", None)
    early, full = manifest["ladder"]
    write_json(folder / "levels.json", {**manifest, "ladder": [{**early, "scale": scale}, full]})
    with pytest.raises(CorruptFileError, match="scale is"):
        artifact_of(tiny_home, folder)


def test_a_ladder_of_another_task(tiny_home: Home, worth: HplmEntry) -> None:
    registry, root = Registry.open(tiny_home), RootFolder(tiny_home.root("tiny"))
    topic = tiny_home.path / registry.hplm("acme/topic").folder
    write_ladder(topic, with_ladder(tiny_home, worth, 0.9), root.fingerprint)
    of_labels = Ladder(EarlyStep(1, Head(torch.ones(2, HIDDEN), torch.ones(2)), 1.0, 0.9), 1.0)
    write_ladder(tiny_home.path / worth.folder, of_labels, root.fingerprint)
    for folder in (topic, tiny_home.path / worth.folder):
        with pytest.raises(CorruptFileError, match="is of another task than"):
            artifact_of(tiny_home, folder)
