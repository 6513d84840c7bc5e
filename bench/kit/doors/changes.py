"""Tokens that are revoked and rotated while callers show them, and while versions are published beside them."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from backends.registry.registry import Registry
from backends.registry.tokens import IssuedToken
from bench.kit.doors.tenants import TenantTokens
from bench.kit.synthetic_home import link_or_copy
from builder.serving import TritonServer
from hplm_client import ClientError, HplmClient, PermissionDeniedError

_TEXT = "my cat is lovely"
_LONG = "my cat is lovely and near the hammer " * 8
_NOTICED_S = 1.0
"""A change is to be known in all processes after this time."""
_AT_ONCE = 20
_STAGGER_S = 0.02
_WATCHED_S = 1.5
_PUBLISHED_EVERY_S = 0.3


@dataclass
class _Watched:
    """A token that is asked with over and over: when the last request that was answered was sent."""

    issued: IssuedToken
    client: HplmClient
    hplm: str
    revoked_at: float = float("inf")
    last_good_at: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)

    def ask(self) -> None:
        sent_at = time.monotonic()
        try:
            self.client.infer(self.hplm, _TEXT)
        except PermissionDeniedError:
            if sent_at < self.revoked_at:
                self.wrong["rejected before its revocation"] += 1
        except ClientError as error:
            self.wrong[str(error)] += 1
        else:
            self.last_good_at = max(self.last_good_at, sent_at)

    @property
    def took_s(self) -> float:
        """Time for which it was good after its revocation."""
        return max(0.0, self.last_good_at - self.revoked_at)


def revoke_many(
    server: TritonServer, tokens: TenantTokens, count: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Revoke tokens while they are asked with, some at a time, until none has been good for a while."""
    registry = Registry.open(tokens.home)
    watched: list[_Watched] = []
    with _publishing(tokens):
        for start in range(0, count, _AT_ONCE):
            watched += _revoke_some(server, tokens, registry, min(_AT_ONCE, count - start))
    registry.close()
    took_s = sorted(one.took_s for one in watched)
    wrong = sum((one.wrong for one in watched), Counter[str]())
    figures = {
        "revoked_in_time": 100 * sum(one <= _NOTICED_S for one in took_s) / count,
        "revoked_s_max": took_s[-1],
        "revoked_s_median": took_s[len(took_s) // 2],
        "revoked_wrong": float(wrong.total()),
    }
    return figures, [{"what": f"revoking: {words}", "count": number} for words, number in wrong.most_common(3)]


def _revoke_some(server: TritonServer, tokens: TenantTokens, registry: Registry, count: int) -> list[_Watched]:
    tenants = [tokens.tenants[number % len(tokens.tenants)] for number in range(count)]
    issued = [registry.tokens.create(tenant) for tenant in tenants]
    url = f"grpc://{server.grpc_url}"
    watched = [_Watched(one, HplmClient(url, token=one.text, retries=0), f"{one.entry.scope}/topic") for one in issued]
    time.sleep(_NOTICED_S)
    stopping = threading.Event()

    def ask_all(offset: int) -> None:
        while not stopping.is_set():
            for one in (*watched[offset:], *watched[:offset]):
                one.ask()

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask_all, number * count // 2) for number in range(2)]
        time.sleep(5 * _STAGGER_S)
        for one in watched:
            registry.tokens.revoke(one.issued.entry.id)
            one.revoked_at = time.monotonic()
            time.sleep(_STAGGER_S)
        time.sleep(_WATCHED_S)
        stopping.set()
        for future in asking:
            future.result()
    for one in watched:
        one.client.close()
    return watched


@contextmanager
def _publishing(tokens: TenantTokens) -> Iterator[None]:
    """Publish versions of a domain, each with an hPLM on it: servers open a table for every one."""
    registry, home, stopping = Registry.open(tokens.home), tokens.home, threading.Event()
    model = registry.hplm(f"{tokens.tenants[0]}/topic")
    root, name, parent = model.domain.root, model.domain.name, registry.domain_parent(model.domain)

    def publish() -> None:
        while not stopping.wait(_PUBLISHED_EVERY_S):
            folder = home.plot(root, name, registry.next_domain_version(root, name))
            shutil.copytree(home.path / model.domain.folders[0], folder, copy_function=link_or_copy)
            domain = registry.publish_domain(root, name, home.relative(folder), parent, {})
            registry.publish_hplm("beside/topic", domain, model.task, model.labels, model.folder, dict(model.metrics))

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        try:
            yield
        finally:
            stopping.set()
            publishing.result()
    registry.close()


def rotate_under_load(
    server: TritonServer, tokens: TenantTokens, rotations: int, callers: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Rotate a token while callers ask; they take the new one once servers know it, and the old one is valid then."""
    registry, tenant = Registry.open(tokens.home), tokens.tenants[0]
    current = registry.tokens.create(tenant)
    time.sleep(_NOTICED_S)
    shown = [current.text]
    with _asking(server, f"{tenant}/topic", shown, callers) as outcomes:
        for _ in range(rotations):
            current = registry.tokens.rotate(current.entry.id, grace_s=3 * _NOTICED_S)
            time.sleep(_NOTICED_S)
            shown[0] = current.text
    registry.close()
    failed = {words: count for words, count in outcomes.items() if words}
    figures = {"rotation_asks": float(outcomes.total()), "rotation_failed": float(sum(failed.values()))}
    return figures, [{"what": f"rotating: {words}", "count": count} for words, count in failed.items()]


@contextmanager
def _asking(server: TritonServer, hplm: str, shown: Sequence[str], callers: int) -> Iterator[Counter[str]]:
    """Callers that show the token that stands in `shown`; counts what they are told, nothing for an answer."""
    stopping, outcomes = threading.Event(), Counter[str]()

    def ask() -> None:
        client, token = HplmClient(f"grpc://{server.grpc_url}", token=shown[0], retries=0), shown[0]
        while not stopping.is_set():
            if shown[0] != token:
                client.close()
                client, token = HplmClient(f"grpc://{server.grpc_url}", token=shown[0], retries=0), shown[0]
            try:
                client.infer(hplm, _TEXT)
                outcomes[""] += 1
            except ClientError as error:
                outcomes[str(error)] += 1
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(callers)]
    for thread in threads:
        thread.start()
    yield outcomes
    stopping.set()
    for thread in threads:
        thread.join()


def revoke_in_flight(
    server: TritonServer, tokens: TenantTokens, rounds: int
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Revoke a token while its requests wait: each is answered, or told that the token is revoked."""
    registry, tenant = Registry.open(tokens.home), tokens.tenants[0]
    told: Counter[str] = Counter()
    for _ in range(rounds):
        issued = registry.tokens.create(tenant)
        time.sleep(_NOTICED_S)
        with (
            HplmClient(f"grpc://{server.grpc_url}", token=issued.text, retries=0, rows_per_request=1) as client,
            ThreadPoolExecutor(1) as pool,
        ):
            rows = [(f"{tenant}/topic", _LONG)] * 400
            asking = pool.submit(client.infer_many, rows, on_error="return")
            time.sleep(0.05)
            registry.tokens.revoke(issued.entry.id)
            for outcome in asking.result():
                told[_in_words(outcome, issued.entry.id)] += 1
    registry.close()
    lost = sum(count for words, count in told.items() if words not in ("answered", "revoked"))
    return {"in_flight_lost": float(lost)}, [{"what": f"in flight: {words}", "count": n} for words, n in told.items()]


def _in_words(outcome: object, token: str) -> str:
    if not isinstance(outcome, Exception):
        return "answered"
    is_revoked = isinstance(outcome, PermissionDeniedError) and f"token {token} is revoked" in str(outcome)
    return "revoked" if is_revoked else str(outcome)
