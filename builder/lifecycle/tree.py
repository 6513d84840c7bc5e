"""The content of a registry as trees: roots, the versions of their domains under their parents', the hPLMs on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backends.registry.entries import DomainEntry, DomainNode, HplmEntry
from backends.registry.registry import Registry


def version_trees(registry: Registry, roots: Sequence[str]) -> list[dict[str, Any]]:
    """A root each; every domain version with the live hPLMs on it and the versions that branch from it."""
    hplms: dict[DomainEntry, list[HplmEntry]] = {}
    for entry in registry.hplms():
        hplms.setdefault(entry.domain, []).append(entry)
    children: dict[DomainEntry | None, list[DomainNode]] = {}
    for node in registry.domain_nodes():
        children.setdefault(node.parent, []).append(node)

    published_at = registry.hplms_published_at()

    def described(node: DomainNode) -> dict[str, Any]:
        on_it = hplms.get(node.entry, ())
        return {
            "domain": node.entry.label,
            "live": node.is_live,
            "size_bytes": node.entry.metrics.get("size_bytes"),
            "hplms": [_described_hplm(entry) for entry in on_it],
            "newest_hplm": _newest(on_it, published_at),
            "domains": [described(child) for child in children.get(node.entry, ())],
        }

    tops = children.get(None, ())
    return [{"root": root, "domains": [described(node) for node in tops if node.entry.root == root]} for root in roots]


def _newest(hplms: Sequence[HplmEntry], published_at: Mapping[int, float]) -> str | None:
    return max(hplms, key=lambda entry: published_at.get(entry.key, 0.0)).id if hplms else None


def _described_hplm(entry: HplmEntry) -> dict[str, Any]:
    metric, value = entry.main_metric
    pinned = entry.pinned.label if entry.pinned else None
    return {"id": entry.id, "version": entry.version, "task": entry.task, metric: value, "pinned": pinned}
