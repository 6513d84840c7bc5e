"""Mode `triton`: the reference's answers in batches that Triton forms, with the plugin, without, with a wrong one."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from backends.deadline_batcher import FILE_NAME, PLAN_VERSION
from backends.home import Home
from backends.registry.registry import Registry
from backends.scheduling.cost_model import CostModel
from bad_rows import check_bad_rows_fail_alone
from bench.kit.reference import ReferenceHplm
from bench.kit.tiny_home import sample_texts
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.plugin import build_plugin
from builder.serving import TritonServer
from damaged_texts import check_damaged_fail_alone, check_damaged_fail_alone_in_order
from served_home import Served, config_of

pytestmark = pytest.mark.server
LOGIT_TOLERANCE = 2e-2  # the table is fp16
TOKENS = 8
MAX_TOKENS = 4 * TOKENS
TEXT = "the cat is very good today"
LONG_DELAY_US = 1_000_000
COUNTED_WITHIN_SECONDS = 30.0
"""Long enough that a burst of requests waits together before the first batch is closed."""


@pytest.fixture(scope="module")
def home_folder(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mode_triton")
    shutil.copytree(built_home.path, folder / "home")
    return folder


@contextmanager
def serving(
    folder: Path, settings: ExportSettings, change: Callable[[Path], None] = lambda _: None
) -> Iterator[Served]:
    """Serve a repository that is changed after its export."""
    home = Home(folder / "home")
    render_repository(home.repository, settings)
    change(home.repository)
    with TritonServer(config_of(home)) as server:
        yield Served(home, server, folder)


def settings(delay_us: int = 1000, cost: CostModel | None = None, **upper: str) -> ExportSettings:
    parameters = {"dtype": "fp32", "slots": "4", "threads": "1", **upper}
    return ExportSettings(
        mode="triton",
        lower_instances=1,
        queue_delay_us=delay_us,
        cost_model=cost,
        lower_parameters={"dtype": "fp32"},
        upper_parameters=parameters,
    )


def ask(served: Served, requests: Sequence[Sequence[tuple[str, str]]], deadline_ms: int | None = None) -> list[Any]:
    """All at once over one connection; each request's answers, or its error."""
    client = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    pending: list[Future[Any]] = [Future() for _ in requests]
    for rows, future in zip(requests, pending, strict=True):
        tensors = []
        for name, column in (("MODEL", 0), ("TEXT", 1)):
            tensor = tritonclient.grpc.InferInput(name, [len(rows), 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[row[column].encode()] for row in rows], dtype=np.object_))
            tensors.append(tensor)
        parameters = {"deadline_ms": deadline_ms} if deadline_ms is not None else None
        client.async_infer(
            "hplm",
            tensors,
            lambda result, error, future=future: future.set_result(error or result),
            parameters=parameters,
        )
    answers = [future.result(timeout=60) for future in pending]
    return [
        one if isinstance(one, InferenceServerException) else [json.loads(v) for v in one.as_numpy("RESULT")[:, 0]]
        for one in answers
    ]


def executed(served: Served) -> dict[int, int]:
    """How many batches of how many rows `hplm_upper` was given."""
    client = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    (model,) = client.get_inference_statistics("hplm_upper").model_stats
    return {batch.batch_size: batch.compute_infer.count for batch in model.batch_stats}


def new_batches(before: dict[int, int], after: dict[int, int]) -> dict[int, int]:
    counts = {size: count - before.get(size, 0) for size, count in after.items()}
    return {size: count for size, count in counts.items() if count}


def check_answers(served: Served, seed: int) -> None:
    chance = random.Random(seed)
    plain = {entry.id: ReferenceHplm(served.home, entry) for entry in Registry.open(served.home).hplms()}
    texts = [text.text for text in sample_texts(40, 11) + sample_texts(80, seed)]
    requests = [
        [(chance.choice(sorted(plain)), chance.choice(texts)) for _ in range(chance.randint(1, 9))] for _ in range(60)
    ]
    for rows, answers in zip(requests, ask(served, requests), strict=True):
        assert not isinstance(answers, InferenceServerException), (seed, answers)
        for (hplm, text), answer in zip(rows, answers, strict=True):
            logarithms = torch.tensor(list(answer["scores"].values()), dtype=torch.float64).log()
            expected = plain[hplm].logits(text)
            difference = (logarithms - logarithms.mean()) - (expected - expected.mean())
            assert answer["hplm"] == hplm
            assert difference.abs().max() <= LOGIT_TOLERANCE, (seed, hplm, text)


def batches_of(served: Served, requests: list[list[tuple[str, str]]], deadline_ms: int | None = None) -> dict[int, int]:
    """The batches that answered these requests, all of them. Triton counts a batch after its answers have been sent."""
    before = executed(served)
    answers = ask(served, requests, deadline_ms)
    assert not any(isinstance(one, InferenceServerException) for one in answers)
    rows = sum(map(len, requests))
    counted_by = time.monotonic() + COUNTED_WITHIN_SECONDS
    while True:
        batches = new_batches(before, executed(served))
        counted = sum(size * count for size, count in batches.items())
        if counted >= rows or time.monotonic() > counted_by:
            assert counted == rows
            return batches
        time.sleep(0.05)


def until(is_so: Callable[[dict[int, int]], bool], batches: Callable[[], dict[int, int]]) -> None:
    """On a busy machine requests trickle in, and Triton lets a batch grow unasked while it waits for its turn."""
    seen = []
    for _ in range(5):
        seen.append(batches())
        if is_so(seen[-1]):
            return
    raise AssertionError(seen)


def one_row_each(count: int, hplm: str = "acme/topic") -> list[list[tuple[str, str]]]:
    return [[(hplm, TEXT)]] * count


def log(served: Served) -> str:
    return served.server.log_path.read_text()


@pytest.mark.long  # the rules are held by test_batch_plan, and that Triton asks for them by the server below
def test_batches_are_closed_by_hplms_and_by_the_earliest_deadline(home_folder: Path) -> None:
    """There are slots for two hPLMs. Each row is said to take 20 seconds, so those that end within 90 are four."""
    cost = CostModel(0.0, 20_000_000.0, 0.0, 0.0, 0.0)
    with serving(home_folder, settings(LONG_DELAY_US, cost, slots="3")) as served:
        mixed = [[(hplm, TEXT)] for hplm in ("acme/topic", "acme/mood", "initech/mood")] * 8
        until(lambda batches: sum(batches.values()) >= len(mixed) / 4, lambda: batches_of(served, mixed))
        until(lambda batches: max(batches) == 4, lambda: batches_of(served, one_row_each(24), deadline_ms=90_000))


@pytest.mark.long
def test_without_the_plugin_rows_alone_close_batches_and_the_log_says_so(home_folder: Path) -> None:
    bare = replace(settings(LONG_DELAY_US, max_tokens=str(MAX_TOKENS)), takes_plugin=False)
    with serving(home_folder, bare) as served:
        assert "there is no deadline batcher at" in log(served)
        assert max(batches_of(served, one_row_each(40))) > MAX_TOKENS / TOKENS
        check_answers(served, seed=random.randrange(1 << 32))


@pytest.mark.long
def test_a_plugin_of_another_release_is_not_used(home_folder: Path) -> None:
    def of_another_release(repository: Path) -> None:
        build_plugin(repository / "hplm_upper" / "1" / FILE_NAME, PLAN_VERSION + 1)

    with serving(home_folder, settings(LONG_DELAY_US, max_tokens=str(MAX_TOKENS)), of_another_release) as served:
        assert "of another release than the repository, which must be exported again" in log(served)
        assert max(batches_of(served, one_row_each(40))) > MAX_TOKENS / TOKENS


@pytest.fixture(scope="module")
def delayed(home_folder: Path) -> Iterator[Served]:
    """Half as many tokens as a request may have, so batches of several requests and parts of single ones are run.

    Last in this file, because each server before it exports the home again.
    """
    upper = {"max_tokens": str(MAX_TOKENS), "policy": "das"}
    with serving(home_folder, settings(LONG_DELAY_US, **upper)) as served:
        yield served


def test_the_plugin_closes_batches_and_the_answers_are_the_references(delayed: Served) -> None:
    assert "batches hold up to 64 rows, 32 tokens and 3 hPLMs" in log(delayed)
    assert log(delayed).count("policy das chooses nothing in mode triton, where Triton forms the batches") == 1
    until(lambda batches: batches == {4: 10}, lambda: batches_of(delayed, one_row_each(40)))
    check_answers(delayed, seed=random.randrange(1 << 32))


def test_what_is_late_is_refused_before_it_is_computed(delayed: Served) -> None:
    """Each waits out Triton's delay first, which is longer than its deadline; together they do not fill a batch."""
    started_s = time.monotonic()
    answers = ask(delayed, one_row_each(3), deadline_ms=600)
    assert time.monotonic() - started_s >= LONG_DELAY_US / 1e6
    assert all(isinstance(one, InferenceServerException) for one in answers)
    assert {one.status() for one in answers} == {"StatusCode.UNAVAILABLE"}
    assert all("the deadline passed on the way to the engine" in one.message() for one in answers)
    (answer,) = ask(delayed, one_row_each(1), deadline_ms=30_000)
    assert answer[0]["hplm"] == "acme/topic"


@pytest.mark.parametrize("model", ["hplm", "hplm_lower"])
def test_a_text_with_a_damaged_length_fails_no_other_request(delayed: Served, model: str) -> None:
    assert "a string that is shorter than its length says is cut" in log(delayed)
    check_damaged_fail_alone(delayed.grpc_url, model)


@pytest.mark.parametrize("order", ["ggdggd", "gdggdd", "dddggg"])
def test_so_it_is_while_batches_wait_and_grow(delayed: Served, order: str) -> None:
    """The first request is what the process is given; the batch that waits behind it grows.

    Triton gives up a process that is stopped for a second.
    """
    family = psutil.Process(delayed.server.pid).children(recursive=True)
    (lower,) = (each.pid for each in family if "hplm_lower" in " ".join(each.cmdline()))
    check_damaged_fail_alone_in_order(delayed.grpc_url, order, 0.02, lower)


def test_a_bad_request_costs_its_batch_nothing(delayed: Served) -> None:
    check_bad_rows_fail_alone(delayed.grpc_url)
    check_answers(delayed, seed=3)
