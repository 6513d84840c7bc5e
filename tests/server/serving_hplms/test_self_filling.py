"""A server of the default export, which computes what tables lack, as an operator runs it; limited, and killed."""

from __future__ import annotations

import os
import random
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.reference import ReferenceHplm
from bench.kit.tiny_home import FILLER, MOODS, TOPICS
from builder.serving import TritonServer
from hplm_client import Classification, HplmClient, RequestTimeoutError, UnavailableError
from seeds import SEED
from served_home import config_of

pytestmark = pytest.mark.server
RNG = random.Random(SEED)
WORDS = [*FILLER, *(word for group in (*TOPICS.values(), *MOODS.values()) for word in group)]
IDS = ("acme/topic", "globex/topic", "initech/mood", "acme/mood")


@contextmanager
def serving(home: Home) -> Iterator[TritonServer]:
    with TritonServer(config_of(home)) as server:
        yield server


def word_soup(count: int) -> list[tuple[str, str]]:
    return [(IDS[i % len(IDS)], " ".join(RNG.choices(WORDS, k=RNG.randint(1, 16)))) for i in range(count)]


def ask(server: TritonServer, texts: list[tuple[str, str]]) -> list[Classification]:
    with HplmClient(f"grpc://{server.grpc_url}", rows_per_request=1) as client:
        answers = client.infer_many(texts)
    return [answer for answer in answers if isinstance(answer, Classification)]


def figure(server: TritonServer, name: str) -> int:
    with urllib.request.urlopen(server.metrics_url) as response:
        found = re.findall(rf"^{re.escape(name)} (\d+)", response.read().decode(), re.MULTILINE)
    return int(found[0]) if found else 0


def wait_for(server: TritonServer, name: str) -> int:
    for _ in range(300):
        if count := figure(server, name):
            return count
        time.sleep(0.1)
    raise AssertionError(f"{name} stayed at 0")


def centred(logits: torch.Tensor) -> torch.Tensor:
    return logits.double() - logits.double().mean()


@pytest.fixture
def export(run_hplm: Callable[..., str], tiny_home: Home) -> Callable[..., str]:
    return lambda *options: run_hplm("export", "--home", tiny_home.path, "--dtype", "fp32", *options)


@pytest.mark.long
def test_answers_are_exact_and_what_was_learned_survives_a_kill(tiny_home: Home, export: Callable[..., str]) -> None:
    export()
    texts = word_soup(60)
    references = {hplm: ReferenceHplm(tiny_home, Registry.open(tiny_home).hplm(hplm)) for hplm in IDS}
    with serving(tiny_home) as server:
        for (hplm, text), answer in zip(texts, ask(server, texts), strict=True):
            logits = torch.tensor(list(answer.scores.values()), dtype=torch.float64).log()
            exact = references[hplm].logits(text)
            torch.testing.assert_close(centred(logits), centred(exact), rtol=0, atol=2e-2)
        for hplm in ("globex/topic", "initech/mood") * 4:  # what one tenant alone asks for stays off the disk
            ask(server, [(hplm, text) for asked, text in texts if not asked.startswith("acme/")])
        computed = wait_for(server, 'hplm_overlay_fragments_total{event="computed"}')
        assert computed > 50
        assert wait_for(server, 'hplm_plot_fragments_total{level="farm@1/computed",root="tiny"}') > 20
        time.sleep(2.0)  # every process has read and written
        os.kill(server.pid, signal.SIGKILL)
        server.wait(timeout_s=30)
    with serving(tiny_home) as server:
        assert len(ask(server, texts)) == len(texts)
        wait_for(server, 'hplm_plot_fragments_total{level="farm@1/overlay",root="tiny"}')
        wait_for(server, 'hplm_plot_fragments_total{level="street@1/overlay",root="tiny"}')
        again = figure(server, 'hplm_overlay_fragments_total{event="computed"}')
        assert again < computed / 10, "only what no process was asked by both tenants is computed again"
        assert wait_for(server, 'hplm_overlay_entries{process="hplm_lower_0_0"}') >= computed // 2


@pytest.mark.long
def test_twice_as_many_new_texts_as_can_be_answered_are_answered_exactly_or_rejected(
    tiny_home: Home, export: Callable[..., str]
) -> None:
    """Each text is of new fragments only, 64 words of them; with a deadline that only some can meet."""
    export()
    texts = [(IDS[i % len(IDS)], " ".join(RNG.choices(WORDS, k=64))) for i in range(384)]
    with (
        serving(tiny_home) as server,
        HplmClient(f"grpc://{server.grpc_url}", rows_per_request=1, concurrency=64) as client,
    ):
        began_s = time.monotonic()
        client.infer_many(texts[:128])
        # 64 texts are always under way, which takes half as long as 128 did.
        deadline_ms = max(20, round(250 * (time.monotonic() - began_s)))
        outcomes = client.infer_many(texts[128:], deadline_ms=deadline_ms, on_error="return")
        answers = [each for each in outcomes if isinstance(each, Classification)]
        assert answers and all(answer.exact for answer in answers)
        assert all(isinstance(each, Classification | UnavailableError | RequestTimeoutError) for each in outcomes)
        began_s = time.monotonic()
        assert client.infer(IDS[0], "the cat").exact
        assert time.monotonic() - began_s < 5.0


def test_answers_that_the_limit_makes_inexact_say_so_and_are_counted(
    tiny_home: Home, export: Callable[..., str]
) -> None:
    export("--compute-limit", "8")
    texts = [(hplm, " ".join(RNG.choices(WORDS, k=14))) for hplm in IDS]
    with serving(tiny_home) as server, HplmClient(f"grpc://{server.grpc_url}") as client:
        first = client.infer_many(texts)
        assert not all(isinstance(answer, Classification) and answer.exact for answer in first)
        assert wait_for(server, 'hplm_overlay_fragments_total{event="beyond_limit"}') > 0
        for _ in range(300):  # the background learns the rest
            if all(isinstance(answer, Classification) and answer.exact for answer in client.infer_many(texts)):
                break
            time.sleep(0.1)
        else:
            raise AssertionError("the answers stayed inexact")
