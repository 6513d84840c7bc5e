"""What is served equals the slow reference, in any mix of tenants, for any client that keeps to the wire contract."""

from __future__ import annotations

import json
import random
import time
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.http

from backends.metrics import INTERVAL_S
from backends.registry.registry import Registry
from backends.root.int8_instructions import int8_instructions
from bench.kit.reference import ReferenceHplm
from bench.kit.tiny_home import sample_texts
from served_home import Served
from waiting import wait_until

pytestmark = pytest.mark.server
LOGIT_TOLERANCE = 2e-2  # the table is fp16
PROBABILITY_TOLERANCE = {"bf16": 1e-2, "int8": 1e-2}


def stock_infer(served: Served, protocol: Any, rows: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Nothing but tritonclient and the wire contract."""
    url = served.grpc_url if protocol is tritonclient.grpc else served.http_url
    client = protocol.InferenceServerClient(url)
    tensors = []
    for name, column in (("MODEL", 0), ("TEXT", 1)):
        tensor = protocol.InferInput(name, [len(rows), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[row[column].encode()] for row in rows], dtype=np.object_))
        tensors.append(tensor)
    result = client.infer("hplm", tensors).as_numpy("RESULT")
    assert result.shape == (len(rows), 1)
    return [json.loads(value) for value in result[:, 0]]


def references(served: Served) -> dict[str, ReferenceHplm]:
    return {entry.id: ReferenceHplm(served.home, entry) for entry in Registry.open(served.home).hplms()}


def mixed_rows(ids: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    """Texts of the tables' own corpora and texts that no table has seen, in any order of tenants."""
    chance = random.Random(seed)
    texts = [text.text for text in sample_texts(count // 2, 11) + sample_texts(count - count // 2, 1000 + seed)]
    return [(chance.choice(sorted(ids)), text) for text in texts]


def centred_logits(scores: dict[str, float]) -> torch.Tensor:
    logarithms = torch.tensor(list(scores.values()), dtype=torch.float64).log()
    return logarithms - logarithms.mean()


@pytest.mark.parametrize("protocol", [tritonclient.grpc, tritonclient.http], ids=["grpc", "http"])
@pytest.mark.parametrize("batch", [1, 16, 64])
def test_a_stock_client_gets_the_references_logits(served: Served, protocol: Any, batch: int) -> None:
    plain = references(served)
    rows = mixed_rows(list(plain), batch, seed=batch)
    for (hplm, text), answer in zip(rows, stock_infer(served, protocol, rows), strict=True):
        expected = plain[hplm].logits(text)
        assert answer["hplm"] == hplm
        assert answer["task"] == "classification"
        assert answer["version"] >= 1
        assert answer["label"] == max(answer["scores"], key=answer["scores"].get)
        assert answer["score"] == answer["scores"][answer["label"]]
        difference = centred_logits(answer["scores"]) - (expected - expected.mean())
        assert difference.abs().max() <= LOGIT_TOLERANCE


def test_bf16_gives_the_same_labels(served_bf16: Served) -> None:
    require_same_labels(served_bf16, tritonclient.http, PROBABILITY_TOLERANCE["bf16"])


@pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")
def test_int8_gives_the_same_labels(served_int8: Served) -> None:
    require_same_labels(served_int8, tritonclient.grpc, PROBABILITY_TOLERANCE["int8"])
    assert "int8 without smoothing" not in served_int8.server.log_path.read_text()


def require_same_labels(served: Served, protocol: Any, tolerance: float) -> None:
    """A text between two labels may fall to either side; one that the reference is sure of may not."""
    plain = references(served)
    rows = [row for seed in range(4) for row in mixed_rows(list(plain), 64, seed)]
    sure, differences = 0, []
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        for (hplm, text), answer in zip(part, stock_infer(served, protocol, part), strict=True):
            expected = plain[hplm].logits(text).softmax(dim=-1)
            got = torch.tensor(list(answer["scores"].values()))
            differences.append(float((got - expected).abs().mean()))
            best, second = expected.topk(2).values.tolist()
            if best - second > 2 * tolerance:
                sure += 1
                assert got.argmax() == expected.argmax(), (hplm, text, expected, got)
    assert sure / len(rows) >= 0.8
    assert sum(differences) / len(differences) <= tolerance


def test_concurrent_requests_of_all_sizes(served: Served) -> None:
    """Many requests at once, so that Triton and the engine batch them across requests and tenants."""
    plain = references(served)
    client = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    requests = [mixed_rows(list(plain), 1 + seed % 9, seed) for seed in range(60)]
    calls = []
    for rows in requests:
        tensors = []
        for name, column in (("MODEL", 0), ("TEXT", 1)):
            tensor = tritonclient.grpc.InferInput(name, [len(rows), 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[row[column].encode()] for row in rows], dtype=np.object_))
            tensors.append(tensor)
        answers: list[Any] = []
        client.async_infer("hplm", tensors, lambda result, error, answers=answers: answers.append(error or result))
        calls.append(answers)
    for rows, answers in zip(requests, calls, strict=True):
        for _ in range(600):
            if answers:
                break
            time.sleep(0.05)
        decoded = [json.loads(value) for value in answers[0].as_numpy("RESULT")[:, 0]]
        for (hplm, text), answer in zip(rows, decoded, strict=True):
            expected = plain[hplm].logits(text)
            difference = centred_logits(answer["scores"]) - (expected - expected.mean())
            assert answer["hplm"] == hplm
            assert difference.abs().max() <= LOGIT_TOLERANCE


def test_hits_per_level_are_on_the_metrics_endpoint(served: Served) -> None:
    def counted() -> float:
        with urllib.request.urlopen(served.server.metrics_url) as page:
            lines = page.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("hplm_plot_fragments_total{"))

    before = -1.0
    while before != (now := counted()):  # what earlier tests have looked up
        before = now
        time.sleep(2 * INTERVAL_S)
    for _ in range(4):  # several requests, so that several instances count
        stock_infer(served, tritonclient.grpc, [("acme/topic", "the cat is good")] * 8)
    tokens = 32 * 6
    wait_until(lambda: counted() >= before + tokens)
    assert counted() == before + tokens
