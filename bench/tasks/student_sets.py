"""Student sets of one root, each made once: the chained ones, and others of equal arithmetic to compare them with.

- chained: as `hplm students make` makes them, each reads what the one before computed; together they are the first
  upper layers, as they are;
- exits: one student in place of all of a chain;
- deep: one student that began as the last upper layers, and learned to say what all upper layers say;
- boosted: students in parallel, each of which learned to say what those before it do not; unstacked: the same, but no
  middle layer learned to say what earlier ones say;
- bagged: students in parallel, each of which learned by itself to say what the upper layers say.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType

import torch

from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, StudentWeights, students_folder, write_students
from backends.root.student_shape import PARALLEL, StudentShape
from backends.root.tokenizer import Text
from backends.storage import json_checksum, publishing
from builder.construct.hplm.states import StateCache
from builder.construct.students.hidden_texts import HiddenTexts
from builder.construct.students.learning import Fidelity, LearningStudents
from builder.construct.students.make import corpus_of, make_students
from builder.construct.training.corpus import Corpus, split_corpus
from builder.progress import progress_lines
from builder.requests.domains import GENERAL_DOMAIN
from builder.requests.students import MakeStudents
from builder.settings.students import StudentSettings

CHAINED, EXITS, DEEP, BOOSTED, UNSTACKED, BAGGED = "chained", "exits", "deep", "boosted", "unstacked", "bagged"
LINE_EVERY_S = 30.0
_CPU = torch.device("cpu")


class Sets:
    """Student sets of one root, each made once and kept in a folder."""

    def __init__(self, home: Home, root: RootFolder, corpus: Sequence[Path], settings: StudentSettings, kept: Path):
        shape = settings.shape(root.geometry)
        # A given number, so that none is dropped because it brings little.
        self.settings = replace(settings, count=shape.count, layers=shape.layers)
        self._home, self._root, self._corpus, self._kept = home, root, tuple(corpus), kept

    @property
    def shape(self) -> StudentShape:
        return self.settings.shape(self._root.geometry)

    @property
    def _parallel(self) -> StudentSettings:
        return replace(self.settings, wiring=PARALLEL)

    def installed(self, kind: str) -> StudentSet:
        """Put a set in the root's place for students."""
        kept = self._kept_set(kind)
        with publishing(students_folder(self._root.path)) as folder:
            shutil.copytree(kept.path, folder, dirs_exist_ok=True)
        return StudentSet(students_folder(self._root.path), self._root)

    def fingerprint(self, kind: str) -> str:
        return self._kept_set(kind).fingerprint

    def depth(self, kind: str) -> float:
        """Return what one student of a set costs, as a share of the upper layers."""
        return self._kept_set(kind).depth

    def _kept_set(self, kind: str) -> StudentSet:
        inputs = {
            "root": self._root.fingerprint,
            "settings": asdict(self.settings),
            "corpus": list(map(str, self._corpus)),
        }
        path = self._kept / f"{kind}-{json_checksum(inputs)[:12]}"
        if not path.exists():
            with publishing(path) as folder:
                _KINDS[kind](self, folder)
        return StudentSet(path, self._root)

    def chained(self, folder: Path) -> None:
        shutil.copytree(self._made(self.settings).path, folder, dirs_exist_ok=True)

    def exits(self, folder: Path) -> None:
        shutil.copytree(self._made(self._one(self.settings)).path, folder, dirs_exist_ok=True)

    def deep(self, folder: Path) -> None:
        """One student with the layers, and the steps, of all."""
        deep = replace(self._one(self._parallel), steps=self.shape.count * self.settings.steps)
        shutil.copytree(self._made(deep).path, folder, dirs_exist_ok=True)

    def boosted(self, folder: Path) -> None:
        shutil.copytree(self._made(self._parallel).path, folder, dirs_exist_ok=True)

    def unstacked(self, folder: Path) -> None:
        made = self._made(replace(self._parallel, stacking_weight=0.0))
        shutil.copytree(made.path, folder, dirs_exist_ok=True)

    def bagged(self, folder: Path) -> None:
        """Students that each learned alone, from texts in an order of its own; together they say their mean."""
        shape = replace(self.shape, wiring=PARALLEL)
        made = StudentWeights.untrained(shape, self._root.geometry)
        for student in range(shape.count):
            alone = self._made(replace(self._parallel, count=1, seed=self.settings.seed + student))
            for index, source in zip(shape.span(student), alone.layers().layers, strict=True):
                made.layers.layers[index].load_state_dict(source.state_dict())
            if len(inputs := alone.inputs()):
                made.inputs[student].load_state_dict(inputs[0].state_dict())
            says = {name: tensor / shape.count for name, tensor in alone.maps()[0].state_dict().items()}
            made.maps[student].load_state_dict(says)
        write_students(folder, self._root, shape, made)

    def _one(self, settings: StudentSettings) -> StudentSettings:
        return replace(settings, count=1, layers=self.shape.count * self.shape.layers)

    def corpus(self) -> Corpus:
        """What students learn from; its held-out texts are those that `hplm students make` measures with."""
        return split_corpus(corpus_of(self._root, self._corpus), None)

    def hidden_texts(self, texts: Sequence[Text], what: str) -> HiddenTexts:
        domain = Registry.open(self._home).domain(self._root.manifest.name, GENERAL_DOMAIN)
        report = progress_lines(f"{what} texts", LINE_EVERY_S)
        return HiddenTexts(StateCache(self._home, domain).rows(texts, False, what, report), _CPU)

    def fidelity(self, kind: str, texts: HiddenTexts) -> list[Fidelity]:
        """Measure the first student of a set, the first two, and so on, against the upper layers."""
        kept = self._kept_set(kind)
        measured = LearningStudents(self._root.upper(), self._root.geometry, kept.shape)
        for own, stored in (
            (measured.layers, kept.layers()),
            (measured.maps, kept.maps()),
            (measured.inputs, kept.inputs()),
        ):
            own.load_state_dict(stored.state_dict())
        return measured.fidelity(texts, kept.shape.count)

    def _made(self, settings: StudentSettings) -> StudentSet:
        request = MakeStudents(root=self._root.manifest.name, corpus=[*self._corpus], settings=settings, replace=True)
        report = progress_lines(f"{settings.count} students of {settings.layers} layers", LINE_EVERY_S)
        return make_students(self._home, Registry.open(self._home), request, report)


_KINDS: Mapping[str, Callable[[Sets, Path], None]] = MappingProxyType(
    {
        CHAINED: Sets.chained,
        EXITS: Sets.exits,
        DEEP: Sets.deep,
        BOOSTED: Sets.boosted,
        UNSTACKED: Sets.unstacked,
        BAGGED: Sets.bagged,
    }
)
