"""What the canary takes for an outcome, which hPLM it asks after an error, and when a restart may help."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from backends.draining import draining_error
from backends.errors import (
    CorruptFileError,
    ErrorCode,
    FormatVersionError,
    HplmError,
    InvalidArgumentError,
    NotANumberError,
    NotFoundError,
    OtherStudentsError,
    UnauthorisedError,
    UnavailableError,
    UnreadableFileError,
    presentable,
)
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.staleness import Staleness, StalenessSettings
from backends.scheduling.rejection import Rejection, late_computed, queue_full, reason_of, tenant_quota
from bench.kit.tiny_home import tiny_hplm, tiny_root
from builder.serving import canary
from builder.serving.canary import Canary
from builder.serving.outcomes import Fault, Outcome
from builder.serving.served_hplms import some_hplms
from waiting import LIMIT_S, wait_until

_STATUSES = {
    ErrorCode.NOT_FOUND: ("404", "NOT_FOUND"),
    ErrorCode.INVALID_ARG: ("400", "INVALID_ARGUMENT"),
    ErrorCode.UNAVAILABLE: ("503", "UNAVAILABLE"),
    ErrorCode.CANCELLED: ("400", "CANCELLED"),
    ErrorCode.INTERNAL: ("500", "INTERNAL"),
}
_IN_ENSEMBLE = "in ensemble 'hplm', "
_FULL_MEMORY = "Failed to increase the shared memory pool size for key 'triton_python_backend_shm_region_1' to 9 bytes"


def registry_away() -> HplmError:
    staleness = Staleness(StalenessSettings(limit_s=1))
    staleness.note_read(time.monotonic() - 10)
    with pytest.raises(UnavailableError) as caught:
        staleness.require_fresh()
    return caught.value


OF_MODELS: list[tuple[HplmError, Outcome]] = [
    (queue_full(9), Outcome.REJECTED),
    (tenant_quota(3), Outcome.REJECTED),
    (late_computed(), Outcome.REJECTED),
    (NotFoundError("hPLM 'canary' does not exist"), Outcome.OF_THE_HPLM),
    (presentable(CorruptFileError("/x"), "the table of this hPLM is"), Outcome.OF_THE_HPLM),
    (presentable(UnreadableFileError("/x"), "the weights of this hPLM are"), Outcome.OF_THE_HPLM),
    (presentable(FormatVersionError("/x"), "the weights of this hPLM are"), Outcome.OF_THE_HPLM),
    (presentable(OtherStudentsError("/x"), "what this hPLM has for students is"), Outcome.OF_THE_HPLM),
    (NotANumberError("acme/topic"), Outcome.OF_THE_HPLM),
    (registry_away(), Outcome.UNREADY),
    (UnavailableError("the root of this hPLM is being loaded; try again"), Outcome.UNREADY),
    (presentable(UnreadableFileError("/x")), Outcome.UNREADY),
    (UnauthorisedError("a token is needed"), Outcome.UNREADY),
    (InvalidArgumentError("TEXT is empty"), Outcome.UNREADY),
    (presentable(CorruptFileError("/x")), Outcome.FAILED),
    (presentable(OSError("too many open files")), Outcome.FAILED),
    (HplmError(_FULL_MEMORY), Outcome.FAILED),
    (UnavailableError("the server is stopping"), Outcome.FAILED),
    (draining_error(), Outcome.FAILED),
]
OF_TRITON = [
    ("500", f"{_IN_ENSEMBLE}Stub process 'hplm_lower_0_0' is not healthy."),
    ("INTERNAL", f"{_IN_ENSEMBLE}Failed to process the request(s) for model 'hplm_lower_0_0', message: {_FULL_MEMORY}"),
    ("404", "Request for unknown model: 'hplm' is not found"),
    ("NOT_FOUND", f"{_IN_ENSEMBLE}Request for unknown model: 'hplm_upper' has no available versions"),
    ("404", "<html>not found</html>"),
    ("503", "Server is stopping, scheduler for model has stopped accepting new inference requests"),
    ("UNAVAILABLE", "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:8001"),
    ("UNAVAILABLE", "Socket closed"),
    ("UNKNOWN", "Stream removed"),
]


@pytest.mark.parametrize(("error", "outcome"), OF_MODELS, ids=lambda one: str(one)[:30])
def test_errors_of_models_are_judged_alike_over_both_protocols(error: HplmError, outcome: Outcome) -> None:
    for status in _STATUSES[error.code]:
        assert Fault(status, f"{_IN_ENSEMBLE}{error}").outcome is outcome


@pytest.mark.parametrize(("status", "message"), OF_TRITON)
def test_where_no_model_has_answered_a_restart_may_help(status: str, message: str) -> None:
    assert Fault(status, message).outcome is Outcome.FAILED


def test_each_reason_is_read_off_its_message() -> None:
    for reason in Rejection:
        assert reason_of(f'no {{"reason": "{reason}", "retry_after_ms": 5}}') is reason
    assert reason_of('no {"reason": "another", "retry_after_ms": 5}') is None
    assert reason_of("no") is None


def test_the_error_is_read_off_an_answer_over_http() -> None:
    answers = [
        (503, json.dumps({"error": f"{_IN_ENSEMBLE}{queue_full(1)}"}).encode()),
        (502, b"bad gateway"),
        (200, b""),
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = answers[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        faults: list[Fault | None] = []
        while answers:
            faults.append(canary._ask_http(f"127.0.0.1:{server.server_port}", "acme/topic", {}))
            answers.pop(0)
        server.shutdown()
    assert faults == [Fault("503", f"{_IN_ENSEMBLE}{queue_full(1)}"), Fault("502", "bad gateway"), None]
    assert faults[0] is not None and faults[0].outcome is Outcome.REJECTED


Answer = Callable[[str], Fault | None]


@contextmanager
def watching(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, hplms: Sequence[str], fatal_after_s: float = 0.2
) -> Iterator[Canary]:
    """A hurried canary of a server that answers so."""
    monkeypatch.setattr(canary, "_EVERY_S", 0.01)
    monkeypatch.setattr(canary, "_FATAL_AFTER_S", fatal_after_s)
    for name in ("_ask_http", "_ask_grpc"):
        monkeypatch.setattr(canary, name, lambda _url, hplm, _parameters: answer(hplm))
    watch = Canary("", "", lambda: hplms, "", has_tls=False)
    try:
        assert watch.wait_for_first(LIMIT_S)
        yield watch
    finally:
        watch.close()


def is_fatal(watch: Canary) -> bool:
    return any(complaint.fatal for complaint in watch.complaints())


def of_model(error: HplmError) -> Fault:
    return Fault(_STATUSES[error.code][0], f"{_IN_ENSEMBLE}{error}")


def test_overload_and_an_hplm_that_cannot_be_served_leave_the_server_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, outcome in OF_MODELS:
        if outcome in (Outcome.REJECTED, Outcome.OF_THE_HPLM):
            with watching(monkeypatch, lambda _, error=error: of_model(error), ["acme/topic"]) as watch:  # type: ignore[misc]
                assert watch.complaints() == []


def test_a_registry_that_is_away_makes_it_unready_without_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[Fault | None] = [of_model(registry_away())]
    with watching(monkeypatch, lambda _: faults[0], ["acme/topic"]) as watch:
        away_s = time.monotonic()
        time.sleep(0.5)
        assert len(watch.complaints()) == 2 and not is_fatal(watch)
        assert "the registry has been away" in watch.complaints()[0].text
        faults[0] = of_model(presentable(OSError("x")))
        wait_until(lambda: all("OSError" in complaint.text for complaint in watch.complaints()))
        since_s = [failing.since_s for failing in watch._failing.values()]
        assert min(since_s) > away_s, "now only a restart helps; but the time without the registry is none of it"
        wait_until(lambda: is_fatal(watch))
        faults[0] = None
        wait_until(lambda: watch.complaints() == [])


@pytest.mark.parametrize("error", [presentable(OSError("x")), HplmError(_FULL_MEMORY)])
def test_where_each_request_fails_the_server_is_restarted(monkeypatch: pytest.MonkeyPatch, error: HplmError) -> None:
    with watching(monkeypatch, lambda _: of_model(error), ["acme/topic", "globex/topic"], 10 * LIMIT_S) as watch:
        assert len(watch.complaints()) == 2 and not is_fatal(watch)
        monkeypatch.setattr(canary, "_FATAL_AFTER_S", 0.2)
        wait_until(lambda: is_fatal(watch))


def test_one_hplm_that_fails_does_not_speak_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(hplm: str) -> Fault | None:
        asked.append(hplm)
        return None if hplm == "initech/mood" else of_model(presentable(OSError("x")))

    with watching(monkeypatch, answer, ["acme/topic", "globex/topic", "initech/mood"]) as watch:
        wait_until(lambda: watch.complaints() == [])
    assert asked[:3] == ["acme/topic", "globex/topic", "initech/mood"] and set(asked[3:]) <= {"initech/mood"}


def test_without_hplms_one_that_cannot_exist_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(hplm: str) -> Fault | None:
        asked.append(hplm)
        return of_model(NotFoundError(f"hPLM {hplm!r} does not exist"))

    with watching(monkeypatch, answer, []) as watch:
        assert watch.complaints() == []
    assert set(asked) == {"canary"}


def test_hplms_of_all_roots_are_found(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    before = some_hplms(tiny_home)
    assert before == [entry.id for entry in registry.hplm_page(8)]
    tiny_root(tiny_home, registry, tmp_path, name="other")
    tiny_hplm(tiny_home, registry, tmp_path, "zeta/one", "general", "topic", 3, root="other")
    assert some_hplms(tiny_home)[:2] == [before[0], "zeta/one"]
    registry.delete_hplm("zeta/one")
    assert some_hplms(tiny_home) == before
    registry.close()
