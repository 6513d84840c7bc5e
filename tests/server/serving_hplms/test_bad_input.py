"""Every bad input gets one clear line and the right code, and costs nobody else anything."""

from __future__ import annotations

import http.client
import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from backends.registry.registry import Registry
from backends.wire import Ticket, encode_tickets
from bench.kit.tiny_home import sample_texts, tiny_hplm
from damaged_texts import check_damaged_fail_alone
from hplm_client import Classification, HplmClient, InvalidRequestError, NotFoundError, ServerError, UnavailableError
from served_home import Served, wait_until_served

pytestmark = pytest.mark.server
PROTOCOLS = [pytest.param(tritonclient.grpc, id="grpc"), pytest.param(tritonclient.http, id="http")]


def send(
    served: Served,
    protocol: Any,
    models: np.ndarray[Any, Any],
    texts: np.ndarray[Any, Any],
    datatypes: tuple[str, str] = ("BYTES", "BYTES"),
    parameters: dict[str, Any] | None = None,
    model: str = "hplm",
) -> Any:
    url = served.grpc_url if protocol is tritonclient.grpc else served.http_url
    tensors = []
    for name, value, datatype in (("MODEL", models, datatypes[0]), ("TEXT", texts, datatypes[1])):
        tensor = protocol.InferInput(name, list(value.shape), datatype)
        tensor.set_data_from_numpy(value)
        tensors.append(tensor)
    return protocol.InferenceServerClient(url).infer(model, tensors, parameters=parameters)


def column(*values: bytes) -> np.ndarray[Any, Any]:
    return np.array([[value] for value in values], dtype=np.object_)


def status(error: InferenceServerException) -> str:
    return str(error.status()).removeprefix("StatusCode.")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("model", "text", "codes", "message"),
    [
        (b"acme/nothing", b"cat", ("NOT_FOUND", "404"), "hPLM 'acme/nothing' does not exist"),
        (b"", b"cat", ("NOT_FOUND", "404"), "hPLM '' does not exist"),
        (b"acme/topic", b"", ("INVALID_ARGUMENT", "400"), "TEXT is empty"),
        (b"acme/topic", b" \n ", ("INVALID_ARGUMENT", "400"), "TEXT is empty"),
        (b"acme/topic", b"caf\xe9", ("INVALID_ARGUMENT", "400"), "TEXT is not UTF-8 at byte 3"),
        (b"acme/\xff", b"cat", ("INVALID_ARGUMENT", "400"), "MODEL is not UTF-8 at byte 5"),
    ],
)
def test_values_that_cannot_be_served(
    served: Served, protocol: Any, model: bytes, text: bytes, codes: tuple[str, str], message: str
) -> None:
    with pytest.raises(InferenceServerException) as caught:
        send(served, protocol, column(model), column(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert status(caught.value) == codes[protocol is tritonclient.http]
    for other in ("globex", "initech"):
        assert other not in str(caught.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_batch_sizes_that_differ(served: Served, protocol: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        send(served, protocol, column(b"acme/topic", b"acme/topic"), column(b"cat"))
    assert status(caught.value) in ("INVALID_ARGUMENT", "400")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_wrong_datatype(served: Served, protocol: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        send(served, protocol, column(b"acme/topic"), np.zeros((1, 1), np.int64), ("BYTES", "INT64"))
    assert status(caught.value) in ("INVALID_ARGUMENT", "400")
    assert "TEXT" in str(caught.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_wrong_shape(served: Served, protocol: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        send(served, protocol, column(b"acme/topic"), np.array([[b"cat", b"dog"]], dtype=np.object_))
    assert status(caught.value) in ("INVALID_ARGUMENT", "400")
    assert "TEXT" in str(caught.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dead_line_ms": 5}, "unknown request parameter 'dead_line_ms'"),
        ({"deadline_ms": 0}, "deadline_ms must be a whole number"),
        ({"deadline_ms": -3}, "deadline_ms must be a whole number"),
        ({"deadline_ms": "soon"}, "deadline_ms must be a whole number"),
        ({"deadline_ms": 10**15}, "deadline_ms must be a whole number"),
    ],
)
def test_parameters_that_are_wrong(served: Served, protocol: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InferenceServerException) as caught:
        send(served, protocol, column(b"acme/topic"), column(b"cat"), parameters=parameters)
    assert message in str(caught.value)
    assert status(caught.value) in ("INVALID_ARGUMENT", "400")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_known_parameters_are_taken(served: Served, protocol: Any) -> None:
    parameters = {"deadline_ms": 60_000, "tenant_token": "secret", "level": "full"}
    assert send(served, protocol, column(b"acme/topic"), column(b"cat"), parameters=parameters).as_numpy("RESULT").size


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_ten_megabytes_are_cut_and_say_so(served: Served, protocol: str) -> None:
    url = served.grpc_url if protocol == "grpc" else served.http_url
    with HplmClient(f"{protocol}://{url}") as client:
        assert client.infer("acme/topic", "cat dog " * 1_310_720).truncated
        assert not client.infer("acme/topic", "cat dog").truncated


def test_a_large_body_of_json_ends_no_server(served: Served) -> None:
    """Triton 24.10 crashes where a body does not fit on its thread's stack."""
    for words, code, told in ((1_000_000, 200, '"truncated": true'), (1_500_000, 400, "may have 16,777,216")):
        body = json.dumps({"MODEL": "acme/topic", "TEXT": "copy the file " * words}).encode()
        connection = http.client.HTTPConnection(served.http_url, timeout=60)
        connection.request("POST", "/v2/models/hplm/generate", body)
        reply = connection.getresponse()
        content = json.loads(reply.read())
        assert (reply.status, told in str(content)) == (code, True), content


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_megabytes_without_blanks_cost_their_neighbours_little(served: Served, protocol: Any) -> None:
    rows = column(*[b"acme/topic"] * 15), column(*[b"x" * 1_000_000] * 15)
    answers = send(served, protocol, *rows).as_numpy("RESULT").reshape(-1)
    assert all(json.loads(answer)["truncated"] for answer in answers)
    with pytest.raises(InferenceServerException, match="may have 16,777,216; send fewer rows"):
        send(served, protocol, column(*[b"acme/topic"] * 20), column(*[b"x" * 1_000_000] * 20))


def test_bad_requests_in_a_crowd_cost_their_neighbours_nothing(served: Served) -> None:
    texts = [text.text for text in sample_texts(200, 9)]
    requests = [("acme/nothing" if n % 4 == 0 else "acme/topic", text) for n, text in enumerate(texts)]
    with HplmClient(f"grpc://{served.grpc_url}", rows_per_request=1, concurrency=32) as client:
        outcomes = client.infer_many(requests, on_error="return")
    for (hplm, _), outcome in zip(requests, outcomes, strict=True):
        assert isinstance(outcome, NotFoundError if hplm == "acme/nothing" else Classification)


def test_parameters_that_are_not_text_cost_their_neighbours_nothing(served: Served) -> None:
    def tensor(name: str, value: str) -> str:
        return f'{{"name":"{name}","shape":[1,1],"datatype":"BYTES","data":["{value}"]}}'

    inputs = f'"inputs":[{tensor("MODEL", "acme/topic")},{tensor("TEXT", "cat")}]'
    good, bad = f"{{{inputs}}}".encode(), b'{"parameters":{"level":"\xff"},' + inputs.encode() + b"}"

    def post(body: bytes) -> int:
        connection = http.client.HTTPConnection(served.http_url, timeout=60)
        connection.request("POST", "/v2/models/hplm/infer", body)
        return connection.getresponse().status

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(post, [bad if n % 4 == 0 else good for n in range(60)]))
    assert all(status == (400 if n % 4 == 0 else 200) for n, status in enumerate(statuses)), statuses


def forged(rows: np.ndarray[Any, Any], chance: random.Random) -> np.ndarray[Any, Any]:
    """A ticket of this server with one bit changed, or one that another server has signed."""
    if chance.random() < 0.2:
        return encode_tickets([Ticket(int(rows[0, 1]), int(rows[0, 2]), False, None)])
    changed = rows.copy()
    changed.view(np.uint8)[0, chance.randrange(rows.nbytes)] ^= 1 << chance.randrange(8)
    return changed


def test_forged_and_used_tickets_are_rejected_and_cost_their_neighbours_nothing(served: Served) -> None:
    """Both inner models can be reached too: a ticket that `hplm_lower` gives away is good for one answer."""
    client = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    chance = random.Random(26)
    lower = send(served, tritonclient.grpc, column(b"acme/topic"), column(b"cat"), model="hplm_lower")
    tensors = {name: lower.as_numpy(name) for name in ("HIDDEN", "TICKET", "WORDS")}

    def ask(ticket: np.ndarray[Any, Any]) -> Any:
        inputs = []
        for name, datatype in (("HIDDEN", "FP16"), ("TICKET", "INT64"), ("WORDS", "UINT8")):
            value = ticket if name == "TICKET" else tensors[name]
            inputs.append(tritonclient.grpc.InferInput(name, list(value.shape), datatype))
            inputs[-1].set_data_from_numpy(value)
        return client.infer("hplm_upper", inputs)

    def rejection(ticket: np.ndarray[Any, Any]) -> str:
        with pytest.raises(InferenceServerException) as caught:
            ask(ticket)
        assert status(caught.value) == "INVALID_ARGUMENT" and "\n" not in str(caught.value)
        return str(caught.value)

    bad = [forged(tensors["TICKET"], chance) for _ in range(300)]
    with HplmClient(f"grpc://{served.grpc_url}", concurrency=8) as honest, ThreadPoolExecutor(9) as pool:
        answers = pool.submit(honest.infer_many, [("acme/topic", "cat")] * 200)
        messages = list(pool.map(rejection, bad))
        assert {answer.hplm for answer in answers.result()} == {"acme/topic"}
    assert all("was not made by this server" in one or "has version" in one for one in messages), messages
    assert ask(tensors["TICKET"]).as_numpy("RESULT").size
    assert "has been used before" in rejection(tensors["TICKET"])


def test_a_very_long_name_is_not_found(served: Served) -> None:
    with pytest.raises(InferenceServerException) as caught:
        send(served, tritonclient.grpc, column(b"x" * 20_000), column(b"cat"))
    assert status(caught.value) == "NOT_FOUND"


def test_a_deadline_that_has_passed_is_refused(served: Served) -> None:
    texts = [("acme/topic", "cat dog " * 40)] * 64
    client = HplmClient(f"grpc://{served.grpc_url}", rows_per_request=64, timeout_s=30)
    with client, ThreadPoolExecutor(4) as pool:
        crowd = [pool.submit(client.infer_many, texts) for _ in range(4)]
        outcomes = client.infer_many(texts, on_error="return", deadline_ms=1, timeout_s=30)
        assert all(len(part.result()) == 64 for part in crowd)
    assert all(isinstance(outcome, UnavailableError) for outcome in outcomes)
    assert "deadline" in str(outcomes[0])


def test_a_damaged_adapter_fails_its_own_tenant_only(served: Served) -> None:
    """Damaged before a server first needs it; from then on it is mapped into memory."""
    registry = Registry.open(served.home)
    tiny_hplm(served.home, registry, served.work, "damaged/mood", "street", "mood", seed=900)
    weights = served.home.path / registry.hplm("damaged/mood").folder / "weights.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    tiny_hplm(served.home, registry, served.work, "damaged/beside", "street", "mood", seed=901)
    wait_until_served(served, ["damaged/beside"])  # so that the other one is too, which nobody has asked yet
    with HplmClient(f"grpc://{served.grpc_url}") as client:
        with pytest.raises(ServerError, match="the weights of this hPLM are damaged"):
            client.infer("damaged/mood", "cat")
        assert client.infer("acme/topic", "cat").hplm == "acme/topic"
        weights.write_bytes(good)
        assert client.infer("damaged/mood", "cat").hplm == "damaged/mood"
    for hplm in ("damaged/mood", "damaged/beside"):
        registry.delete_hplm(hplm)


def test_the_client_refuses_what_can_never_be_right(served: Served) -> None:
    with HplmClient(f"grpc://{served.grpc_url}") as client, pytest.raises(InvalidRequestError):
        client.infer("acme/topic", "")


@pytest.mark.parametrize("model", ["hplm", "hplm_lower"])
def test_a_text_with_a_damaged_length_fails_no_other_request(served: Served, model: str) -> None:
    check_damaged_fail_alone(served.grpc_url, model)
