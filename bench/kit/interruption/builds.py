"""Builds that are killed and go on, of each kind that a home has."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.student_set import students_folder
from bench.kit.interruption.differences import folder_difference
from bench.kit.tiny_home import write_corpus, write_task


@dataclass(frozen=True)
class Sizes:
    """How much work each build has.

    Attributes:
        student_steps: Of each student's distillation.
    """

    corpus_texts: int
    mlm_steps: int
    head_steps: int
    tuning_texts: int
    epochs: int
    held_out_texts: int
    student_steps: int


class Subject(Protocol):
    """A kind of build; number 0 is the undisturbed one."""

    kind: str

    def command(self, number: int) -> Sequence[str]:
        """The arguments of `hplm`."""

    def prepare(self) -> None:
        """Forget what builds of this kind share, so that each does all of the work."""

    def is_published(self, number: int) -> bool:
        """Whether a kill came too late to interrupt anything."""

    def difference(self, number: int) -> float:
        """How far what was published lies from what number 0 published: 0 where all bytes are equal."""


class DomainBuilds:
    """Domains of one corpus: masked-LM head, lower layers, table."""

    kind = "domain"

    def __init__(self, home: Home, sizes: Sizes, seed: int) -> None:
        self._home = home
        self._sizes = sizes
        self._root = Registry.open(home).roots()[0].name
        self._corpus = write_corpus(home.path / "interrupted.txt", sizes.corpus_texts, seed)

    def command(self, number: int) -> Sequence[str]:
        steps = ("--mlm-steps", str(self._sizes.mlm_steps), "--head-steps", str(self._sizes.head_steps))
        corpus = ("--corpus", str(self._corpus), "--theta", "1")
        return ("domain", "create", self._name(number), "--root", self._root, *corpus, *steps)

    def prepare(self) -> None:
        self._head.unlink(missing_ok=True)

    def is_published(self, number: int) -> bool:
        return self._name(number) in {entry.name for entry in Registry.open(self._home).domains(self._root)}

    def difference(self, number: int) -> float:
        return folder_difference(*(self._home.plot(self._root, self._name(each), 1) for each in (0, number)))

    @property
    def _head(self) -> Path:
        return self._home.path / "roots" / f"{self._root}.mlm_head.safetensors"

    def _name(self, number: int) -> str:
        return f"interrupted{number}"


class Tunings:
    """hPLMs of one task: lower states, epochs, adapters and head."""

    kind = "tuning"

    def __init__(self, home: Home, sizes: Sizes, seed: int) -> None:
        self._home = home
        self._sizes = sizes
        self._domain = Registry.open(home).domains()[0]
        self._train, self._dev = write_task(home.path / "interrupted", "topic", seed, sizes.tuning_texts)

    def command(self, number: int) -> Sequence[str]:
        files = ("--train", str(self._train), "--dev", str(self._dev))
        epochs = ("--epochs", str(self._sizes.epochs), "--patience", str(self._sizes.epochs))
        return ("create", _tuned(number), "--root", self._domain.root, "--domain", self._domain.name, *files, *epochs)

    def prepare(self) -> None:
        shutil.rmtree(self._home.states, ignore_errors=True)

    def is_published(self, number: int) -> bool:
        return Registry.open(self._home).has_hplm(_tuned(number))

    def difference(self, number: int) -> float:
        registry = Registry.open(self._home)
        return _version_difference(self._home, *(registry.hplm(_tuned(each)) for each in (0, number)))


class Selections:
    """Ladders of the first tuned hPLM, each beside the live version: the states of all texts, heads, a version."""

    kind = "selection"

    def __init__(self, home: Home, sizes: Sizes, seed: int) -> None:
        self._home = home
        self._registry = Registry.open(home)
        self._train, _ = write_task(home.path / "learned", "topic", seed + 2, sizes.tuning_texts)
        self._held_out, _ = write_task(home.path / "held_out", "topic", seed + 4, sizes.held_out_texts)
        self._first: HplmEntry | None = None

    def command(self, number: int) -> Sequence[str]:
        files = ("--train", str(self._train), "--held-out", str(self._held_out))
        return ("select", _tuned(0), *files, "--max-drop", "20", "--after", "1")

    def prepare(self) -> None:
        shutil.rmtree(self._home.states, ignore_errors=True)
        self._live = self._registry.hplm(_tuned(0))

    def is_published(self, number: int) -> bool:
        return self._registry.hplm(_tuned(0)).version != self._live.version

    def difference(self, number: int) -> float:
        made = self._registry.hplm(_tuned(0))
        if made.version == self._live.version:
            return float("inf")
        self._first = self._first or made
        return _version_difference(self._home, self._first, made)


class StudentSets:
    """Students of the root, of which there is one set: the texts' states, a distillation each, and the set."""

    kind = "students"

    def __init__(self, home: Home, sizes: Sizes, seed: int) -> None:
        self._home = home
        self._root = Registry.open(home).roots()[0].name
        self._corpus = write_corpus(home.path / "students.txt", sizes.corpus_texts, seed + 6)
        self._steps = sizes.student_steps
        self._first = home.path / "first_students"

    def command(self, number: int) -> Sequence[str]:
        shape = ("--count", "2", "--layers", "1", "--width", "32", "--wiring", "parallel")
        return ("students", "make", self._root, "--corpus", str(self._corpus), *shape, "--steps", str(self._steps))

    def prepare(self) -> None:
        shutil.rmtree(self._made, ignore_errors=True)
        shutil.rmtree(self._home.states, ignore_errors=True)

    def is_published(self, number: int) -> bool:
        return self._made.exists()

    def difference(self, number: int) -> float:
        if number == 0:
            shutil.copytree(self._made, self._first)
        return folder_difference(self._first, self._made)

    @property
    def _made(self) -> Path:
        return students_folder(self._home.root(self._root))


def _tuned(number: int) -> str:
    return f"interrupted/number{number}"


def _version_difference(home: Home, one: HplmEntry, two: HplmEntry) -> float:
    if _measured(one) != _measured(two):
        return float("inf")
    return folder_difference(home.path / one.folder, home.path / two.folder)


def _measured(entry: HplmEntry) -> dict[str, Any]:
    """All but the size, which counts the letters of its name too."""
    return {name: value for name, value in entry.metrics.items() if name != "size_bytes"}
