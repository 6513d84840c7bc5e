"""Thousands of hPLMs, tokens or quotas registered in one transaction, otherwise like published ones."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from backends.home import Home
from backends.registry.audit import note
from backends.registry.database import Database
from backends.registry.entries import DomainEntry
from backends.registry.queries import domain_version_row
from backends.registry.quotas import Quota
from backends.registry.schema import HplmRow, HplmVersionRow, QuotaRow, TokenRow
from backends.registry.tokens import Role, token_digest


@dataclass(frozen=True)
class NewHplm:
    """`folder` is relative to the home."""

    name: str
    domain: DomainEntry
    folder: str
    task: str
    labels: Sequence[str]
    metrics: dict[str, Any]
    pair: bool = False


def register_hplms(home: Home, hplms: Sequence[NewHplm]) -> None:
    database = Database.connect(home.registry_url)
    with database.publication() as (session, revision):
        domains = {
            domain: domain_version_row(session, domain.root, domain.name, domain.version).id
            for domain in {hplm.domain for hplm in hplms}
        }
        rows = [HplmRow(name=hplm.name, last_version=1, revision=revision) for hplm in hplms]
        versions = [
            HplmVersionRow(
                hplm=row,
                version=1,
                domain_version_id=domains[hplm.domain],
                task=hplm.task,
                pair=hplm.pair,
                labels=list(hplm.labels),
                folder=hplm.folder,
                metrics=hplm.metrics,
                published_at=time.time(),
            )
            for row, hplm in zip(rows, hplms, strict=True)
        ]
        session.add_all(versions)
        session.flush()
        for row, version in zip(rows, versions, strict=True):
            row.live_version_id = version.id
        note(session, "hplm.publish", f"{len(hplms)} hPLMs")
    database.close()


@dataclass(frozen=True)
class NewToken:
    """Times are seconds since the epoch; unlike the command, any are taken."""

    scope: str
    not_before: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None


def register_tokens(home: Home, tokens: Sequence[NewToken]) -> list[str]:
    """Register tokens; returns their texts."""
    ids = [secrets.token_hex(6) for _ in tokens]
    texts = [f"hplm_{id}_{secrets.token_urlsafe(32)}" for id in ids]
    database = Database.connect(home.registry_url)
    with database.publication() as (session, revision):
        session.add_all(
            TokenRow(
                token_id=id,
                role=Role.CALLER.value,
                sha256=token_digest(text).hex(),
                created_at=time.time(),
                revision=revision,
                **asdict(token),
            )
            for id, text, token in zip(ids, texts, tokens, strict=True)
        )
        note(session, "token.create", f"{len(tokens)} tokens")
    database.close()
    return texts


def register_quotas(home: Home, tenants: Sequence[str], quota: Quota) -> None:
    """Give each tenant the same quota."""
    database = Database.connect(home.registry_url)
    with database.publication() as (session, revision):
        session.add_all(QuotaRow(tenant=tenant, revision=revision, **asdict(quota)) for tenant in tenants)
        note(session, "quota.set", f"{len(tenants)} tenants")
    database.close()
