"""Rollbacks, pins and garbage collection under a running server; bounds are wide because the machine may be busy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore, sample_texts, tiny_hplm, write_corpus, write_task
from builder.construct.domain.domains import update_domain
from builder.construct.hplm.hplms import update_hplm
from builder.lifecycle.garbage import GarbageSettings, collect_garbage
from builder.lifecycle.rollback import rollback_domain, rollback_hplm
from hplm_client import Classification, HplmClient
from served_home import Served, wait_until_served
from short_requests import next_domain, next_hplm

pytestmark = pytest.mark.server
WITHIN_S = 30.0
STEADY_S = 1.0
TEXTS = [text.text for text in sample_texts(20, seed=404)]


@pytest.fixture
def client(served: Served) -> Iterator[HplmClient]:
    with HplmClient(f"grpc://{served.grpc_url}") as client:
        yield client


def answers(client: HplmClient, hplm: str) -> list[Classification]:
    found = client.infer_many([(hplm, text) for text in TEXTS])
    assert all(isinstance(answer, Classification) for answer in found)
    return found  # type: ignore[return-value]


def scores(client: HplmClient, hplm: str) -> npt.NDArray[np.float64]:
    return np.array([list(answer.scores.values()) for answer in answers(client, hplm)])


def same(found: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> bool:
    """But for what other rows in a batch change in the last digit."""
    return np.allclose(found, expected, rtol=0, atol=2e-6)


def within_seconds(holds: Callable[[], bool]) -> None:
    """Wait until something holds for a second on end: each instance of `hplm_lower` learns of a change by itself."""
    ends_at = time.monotonic() + WITHIN_S
    held_from = time.monotonic()
    while time.monotonic() - held_from < STEADY_S:
        time.sleep(0.05)
        if not holds():
            held_from = time.monotonic()
            assert held_from < ends_at, "never happened"


def is_served(client: HplmClient, hplm: str, version: int) -> bool:
    return {answer.version for answer in answers(client, hplm)} == {version}


def test_versions_come_and_go_while_serving(served: Served, client: HplmClient) -> None:
    home, registry, hplm = served.home, Registry.open(served.home), "versions/mood"
    tiny_hplm(home, registry, served.work, hplm, "farm", "mood", seed=700)
    wait_until_served(served, [hplm])
    first = scores(client, hplm)

    corpus = write_corpus(served.work / "more.txt", 200, seed=701)
    update_domain(home, registry, next_domain("farm", "tiny", (corpus,)), ignore)
    assert registry.domain("tiny", "farm").version == 2
    assert same(scores(client, hplm), first)  # it stays on the domain version that it was tuned on

    train, dev = write_task(served.work / "versions", "mood", 702)
    registry.pin_hplm(hplm)
    pinned = update_hplm(home, registry, next_hplm(hplm, train, dev, tune={"epochs": 1}, force=True), ignore)
    assert (pinned.version, pinned.domain.label) == (2, "farm@1")
    registry.unpin_hplm(hplm)
    moved = update_hplm(home, registry, next_hplm(hplm, train, dev, tune={"epochs": 1}, force=True), ignore)
    assert (moved.version, moved.domain.label) == (3, "farm@2")
    within_seconds(lambda: is_served(client, hplm, 3))

    rollback_domain(home, registry, "tiny", "farm")
    rollback_hplm(home, registry, hplm, to=1)
    within_seconds(lambda: is_served(client, hplm, 1))
    assert same(scores(client, hplm), first)

    kept = collect_garbage(home, registry, GarbageSettings(keep=0, grace_s=0)).removed
    assert not {"versions/mood@3", "farm@2"} & {removal.name for removal in kept}, "the server may still serve them"
    removed = collect_garbage(home, registry, GarbageSettings(keep=0, grace_s=0, silence_s=0)).removed
    assert {"versions/mood@2", "versions/mood@3", "farm@2"} <= {removal.name for removal in removed}
    assert same(scores(client, hplm), first)
    registry.delete_hplm(hplm)
    registry.close()
