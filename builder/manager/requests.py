"""What a client may ask for: one class per kind of job, with what it changes, needs and reads."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, TypeAdapter, ValidationError, model_validator

from backends.errors import InvalidArgumentError
from backends.names import split_domain
from backends.registry.registry import Registry
from builder.construct.domain.settings import LOWER_STEPS
from builder.construct.training.seeds import SEED_LIMIT
from builder.manager.targets import DomainTarget, HplmTarget, Target
from builder.manager.uploads import UploadKind
from builder.root_choice import chosen_root

_GENERAL = "general"
EXAMPLE_CORPUS = f"corpus-{'3b5d5c3712955042' * 4}"
EXAMPLE_TASK = f"task-{'aec070645fe53ee3' * 4}"
EXAMPLE_ADAPTER = f"adapter-{'5577e6dd0662f91c' * 4}"


TaskKind = Literal["classification", "ner", "regression"]
HplmId = Annotated[str, Field(description="The hPLM, as tenant/name.", examples=["acme/returns"])]
RootName = Annotated[str | None, Field(description="Which root; not needed while there is only one.")]
DomainName = Annotated[str, Field(description="The domain's name.", examples=["shop"])]
DomainReference = Annotated[
    str,
    Field(description="The domain: NAME, or NAME@VERSION to stay on that version.", examples=["shop"]),
]
CorpusIds = Annotated[
    list[str], Field(min_length=1, description="Uploads of kind corpus.", examples=[[EXAMPLE_CORPUS]])
]
HeldOutId = Annotated[
    str | None, Field(description="Upload of kind corpus to measure with; otherwise a small part of the corpus is.")
]
Theta = Annotated[
    float, Field(gt=0, le=1, description="Share of the distinct fragments that the table holds, most frequent first.")
]
MaxFragments = Annotated[int, Field(ge=1, description="The table holds at most this many fragments.")]
MlmSteps = Annotated[
    int, Field(ge=0, le=1_000_000, description="Steps of masked-LM pretraining; 0 keeps the lower layers as they are.")
]
Seed = Annotated[int, Field(ge=0, lt=SEED_LIMIT, description="Seed of everything random.")]
EarlierVersion = Annotated[int | None, Field(ge=1, description="Where to go back to; by default the version before.")]
TrainId = Annotated[str, Field(description="Upload of kind task to train on.", examples=[EXAMPLE_TASK])]
DevId = Annotated[str, Field(description="Upload of kind task to choose the best epoch by.", examples=[EXAMPLE_TASK])]
TestId = Annotated[str | None, Field(description="Upload of kind task to measure the result on.")]
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
        "and states too; about ten times the work."
    ),
]
UnlabelledId = Annotated[
    str | None,
    Field(
        description="Upload of kind corpus with texts like the task's, which the dedicated teacher answers too; three "
        "for each example at most."
    ),
]
Search = Annotated[int, Field(ge=1, le=1000, description="Trials of a search for better settings; 1 is no search.")]


class Request(BaseModel):
    """What all requests have in common."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def settled(self, registry: Registry) -> Self:
        """The request with the root that it means filled in."""
        return self

    @property
    def target(self) -> Target | None:
        """What the job changes; None if that is nothing in particular."""
        return None

    @property
    def target_must_exist(self) -> bool:
        """Otherwise it must not."""
        return True

    @property
    def domain_needed(self) -> DomainTarget | None:
        """The domain that has to stay as it is while the job runs; of a request that is `settled`."""
        return None

    @property
    def tune_changes(self) -> dict[str, Any]:
        return {}

    @property
    def uploads(self) -> dict[str, UploadKind]:
        return {}


class RootedRequest(Request):
    root: RootName = None

    def settled(self, registry: Registry) -> Self:
        return self.model_copy(update={"root": chosen_root(registry, self.root, "in 'root'")})

    @property
    def root_name(self) -> str:
        if self.root is None:
            raise InvalidArgumentError("the request names no root")
        return self.root

    def domain_named(self, reference: str) -> DomainTarget:
        """The domain of NAME or NAME@VERSION."""
        name, _ = split_domain(reference)
        return DomainTarget(self.root_name, name)


class DomainRequest(RootedRequest):
    name: DomainName

    @property
    def target(self) -> Target:
        return DomainTarget(self.root_name, self.name)


class DomainTexts(DomainRequest):
    corpus: CorpusIds
    held_out: HeldOutId = None
    mlm_steps: MlmSteps = LOWER_STEPS
    seed: Seed = 23

    @property
    def uploads(self) -> dict[str, UploadKind]:
        held_out = [] if self.held_out is None else [self.held_out]
        return dict.fromkeys([*self.corpus, *held_out], UploadKind.CORPUS)


class CreateDomain(DomainTexts):
    """Pretrain the lower layers further on a corpus, and build the domain's table."""

    kind: Literal["domain.create"]
    parent: Annotated[str, Field(description="What answers for it what it does not hold: NAME or NAME@VERSION.")] = (
        _GENERAL
    )
    theta: Theta = 0.005
    max_fragments: MaxFragments = 200_000

    @property
    def target_must_exist(self) -> bool:
        return False

    @property
    def domain_needed(self) -> DomainTarget:
        return self.domain_named(self.parent)


class UpdateDomain(DomainTexts):
    """Make the next version of a domain from more texts; the live one serves until that is done."""

    kind: Literal["domain.update"]
    parent: Annotated[str | None, Field(description="Another parent: NAME or NAME@VERSION.")] = None
    theta: Theta | None = None
    max_fragments: MaxFragments | None = None
    keep_learned: Annotated[
        bool,
        Field(description="The table holds what servers have learned, however rare; else theta decides on it too."),
    ] = True

    @property
    def domain_needed(self) -> DomainTarget | None:
        return None if self.parent is None else self.domain_named(self.parent)


class RollbackDomain(DomainRequest):
    """Make an earlier version of a domain live again."""

    kind: Literal["domain.rollback"]
    version: EarlierVersion = None


class DeleteDomain(DomainRequest):
    """Take a domain out of service; refused while something depends on it."""

    kind: Literal["domain.delete"]


class HplmRequest(Request):
    id: HplmId

    @property
    def target(self) -> Target:
        return HplmTarget(self.id)


class Training(HplmRequest):
    train: TrainId
    dev: DevId
    test: TestId = None
    tune: TuneChanges = Field(default_factory=dict)
    search: Search = 1
    teacher: TeacherKind = None
    unlabelled: UnlabelledId = None

    @property
    def tune_changes(self) -> dict[str, Any]:
        return self.tune

    @property
    def uploads(self) -> dict[str, UploadKind]:
        files = (self.train, self.dev, self.test)
        needed = {upload: UploadKind.TASK for upload in files if upload is not None}
        return needed if self.unlabelled is None else {**needed, self.unlabelled: UploadKind.CORPUS}

    @model_validator(mode="after")
    def _unlabelled_texts_need_a_teacher(self) -> Self:
        if self.unlabelled is not None and self.teacher is None:
            raise ValueError("unlabelled texts need a teacher: dedicated")
        weight = self.tune.get("distil_weight", 1)
        if self.unlabelled is not None and isinstance(weight, int | float) and weight < 1:
            raise ValueError(f"a distil_weight of {weight} needs labels, which unlabelled texts do not have")
        return self


class CreateHplm(Training, RootedRequest):
    """Tune an hPLM; servers answer it within a second of the job's end."""

    kind: Literal["hplm.create"]
    domain: DomainReference
    task: Annotated[TaskKind | None, Field(description="Otherwise the files tell it.")] = None

    @property
    def target_must_exist(self) -> bool:
        return False

    @property
    def domain_needed(self) -> DomainTarget:
        return self.domain_named(self.domain)


class UpdateHplm(Training):
    """Tune the next version of an hPLM from the live one on; that one serves until it is done."""

    kind: Literal["hplm.update"]
    domain: Annotated[str | None, Field(description="Another domain than so far: NAME or NAME@VERSION.")] = None
    from_scratch: Annotated[bool, Field(description="Do not start from the live version's weights.")] = False
    labels_may_change: Annotated[bool, Field(description="Allow other labels than the live version's.")] = False
    force: Annotated[bool, Field(description="Publish even what scores worse than the live version.")] = False
    _domain_needed: DomainTarget | None = PrivateAttr(None)

    def settled(self, registry: Registry) -> Self:
        """It needs the domain that it names, or the one that the hPLM is of; of one in the making see `Admission`."""
        settled = self.model_copy()
        live = registry.hplm(self.id).domain if registry.has_hplm(self.id) else None
        name = split_domain(self.domain)[0] if self.domain is not None else live.name if live else None
        roots = [live.root] if live else [root.name for root in registry.roots()]
        if name is not None and len(roots) == 1:
            settled._domain_needed = DomainTarget(roots[0], name)
        return settled

    @property
    def domain_needed(self) -> DomainTarget | None:
        return self._domain_needed


class RollbackHplm(HplmRequest):
    """Make an earlier version of an hPLM live again."""

    kind: Literal["hplm.rollback"]
    version: EarlierVersion = None


class PinHplm(HplmRequest):
    """Hold an hPLM on a version of its domain, or let it follow the domain again."""

    kind: Literal["hplm.pin"]
    pinned: Annotated[bool, Field(description="False lets it follow its domain again.")] = True
    version: Annotated[int | None, Field(ge=1, description="The domain's version; by default the one it is on.")] = None


class DeleteHplm(HplmRequest):
    """Take an hPLM out of service; its versions stay in the bank until they are collected."""

    kind: Literal["hplm.delete"]


class Retuning(BaseModel):
    """Labelled texts to tune an imported adapter on; what lies in lower layers is then left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    train: TrainId
    dev: DevId
    test: TestId = None
    task: Annotated[TaskKind | None, Field(description="If neither the adapter's head nor the files tell it.")] = None
    tune: TuneChanges = Field(default_factory=dict)


class ImportHplm(HplmRequest, RootedRequest):
    """Take over a PEFT or AdapterHub adapter folder, uploaded as a zip archive."""

    kind: Literal["hplm.import"]
    adapter: Annotated[str, Field(description="Upload of kind adapter.", examples=[EXAMPLE_ADAPTER])]
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
    def domain_needed(self) -> DomainTarget | None:
        if self.domain is None and self.replace:
            return None
        return self.domain_named(self.domain or _GENERAL)

    @property
    def tune_changes(self) -> dict[str, Any]:
        return {} if self.retune is None else self.retune.tune

    @property
    def uploads(self) -> dict[str, UploadKind]:
        texts = () if self.retune is None else (self.retune.train, self.retune.dev, self.retune.test)
        files = {upload: UploadKind.TASK for upload in texts if upload is not None}
        return {self.adapter: UploadKind.ADAPTER, **files}


class CollectGarbage(Request):
    """Remove versions that nothing needs any more, and what interrupted builds have left."""

    kind: Literal["gc"]
    dry_run: Annotated[bool, Field(description="Only say what would be removed.")] = False
    keep: Annotated[int, Field(ge=0, description="Versions that stay on either side of the live one.")] = 1


JobRequest = Annotated[
    CreateDomain
    | UpdateDomain
    | RollbackDomain
    | DeleteDomain
    | CreateHplm
    | UpdateHplm
    | RollbackHplm
    | PinHplm
    | DeleteHplm
    | ImportHplm
    | CollectGarbage,
    Field(discriminator="kind"),
]
_REQUEST: TypeAdapter[JobRequest] = TypeAdapter(JobRequest)


def stored_request(content: dict[str, Any]) -> JobRequest:
    """A request as the database has it."""
    try:
        return _REQUEST.validate_python(content)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"]))
        raise InvalidArgumentError(f"the stored request is not readable: {place}: {wrong['msg']}") from error
