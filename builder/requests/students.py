"""The requests for students: a root's, and an hPLM's adapters for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr

from backends.registry.registry import Registry
from builder.requests.base import EXAMPLE_CORPUS, Device, InputFile, RootedRequest, UploadKind
from builder.requests.hplms import Dev, HplmRequest, Train, TuneChanges
from builder.requests.targets import RootTarget, Target
from builder.settings.device import AUTO
from builder.settings.students import StudentSettings


class MakeStudents(RootedRequest):
    """Make a root's students, short stacks of layers that all its hPLMs share.

    Students that the root has already are replaced only where `replace` says so: hPLMs' adapters for them are of no use
    then.
    """

    kind: Literal["students.make"] = "students.make"
    corpus: Annotated[
        list[InputFile],
        Field(
            default_factory=list,
            description="Uploads of kind corpus to learn from; by default the texts that the root was made from.",
            examples=[[EXAMPLE_CORPUS]],
        ),
    ]
    settings: Annotated[
        StudentSettings,
        Field(default_factory=StudentSettings, description="Settings of the students to change."),
    ]
    replace: Annotated[bool, Field(description="Replace students that the root has already.")] = False
    device: Device = AUTO

    @property
    def target(self) -> Target:
        return RootTarget(self.root_name)

    @property
    def files(self) -> dict[Path, UploadKind]:
        return dict.fromkeys(self.corpus, UploadKind.CORPUS)


class AddStudents(HplmRequest):
    """Teach an hPLM to answer by its root's students; its next version has the same weights.

    The hPLM itself teaches: by its answers to the examples and, with `unlabelled`, to other texts.
    """

    kind: Literal["students.add"] = "students.add"
    train: Train
    dev: Dev
    unlabelled: Annotated[
        InputFile | None,
        Field(description="Upload of kind corpus with texts like the task's, which the hPLM answers too."),
    ] = None
    tune: TuneChanges = Field(default_factory=dict)
    device: Device = AUTO
    _needed: RootTarget | None = PrivateAttr(None)

    def settled(self, registry: Registry) -> Self:
        """Find the root whose students are meant; of an hPLM in the making the only one."""
        settled = self.model_copy()
        if registry.has_hplm(self.id):
            settled._needed = RootTarget(registry.hplm(self.id).domain.root)
        elif len(roots := registry.roots()) == 1:
            settled._needed = RootTarget(roots[0].name)
        return settled

    @property
    def needed(self) -> RootTarget | None:
        return self._needed

    @property
    def tune_changes(self) -> dict[str, Any]:
        return self.tune

    @property
    def files(self) -> dict[Path, UploadKind]:
        plain = {} if self.unlabelled is None else {self.unlabelled: UploadKind.CORPUS}
        return {self.train: UploadKind.TASK, self.dev: UploadKind.TASK, **plain}
