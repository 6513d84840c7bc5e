"""Requests about hPLMs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from backends.names import split_domain
from backends.registry.registry import Registry
from builder.requests.base import (
    EXAMPLE_ADAPTER,
    EXAMPLE_TASK,
    MOST_VERSION,
    Device,
    EarlierVersion,
    HplmId,
    InputFile,
    Request,
    RootedRequest,
    TaskKind,
    UploadKind,
)
from builder.requests.domains import GENERAL_DOMAIN
from builder.requests.levels import DeclaredLadder, HeldOut, LadderTarget
from builder.requests.targets import DomainTarget, HplmTarget, Target
from builder.settings.device import AUTO

DomainReference = Annotated[
    str,
    Field(description="The domain: NAME, or NAME@VERSION to stay on that version.", examples=["shop"]),
]
Train = Annotated[InputFile, Field(description="Upload of kind task to train on.", examples=[EXAMPLE_TASK])]
Dev = Annotated[
    InputFile, Field(description="Upload of kind task to choose the best epoch by.", examples=[EXAMPLE_TASK])
]
Test = Annotated[InputFile | None, Field(description="Upload of kind task to measure the result on.")]
TuneChanges = Annotated[
    dict[str, Any],
    Field(
        description="Settings of the tuning to change; an unknown name is answered with the known ones.",
        examples=[{"epochs": 12, "learning_rate": 1e-3, "recipe": {"width": 64}}],
    ),
]
TeacherKind = Annotated[
    Literal["dedicated"] | None,
    Field(
        description="dedicated: fine-tune the whole pretrained model on the task first, then learn from its answers "
        "and states too; about four times the work."
    ),
]
Unlabelled = Annotated[
    InputFile | None,
    Field(
        description="Upload of kind corpus with texts like the task's, which the dedicated teacher answers too; three "
        "for each example at most."
    ),
]
Search = Annotated[int, Field(ge=1, le=1000, description="Trials of a search for better settings; 1 is no search.")]


class HplmRequest(Request):
    """A request about one hPLM."""

    id: HplmId

    @property
    def target(self) -> Target:
        return HplmTarget(self.id)


class LabelledTexts(Request):
    """Texts to tune on, and how."""

    train: Train
    dev: Dev
    test: Test = None
    tune: TuneChanges = Field(default_factory=dict)
    device: Device = AUTO

    @property
    def files(self) -> dict[Path, UploadKind]:
        return {path: UploadKind.TASK for path in (self.train, self.dev, self.test) if path is not None}


_EARLY = "Tune on until lower layers answer too, so that more texts can leave early; as long as six epochs more."


class Training(HplmRequest, LabelledTexts):
    """The tuning of an hPLM's version."""

    search: Search = 1
    teacher: TeacherKind = None
    unlabelled: Unlabelled = None
    ladder: Annotated[
        DeclaredLadder | None,
        Field(description="What may be lost by answering early: once tuned, the version gets a ladder for it."),
    ] = None

    early: Annotated[
        bool | None,
        Field(description=f"{_EARLY} By default where a ladder is declared."),
    ] = None

    @property
    def tunes_early(self) -> bool:
        return self.ladder is not None if self.early is None else self.early

    @property
    def tune_changes(self) -> dict[str, Any]:
        return self.tune

    @property
    def files(self) -> dict[Path, UploadKind]:
        of_teacher = {} if self.unlabelled is None else {self.unlabelled: UploadKind.CORPUS}
        return {**super().files, **of_teacher, **({} if self.ladder is None else self.ladder.files)}

    @model_validator(mode="after")
    def _require_teacher_for_unlabelled(self) -> Self:
        if self.unlabelled is not None and self.teacher is None:
            raise ValueError("unlabelled texts need a teacher: dedicated")
        weight = self.tune.get("distil_weight", 1)
        if self.unlabelled is not None and isinstance(weight, int | float) and weight < 1:
            raise ValueError(f"a distil_weight of {weight} needs labels, which unlabelled texts do not have")
        return self


class CreateHplm(Training, RootedRequest):
    """Tune an hPLM; servers answer it within a second of the job's end."""

    kind: Literal["hplm.create"] = "hplm.create"
    domain: DomainReference
    task: Annotated[TaskKind | None, Field(description="Otherwise the files tell it.")] = None

    @property
    def target_must_exist(self) -> bool:
        return False

    @property
    def needed(self) -> DomainTarget:
        return self.domain_named(self.domain)


class UpdateHplm(Training):
    """Tune the next version of an hPLM from the live one on; that one serves until it is done.

    What the request does not say stays as it was when the live version was tuned.
    """

    kind: Literal["hplm.update"] = "hplm.update"
    domain: Annotated[str | None, Field(description="Another domain than so far: NAME or NAME@VERSION.")] = None
    from_scratch: Annotated[bool, Field(description="Do not start from the live version's weights.")] = False
    labels_may_change: Annotated[bool, Field(description="Allow other labels than the live version's.")] = False
    force: Annotated[bool, Field(description="Publish even what scores worse than the live version.")] = False
    early: Annotated[
        bool | None,
        Field(
            description=f"{_EARLY} By default as last requested, else where the live version has a ladder or one is "
            "declared."
        ),
    ] = None
    _needed: DomainTarget | None = PrivateAttr(None)

    def settled(self, registry: Registry) -> Self:
        """Find the domain that the request names, or that of its hPLM; for an hPLM in the making see `Admission`."""
        settled = self.model_copy()
        live = registry.hplm(self.id).domain if registry.has_hplm(self.id) else None
        name = split_domain(self.domain)[0] if self.domain is not None else live.name if live else None
        roots = [live.root] if live else [root.name for root in registry.roots()]
        if name is not None and len(roots) == 1:
            settled._needed = DomainTarget(roots[0], name)
        return settled

    @property
    def needed(self) -> DomainTarget | None:
        return self._needed


class SelectHplm(HplmRequest, LadderTarget):
    """Let texts that are sure after some layers be answered there; the ladder is a version with the same weights.

    Labelled texts to learn from and to certify by, or in place of both texts without labels, which certify agreement.
    """

    kind: Literal["hplm.select"] = "hplm.select"
    train: Annotated[InputFile | None, Field(description="Upload of kind task that the early head learns from.")] = None
    held_out: HeldOut | None = None
    unlabelled: Annotated[
        InputFile | None, Field(description="Upload of kind corpus in place of both; it certifies agreement.")
    ] = None

    @property
    def files(self) -> dict[Path, UploadKind]:
        labelled = {path: UploadKind.TASK for path in (self.train, self.held_out) if path is not None}
        return labelled if self.unlabelled is None else {self.unlabelled: UploadKind.CORPUS}

    @model_validator(mode="after")
    def _require_texts(self) -> Self:
        labelled = (self.train is not None, self.held_out is not None)
        if self.unlabelled is not None and any(labelled):
            raise ValueError("either unlabelled, or train and held_out")
        if self.unlabelled is None and not all(labelled):
            raise ValueError("train and held_out are needed, or unlabelled")
        if self.unlabelled is not None and self.agreement is None:
            raise ValueError("unlabelled needs agreement: texts without labels certify no other target")
        return self


class RollbackHplm(HplmRequest):
    """Make an earlier version of an hPLM live again."""

    kind: Literal["hplm.rollback"] = "hplm.rollback"
    version: EarlierVersion = None


class PinHplm(HplmRequest):
    """Hold an hPLM on a version of its domain, or let it follow the domain again."""

    kind: Literal["hplm.pin"] = "hplm.pin"
    pinned: Annotated[bool, Field(description="False lets it follow its domain again.")] = True
    version: Annotated[
        int | None, Field(ge=1, le=MOST_VERSION, description="The domain's version; by default the one it is on.")
    ] = None


class DeleteHplm(HplmRequest):
    """Take an hPLM out of service; its versions stay in the bank until they are collected."""

    kind: Literal["hplm.delete"] = "hplm.delete"


class Retuning(LabelledTexts):
    """Labelled texts to tune an imported adapter on; what lies in lower layers is then left out."""

    task: Annotated[TaskKind | None, Field(description="If neither the adapter's head nor the files tell it.")] = None


class ImportHplm(HplmRequest, RootedRequest):
    """Take over a PEFT or AdapterHub adapter folder, uploaded as a zip archive."""

    kind: Literal["hplm.import"] = "hplm.import"
    adapter: Annotated[InputFile, Field(description="Upload of kind adapter.", examples=[EXAMPLE_ADAPTER])]
    domain: Annotated[
        str | None, Field(description="NAME or NAME@VERSION; by default 'general', or the replaced one's.")
    ] = None
    labels: Annotated[list[str] | None, Field(description="Names of the head's outputs.")] = None
    pair: Annotated[bool, Field(description="Its texts are pairs.")] = False
    same_base: Annotated[bool, Field(description="Its base is the root's own, though it is called otherwise.")] = False
    replace: Annotated[bool, Field(description="Make it the next version of an hPLM that exists.")] = False
    retune: Annotated[Retuning | None, Field(description="Tune it on with these texts.")] = None

    @property
    def target_must_exist(self) -> bool:
        return self.replace

    @property
    def needed(self) -> DomainTarget | None:
        if self.domain is None and self.replace:
            return None
        return self.domain_named(self.domain or GENERAL_DOMAIN)

    @property
    def tune_changes(self) -> dict[str, Any]:
        return {} if self.retune is None else self.retune.tune

    @property
    def files(self) -> dict[Path, UploadKind]:
        texts = {} if self.retune is None else self.retune.files
        return {self.adapter: UploadKind.ADAPTER, **texts}
