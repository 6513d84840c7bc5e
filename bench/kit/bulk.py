"""Thousands of hPLMs registered in one transaction, otherwise like published ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from backends.home import Home
from backends.registry.audit import note
from backends.registry.database import Database
from backends.registry.entries import DomainEntry
from backends.registry.queries import domain_version_row
from backends.registry.schema import HplmRow, HplmVersionRow


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
