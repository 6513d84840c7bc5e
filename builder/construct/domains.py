"""`hplm domain create`: a corpus becomes a domain's table, on top of its parent's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from backends.errors import ConflictError
from backends.home import Home
from backends.names import check_name
from backends.plot.header import Store, TableSpec
from backends.plot.table import Table
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import json_checksum
from builder.construct.corpus import corpus_checksums, corpus_texts, text_batches
from builder.construct.ngrams import FragmentCounts, count_fragments
from builder.construct.plots import PlotSettings, build_table, domain_content, root_content
from builder.construct.resuming import INPUTS, TableBuild
from builder.locks import exclusive
from builder.progress import Report

_TEXTS_PER_BATCH = 1024


@dataclass(frozen=True)
class BuiltTable:
    """A published table that the registry does not know yet."""

    folder: Path
    metrics: dict[str, Any]


@dataclass(frozen=True)
class DomainRequest:
    name: str
    root: str
    corpus: tuple[Path, ...]
    parent: str = "general"
    plot: PlotSettings = field(default_factory=PlotSettings)


def create_domain(home: Home, registry: Registry, request: DomainRequest, report: Report) -> DomainEntry:
    """Build the first version of a domain and make it live; a killed build goes on where it was."""
    check_name(request.name, "domain")
    parent = registry.domain(request.root, request.parent)
    target = home.plot(request.root, request.name, 1)
    with exclusive(target, f"domain {request.name!r}"):
        if registry.next_domain_version(request.root, request.name) > 1:
            raise ConflictError(f"domain {request.name!r} of root {request.root!r} exists already")
        root = RootFolder(home.root(request.root))
        built = build_domain(home, root, request.name, parent, request.corpus, request.plot, report)
        return registry.publish_domain(request.root, request.name, home.relative(built.folder), parent, built.metrics)


def build_domain(
    home: Home,
    root: RootFolder,
    name: str,
    parent: DomainEntry | None,
    corpus: Sequence[Path],
    settings: PlotSettings,
    report: Report,
) -> BuiltTable:
    """The table of a domain's first version; what a killed build made of the same inputs is taken as it is."""
    target = home.plot(root.manifest.name, name, 1)
    spec = _spec(root, name, parent)
    build = TableBuild(target, _inputs_checksum(spec, corpus, settings))
    if not build.is_published():
        build.require_same_staging()
        counts = _count(root, corpus, report)
        parents = [Table.open(home.path / folder, root.fingerprint) for folder in parent.folders] if parent else []
        content = domain_content(counts, parents, settings) if parents else root_content(counts, settings)
        build_table(target, spec, root.lower(), content.with_origin({INPUTS: build.inputs}), report)
        build.forget_staging()
    with Table.open(target, root.fingerprint) as table:
        return BuiltTable(target, _metrics(table))


def _inputs_checksum(spec: TableSpec, corpus: Sequence[Path], settings: PlotSettings) -> str:
    """Names all that a table depends on."""
    inputs = {"spec": asdict(spec), "corpus": corpus_checksums(corpus), "plot": asdict(settings)}
    return json_checksum(inputs)


def _count(root: RootFolder, corpus: Sequence[Path], report: Report) -> FragmentCounts:
    # The first pass also finds what is wrong with a corpus before any work is done on it.
    num_texts = sum(1 for _ in corpus_texts(corpus))
    return count_fragments(text_batches(corpus, _TEXTS_PER_BATCH), root.tokenizer(), num_texts, report)


def _spec(root: RootFolder, name: str, parent: DomainEntry | None) -> TableSpec:
    return TableSpec(
        name=f"{name}@1",
        root_fingerprint=root.fingerprint,
        hidden_size=root.geometry.hidden_size,
        vocab_size=root.geometry.vocab_size,
        parent=parent.label if parent else None,
        n=root.geometry.n,
    )


def _metrics(table: Table) -> dict[str, Any]:
    entries = {store.value: table.store(store).entries if store in table else 0 for store in Store}
    size_bytes = sum(path.stat().st_size for path in table.folder.iterdir())
    origin = {name: value for name, value in table.header.origin.items() if name != INPUTS}
    return {**origin, "entries": entries, "size_bytes": size_bytes}
