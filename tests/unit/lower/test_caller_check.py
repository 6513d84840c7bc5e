"""Tokens in front of the lower model: who is answered, who is not, and that nothing tells a foreign hPLM from none."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from backends.errors import HplmError, InvalidArgumentError, NotFoundError, UnauthorisedError
from backends.home import Home
from backends.lower.caller_check import AUTH_VARIABLE, Auth, CallerCheck
from backends.lower.encode_queue import EncodeQueue
from backends.lower.service import AcceptedRequest, HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.tokens import Role
from backends.scheduling.rejection import RejectedError
from backends.scheduling.tenants import NO_TENANT
from backends.seal import OWN_SEAL, Seal
from backends.wire import parse_parameters

NONE, FOREIGN, OWN = "acme/nothing", "globex/topic", "acme/topic"


@pytest.fixture
def registry(tiny_home: Home) -> Registry:
    return Registry.open(tiny_home)


@pytest.fixture
def snapshot(tiny_home: Home) -> Iterator[RegistrySnapshot]:
    snapshot = RegistrySnapshot(Registry.open(tiny_home), refresh_interval_s=60.0)
    yield snapshot
    snapshot.close()


@pytest.fixture
def ask(tiny_home: Home, snapshot: RegistrySnapshot) -> Iterator[Callable[..., HiddenRequest | HplmError]]:
    service = LowerService(tiny_home, snapshot, FillingSettings(Missing.FALLBACK), auth=Auth.TOKENS)

    def ask_it(token: object, *hplms: str) -> HiddenRequest | HplmError:
        snapshot.refresh()
        parameters = "" if token is None else json.dumps({"tenant_token": token})
        (result,) = service.encode([TextRequest([hplm.encode() for hplm in hplms], [b"cat"] * len(hplms), parameters)])
        return result

    yield ask_it
    service.close()


def test_callers_get_what_their_tokens_are_for(
    registry: Registry, ask: Callable[..., HiddenRequest | HplmError]
) -> None:
    acme, one, everything = (registry.tokens.create(scope).text for scope in ("acme", OWN, "*"))
    for token, hplm in ((acme, OWN), (acme, "acme/mood"), (one, OWN), (everything, OWN), (everything, FOREIGN)):
        assert isinstance(ask(token, hplm), HiddenRequest), hplm
    for token, hplm in ((acme, FOREIGN), (one, "acme/mood"), (acme, NONE), (everything, NONE), (acme, "")):
        error = ask(token, hplm)
        assert type(error) is NotFoundError
        assert str(error) == f"hPLM {hplm!r} does not exist"


def test_bad_tokens_are_told_so_whatever_they_ask_for(
    registry: Registry, ask: Callable[..., HiddenRequest | HplmError]
) -> None:
    issued = registry.tokens.create("acme")
    viewer = registry.tokens.create("*", Role.VIEWER).text
    bad = (None, "", 5, True, "secret", "é" * 61, "x" * 1_000_000, issued.text[:-1], viewer)
    for token in bad:
        told = {(type(error), str(error)) for error in (ask(token, hplm) for hplm in (OWN, FOREIGN, NONE))}
        ((kind, words),) = told
        assert issubclass(kind, UnauthorisedError) and words.startswith("unauthorised: ") and len(words) < 200
    assert isinstance(ask(issued.text, OWN), HiddenRequest)
    registry.tokens.revoke(issued.entry.id)
    error = ask(issued.text, OWN)
    assert str(error) == f"unauthorised: token {issued.entry.id} is revoked"


def test_a_request_is_of_one_tenant(registry: Registry, ask: Callable[..., HiddenRequest | HplmError]) -> None:
    for scope in ("acme", "*"):
        token = registry.tokens.create(scope).text
        assert isinstance(ask(token, OWN, "acme/mood"), HiddenRequest)
        for other in (FOREIGN, "globex/nothing", "nobody/nothing"):
            error = ask(token, OWN, other)
            assert type(error) is InvalidArgumentError and "all rows of a request are of one tenant" in str(error)


def test_a_doubled_token_is_neither() -> None:
    doubled = '{"tenant_token": "a", "level": "full", "tenant_token": "b"}'
    with pytest.raises(InvalidArgumentError, match="parameter 'tenant_token' is given twice"):
        parse_parameters(doubled)


def test_tokens_are_read_by_nobody_where_they_are_off(snapshot: RegistrySnapshot) -> None:
    assert [entry.id for entry in CallerCheck(snapshot).entries([OWN, FOREIGN], {"tenant_token": "?"})] == [
        OWN, FOREIGN,
    ]  # fmt: skip


@pytest.mark.serial
@pytest.mark.long
def test_a_foreign_hplm_takes_as_long_as_none(registry: Registry, snapshot: RegistrySnapshot) -> None:
    token = registry.tokens.create("acme").text
    snapshot.refresh()
    check, parameters = CallerCheck(snapshot, Auth.TOKENS), {"tenant_token": token}

    def timed_ns(hplm: str) -> int:
        began = time.perf_counter_ns()
        with pytest.raises(NotFoundError):
            check.entries([hplm], parameters)
        return time.perf_counter_ns() - began

    times: dict[str, list[int]] = {FOREIGN: [], "globex/none!": []}
    for _ in range(5_000):
        for hplm, taken in times.items():
            taken.append(timed_ns(hplm))
    foreign_ns, absent_ns = (statistics.median(taken) for taken in times.values())
    assert foreign_ns == pytest.approx(absent_ns, rel=0.03)


def test_the_setting(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Auth.from_model(ModelSettings(tiny_home, {})) is Auth.OFF
    assert Auth.from_model(ModelSettings(tiny_home, {"auth": "tokens"})) is Auth.TOKENS
    monkeypatch.setenv(AUTH_VARIABLE, "off")
    assert Auth.from_model(ModelSettings(tiny_home, {"auth": "tokens"})) is Auth.OFF
    monkeypatch.setenv(AUTH_VARIABLE, "maybe")
    with pytest.raises(InvalidArgumentError, match="auth 'maybe' is not one of off, tokens"):
        Auth.from_model(ModelSettings(tiny_home, {}))


def test_the_canary_of_this_server_may_ask_all_and_no_quota_counts_it(tiny_home: Home, registry: Registry) -> None:
    snapshot = RegistrySnapshot(Registry.open(tiny_home), refresh_interval_s=60.0)
    service = LowerService(tiny_home, snapshot, FillingSettings(Missing.FALLBACK), auth=Auth.TOKENS, seal=OWN_SEAL)
    queue = EncodeQueue(service)
    registry.quotas.set("acme", {"rows_per_s": 0.001})
    token = registry.tokens.create("acme").text
    snapshot.refresh()

    def asked(shown: str) -> HplmError | None:
        return queue.add(TextRequest([OWN.encode()], [b"cat"], json.dumps({"tenant_token": shown})), lambda _: None)

    assert asked(token) is None
    assert [asked(OWN_SEAL.canary_token) for _ in range(3)] == [None] * 3
    assert isinstance(asked(token), RejectedError)
    for other in (Seal(bytes(32)).canary_token, "é" * 32, "\ud800"):
        assert isinstance(asked(other), UnauthorisedError)
    accepted = [
        service.accept(TextRequest([OWN.encode()], [b"cat"], json.dumps({"tenant_token": shown})))
        for shown in (OWN_SEAL.canary_token, token)
    ]
    assert [one.work.tenant for one in accepted if isinstance(one, AcceptedRequest)] == [NO_TENANT, "acme"]
    queue.close()
    service.close()
    snapshot.close()
