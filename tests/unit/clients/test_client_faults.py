from __future__ import annotations

import pickle

import pytest
from tritonclient.utils import InferenceServerException

import hplm_client
from backends.draining import draining_error
from hplm_client.faults import from_status, typed_faults

ADDRESS = "server:8001"
TRACEBACK = (
    "in ensemble 'hplm', Failed to process the request(s) for model 'hplm_upper_0', message: ValueError: oh no\n\n"
    "At:\n  /opt/model.py(68): execute\n"
)
STOPPING = "in ensemble 'hplm', Server is stopping, scheduler for model has stopped accepting new inference requests"
DRAINING = f"in ensemble 'hplm', {draining_error()}"

CASES = [
    ("NOT_FOUND", "404", "in ensemble 'hplm', hPLM a/b is unknown", hplm_client.NotFoundError, "hPLM a/b is unknown"),
    (
        "INVALID_ARGUMENT",
        "400",
        "in ensemble 'hplm', unauthorised: token f00 is expired",
        hplm_client.PermissionDeniedError,
        "unauthorised: token f00 is expired",
    ),
    ("INVALID_ARGUMENT", "400", "in ensemble 'hplm', text is empty", hplm_client.InvalidRequestError, "text is empty"),
    ("INVALID_ARGUMENT", "400", "[request id: <id_unknown>] too many", hplm_client.InvalidRequestError, "too many"),
    ("UNAVAILABLE", "503", "in ensemble 'hplm', deadline missed", hplm_client.UnavailableError, "deadline missed"),
    ("RESOURCE_EXHAUSTED", "429", "slow down", hplm_client.UnavailableError, "slow down"),
    ("INTERNAL", "500", TRACEBACK, hplm_client.ServerError, "ValueError: oh no"),
    ("UNIMPLEMENTED", "501", "not here", hplm_client.ServerError, "not here"),
    ("UNAUTHENTICATED", "401", "who are you", hplm_client.PermissionDeniedError, "who are you"),
    ("UNAVAILABLE", "403", "This protocol is restricted, x", hplm_client.PermissionDeniedError, "This protocol"),
    ("NOT_FOUND", "404", "Request for unknown model: 'hplm' is not found", hplm_client.NotReadyError, "Request for"),
    ("UNAVAILABLE", "503", "Server not ready", hplm_client.NotReadyError, "Server not ready"),
    ("UNAVAILABLE", "503", "no healthy upstream", hplm_client.NotReadyError, "no healthy upstream"),
    (
        "UNAVAILABLE",
        "503",
        "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
        hplm_client.ConnectionLostError,
        "the connection to server:8001 broke while waiting: upstream connect error",
    ),
    ("UNAVAILABLE", "503", DRAINING, hplm_client.NotReadyError, "server is stopping: it"),
    ("UNAVAILABLE", "503", STOPPING, hplm_client.NotReadyError, "Server is stopping, scheduler"),
    ("UNAVAILABLE", "503", f"[request id: <id_unknown>] {STOPPING}", hplm_client.NotReadyError, "Server is stopping"),
    ("INTERNAL", "500", "", hplm_client.ServerError, "the server gave no reason"),
    ("INTERNAL", "500", "in ensemble 'hplm', \x1c\n \nmore", hplm_client.ServerError, "more"),
]


@pytest.mark.parametrize(("grpc_status", "http_status", "message", "kind", "line"), CASES)
def test_status_and_words_become_types(
    grpc_status: str, http_status: str, message: str, kind: type[hplm_client.ClientError], line: str
) -> None:
    for status in (grpc_status, http_status):
        error = from_status(status, message, ADDRESS)
        assert type(error) is kind
        assert str(error).startswith(line) and "\n" not in str(error)


@pytest.mark.parametrize(
    ("message", "kind", "line"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:1: Connection refused",
            hplm_client.ConnectionFailedError,
            "cannot connect to server:8001: Connection refused",
        ),
        (
            "errors resolving x:80: [field:hostname error:lookup failed for x:80: Domain name not found]",
            hplm_client.ConnectionFailedError,
            "cannot connect to server:8001: Domain name not found",
        ),
        (
            "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:10.0.0.1:1: Socket closed",
            hplm_client.ConnectionFailedError,
            "cannot connect to server:8001: it closed the connection at once; a server with TLS does, of a client "
            "without (ssl=, HPLM_CA, HPLM_CERT)",
        ),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:1: Tls handshake failed "
            "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK",
            hplm_client.ConnectionFailedError,
            "cannot connect to server:8001: its certificate is signed by none that is trusted here (ssl=, HPLM_CA)",
        ),
        (
            "CANCELLED",
            hplm_client.ConnectionLostError,
            "the connection to server:8001 broke while waiting: CANCELLED",
        ),
        (
            "Stream removed (Socket closed)",
            hplm_client.ConnectionLostError,
            "the connection to server:8001 broke while waiting: Stream removed (Socket closed)",
        ),
    ],
)
def test_broken_connections_of_grpc(message: str, kind: type[hplm_client.ClientError], line: str) -> None:
    error = from_status("UNAVAILABLE", message, ADDRESS)
    assert type(error) is kind and str(error) == line


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        ("405", "Not by this proxy", "server:8001 takes no requests (Not by this proxy); is it the port of metrics?"),
        ("405", None, "server:8001 takes no requests; is it the port of metrics?"),
        ("404", "this is the health port: only /drain is POSTed there", "this is the health port"),
    ],
)
def test_the_ports_of_metrics_and_health_are_told(status: str, message: str | None, told: str) -> None:
    error = from_status(status, message, ADDRESS)
    assert type(error) is hplm_client.WrongPortError and str(error).startswith(told)


def test_an_error_is_shown_without_what_it_is_about() -> None:
    assert repr(hplm_client.NotFoundError("hPLM a/b does not exist")) == "NotFoundError('hPLM a/b does not exist')"


def test_words_of_a_tenant_cannot_imitate_a_failed_connection() -> None:
    error = from_status("UNAVAILABLE", "in ensemble 'hplm', failed to connect to all addresses", ADDRESS)
    assert type(error) is hplm_client.UnavailableError and not error.may_repeat


def test_only_what_was_surely_not_executed_may_be_repeated() -> None:
    repeatable = {kind for kind in _all_kinds(hplm_client.ClientError) if kind.may_repeat}
    assert repeatable == {hplm_client.ConnectionFailedError, hplm_client.NotReadyError}


def test_codes_are_set_and_errors_survive_pickling() -> None:
    for kind in _all_kinds(hplm_client.ClientError):
        assert kind.code == kind.code.upper() != "UNKNOWN"
        copy = pickle.loads(pickle.dumps(kind("one line", "acme/returns")))
        assert (type(copy), copy.message, copy.hplm, str(copy)) == (kind, "one line", "acme/returns", "one line")


def test_tritonclient_errors_are_translated() -> None:
    with pytest.raises(hplm_client.RequestTimeoutError, match=r"no answer within 0\.25 s"), typed_faults(ADDRESS, 0.25):
        raise InferenceServerException("Deadline Exceeded", status="StatusCode.DEADLINE_EXCEEDED")
    with pytest.raises(hplm_client.ServerError, match="is it a Triton server"), typed_faults(ADDRESS, 1):
        raise InferenceServerException("could not decode <html>", status="404", debug_details="<html>")


def _all_kinds(root: type[hplm_client.ClientError]) -> set[type[hplm_client.ClientError]]:
    below = set(root.__subclasses__())
    return below.union(*(_all_kinds(kind) for kind in below))


def test_the_facts_of_a_rejection_are_read_and_not_shown() -> None:
    said = 'in ensemble \'hplm\', the queue is full: 8 rows wait {"reason": "queue_full", "retry_after_ms": 200}'
    for status in ("UNAVAILABLE", "503"):
        error = from_status(status, said, "here")
        assert isinstance(error, hplm_client.UnavailableError)
        assert (error.message, error.reason, error.retry_after_s) == (
            "the queue is full: 8 rows wait",
            "queue_full",
            0.2,
        )


@pytest.mark.parametrize("facts", ["", '{"reason": 3}', '{"reason": "queue_full", "retry_after_ms": -1}', "{}"])
def test_a_rejection_without_facts_says_nothing_about_retries(facts: str) -> None:
    error = from_status("UNAVAILABLE", f"the queue is full {facts}", "here")
    assert isinstance(error, hplm_client.UnavailableError) and error.retry_after_s is None and error.reason is None
