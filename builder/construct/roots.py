"""`hplm root add`: a pretrained model becomes a root, with a table of general fragments under it."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import asdict, dataclass, field
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
from backends.storage import file_checksum, json_checksum, publishing, write_tensors
from builder.construct.checkpoint import Checkpoint
from builder.construct.corpus import corpus_checksums, corpus_texts
from builder.construct.distil import Distiller, DistilSettings
from builder.construct.domains import build_domain
from builder.construct.plots import PlotSettings
from builder.construct.pretrained import RootParts, convert, load_pretrained, locate_pretrained, weights_checksum
from builder.locks import exclusive
from builder.progress import Report

LOGGER = logging.getLogger(__name__)
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
    """Convert, distil and write a root; build its general table; register both. Resumes what was interrupted."""
    check_name(request.name, "root")
    target = home.root(request.name)
    with exclusive(target, f"root {request.name!r}"):
        if registry.has_root(request.name):
            raise ConflictError(f"root {request.name!r} exists already")
        _build_root(home, request, report)
        root = RootFolder(target)
        table = build_domain(home, root, GENERAL_DOMAIN, None, request.corpus, request.plot, report)
        return registry.publish_root(
            request.name,
            root.fingerprint,
            home.relative(target),
            GENERAL_DOMAIN,
            home.relative(table.folder),
            table.metrics,
        )


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
    """Write the root's folder; one that an interrupted run has written from the same inputs is taken as it is."""
    target = home.root(request.name)
    source = locate_pretrained(request.source, home.downloads)
    parts = convert(source, request.num_lower_layers, request.max_tokens)
    checksum = weights_checksum(source)
    checkpoint = Checkpoint(
        target.with_name(f".{target.name}.checkpoint"), _inputs_checksum(request, source, parts, checksum)
    )
    if target.exists():
        if _stored_inputs(target) == checkpoint.inputs:
            return
        LOGGER.warning("%s was built from other inputs and is not registered; building it again", target)
    if request.distilled is not None:
        fidelity = _load_distilled(parts, request.distilled, checksum)
    else:
        fidelity = _distil(request, source, parts, checkpoint, report)
    origin = {"source": request.source, "weights_checksum": checksum, "inputs": checkpoint.inputs}
    with publishing(target) as folder:
        write_root(folder, request.name, parts.geometry, source / "tokenizer.json", parts.modules(), origin, fidelity)
    checkpoint.remove()


def _inputs_checksum(request: RootRequest, source: Path, parts: RootParts, weights: str) -> str:
    """Names all that a root's folder depends on."""
    inputs: dict[str, Any] = {
        "weights": weights,
        "tokenizer": file_checksum(source / "tokenizer.json"),
        "geometry": parts.geometry.to_json(),
        "corpus": corpus_checksums(request.corpus),
    }
    if request.distilled is not None:
        inputs["distilled"] = file_checksum(_require_distilled(request.distilled))
    else:
        inputs["distil"] = asdict(request.distil)
    return json_checksum(inputs)


def _stored_inputs(folder: Path) -> str | None:
    try:
        inputs: str | None = RootFolder(folder).manifest.origin.get("inputs")
    except CorruptFileError:
        return None
    return inputs


def _distil(
    request: RootRequest, source: Path, parts: RootParts, checkpoint: Checkpoint, report: Report
) -> dict[str, float]:
    tokenizer = RootTokenizer(source / "tokenizer.json", request.max_tokens)
    texts = list(itertools.islice(corpus_texts(request.corpus), _MAX_DISTIL_TEXTS))
    distiller = Distiller(load_pretrained(source), parts, tokenizer, request.distil)
    return distiller.run(texts, checkpoint, report)


def _require_distilled(path: Path) -> Path:
    if not path.is_file():
        raise InvalidArgumentError(f"distilled weights {path} do not exist")
    return path


def _load_distilled(parts: RootParts, path: Path, checksum: str) -> dict[str, float]:
    """Take over what `export_distilled` wrote for the same model, and the fidelity that was measured then."""
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
