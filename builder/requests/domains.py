"""Requests about domains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from builder.requests.base import (
    EXAMPLE_CORPUS,
    Device,
    DomainName,
    EarlierVersion,
    InputFile,
    RootedRequest,
    UploadKind,
)
from builder.requests.targets import DomainTarget, Target
from builder.settings.device import AUTO
from builder.settings.domain import DOMAIN_THETA, HEAD_STEPS, LOWER_STEPS, MAX_FRAGMENTS, PlotSettings, PretrainSettings
from builder.settings.seeds import SEED_LIMIT

GENERAL_DOMAIN = "general"
MAX_STEPS = 1_000_000
Corpus = Annotated[
    list[InputFile], Field(min_length=1, description="Uploads of kind corpus.", examples=[[EXAMPLE_CORPUS]])
]
HeldOut = Annotated[
    InputFile | None,
    Field(description="Upload of kind corpus to measure with; otherwise a small part of the corpus is."),
]
Theta = Annotated[
    float, Field(gt=0, le=1, description="Share of the distinct fragments that the table holds, most frequent first.")
]
MaxFragments = Annotated[int, Field(ge=1, description="The table holds at most this many fragments.")]
MlmSteps = Annotated[
    int, Field(ge=0, le=MAX_STEPS, description="Steps of masked-LM pretraining; 0 keeps the lower layers as they are.")
]
HeadSteps = Annotated[
    int,
    Field(
        ge=1,
        le=MAX_STEPS,
        description="Steps for the head that guesses masked tokens; only a root's first domain trains it.",
    ),
]
Seed = Annotated[int, Field(ge=0, lt=SEED_LIMIT, description="Seed of everything random.")]


class DomainRequest(RootedRequest):
    """A request about one domain."""

    name: DomainName

    @property
    def target(self) -> Target:
        return DomainTarget(self.root_name, self.name)


class DomainTexts(DomainRequest):
    """Texts that a domain's version is made from."""

    corpus: Corpus
    held_out: HeldOut = None
    mlm_steps: MlmSteps = LOWER_STEPS
    head_steps: HeadSteps = HEAD_STEPS
    seed: Seed = 23
    device: Device = AUTO

    @property
    def files(self) -> dict[Path, UploadKind]:
        held_out = [] if self.held_out is None else [self.held_out]
        return dict.fromkeys([*self.corpus, *held_out], UploadKind.CORPUS)

    @property
    def pretrain(self) -> PretrainSettings | None:
        """Return the settings of the lower layers' pretraining; None keeps the layers unchanged."""
        if self.mlm_steps == 0:
            return None
        settings = PretrainSettings()
        lower = replace(settings.lower, steps=self.mlm_steps, seed=self.seed)
        return replace(settings, lower=lower, head=replace(settings.head, steps=self.head_steps))


class CreateDomain(DomainTexts):
    """Pretrain the lower layers further on a corpus, and build the domain's table."""

    kind: Literal["domain.create"] = "domain.create"
    parent: Annotated[str, Field(description="What answers for it what it does not hold: NAME or NAME@VERSION.")] = (
        GENERAL_DOMAIN
    )
    theta: Theta = DOMAIN_THETA
    max_fragments: MaxFragments | None = MAX_FRAGMENTS

    @property
    def target_must_exist(self) -> bool:
        return False

    @property
    def needed(self) -> DomainTarget:
        return self.domain_named(self.parent)

    @property
    def plot(self) -> PlotSettings:
        return PlotSettings(theta=self.theta, max_fragments=self.max_fragments)


class UpdateDomain(DomainTexts):
    """Make the next version of a domain from more texts; the live one serves until that is done."""

    kind: Literal["domain.update"] = "domain.update"
    parent: Annotated[str | None, Field(description="Another parent: NAME or NAME@VERSION.")] = None
    theta: Theta | None = None
    max_fragments: MaxFragments | None = None
    keep_learned: Annotated[
        bool,
        Field(description="The table holds what servers have learned, however rare; else theta decides on it too."),
    ] = True

    @property
    def needed(self) -> DomainTarget | None:
        return None if self.parent is None else self.domain_named(self.parent)


class RollbackDomain(DomainRequest):
    """Make an earlier version of a domain live again."""

    kind: Literal["domain.rollback"] = "domain.rollback"
    version: EarlierVersion = None


class DeleteDomain(DomainRequest):
    """Take a domain out of service; rejected while something depends on it."""

    kind: Literal["domain.delete"] = "domain.delete"
