"""`hplm root add`: a pretrained model becomes a root, with a table of general fragments under it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file

from backends.errors import ConflictError, CorruptFileError, FingerprintMismatchError, InvalidArgumentError
from backends.home import Home
from backends.names import check_name
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder, half_state, write_root
from backends.root.tokenizer import RootTokenizer
from backends.storage import publishing, write_tensors
from builder.construct.corpus import corpus_texts
from builder.construct.distil import Distiller, DistilSettings
from builder.construct.domains import build_domain
from builder.construct.plots import PlotSettings
from builder.construct.pretrained import RootParts, convert, load_pretrained, locate_pretrained, weights_checksum
from builder.locks import exclusive
from builder.progress import Report

GENERAL_DOMAIN = "general"
_MAX_DISTIL_TEXTS = 400_000


@dataclass(frozen=True)
class RootRequest:
    """What `hplm root add` was asked for; `distilled` names a file of lower layers that are trained already."""

    name: str
    source: str
    num_lower_layers: int
    corpus: tuple[Path, ...]
    max_tokens: int = 128
    distilled: Path | None = None
    distil: DistilSettings = field(default_factory=DistilSettings)
    plot: PlotSettings = field(default_factory=PlotSettings)


def add_root(home: Home, registry: Registry, request: RootRequest, report: Report) -> DomainEntry:
    """Convert, distil, write and register a root; then build its general table. Resumes what was interrupted."""
    check_name(request.name, "root")
    target = home.root(request.name)
    with exclusive(target, f"root {request.name!r}"):
        if registry.has_root(request.name):
            raise ConflictError(f"root {request.name!r} exists already")
        if not target.exists():
            _build_root(home, request, report)
        root = RootFolder(target)
        entry = build_domain(home, root, GENERAL_DOMAIN, None, request.corpus, request.plot, report)
        registry.add_root(request.name, root.fingerprint, home.relative(target))
        return registry.publish_domain(request.name, GENERAL_DOMAIN, home.relative(entry.folder), None, entry.metrics)


def export_distilled(root: RootFolder, path: Path) -> None:
    """Write what distillation taught a root, without the word embeddings, which the pretrained model has."""
    state = {f"lower.{name}": t for name, t in half_state(root.lower()).items() if "word_embeddings" not in name}
    state |= {f"aggregation.{name}": t for name, t in half_state(root.aggregation()).items()}
    origin = root.manifest.origin
    metadata = {
        "weights_checksum": origin["weights_checksum"],
        "geometry": json.dumps(root.geometry.to_json()),
        "fidelity": json.dumps(root.manifest.fidelity),
    }
    write_tensors(path, state, metadata)


def _build_root(home: Home, request: RootRequest, report: Report) -> None:
    target = home.root(request.name)
    checkpoint = target.with_name(f".{target.name}.checkpoint")
    source = locate_pretrained(request.source, home.downloads)
    parts = convert(source, request.num_lower_layers, request.max_tokens)
    checksum = weights_checksum(source)
    if request.distilled is not None:
        fidelity = _load_distilled(parts, request.distilled, checksum)
    else:
        fidelity = _distil(request, source, parts, checkpoint, report)
    origin: dict[str, Any] = {"source": request.source, "weights_checksum": checksum}
    with publishing(target) as folder:
        write_root(folder, request.name, parts.geometry, source / "tokenizer.json", parts.modules(), origin, fidelity)
    checkpoint.unlink(missing_ok=True)


def _distil(request: RootRequest, source: Path, parts: RootParts, checkpoint: Path, report: Report) -> dict[str, float]:
    tokenizer = RootTokenizer(source / "tokenizer.json", request.max_tokens)
    texts = list(itertools.islice(corpus_texts(request.corpus), _MAX_DISTIL_TEXTS))
    distiller = Distiller(load_pretrained(source), parts, tokenizer, request.distil)
    return distiller.run(texts, checkpoint, report)


def _load_distilled(parts: RootParts, path: Path, checksum: str) -> dict[str, float]:
    """Take over what `export_distilled` wrote for the same model, and the fidelity that was measured then."""
    if not path.is_file():
        raise InvalidArgumentError(f"distilled weights {path} do not exist")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        state = load_file(path)
    except Exception as error:  # the library raises its own type for every kind of damage
        raise CorruptFileError(f"{path} is not a readable safetensors file: {error}") from error
    if metadata.get("weights_checksum") != checksum or metadata.get("geometry") != json.dumps(parts.geometry.to_json()):
        raise FingerprintMismatchError(f"{path} was distilled from another pretrained model or with other sizes")
    for name, part in (("lower", parts.lower), ("aggregation", parts.aggregation)):
        own = {key.removeprefix(f"{name}."): t.float() for key, t in state.items() if key.startswith(f"{name}.")}
        part.load_state_dict(own, strict=name != "lower")
    fidelity: dict[str, float] = json.loads(metadata["fidelity"])
    return fidelity
