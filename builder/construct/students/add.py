"""`hplm students add`: an hPLM learns to answer by its root's students, and all its layers teach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.adapters.bank import read_artifact
from backends.adapters.pooling import PAIR_POOLING
from backends.adapters.student_adapters import StudentAdapters, StudentStep, write_student_adapters
from backends.errors import ConflictError, InvalidArgumentError, TrainingDataError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet, read_students
from backends.storage import file_checksum, json_checksum
from builder.construct.hplm import trainable
from builder.construct.hplm.build import leaks_shown
from builder.construct.hplm.dedicated_teacher import TEACHER_DATA_FORMAT, taught_examples
from builder.construct.hplm.hplms import building_hplm, publish_linked, require_same_kind, with_live_leaks
from builder.construct.hplm.rewriting import FOR_OWN_ANSWERS
from builder.construct.hplm.state_rows import as_float16, stored_rows
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.teacher_data import TeacherData, TeacherStates
from builder.construct.hplm.tunable import EncodedSet, Tuned
from builder.construct.hplm.tune import Upper
from builder.construct.students.tunable import StudentLayers, TunedStudents
from builder.construct.students.tune import StudentTask, answers_of, best_count, tune_students
from builder.construct.students.unchanged import students_unchanged
from builder.construct.tasks.calibration import fit_temperature, labels_of
from builder.construct.tasks.dataset import REGRESSION, TaskData, TaskFiles, read_task
from builder.construct.tasks.examples import Example
from builder.construct.tasks.objective import NO_SCALE, Objective
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import STUDENTS_CHOSEN_BY, TrainedTexts
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import training_device
from builder.progress import Report, Step
from builder.requests.students import AddStudents
from builder.settings.hplm import TuneSettings

_DIGITS = 4


def add_students(home: Home, registry: Registry, request: AddStudents, report: Report) -> HplmEntry:
    """Tune what the live version of an hPLM lacks to be answered by students, and publish it as the next version.

    The next version has the live one's weights; a killed tuning goes on at its last epoch.

    Raises:
        InvalidArgumentError: The root has no students.
        TrainingDataError: The files do not fit the hPLM.
    """
    with building_hplm(home, request.id) as hold:
        live = registry.hplm(request.id)
        hold.will_read(live.domain.folders)
        adding = _Adding(home, live, request, report)
        tuned = adding.tuned()
        students, figures = adding.measured(tuned)
        trained = TrainedTexts.read(home.path / live.folder).joined(TrainedTexts.of(adding.examples))

        def write(folder: Path) -> None:
            write_student_adapters(folder, students)
            trained.write(folder)
            adding.chosen_by.write(folder, STUDENTS_CHOSEN_BY)

        with students_unchanged(home.root(live.domain.root)):
            adding.require_same_students()
            entry = publish_linked(home, registry, live, write, {"students": figures})
        adding.checkpoint.remove()
        return entry


class _Adding:
    """The students of one version in the making."""

    def __init__(self, home: Home, live: HplmEntry, request: AddStudents, report: Report) -> None:
        self._home, self._live, self._report = home, live, report
        self._root = RootFolder(home.root(live.domain.root))
        device = training_device(request.device)
        with students_unchanged(self._root.path):
            self._set = required_students(self._root)
            self._students = StudentLayers.of(self._set, device)
        self._settings = _settings(request.tune)
        self._artifact = read_artifact(home.path / live.folder, self._root.fingerprint)
        files = TaskFiles(request.train, request.dev)
        data = with_live_leaks(read_task(files, live.task), TrainedTexts.read(home.path / live.folder))
        if note := leaks_shown(data):
            report(Step("read the examples", 1, 1, note))
        require_same_kind(live, data, files)
        self._data = _with_labels_of(live, data, request.train)
        self._objective: Objective[Any] = objective_of(self._data)
        self.examples, self._num_unlabelled = taught_examples(
            self._root, self._data, request.unlabelled, FOR_OWN_ANSWERS
        )
        self._upper = Upper(self._root.upper().to(device), self._root.geometry)
        target = home.bank(live.domain.root, live.id, live.version)
        self.checkpoint = Checkpoint(target.with_name(f".{target.name}.students"), json_checksum(self._inputs(request)))

    @property
    def chosen_by(self) -> TrainedTexts:
        return TrainedTexts.of(self._data.dev)

    def tuned(self) -> TunedStudents:
        train, dev = self._encoded(self.examples, "train"), self._encoded(self._data.dev, "dev")
        self._task = StudentTask(
            self._students,
            self._objective,
            self._hplm,
            train,
            self._taught(train),
            dev,
        )
        return tune_students(self._task, self._settings, self._report, self.checkpoint)

    def require_same_students(self) -> None:
        """Check that the root still has the students that were read."""
        if required_students(self._root).fingerprint != self._set.fingerprint:
            raise ConflictError(
                f"the students of root {self._live.domain.root!r} were replaced meanwhile; nothing was published, and "
                "the same command begins anew with the new ones"
            )

    def measured(self, tuned: TunedStudents) -> tuple[StudentAdapters, dict[str, Any]]:
        """Measure every number of students on the dev texts, beside all layers."""
        objective, dev = self._objective, self._task.dev
        each = answers_of(self._task, tuned, dev)
        scores = [self._score(answers) for answers in each]
        steps = [
            StudentStep(1.0 if self._live.task == REGRESSION else _temperature(objective, answers, dev), score)
            for answers, score in zip(each, scores, strict=True)
        ]
        best = best_count(scores)
        full = trainable.predict(self._full_model(), objective, dev, self._upper.device)
        figures = {
            "best": best,
            "metric": objective.main_metric,
            "dev_full": self._score(full),
            **{f"dev_{count}": score for count, score in enumerate(scores, start=1)},
            "set": self._set.fingerprint,
            "depth": self._set.depth,
            "texts": len(self.examples),
            "unlabelled_texts": self._num_unlabelled,
            **{name: count for name, count in self._data.leaks.items() if count},
        }
        origin = {"tune": asdict(self._settings), "epoch": tuned.epoch}
        students = StudentAdapters(self._set.fingerprint, tuned.adapters, tuned.heads, tuple(steps), best, origin)
        return students, figures

    def _taught(self, train: EncodedSet) -> TeacherData:
        """Return the hPLM's own answers, and what its head reads; of pairs, whose states are not learnt, only those.

        What the head reads is kept for a day, for another try and for other students.
        """
        rows = stored_rows(self._reading, lambda: ((as_float16(each), None, None) for each in self._read(train)))
        states = TeacherStates(self._artifact.head.to(torch.float32), rows, self._artifact.pooling)
        is_learnt = self._artifact.pooling != PAIR_POOLING
        return TeacherData(self.examples, states.answers(*NO_SCALE), states if is_learnt else None)

    @property
    def _reading(self) -> Path:
        """The folder of what the hPLM's head reads of these examples."""
        of_device = {"device": self._upper.device.type, "format": TEACHER_DATA_FORMAT}
        named = {**self._teaching, **of_device, "examples": repr(self.examples)}
        return self._home.states / f".reading-{json_checksum(named)}"

    def _read(self, train: EncodedSet) -> Sequence[Tensor]:
        total = len(train.targets)

        def answered(done: int, _: int) -> None:
            self._report(Step("answer with all layers", done, total))

        return trainable.read(self._full_model(), self._objective, train, self._upper.device, answered)

    def _full_model(self) -> trainable.TrainableModel:
        return self._upper.model(self._hplm)

    @property
    def _hplm(self) -> Tuned:
        artifact = self._artifact
        return Tuned(artifact.adapters, artifact.head, artifact.pooling, {}, 0)

    def _encoded(self, examples: Sequence[Example], what: str) -> EncodedSet:
        return encoded_set(self._home, self._live.domain, self._objective, examples, what, self._report)

    def _score(self, answers: Sequence[Tensor]) -> float:
        objective = self._objective
        return round(objective.metrics(answers, self._task.dev.targets)[objective.main_metric], _DIGITS)

    @property
    def _teaching(self) -> dict[str, Any]:
        """Name the hPLM that teaches, and the tables it reads."""
        return {
            "live": file_checksum(self._home.path / self._live.folder / "manifest.json"),
            "tables": [file_checksum(self._home.path / each / "header.json") for each in self._live.domain.folders],
        }

    def _inputs(self, request: AddStudents) -> dict[str, Any]:
        """Return all that the tuning depends on."""
        files = [request.train, request.dev, *([request.unlabelled] if request.unlabelled else [])]
        return {
            "set": self._set.fingerprint,
            "depth": self._set.depth,
            **self._teaching,
            "files": [file_checksum(path) for path in files],
            "rewriting": asdict(FOR_OWN_ANSWERS),
            "settings": asdict(self._settings),
        }


def required_students(root: RootFolder) -> StudentSet:
    """Read a root's students.

    Raises:
        FileError: They are damaged, of another root, or of a newer format.
        InvalidArgumentError: There are none.
    """
    students = read_students(root)
    if students is None:
        name = root.manifest.name
        raise InvalidArgumentError(f"root {name!r} has no students yet; 'hplm students make {name}' makes some")
    return students


def _settings(changes: dict[str, Any]) -> TuneSettings:
    settings = TuneSettings.defaults(is_taught=True).changed(changes)
    if settings.recipe.entrance_width:
        raise InvalidArgumentError("students have no entrance: all of them read the same hidden rows")
    if settings.distil_weight < 1:
        raise InvalidArgumentError(
            f"students learn from answers only, so distil_weight is 1, not {settings.distil_weight}"
        )
    return settings


def _with_labels_of(live: HplmEntry, data: TaskData, file: Path) -> TaskData:
    """Return the data with the hPLM's labels, all of which the files need not have."""
    if unknown := [label for label in data.labels if label not in live.labels]:
        raise TrainingDataError(f"{file} has label {unknown[0]!r}, which hPLM {live.id!r} does not know")
    return TaskData(data.task, live.labels, data.train, data.dev, data.test, data.leaks)


def _temperature(objective: Objective[Any], answers: Sequence[Tensor], dev: EncodedSet) -> float:
    """Fit the temperature by the labels of the dev texts."""
    labels = torch.cat([labels_of(target, objective.num_outputs) for target in dev.targets])
    logits, known = torch.cat(list(answers)), labels >= 0
    return fit_temperature(logits[known], labels[known])
