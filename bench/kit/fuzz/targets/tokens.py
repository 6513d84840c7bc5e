"""Tokens that callers show, their check, and the check of the hPLMs that a request names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backends.home import Home
from backends.lower.caller_check import Auth, CallerCheck
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.tokens import Role
from bench.kit.fuzz.copied_home import copied_home
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.json_values import any_value
from bench.kit.fuzz.rule import HarmedError
from bench.kit.fuzz.target import Target

_HPLMS = ("acme/topic", "acme/mood", "globex/topic")


class Tokens(Target):
    """Values of all types in the token's place; no token but the right one opens a tenant's hPLMs."""

    name = "tokens"
    cases = 100_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        own = copied_home(home, scratch)
        registry = Registry.open(own)
        tokens = registry.tokens
        self._good = {scope: tokens.create(scope).text for scope in ("acme", "globex", "acme/topic")}
        self._shown = [*self._good.values(), tokens.create("*", Role.VIEWER).text]
        registry.close()
        self._snapshot = RegistrySnapshot.open(own)
        self._check = CallerCheck(self._snapshot, Auth.TOKENS)

    def attempt(self, draw: Draw) -> None:
        hplms = [draw.choice((*_HPLMS, draw.text(_HPLMS))) for _ in range(draw.choice((1, 1, 2)))]
        shown: Any = any_value(draw) if draw.happens(0.3) else draw.text(self._shown)
        self._require_right(self._check.entries(hplms, {"tenant_token": shown}), shown)

    def _require_right(self, entries: list[HplmEntry], shown: Any) -> None:
        scope = next((scope for scope, text in self._good.items() if text == shown), None)
        if scope is None or any(not f"{entry.id}/".startswith(f"{scope}/") for entry in entries):
            raise HarmedError("a token opens what is not its own")

    def close(self) -> None:
        self._snapshot.close()
