"""What every kind of client gets from a real server, compared with the rule that the server answers by."""

from __future__ import annotations

import json
import random
import threading
import zlib

import pytest

from hplm_client import (
    Classification,
    Entities,
    HplmClient,
    InvalidRequestError,
    NotFoundError,
    Request,
    Value,
)
from seeds import SEED

pytestmark = pytest.mark.server

LETTERS = "abc ABC äÖß 漢字 🙂 \n é עברית"


def random_text(generator, most_chars=80):
    return "x" + "".join(generator.choice(LETTERS) for _ in range(generator.randrange(most_chars)))


def expected_score(hplm, text):
    return zlib.crc32(f"{hplm}|{text}".encode()) % 1000 / 999


def assert_topics(answer, hplm, text):
    first = expected_score(hplm, text)
    assert type(answer) is Classification
    assert (answer.hplm, answer.version, answer.task, answer.truncated) == (hplm, 3, "classification", False)
    assert answer.scores == pytest.approx({"first": first, "second": 1 - first})
    assert answer.label == ("first" if first >= 0.5 else "second") and answer.score == answer.scores[answer.label]


def test_ready(server, connect):
    client = connect(server)
    client.wait_ready(10)
    assert client.is_ready() is True


def test_classification_of_any_unicode(server, connect):
    client, generator = connect(server), random.Random(SEED)
    for _ in range(20):
        text = random_text(generator)
        assert_topics(client.infer("acme/topics", text), "acme/topics", text)


def test_the_same_text_gets_each_tenants_own_answer(server, connect):
    client = connect(server)
    texts = [random_text(random.Random(SEED)) for _ in range(20)]
    for hplm in ("acme/topics", "globex/topics"):
        for text in texts:
            assert_topics(client.infer(hplm, text), hplm, text)


def test_entities_have_offsets_into_the_text_as_passed(server, connect):
    text = "Yesterday\tÅsa flew 🙂\tto Zürich."
    answer = connect(server).infer("acme/names", text)
    assert type(answer) is Entities
    assert [entity.text for entity in answer.entities] == ["Yesterday", "Åsa", "Zürich"]
    assert all(text[entity.start : entity.end] == entity.text for entity in answer.entities)


def test_value_of_a_pair(server, connect):
    answer = connect(server).infer("acme/length", "eins", "zwei")
    assert type(answer) is Value and answer.value == len("eins\tzwei")


def test_ten_megabytes_of_text(server, connect):
    text = "é" * 5_000_000
    answer = connect(server).infer("acme/length", text, timeout_s=60)
    assert type(answer) is Value and answer.value == len(text) and answer.truncated


def test_parameters_and_the_routing_header_arrive(server, connect):
    client = connect(server, token={"echo": "echo's own", "acme": "acme's own"})
    answer = client.infer("echo/parameters", "text", deadline_ms=5000, level="student")
    sent = json.loads(answer.label)
    assert 4000 < sent.pop("deadline_ms") <= 5000
    sent.pop("binary_data_output", None)
    assert sent == {"tenant_token": "echo's own", "level": "student", "x-hplm": "echo/parameters"}


def test_many_mixed_requests_keep_their_order(server, connect):
    generator = random.Random(SEED)
    hplms = ["acme/topics", "globex/topics", *(f"tenant{number}/topics" for number in range(10))]
    requests = [(generator.choice(hplms), random_text(generator)) for _ in range(1000)]
    answers = connect(server).infer_many(requests)
    assert len(answers) == 1000
    for answer, (hplm, text) in zip(answers, requests, strict=True):
        assert_topics(answer, hplm, text)


@pytest.mark.parametrize("rows_per_request", [1, 7, 16, 100])
def test_many_with_errors_in_their_places(server, connect, rows_per_request):
    """With 100 rows in a request the server's own limit of 64 is passed too."""
    generator = random.Random(SEED)
    kinds = ["good", "bad row", "unknown", "locally bad", "unreadable"]
    chosen = generator.choices(kinds, weights=[10, 1, 1, 1, 1], k=150) + kinds
    rows = {
        "good": lambda text: ("acme/topics", text),
        "bad row": lambda text: Request("acme/topics", f"bad row {text}"),
        "unknown": lambda text: ("nobody/nothing", text),
        "locally bad": lambda text: ("acme/topics", ""),
        "unreadable": lambda text: ("raw/not_json", text),
    }
    codes = {"bad row": "INVALID_ARG", "unknown": "NOT_FOUND", "locally bad": "INVALID_ARG", "unreadable": "INTERNAL"}
    requests = [rows[kind](random_text(generator)) for kind in chosen]
    outcomes = connect(server, rows_per_request=rows_per_request).infer_many(requests, on_error="return")
    for kind, request, outcome in zip(chosen, requests, outcomes, strict=True):
        if kind == "good":
            assert_topics(outcome, *request)
        else:
            assert outcome.code == codes[kind]
            assert outcome.hplm == (request.hplm if isinstance(request, Request) else request[0])


def test_many_raises_the_first_error(server, connect):
    client = connect(server, rows_per_request=1)
    with pytest.raises(NotFoundError, match="nobody/nothing is unknown"):
        client.infer_many([("acme/topics", "text"), ("nobody/nothing", "text"), ("acme/topics", "text")])
    with pytest.raises(InvalidRequestError, match="text is empty"):
        client.infer_many([("acme/topics", "text"), ("acme/topics", "")])
    assert client.infer_many([]) == []


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_threads_share_a_blocking_client(server, protocol):
    url = server.grpc_url if protocol == "grpc" else server.http_url
    client, failures = HplmClient(url, protocol), []

    def ask(seed):
        generator = random.Random(seed)
        for _ in range(25):
            hplm, text = f"tenant{seed}/topics", random_text(generator)
            try:
                assert_topics(client.infer(hplm, text), hplm, text)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert failures == []
