"""`hplm students make`: short stacks that answer in place of the upper layers of a root."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.errors import ConflictError, FileError, InvalidArgumentError, TrainingDataError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, read_students, students_folder, write_students
from backends.root.tokenizer import Text
from backends.storage import json_checksum, publishing
from builder.construct.hplm.state_rows import StateRows
from builder.construct.hplm.states import StateCache
from builder.construct.root.augment import Pairing
from builder.construct.students.distil import (
    FITTED_TEXTS,
    Distilled,
    StudentDistiller,
    checkpoint_path,
    checkpoint_paths,
)
from builder.construct.students.hidden_texts import HiddenTexts
from builder.construct.students.learning import LearningStudents
from builder.construct.students.unchanged import students_unchanged
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.corpus import corpus_checksums, split_corpus
from builder.construct.training.device import training_device
from builder.locks import exclusive
from builder.progress import Report
from builder.requests.domains import GENERAL_DOMAIN
from builder.requests.students import MakeStudents

MIN_TEXTS = 200
INPUTS = "inputs"
"""The part of a set's origin that names all it depends on."""


def make_students(home: Home, registry: Registry, request: MakeStudents, report: Report) -> StudentSet:
    """Make and publish a root's students; an interrupted run goes on at its last checkpoint.

    Students that the same request made before are returned as they are, if they are whole. Servers that run meanwhile
    keep the students that they have read.

    Raises:
        ConflictError: The root has students already, and none are to be replaced.
        InvalidArgumentError: The students would save nothing, or the corpus is too small.
        TrainingDataError: The corpus is not there, or no text.
    """
    name = registry.root(request.root_name).name
    target = home.root(name)
    with exclusive(home, target, f"root {name!r}") as hold:
        domain = registry.domain(name, GENERAL_DOMAIN)
        hold.will_read(domain.folders)
        root = RootFolder(target)
        making = _Making(home, registry, root, request, corpus_of(root, request.corpus), report)
        if (known := making.made_before()) is not None:
            return known
        if students_folder(target).exists() and not request.replace:
            raise ConflictError(
                f"root {name!r} has students already; --replace makes others, and hPLMs are answered without "
                "students then until 'hplm students add' adapts them again"
            )
        distilled, students = making.run()
        shape, weights = students.kept(distilled.count)
        fidelity = [each.to_json() for each in distilled.fidelity]
        with students_unchanged(target), publishing(students_folder(target)) as folder:
            write_students(folder, root, shape, weights, fidelity, making.origin(distilled))
        for path in checkpoint_paths(target):
            path.unlink(missing_ok=True)
        return StudentSet(students_folder(target), root)


def corpus_of(root: RootFolder, files: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files to learn from; by default those that the root was made from."""
    if files:
        return tuple(files)
    recipe = root.manifest.origin.get("config", {})
    known = tuple(Path(path) for path in recipe.get("corpus", ()))
    if not known or not all(path.is_file() for path in known):
        raise TrainingDataError(
            f"the corpus that root {root.manifest.name!r} was made from is not there any more; --corpus names texts"
        )
    return known


@dataclass(frozen=True)
class _Making:
    """The distillation of one set."""

    home: Home
    registry: Registry
    root: RootFolder
    request: MakeStudents
    corpus: tuple[Path, ...]
    report: Report

    def run(self) -> tuple[Distilled, LearningStudents]:
        settings, geometry = self.request.settings, self.root.geometry
        shape = settings.shape(geometry)
        most = settings.max_texts if shape.learns(geometry.hidden_size) else min(FITTED_TEXTS, settings.max_texts)
        learnt, held_out = self._texts(most)
        device = training_device(self.request.device)
        texts, measured = (
            HiddenTexts(self._rows(some, what), device) for some, what in ((learnt, "corpus"), (held_out, "held-out"))
        )
        students = LearningStudents(self.root.upper(), geometry, shape).to(device)
        inputs = self._inputs()

        def checkpoint_of(name: str) -> Checkpoint:
            return Checkpoint(checkpoint_path(self.root.path, name), json_checksum({**inputs, "training": name}))

        distiller = StudentDistiller(students, texts, measured, settings, checkpoint_of, self.report)
        return distiller.run(), students

    def origin(self, distilled: Distilled) -> dict[str, Any]:
        return {
            "settings": self.request.settings.to_json(),
            "corpus": [str(path) for path in self.corpus],
            "seconds": round(distilled.seconds),
            INPUTS: json_checksum(self._inputs()),
        }

    def made_before(self) -> StudentSet | None:
        """Read the root's students, if they are whole and were made from the same inputs."""
        try:
            found = read_students(self.root)
            if found is None or found.origin.get(INPUTS) != json_checksum(self._inputs()):
                return None
            found.verify()
        except FileError:
            return None
        return found

    def _texts(self, most: int) -> tuple[list[Text], list[Text]]:
        """Return the texts to learn from, and those held out, some of both made into pairs."""
        settings = self.request.settings
        corpus = split_corpus(self.corpus, None)
        if corpus.num_texts + len(corpus.held_out) < MIN_TEXTS:
            raise InvalidArgumentError(
                f"the corpus has {corpus.num_texts + len(corpus.held_out)} texts; students need at least {MIN_TEXTS}"
            )
        learnt = corpus.sample(most)
        if not learnt:
            raise InvalidArgumentError(
                "the corpus repeats itself: no text is left besides those held out to measure with"
            )
        pairing = Pairing(settings.pair_share, settings.seed)
        return pairing.apply(learnt, 0), pairing.apply(list(corpus.held_out), 1)

    def _rows(self, texts: Sequence[Text], what: str) -> StateRows:
        domain = self.registry.domain(self.root.manifest.name, GENERAL_DOMAIN)
        return StateCache(self.home, domain).rows(texts, False, what, self.report)

    def _inputs(self) -> dict[str, Any]:
        """Return all that the trainings depend on."""
        return {
            "root": self.root.fingerprint,
            "corpus": corpus_checksums(self.corpus),
            "settings": self.request.settings.to_json(),
        }
