"""Every tenant, every call, both protocols, every kind of token: who is answered, and in which words who is not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.kit.doors.calls import CALLERS, CALLS, HIDDEN_ROWS, Told
from bench.kit.doors.tenants import KINDS, RIGHT, TenantTokens
from builder.serving import TritonServer

_NOBODY = "nobody00"
"""As long as a tenant's name."""


@dataclass(frozen=True)
class Asked:
    """One call; `without` is what is told with the same token of a tenant that does not exist."""

    protocol: str
    call: str
    tenant: str
    kind: str
    told: Told
    without: Told

    @property
    def is_right(self) -> bool:
        """Whether its own hPLMs answered whose token is right, and none where it is not."""
        if self.kind != RIGHT:
            return not self.told.is_answer
        of_tenant = (name.startswith((f"{self.tenant}/", HIDDEN_ROWS)) for name in self.told.hplms)
        return self.told.is_answer and all(of_tenant)

    @property
    def tells_apart(self) -> bool:
        """Whether the words differ by more than the name that was asked for, without a right token."""
        if self.kind == RIGHT:
            return False
        return _without_name(self.told, self.tenant) != _without_name(self.without, _NOBODY)


def _without_name(told: Told, tenant: str) -> str:
    return told.words.replace(tenant, "TENANT")


def ask_all(server: TritonServer, tokens: TenantTokens) -> tuple[dict[str, float], list[dict[str, Any]]]:
    asked = list(_each(server, tokens))
    figures = {
        "calls": float(len(asked)),
        "foreign_answers": float(sum(one.kind != RIGHT and not one.is_right for one in asked)),
        "own_failed": float(sum(one.kind == RIGHT and not one.is_right for one in asked)),
        "different_words": float(sum(one.tells_apart for one in asked)),
    }
    words: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for one in asked:
        said = "answered" if one.told.is_answer else _without_ids(_without_name(one.told, one.tenant))
        words[one.kind][said] += 1
    rows = [
        {"token": kind, "told": said, "count": count}
        for kind, of_kind in words.items()
        for said, count in of_kind.items()
    ]
    return figures, rows


def _without_ids(words: str) -> str:
    return re.sub(r"token [0-9a-f]{12}", "token …", words)


def _each(server: TritonServer, tokens: TenantTokens) -> Iterator[Asked]:
    for protocol, calls in CALLS.items():
        caller = CALLERS[protocol](server)
        for call in calls:
            for tenant in tokens.tenants:
                for kind, shown in tokens.shown[tenant].items():
                    told, absent = caller.ask(call, tenant, shown), caller.ask(call, _NOBODY, shown)
                    yield Asked(protocol, call.name, tenant, kind, told, absent)
        caller.close()
