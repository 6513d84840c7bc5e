"""Answers of rows that go on, mixed with their early ones: against a loop over rows, and as the engine sends them."""

from __future__ import annotations

import json
import math
import queue
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ensemble, Ladder, read_ladder, write_ladder
from backends.engine.audit import Audit
from backends.engine.ensemble import Mixture, mixed
from backends.engine.exits import NEVER, Early, Exit
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import CorruptFileError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import read_json, write_json
from backends.wire import AUTO, EARLY, FULL, Ticket, encode_tickets, fold_rows
from served_engine import HIDDEN, Responses, running

ENSEMBLES = {"acme/topic": Ensemble(0.5, 0.7), "acme/mood": Ensemble(0.9, 2.0), "globex/topic": None}


def softmax(logits: Sequence[float], temperature: float) -> list[float]:
    largest = max(logits)
    exponentials = [math.exp((each - largest) / temperature) for each in logits]
    return [each / sum(exponentials) for each in exponentials]


def mixture(early: Sequence[float], full: Sequence[float], ladder: Ladder) -> list[float]:
    """The weighted mean of both answers' calibrated probabilities."""
    weight = 1.0 if ladder.ensemble is None else ladder.ensemble.full_weight
    pairs = zip(softmax(full, ladder.full_temperature), softmax(early, ladder.early.temperature), strict=True)
    return [weight * one + (1 - weight) * other for one, other in pairs]


def test_rows_of_many_ladders_are_mixed_as_one_by_one() -> None:
    """Rows of NaN or infinity are left to those who deal with them, and none that is healthy seems to be one."""
    seed = random.randrange(1 << 32)
    rng = np.random.default_rng(seed)
    for _ in range(50):
        full, mixtures = list[torch.Tensor](), dict[int, Mixture]()
        for index in range(int(rng.integers(1, 40))):
            width, spread = int(rng.integers(2, 5)), float(rng.choice([1, 10, 1000]))
            early, late = (torch.from_numpy(spread * rng.normal(size=width)).float() for _ in range(2))
            if rng.random() < 0.2:
                (early if rng.random() < 0.5 else late)[0] = float(rng.choice([math.nan, math.inf, -math.inf]))
            full.append(late)
            if rng.random() < 0.8:
                ensemble = Ensemble(float(rng.uniform(0.05, 0.95)), 1.0)
                step = EarlyStep(1, Head(torch.zeros(2, 2), torch.zeros(2)), float(rng.uniform(0.1, 10)), 0.9)
                mixtures[index] = Mixture(early, Ladder(step, float(rng.uniform(0.1, 10)), {}, ensemble), ensemble)
        found = mixed(full, mixtures)
        for index, each in mixtures.items():
            is_healthy = bool(torch.isfinite(each.early).all() and torch.isfinite(full[index]).all())
            assert (index in found) == is_healthy, f"seed {seed}"
            if is_healthy:
                assert torch.isfinite(found[index]).all() and found[index].dtype == torch.float32, f"seed {seed}"
                expected = mixture(each.early.tolist(), full[index].tolist(), each.ladder)
                assert found[index].exp().tolist() == pytest.approx(expected, abs=1e-5), f"seed {seed}"
        assert found.keys() <= mixtures.keys()


@dataclass(frozen=True)
class Tenant:
    """An hPLM whose ladder is made up."""

    entry: HplmEntry
    ladder: Ladder


def tenants(home: Home, threshold: float) -> list[Tenant]:
    registry, root = Registry.open(home), RootFolder(home.root("tiny"))
    found = []
    for seed, (hplm, ensemble) in enumerate(ENSEMBLES.items()):
        entry = registry.hplm(hplm)
        own = read_artifact(home.path / entry.folder, root.fingerprint).head
        torch.manual_seed(seed)
        head = Head(torch.randn(own.weight.shape).half().float(), torch.randn(own.bias.shape).half().float())
        ladder = Ladder(EarlyStep(1, head, 2.0, threshold), 0.5, {}, ensemble)
        write_ladder(home.path / entry.folder, ladder, root.fingerprint)
        found.append(Tenant(entry, ladder))
    return found


def rows(count: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(rng.integers(3, 20), HIDDEN)).astype(np.float16) for _ in range(count)]


def one_by_one(home: Home, tenant: Tenant, texts: Sequence[np.ndarray]) -> list[tuple[list[float], list[float]]]:
    """The early and the full logits of each row, alone in the layers."""
    root, early = RootFolder(home.root("tiny")), tenant.ladder.early
    stack = UpperStack(root, StackSettings(dtype="fp32", num_slots=2))
    ready = stack.ready(1, lambda: read_artifact(home.path / tenant.entry.folder, root.fingerprint))
    at_exit, found = Exit(early.after, early.head, early.temperature, NEVER), []
    for text in texts:
        seen: dict[int, Early] = {}
        packed = stack.pack([torch.from_numpy(text)], [ready])
        (full,) = stack.run(packed, [ready], exits=[at_exit], on_early=seen.update)
        found.append((seen[0].logits.tolist(), full.tolist()))
    return found


def asked(service: UpperService, of_rows: Sequence[Tenant], texts: Sequence[np.ndarray], level: str) -> list[Any]:
    """The answers to rows that come at once."""
    pending: list[Responses] = []
    with service._loop._changed:  # so that all are one batch
        for tenant, text in zip(of_rows, texts, strict=True):
            pending.append(queue.Queue())
            ticket = Ticket(tenant.entry.key, len(text), False, None, level=level)
            service.submit(fold_rows([text]), encode_tickets([ticket]), [b""], pending[-1].put)
    found = [each.get(timeout=30) for each in pending]
    assert all(isinstance(each, list) for each in found), found
    return [json.loads(each[0]) for each in found if isinstance(each, list)]


@pytest.mark.parametrize("level", [AUTO, FULL])
def test_a_mixed_batch_is_answered_by_the_ladder_of_each_row(tiny_home: Home, level: str) -> None:
    """Only rows that went on by their ladder are mixed; who asks for `full` gets all layers alone."""
    seed = random.randrange(1 << 32)
    texts = rows(60, seed)
    of_rows = [tenants(tiny_home, 0.6)[index % 3] for index in range(len(texts))]
    with running(tiny_home) as service:
        answers = asked(service, of_rows, texts, level)
    changed = 0
    for tenant, text, answer in zip(of_rows, texts, answers, strict=True):
        ((early, full),) = one_by_one(tiny_home, tenant, [text])
        ladder = tenant.ladder
        sure = max(softmax(early, ladder.early.temperature))
        if abs(sure - ladder.early.threshold) < 1e-3:
            continue
        expected, confidence = softmax(full, 1.0), max(softmax(full, ladder.full_temperature))
        if level == AUTO and sure >= ladder.early.threshold:
            expected, confidence = softmax(early, 1.0), sure
        elif level == AUTO and ladder.ensemble is not None:
            expected = mixture(early, full, ladder)
            changed += bool(np.abs(np.subtract(expected, softmax(full, 1.0))).max() > 0.01)
            confidence = max(softmax([math.log(each) for each in expected], ladder.ensemble.temperature))
        is_early = level == AUTO and sure >= ladder.early.threshold
        assert answer["level"] == (EARLY if is_early else FULL), f"seed {seed}"
        assert list(answer["scores"].values()) == pytest.approx(expected, abs=1e-3), f"seed {seed}"
        assert answer["label"] == tenant.entry.labels[int(np.argmax(expected))], f"seed {seed}"
        assert answer["confidence"] == pytest.approx(confidence, abs=1e-3), f"seed {seed}"
    assert level == FULL or changed, f"seed {seed}: no answer shows that rows were mixed"


def test_what_fails_its_audit_is_mixed_no_more(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its early answers are not trusted, in no part."""
    tenant, texts = tenants(tiny_home, 0.6)[0], rows(20, seed=3)
    monkeypatch.setattr(Audit, "has_failed", lambda *_: True)
    with running(tiny_home) as service:
        answers = asked(service, [tenant] * len(texts), texts, AUTO)
    for (_, full), answer in zip(one_by_one(tiny_home, tenant, texts), answers, strict=True):
        assert list(answer["scores"].values()) == pytest.approx(softmax(full, 1.0), abs=1e-3)


def test_an_ensemble_is_read_as_it_was_written_and_old_files_still_open(tiny_home: Home) -> None:
    fingerprint = RootFolder(tiny_home.root("tiny")).fingerprint
    for tenant in tenants(tiny_home, 0.6):
        folder = tiny_home.path / tenant.entry.folder
        read = read_ladder(folder, fingerprint)
        assert read is not None and read.ensemble == tenant.ladder.ensemble
        stored = read_json(folder / "levels.json")
        assert stored["format_version"] == (1 if read.ensemble is None else 3)
        assert (read.ensemble is None) == ("weight" not in stored["ladder"][0])


DAMAGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "too much": ({}, {"weight": 0.75}),
    "of no step": ({"weight": 0.0}, {"weight": 1.0}),
    "below 0": ({"weight": 1.5}, {"weight": -0.5}),
    "no number": ({"weight": math.nan}, {}),
    "a word": ({}, {"weight": "half"}),
    "of one step only": ({"weight": None}, {}),
    "a list": ({"weight": [0.5]}, {}),
    "cold": ({}, {"mixed_temperature": 0.0}),
    "without a temperature": ({}, {"mixed_temperature": None}),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_weights_cost_the_ladder_only(tiny_home: Home, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    tenant, texts = tenants(tiny_home, 0.0)[0], rows(4, seed=3)
    path = tiny_home.path / tenant.entry.folder / "levels.json"
    manifest = read_json(path)
    manifest.pop("checksum", None)
    steps = [
        {name: value for name, value in {**step, **changes}.items() if value is not None}
        for step, changes in zip(manifest["ladder"], DAMAGES[damage], strict=True)
    ]
    write_json(path, {**manifest, "ladder": steps})
    with running(tiny_home) as service:
        assert all("level" not in answer for answer in asked(service, [tenant] * 4, texts, AUTO))
    assert "acme/topic is answered in full" in caplog.text


@pytest.mark.parametrize("task", ["ner", "regression"])
def test_only_labels_of_texts_are_mixed(tiny_home: Home, task: str) -> None:
    tenant, root = tenants(tiny_home, 0.6)[0], RootFolder(tiny_home.root("tiny"))
    artifact = read_artifact(tiny_home.path / tenant.entry.folder, root.fingerprint)
    pooling, head, ladder = artifact.pooling, artifact.head, tenant.ladder
    if task == "ner":
        pooling = "none"
    else:
        head = Head(head.weight[:1], head.bias[:1])
        ladder = replace(ladder, early=replace(ladder.early, scale=1.0))
    other = replace(artifact, task=task, pooling=pooling, head=head)
    with pytest.raises(CorruptFileError, match=f"mixes answers, which a {task} cannot"):
        other.with_ladder(ladder, root.geometry.num_upper_layers)
    other.with_ladder(None, root.geometry.num_upper_layers)
