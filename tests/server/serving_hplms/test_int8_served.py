"""A server in int8: each answer is its own hPLM's, and one that overflows costs its neighbours nothing."""

from __future__ import annotations

import random
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from backends.adapters.bank import read_artifact
from backends.adapters.parts import Lora
from backends.engine.precision import smoothing_of
from backends.engine.stack import StackSettings, UpperStack
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.int8_instructions import int8_instructions
from backends.root.store import RootFolder
from bench.kit.marks import Mark, publish_marked
from bench.kit.tiny_home import sample_texts
from builder.construct.hplm.exact_lower import exact_lower
from builder.construct.hplm.hplms import publish_artifact
from hplm_client import Classification, ClientError, HplmClient
from seeds import SEED
from served_home import Served, wait_until_served
from waiting import wait_until

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8"),
]
SCORE_TOLERANCE = 2e-2


@contextmanager
def connected(served: Served, names: list[str]) -> Iterator[HplmClient]:
    """Yield a client once these hPLMs are known to the server, and delete them at the end."""
    registry = Registry.open(served.home)
    try:
        wait_until_served(served, names)
        with HplmClient(f"grpc://{served.grpc_url}") as client:
            yield client
    finally:
        for name in names:
            registry.delete_hplm(name)


def computed_fragments(served: Served) -> int:
    with urllib.request.urlopen(served.server.metrics_url) as page:
        found = re.search(r'^hplm_overlay_fragments_total{event="computed"} (\d+)', page.read().decode(), re.MULTILINE)
    return int(found[1]) if found else 0


def models(registry: Registry) -> list[HplmEntry]:
    return [entry for entry in registry.hplms() if entry.task == "classification"]


def test_more_hplms_than_slots_answer_with_their_own_weights(served_int8: Served) -> None:
    registry = Registry.open(served_int8.home)
    known = models(registry)
    made = [
        publish_marked(served_int8.home, registry, f"marked/number{number}", known[number % len(known)], model.domain)
        for number in range(9)
        for model in [known[number % len(known)]]
    ]
    versions = {entry.id: entry.version for entry in made}
    rng = random.Random(3)
    texts = [text.text for text in sample_texts(60, seed=9)]
    rows = [(rng.choice(sorted(versions)), rng.choice(texts)) for _ in range(600)]
    with connected(served_int8, sorted(versions)) as client:
        for (name, _), answer in zip(rows, client.infer_many(rows), strict=True):
            assert isinstance(answer, Classification)
            assert Mark.of(name, versions[name]).fits(answer.scores)


def test_missing_fragments_are_computed_in_int8_and_answer_alike_again(served_int8: Served) -> None:
    home = served_int8.home
    model = models(Registry.open(home))[0]
    root = RootFolder(home.root(model.domain.root))
    stack = UpperStack(root, StackSettings(dtype="int8", num_slots=2), smoothing=smoothing_of(root))
    ready = stack.ready(model.key, lambda: read_artifact(home.path / model.folder, root.fingerprint))
    rng = random.Random(SEED)
    words = sorted({word for text in sample_texts(60, seed=9) for word in text.text.split()})
    texts = [" ".join(rng.sample(words, 8)) for _ in range(24)]
    rows = [torch.from_numpy(row) for row in exact_lower(home, model.domain, "int8").encode(texts).rows]
    logits = [stack.run(stack.pack([row], [ready]), [ready])[0] for row in rows]
    expected = [dict(zip(model.labels, one.softmax(dim=-1).tolist(), strict=True)) for one in logits]
    before = computed_fragments(served_int8)
    with HplmClient(f"grpc://{served_int8.grpc_url}") as client:
        for is_first in (True, False):
            answers = [client.infer(model.id, text) for text in texts]
            if is_first:
                wait_until(lambda: computed_fragments(served_int8) > before)
            for scores, answer in zip(expected, answers, strict=True):
                assert isinstance(answer, Classification) and answer.exact
                assert answer.scores == pytest.approx(scores, abs=1e-3)


def test_an_hplm_that_overflows_fails_alone(served_int8: Served) -> None:
    """Its values overflow in the layers whose inputs are quantised; tokens beside it have scales of their own."""
    home, registry = served_int8.home, Registry.open(served_int8.home)
    model = models(registry)[0]
    root = RootFolder(home.root(model.domain.root))
    artifact = read_artifact(home.path / model.folder, root.fingerprint)
    size, layers = root.geometry.hidden_size, root.geometry.num_upper_layers
    huge = Lora(torch.full((layers, 4, size), 1e25), torch.full((layers, size, 4), 1e25))
    bad = replace(artifact, hplm="bad/overflow", adapters=replace(artifact.adapters, loras={"value": huge}))
    publish_artifact(home, registry, bad, model.domain, {})
    texts = [text.text for text in sample_texts(48, seed=5)]
    good = [(model.id, text) for text in texts]
    with connected(served_int8, ["bad/overflow"]) as client:
        alone = client.infer_many(good)
        mixed = [row for text in texts for row in ((model.id, text), ("bad/overflow", text))]
        answers = client.infer_many(mixed, on_error="return")
    assert all(isinstance(answer, ClientError) for answer in answers[1::2])
    for expected, answer in zip(alone, answers[::2], strict=True):
        assert isinstance(answer, Classification) and isinstance(expected, Classification)
        assert answer.label == expected.label or sorted(expected.scores.values())[-2] > 0.5 - SCORE_TOLERANCE
        for label, score in expected.scores.items():
            assert abs(answer.scores[label] - score) <= SCORE_TOLERANCE
