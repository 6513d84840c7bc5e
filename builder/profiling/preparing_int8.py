"""Preparing roots for int8: smoothing from the states of some texts, and what int8 changes of their answers.

Usage:
    with progress_bars("int8") as report:
        fidelity = quantise_root(home, registry, "mini", corpus=[], report=report)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact, read_artifact
from backends.adapters.head import Head
from backends.adapters.pooling import NO_POOLING
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import FileError, FormatVersionError, InvalidArgumentError
from backends.home import Home
from backends.lower.fragments import rounding_of
from backends.lower.settings import LowerDtype
from backends.registry.entries import DomainEntry, HplmEntry
from backends.registry.registry import Registry
from backends.root.encoder import padded_attention
from backends.root.int8_file import (
    Int8Fidelity,
    Quantisation,
    Smoothing,
    read_fidelity,
    read_smoothing,
    version_label,
)
from backends.root.int8_instructions import int8_instructions
from backends.root.smoothing import smoothing_by
from backends.root.store import RootFolder
from backends.root.tokenizer import Text
from backends.storage import json_checksum
from builder.construct.hplm.exact_lower import ComputedFragments, exact_lower
from builder.construct.training.corpus import whole_corpus
from builder.progress import Report, Step, ignore
from builder.requests.domains import GENERAL_DOMAIN

_DTYPES: tuple[Literal["int8", "fp32"], ...] = ("int8", "fp32")
"""What is compared, in upper and lower layers; pairs of encoded texts are in this order."""
MIN_TEXTS = 16
"""With eight texts smoothing gains what it gains with hundreds."""
ItemT = TypeVar("ItemT")
_METHOD = 4
"""Counts up when roots are measured in another way, so that each is measured again."""
_MAX_TEXTS = 96
_MAX_READ = 64 * _MAX_TEXTS
"""Of which the different ones are found; a corpus may repeat a line again and again."""
_MAX_HPLMS = 32
_LOGGER = logging.getLogger(__name__)
_ROWS_AT_ONCE = 16


def quantise_root(
    home: Home, registry: Registry, name: str, corpus: Sequence[Path], report: Report = ignore
) -> Int8Fidelity:
    """Make a root's smoothing and compare its answers in int8 and in fp32; both are stored beside it.

    What is stored stays, if it is of the same texts and conditions.

    Args:
        home: Home of the root.
        registry: Live hPLMs; labels of `_MAX_HPLMS` of the root's are compared, evenly spread over their names.
        name: The root.
        corpus: Files of texts; by default those that the root was made from.
        report: Gets the progress.

    Raises:
        InvalidArgumentError: There are too few texts.
        FileError: A file of the root or of its general domain is damaged, or what is stored is of a newer format.
    """
    root, conditions = RootFolder(home.root(name)), Conditions.of(registry, name)
    texts = _texts(root, corpus, report)
    inputs = json_checksum({"conditions": conditions.checksum, "texts": texts})
    if (stored := _stored(root, inputs)) is not None:
        return stored
    in_turn = _counted(_DTYPES, f"{name}: encode texts", report)
    encoded = [_encoded(home, conditions.general, texts, dtype) for dtype in in_turn]
    smoothing = smoothing_of_states(root, _counted(encoded[0].rows, f"{name}: find the smoothing", report))
    fidelity = _fidelity(home, root, smoothing, conditions.compared, texts, encoded, report)
    fidelity = replace(fidelity, conditions=conditions.checksum, inputs=inputs)
    Quantisation(root.fingerprint, smoothing, fidelity).write(root.path)
    return fidelity


def measured_before(home: Home, registry: Registry, name: str) -> Int8Fidelity | None:
    """Read what was measured of a root as it is now, of whatever texts; None if nothing was.

    Raises:
        FileError: What is stored is damaged, of another root, or of a newer format.
    """
    root = RootFolder(home.root(name))
    stored = _readable(root)
    return stored if stored is not None and stored.conditions == Conditions.of(registry, name).checksum else None


@dataclass(frozen=True)
class Conditions:
    """What a root's measurement depends on, beside the root and the texts: where they are read, and whose labels."""

    general: DomainEntry
    compared: Sequence[HplmEntry]

    @classmethod
    def of(cls, registry: Registry, name: str) -> Conditions:
        # Numbers have no labels.
        labelled = [entry for entry in registry.hplms() if entry.domain.root == name and entry.task != "regression"]
        return cls(registry.domain(name, GENERAL_DOMAIN), _spread(labelled, _MAX_HPLMS))

    @property
    def checksum(self) -> str:
        versions = [[entry.key, entry.domain.label] for entry in self.compared]
        content = {"method": _METHOD, "rounding": rounding_of("int8"), "domain": self.general.label}
        return json_checksum({**content, "hplms": versions})


def _stored(root: RootFolder, inputs: str) -> Int8Fidelity | None:
    """Read what was measured of the same inputs, if it was and every file could be read."""
    try:
        stored = _readable(root)
    except FormatVersionError:
        raise
    except FileError:
        return None
    return stored if stored is not None and not stored.unreadable and stored.inputs == inputs else None


def _readable(root: RootFolder) -> Int8Fidelity | None:
    """Read what is stored of a root, and the smoothing that it was measured with, which servers need."""
    read_smoothing(root.path, root.fingerprint, root.geometry)
    return read_fidelity(root.path, root.fingerprint)


def _counted(items: Sequence[ItemT], phase: str, report: Report) -> Iterator[ItemT]:
    """Report how many of the items are done."""
    for done, item in enumerate(items):
        report(Step(phase, done, len(items)))
        yield item
        report(Step(phase, done + 1, len(items)))


def _texts(root: RootFolder, corpus: Sequence[Path], report: Report) -> list[str]:
    own = [Path(path) for path in root.manifest.origin.get("config", {}).get("corpus", [])]
    files = list(corpus) or [path for path in own if path.is_file()]
    if not files:
        raise InvalidArgumentError(
            f"root {root.manifest.name!r}: the files that it was made from are gone; name others with --int8-corpus"
        )
    in_turn = _counted([files], f"{root.manifest.name}: read texts", report)
    (sampled,) = (whole_corpus(each).sample(_MAX_READ) for each in in_turn)
    texts = _spread(list(dict.fromkeys(sampled)), _MAX_TEXTS)
    if len(texts) < MIN_TEXTS:
        raise InvalidArgumentError(
            f"root {root.manifest.name!r}: int8 is measured on at least {MIN_TEXTS} different texts, not {len(texts)}; "
            "name more with --int8-corpus"
        )
    return texts


@dataclass(frozen=True)
class _Encoded:
    """Texts after the lower layers of a domain.

    Shape:
        rows: `[L, H]` each; first_tokens: `[W]` each, of the text's words; middles: of pairs the first token of the
        second segment.

    Attributes:
        known: The share of fragments that the tables have.
    """

    rows: list[Tensor]
    first_tokens: list[Tensor]
    middles: Sequence[int | None]
    known: float


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Pair texts by turns with the one before and with themselves, as segments may be alike or not."""
    return [(text, text if index % 2 else texts[index - 1]) for index, text in enumerate(texts)]


def _encoded(home: Home, domain: DomainEntry, texts: Sequence[Text], dtype: LowerDtype) -> _Encoded:
    encoded = exact_lower(home, domain, dtype).encode(texts, [True] * len(texts))
    rows = [torch.from_numpy(row.copy()) for row in encoded.rows]
    first_tokens = [torch.from_numpy(words.first_tokens) for words in encoded.words if words is not None]
    return _Encoded(rows, first_tokens, encoded.middles, 1 - encoded.statistics.rates()[ComputedFragments.name])


@torch.inference_mode()
def smoothing_of_states(root: RootFolder, rows: Iterable[Tensor]) -> Smoothing:
    """Find the smoothing of a root's upper layers.

    Shape: rows `[L, H]`.

    Raises:
        CorruptFileError: The states are NaN or infinite.
    """
    upper, num_heads = root.upper(), root.geometry.num_heads

    def run() -> None:
        for row in rows:
            upper(row[None].float(), padded_attention(num_heads, torch.ones(1, len(row), dtype=torch.bool)))

    return smoothing_by(upper.layers, run, str(root.path))


def _spread(items: Sequence[ItemT], most: int) -> list[ItemT]:
    """Return `most` of them, evenly spread, or all if they are fewer."""
    count = min(len(items), most)
    return [items[number * len(items) // count] for number in range(count)]


def _fidelity(
    home: Home,
    root: RootFolder,
    smoothing: Smoothing,
    compared: Sequence[HplmEntry],
    texts: Sequence[str],
    of_root: Sequence[_Encoded],
    report: Report,
) -> Int8Fidelity:
    stacks = tuple(UpperStack(root, StackSettings(dtype=dtype, num_slots=2), smoothing=smoothing) for dtype in _DTYPES)
    in_turn = _counted(list(zip(stacks, of_root, strict=True)), f"{root.manifest.name}: compare states", report)
    states = [_answers(stack, 0, _states_as_answers(root), rows) for stack, rows in in_turn]
    cosines = [functional.cosine_similarity(ours, exact, dim=-1) for ours, exact in zip(*states, strict=True)]
    encoded: dict[tuple[DomainEntry, bool], list[_Encoded]] = {}
    equal: dict[str, EqualLabels] = {}
    unreadable: list[str] = []
    for entry in _counted(compared, f"{root.manifest.name}: compare hPLMs", report):
        name, read = version_label(entry.id, entry.version), (entry.domain, entry.pair)
        try:
            artifact = read_artifact(home.path / entry.folder, root.fingerprint)
            if read not in encoded:
                asked = _pairs(texts) if entry.pair else texts
                encoded[read] = [_encoded(home, entry.domain, asked, dtype) for dtype in _DTYPES]
        except (FileError, OSError) as error:
            unreadable.append(name)
            _LOGGER.warning("%s is not compared: %s", name, error)
            continue
        in_both = zip(stacks, encoded[read], strict=True)
        ours, exact = (_answers(stack, entry.key, artifact, rows) for stack, rows in in_both)
        found = equal_labels(artifact, ours, exact, encoded[read][0].first_tokens)
        if found.num_compared:
            equal[name] = found
    return Int8Fidelity(
        cosine=round(float(torch.cat(cosines).mean()), 5),
        equal_labels={name: found.num_equal / found.num_compared for name, found in equal.items()},
        texts=len(texts),
        instructions=int8_instructions(),
        unreadable=tuple(unreadable),
        known_fragments=round(of_root[0].known, 5),
        num_labels={name: found.num_compared for name, found in equal.items()},
    )


def _states_as_answers(root: RootFolder) -> HplmArtifact:
    """Return an hPLM whose logits are the final states of each token."""
    size = root.geometry.hidden_size
    head = Head(torch.eye(size), torch.zeros(size))
    names = tuple(map(str, range(size)))
    return HplmArtifact("int8/states", root.fingerprint, "ner", names, NO_POOLING, AdapterSet(), head)


def _answers(stack: UpperStack, key: int, artifact: HplmArtifact, encoded: _Encoded) -> list[Tensor]:
    answers: list[Tensor] = []
    hplm = stack.ready(key, lambda: artifact)
    for start in range(0, len(encoded.rows), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        hplms = [hplm] * len(encoded.rows[some])
        answers += stack.run(stack.pack(encoded.rows[some], hplms), hplms, encoded.middles[some])
    stack.release(hplm)
    return answers


class EqualLabels(NamedTuple):
    """How many labels are the same in two answers to the same texts."""

    num_equal: int
    num_compared: int


def equal_labels(
    artifact: HplmArtifact, ours: Sequence[Tensor], exact: Sequence[Tensor], first_tokens: Sequence[Tensor]
) -> EqualLabels:
    """Compare the labels of texts.

    For NER these are the words which are of an entity in either answer, as nearly all others keep their "O" whatever
    happens; there may be none.

    Shape: ours, exact `[C]` each, for NER `[L, C]`; first_tokens `[W]` each.
    """
    words = first_tokens if artifact.task == "ner" else None
    labels, others = (_labels(answers, words) for answers in (ours, exact))
    if words is not None:
        of_entity = torch.tensor([label.startswith(("B-", "I-")) for label in artifact.labels])
        counted = of_entity[labels] | of_entity[others]
        labels, others = labels[counted], others[counted]
    return EqualLabels(int((labels == others).sum()), len(labels))


def _labels(answers: Sequence[Tensor], words: Sequence[Tensor] | None) -> Tensor:
    """One label of each text, or of each word, by its first token."""
    if words is not None:
        answers = [logits[tokens.long()] for logits, tokens in zip(answers, words, strict=True)]
    return torch.cat([logits.argmax(dim=-1).flatten() for logits in answers])
