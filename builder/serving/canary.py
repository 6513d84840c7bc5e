"""The canary: one short text each second, through the ensemble, in turns over HTTP and gRPC.

It asks one of the hPLMs that are served, with a deadline, so that it never waits in a long queue. A rejection with a
reason is as good as an answer, and so is an error of that hPLM alone. After any error of a model it asks another hPLM,
of another root if there is one, so that one bad hPLM does not speak for all. Where no hPLM exists it asks one that
cannot exist; then only `hplm_lower` answers, and the heartbeats alone speak for `hplm_upper`. It shows a token of its
own. A gRPC port with certificates is greeted only, since the canary has none. In mode `triton`, its deadline counts for
nothing until Triton hands it over: while other requests end, it waits behind them, unless the other path answers soon.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from builder.serving.outcomes import Fault, Outcome
from builder.serving.vital_signs import Complaint

_EVERY_S = 1.0
_TIMEOUT_S = 4.0
_LONG_S = _TIMEOUT_S / 2
"""A canary that waits for longer may wait where another one got nothing in its time."""
_FATAL_AFTER_S = 8.0
"""After that time without an outcome, and at least two attempts, the path counts as hung."""
_FIND_EVERY_S = 10.0
_DEADLINE_MS = 1000
_TEXT = "canary\tcanary"
"""With a TAB, since an hPLM may read pairs."""
_NO_HPLM = "canary"
_WITHOUT_PROXY = ("grpc.enable_http_proxy", 0)
"""A proxy of the environment is for other machines; this one it may not reach."""
FindHplms = Callable[[], Sequence[str]]
"""Returns the IDs of some hPLMs that are served; may fail while the registry is away."""


class NoOutcomeError(Exception):
    """A canary got neither an answer nor an error."""


class TooLongError(NoOutcomeError):
    """A canary got nothing in its time; where Triton queues, it may still wait behind other requests."""

    def __init__(self) -> None:
        super().__init__(f"none within {_TIMEOUT_S:g} s")


@dataclass(frozen=True)
class _Failing:
    """A path that has no outcome: since when, how often in a row, how last, and how many other requests had ended."""

    since_s: float
    count: int
    error: str
    may_restart: bool
    num_answered: int


class Canary:
    """Asks on a thread of its own until it is closed.

    Args:
        http_url: host:port.
        grpc_url: host:port.
        find_hplms: Called for the first canary, and now and then while the last one asked gets errors.
        token: Shown in place of a tenant's.
        has_tls: Whether the gRPC port has certificates.
        num_answered: Returns how many requests have ended, where all wait in Triton's queue. While it grows, canaries
            that wait over all paths for long wait behind other requests, which no restart helps.
    """

    def __init__(
        self,
        http_url: str,
        grpc_url: str,
        find_hplms: FindHplms,
        token: str,
        has_tls: bool,
        num_answered: Callable[[], int] = lambda: 0,
    ) -> None:
        parameters: dict[str, int | str] = {"deadline_ms": _DEADLINE_MS, "tenant_token": token}
        self._paths: dict[str, Callable[[str], Fault | None]] = {
            "HTTP": lambda hplm: _ask_http(http_url, hplm, parameters),
            "gRPC": lambda hplm: _greet_grpc(grpc_url) if has_tls else _ask_grpc(grpc_url, hplm, parameters),
        }
        self._find_hplms = find_hplms
        self._num_answered = num_answered
        self._found: Sequence[str] = ()
        self._hplm = _NO_HPLM
        self._is_sought = True
        """Whether another hPLM is to be asked."""
        self._find_from_s = 0.0
        self._failing: dict[str, _Failing] = {}
        self._waited_s: dict[str, float] = {}
        """How long the last canary of each path waited that waits where requests do."""
        self._greets_only = {"gRPC"} if has_tls else set()
        self._first = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canary", daemon=True)
        self._thread.start()

    def wait_for_first(self, timeout_s: float) -> bool:
        """Wait until each path has been tried; whether all have."""
        return self._first.wait(timeout_s)

    def complaints(self) -> list[Complaint]:
        """Return the paths whose last canary failed; fatal where all of the last seconds did and a restart may help."""
        now = time.monotonic()
        return [
            Complaint(
                f"no answer over {path}: {failing.error}",
                failing.may_restart and failing.count > 1 and now - failing.since_s > _FATAL_AFTER_S,
            )
            for path, failing in list(self._failing.items())
        ]

    def close(self) -> None:
        """Ask no more; a canary that is under way is left alone."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            for path in self._paths:
                self._try(path)
                if self._first.is_set() and self._closed.wait(_EVERY_S):
                    return
            self._first.set()

    def _try(self, path: str) -> None:
        began = time.monotonic()
        try:
            fault = self._paths[path](self._wanted())
        except Exception as error:
            self._note_wait(path, _TIMEOUT_S if isinstance(error, TooLongError) else time.monotonic() - began)
            self._note_failure(path, began, str(error) or type(error).__name__, not self._is_queued(path, error))
            return
        self._note_wait(path, time.monotonic() - began)
        outcome = Outcome.REJECTED if fault is None else fault.outcome
        self._is_sought |= outcome is not Outcome.REJECTED
        if outcome in (Outcome.UNREADY, Outcome.FAILED):
            self._note_failure(path, began, str(fault), outcome is Outcome.FAILED)
        else:
            self._failing.pop(path, None)

    def _note_wait(self, path: str, waited_s: float) -> None:
        if path not in self._greets_only:
            self._waited_s[path] = waited_s

    def _note_failure(self, path: str, began_s: float, error: str, may_restart: bool) -> None:
        """Count a failure; the time of failures that no restart would help counts for no restart."""
        last = self._failing.get(path)
        if last is None or last.may_restart != may_restart:
            last = _Failing(began_s, 0, error, may_restart, 0)
        self._failing[path] = _Failing(last.since_s, last.count + 1, error, may_restart, self._num_answered())

    def _is_queued(self, path: str, error: Exception) -> bool:
        """Whether canaries of all paths wait behind other requests: some have ended since the last one failed."""
        last = self._failing.get(path)
        others_wait = all(waited_s > _LONG_S for other, waited_s in self._waited_s.items() if other != path)
        has_ended = last is not None and self._num_answered() != last.num_answered
        return isinstance(error, TooLongError) and others_wait and has_ended

    def _wanted(self) -> str:
        if self._is_sought:
            if time.monotonic() >= self._find_from_s:
                self._find_from_s = time.monotonic() + _FIND_EVERY_S
                with suppress(Exception):  # the registry is away, and what is served is served all the same
                    self._found = self._find_hplms()
            self._hplm = _next(self._found, self._hplm)
            self._is_sought = self._hplm == _NO_HPLM
        return self._hplm


def _next(hplms: Sequence[str], last: str) -> str:
    """Return the hPLM behind the last one, and behind the end the first."""
    if not hplms:
        return _NO_HPLM
    return hplms[(hplms.index(last) + 1) % len(hplms)] if last in hplms else hplms[0]


def _ask_http(url: str, hplm: str, parameters: Mapping[str, int | str]) -> Fault | None:
    """Return the error, or None for an answer."""
    inputs = [
        {"name": name, "shape": [1, 1], "datatype": "BYTES", "data": [value]}
        for name, value in (("MODEL", hplm), ("TEXT", _TEXT))
    ]
    connection = http.client.HTTPConnection(url, timeout=_TIMEOUT_S)
    try:
        body = json.dumps({"inputs": inputs, "parameters": parameters})
        connection.request("POST", "/v2/models/hplm/infer", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        return None if response.status == http.HTTPStatus.OK else Fault(str(response.status), _error_in(content))
    except TimeoutError as error:
        raise TooLongError from error
    finally:
        connection.close()


def _error_in(content: bytes) -> str:
    """Return the error in Triton's JSON, or whatever else was sent."""
    text = content.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text)["error"])
    return text


def _ask_grpc(url: str, hplm: str, parameters: Mapping[str, int | str]) -> Fault | None:
    # Imported here: it takes a good part of a second, and a server is loading beside it.
    import numpy as np
    from tritonclient import grpc
    from tritonclient.utils import InferenceServerException

    inputs = []
    for name, value in (("MODEL", hplm), ("TEXT", _TEXT)):
        tensor = grpc.InferInput(name, [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[value.encode()]], dtype=np.object_))
        inputs.append(tensor)
    client = grpc.InferenceServerClient(url, channel_args=[_WITHOUT_PROXY])
    try:
        client.infer("hplm", inputs, parameters=parameters, client_timeout=_TIMEOUT_S)
    except InferenceServerException as error:
        if error.status() in ("StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED"):
            raise TooLongError from error
        return Fault(str(error.status()).removeprefix("StatusCode."), error.message())
    finally:
        client.close()
    return None


def _greet_grpc(url: str) -> None:
    """Begin a TLS handshake, and wait for the server's first word; to go on might need a certificate."""
    host, _, port = url.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    with socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT_S) as connection:
        connection.sendall(hello.read())
        if not connection.recv(1):
            raise NoOutcomeError("the connection was closed")
