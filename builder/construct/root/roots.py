"""`hplm root add`: a pretrained model becomes a root, with a table of general fragments under it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from backends.errors import CorruptFileError, InvalidArgumentError
from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder, write_root
from backends.root.tokenizer import RootTokenizer
from backends.storage import file_checksum, json_checksum, publishing, read_json, write_json
from builder.construct.domain.build import VersionPlan, build_version
from builder.construct.root.augment import Shortening
from builder.construct.root.config import config_of
from builder.construct.root.conversion import RootParts, convert
from builder.construct.root.distil import Distiller
from builder.construct.root.distilled import (
    DistilledWeights,
    fitting_weights,
    num_sinks,
    require_distilled,
)
from builder.construct.root.fidelity import FidelityProbe, FidelityReport, held_out_report, sample_texts, spread
from builder.construct.root.model_folder import weights_checksum
from builder.construct.root.pretrained import tokenizer_file
from builder.construct.root.source import locate_pretrained, locate_weights
from builder.construct.root.student import NUM_SINKS, Student, start_fragments
from builder.construct.root.teacher import Teacher
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.corpus import corpus_checksums, corpus_texts, split_corpus
from builder.construct.training.device import CPU, training_device
from builder.executors.mapping import ParallelMap, map_here
from builder.locks import exclusive
from builder.progress import Report, Step
from builder.requests.domains import GENERAL_DOMAIN
from builder.requests.roots import AddRoot
from builder.settings.root import TRAINED_PARTS, DistilSettings

LOGGER = logging.getLogger(__name__)
MIN_TEXTS = 200
_MAX_DISTIL_TEXTS = 400_000
_WATCHED_TEXTS = 64


def add_root(
    home: Home, registry: Registry, request: AddRoot, report: Report, fan_out: ParallelMap = map_here
) -> DomainEntry:
    """Convert, distil and write a root; build its general table; register both. Resumes what was interrupted."""
    target = home.root(request.name)
    with exclusive(home, target, f"root {request.name!r}") as hold:
        hold.will_read(())
        registry.require_new_root(request.name)
        _build_root(home, request, report)
        root = RootFolder(target)
        plan = VersionPlan(GENERAL_DOMAIN, 1, tuple(request.corpus), request.plot)
        table = build_version(home, root, plan, report, fan_out)
        return registry.publish_root(
            request.name,
            root.fingerprint,
            home.relative(target),
            GENERAL_DOMAIN,
            home.relative(table.folder),
            table.metrics,
        )


def check_root(home: Home, name: str, files: Sequence[Path], source: str | None = None) -> dict[str, FidelityReport]:
    """Measure a root's fidelity to its model on each of the files; `source` says where the model lies now."""
    root = RootFolder(home.root(name))
    folder = locate_weights(root.manifest, home.downloads, source)
    geometry = root.geometry
    teacher = Teacher(folder, convert(folder, geometry.num_lower_layers, geometry.max_tokens, geometry.n))
    parts = RootParts(geometry, root.lower(), root.aggregation(), root.upper())
    shortening = Shortening.of(DistilSettings(), geometry.n)
    probe = FidelityProbe(teacher, Student(parts, root.tokenizer()), shortening)
    return {str(path): probe.report(sample_texts(path)) for path in files}


def _build_root(home: Home, request: AddRoot, report: Report) -> None:
    """Write the root's folder; one that an interrupted run has written from the same inputs is kept."""
    target = home.root(request.name)
    source = locate_pretrained(request.source, home.downloads)
    parts = convert(source, request.lower, request.max_tokens, request.n, _num_sinks(request))
    tokenizer = tokenizer_file(source, home.downloads)
    build = _RootBuild(request, source, tokenizer, parts, weights_checksum(source), training_device(request.device))
    checkpoint = Checkpoint(target.with_name(f".{target.name}.checkpoint"), build.inputs())
    if target.exists():
        if _stored_inputs(target) == checkpoint.inputs:
            _note_request(target, request)
            return
        LOGGER.warning("%s was built from other inputs and is not registered; building it again", target)
    origin, fidelity = build.run(checkpoint, report)
    with publishing(target) as folder:
        modules = parts.modules()
        write_root(folder, request.name, parts.geometry, build.tokenizer_json, modules, origin, fidelity)
    checkpoint.remove()


def _num_sinks(request: AddRoot) -> int:
    if request.distilled is not None:
        return num_sinks(request.distilled)
    return NUM_SINKS if request.sinks else 0


def _stored_inputs(folder: Path) -> str | None:
    try:
        inputs: str | None = RootFolder(folder).manifest.origin.get("inputs")
    except CorruptFileError:
        return None
    return inputs


def _note_request(folder: Path, request: AddRoot) -> None:
    """Let the manifest name this recipe: the same weights, but maybe another table or files elsewhere."""
    content = read_json(folder / "manifest.json")
    content["origin"] |= {"source": request.source, "config": config_of(request)}
    write_json(folder / "manifest.json", content)


@dataclass(frozen=True)
class _RootBuild:
    """The making of one root's weights: `parts` are the model's own at first, and the root's in the end."""

    request: AddRoot
    source: Path
    tokenizer_json: Path
    parts: RootParts
    weights: str
    device: torch.device

    def inputs(self) -> str:
        """Names all that a root's folder depends on."""
        request = self.request
        inputs: dict[str, Any] = {
            "weights": self.weights,
            "tokenizer": file_checksum(self.tokenizer_json),
            "geometry": self.parts.geometry.to_json(),
            "corpus": corpus_checksums(request.corpus),
            "held_out": corpus_checksums(request.held_out),
        }
        if request.distilled is not None:
            inputs["distilled"] = file_checksum(require_distilled(request.distilled))
        if request.training is not None:
            inputs["distil"] = asdict(request.training)
        return json_checksum(inputs)

    def run(self, checkpoint: Checkpoint, report: Report) -> tuple[dict[str, Any], FidelityReport]:
        """Train the parts that learn, and measure; returns the manifest's origin and fidelity."""
        request = self.request
        teacher = Teacher(self.source, self.parts)
        start = self._start()
        trained = start.load_into(self.parts) if start else set()
        origin = {
            "source": request.source,
            "weights_checksum": self.weights,
            "inputs": checkpoint.inputs,
            "config": config_of(request),
        }
        distillation: dict[str, Any] = {"seconds_before": start.seconds} if start else {}
        if distillation:
            origin["distillation"] = distillation
        if request.training is None and not request.held_out:
            return {**origin, TRAINED_PARTS: sorted(trained)}, start.fidelity if start else {}
        tokenizer = RootTokenizer(self.tokenizer_json, request.max_tokens, self.parts.geometry.pad_id)
        self.parts.to(self.device)
        teacher.to(self.device)
        student = Student(self.parts, tokenizer)
        shortening = Shortening.of(request.training or DistilSettings(), request.n)
        probe = FidelityProbe(teacher, student, shortening)
        train_texts, held_out = self._texts()
        if request.training is not None:
            if start is None and self.parts.geometry.num_sinks:
                start_fragments(student, teacher, train_texts)
            distiller = Distiller(teacher, student, tokenizer, request.training)
            watched = self._watched(held_out)
            seconds = distiller.run(train_texts, lambda: probe.final_cosine(watched), checkpoint, report)
            trained |= request.training.trained_parts
            origin["distillation"] = {
                "seconds": round(seconds),
                **distillation,
                "texts": len(train_texts),
                **_machine(),
            }
        report(Step("measure the fidelity", 0, 1))
        fidelity = held_out_report(probe, request.held_out, held_out)
        report(Step("measure the fidelity", 1, 1))
        self.parts.to(CPU)
        return {**origin, TRAINED_PARTS: sorted(trained)}, fidelity

    def _start(self) -> DistilledWeights | None:
        """Weights that were distilled before, where the request names some."""
        if self.request.distilled is None:
            return None
        return fitting_weights(self.parts, self.request.distilled, self.weights)

    def _texts(self) -> tuple[list[str], list[str]]:
        """The texts to learn from, and those of the corpus that are held out."""
        corpus = split_corpus(self.request.corpus, None)
        reserved = set(corpus_texts(self.request.held_out))
        texts = [text for text in corpus.sample(_MAX_DISTIL_TEXTS) if text not in reserved]
        if corpus.held_out and not texts:
            raise InvalidArgumentError(
                f"the corpus repeats itself: the {len(corpus.held_out)} different texts held out to measure with, and "
                "those in held-out files, are all that it has, so none is left to learn from"
            )
        in_all = corpus.num_texts + len(corpus.held_out)
        if in_all < MIN_TEXTS:
            raise InvalidArgumentError(f"the corpus has {in_all} texts; distillation needs at least {MIN_TEXTS}")
        return texts, list(corpus.held_out)

    def _watched(self, held_out: Sequence[str]) -> list[str]:
        """The few texts that the progress is measured on."""
        texts = [text for path in self.request.held_out for text in sample_texts(path)]
        return spread(texts or held_out, _WATCHED_TEXTS)


def _machine() -> dict[str, Any]:
    """Name the machine on which a distillation's seconds were measured."""
    described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    names = [line.partition(":")[2].strip() for line in described if line.startswith("model name")]
    return {"cores": len(os.sched_getaffinity(0)), "cpu": names[0] if names else "unknown"}
