"""Distillation of a root: the fragment encoder learns to hand the upper layers what the unchanged model would.

Loss per batch: Σ over the boundary state and each upper state of MSE(student, teacher) / Var(teacher).
Word embeddings and upper layers stay as they are (`train_upper` frees the latter), so a distilled root differs
from its model by the lower layers, the gate and the second embeddings only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.errors import InvalidArgumentError
from backends.root.encoder import padded_attention
from backends.root.lower import sum_overlapping
from backends.root.tokenizer import RootTokenizer
from builder.construct.checkpoint import Checkpoint
from builder.construct.pretrained import RootParts
from builder.construct.rows import PaddedRows, length_batches, padded_rows
from builder.progress import Report, Step

LOGGER = logging.getLogger(__name__)

MIN_TEXTS = 200
_HELD_OUT_EVERY = 50
_MAX_HELD_OUT_TEXTS = 400


@dataclass(frozen=True)
class DistilSettings:
    """How long and how hard; the defaults suit a 6 × 384 model on two cores.

    `bigram_share` and `unigram_share` of the fragments are shortened while learning, as a table shortens those that it
    does not hold; without that, what falls back fits badly with its neighbours.
    """

    steps: int = 600
    tokens_per_batch: int = 2048
    learning_rate: float = 1e-3
    warmup_steps: int = 40
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    train_upper: bool = False
    bigram_share: float = 0.2
    unigram_share: float = 0.15
    seed: int = 17
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        if self.steps < 1 or self.tokens_per_batch < 1 or self.learning_rate <= 0:
            raise InvalidArgumentError("steps, tokens per batch and learning rate must be positive")
        if min(self.bigram_share, self.unigram_share) < 0 or self.bigram_share + self.unigram_share > 1:
            raise InvalidArgumentError(
                "the shares of shortened fragments must lie between 0 and 1, and so must their sum"
            )


class Distiller:
    """Trains one root's parts against its teacher; a checkpoint beside the root makes it resumable."""

    def __init__(
        self, teacher: nn.Module, parts: RootParts, tokenizer: RootTokenizer, settings: DistilSettings
    ) -> None:
        self._teacher = teacher
        self._parts = parts
        self._tokenizer = tokenizer
        self._settings = settings
        self._student = nn.ModuleDict(parts.modules())
        parts.lower.word_embeddings.requires_grad_(False)
        parts.upper.requires_grad_(settings.train_upper)
        trained = [parameter for parameter in self._student.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.AdamW(trained, settings.learning_rate, weight_decay=settings.weight_decay)
        self._trained = trained

    def run(self, texts: Sequence[str], checkpoint: Checkpoint, report: Report) -> dict[str, float]:
        """Train to the end, from the checkpoint where there is one, and return the held-out fidelity."""
        train_texts, held_out = _split(texts)
        torch.manual_seed(self._settings.seed)
        done = self._resume(checkpoint)
        cosine = self._cosines(held_out[:64], shorten=False)[-1]
        for step, batch in enumerate(self._batches(train_texts), start=1):
            if step <= done:
                continue
            loss = self._step(batch, step)
            last = step == self._settings.steps
            if step % self._settings.checkpoint_every == 0 or last:
                self._save(checkpoint, step)
                cosine = self._cosines(held_out[:64], shorten=False)[-1]
            note = f"loss {loss:.3f}, held-out cosine {cosine:.3f}"
            report(Step("distil the lower half", step, self._settings.steps, note))
            if last:
                break
        return self.fidelity(held_out)

    def fidelity(self, texts: Sequence[str]) -> dict[str, float]:
        """Mean cosine between the student's and the teacher's token states, per layer.

        `final_cosine` is for texts whose fragments a table holds, `fallback_cosine` for texts of which it lacks as
        many as the settings' shares say.
        """
        *below, final = self._cosines(texts, shorten=False)
        names = ["boundary_cosine", *(f"upper_{layer}_cosine" for layer in range(1, len(below)))]
        fallback = self._cosines(texts, shorten=True)[-1]
        return {**dict(zip(names, below, strict=True)), "final_cosine": final, "fallback_cosine": fallback}

    @torch.no_grad()
    def _cosines(self, texts: Sequence[str], shorten: bool) -> list[float]:
        sums: Tensor | None = None
        tokens = 0
        for start in range(0, len(texts), 16):
            rows = padded_rows(self._tokenizer.encode(texts[start : start + 16]))
            fragments = self._shortened(rows.fragments, start) if shorten else rows.fragments
            pairs = zip(self._student_states(rows, fragments), self._teacher_states(rows), strict=True)
            cosines = torch.stack([functional.cosine_similarity(ours, theirs, dim=-1).sum() for ours, theirs in pairs])
            sums = cosines if sums is None else sums + cosines
            tokens += int(rows.mask.sum())
        if sums is None:
            raise InvalidArgumentError("fidelity needs at least one text")
        return [round(float(value) / tokens, 5) for value in sums]

    def _step(self, batch: list[str], step: int) -> float:
        rows = padded_rows(self._tokenizer.encode(batch))
        for group in self._optimiser.param_groups:
            group["lr"] = self._settings.learning_rate * _schedule(step, self._settings)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                targets = self._teacher_states(rows)
            states = self._student_states(rows, self._shortened(rows.fragments, step))
        losses = [
            functional.mse_loss(ours, theirs) / theirs.var() for ours, theirs in zip(states, targets, strict=True)
        ]
        loss = torch.stack(losses).sum()
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._trained, self._settings.clip_norm)
        self._optimiser.step()
        return float(loss.detach()) / len(losses)

    def _shortened(self, fragments: Tensor, step: int) -> Tensor:
        """Some fragments without their left, some without both neighbours; a repeated step gets the same ones."""
        chance = torch.Generator().manual_seed(self._settings.seed * 1_000_003 + step)
        draw = torch.rand(len(fragments), generator=chance)
        centre = self._parts.geometry.centre
        shortened = fragments.clone()
        shortened[draw < self._settings.bigram_share + self._settings.unigram_share, :centre] = 0
        shortened[draw < self._settings.unigram_share, centre + 1 :] = 0
        return shortened

    def _student_states(self, rows: PaddedRows, fragments: Tensor) -> list[Tensor]:
        """Boundary and upper states of the real tokens, each `[T, H]` fp32."""
        parts = self._parts
        unique, inverse = torch.unique(fragments, dim=0, return_inverse=True)
        summed = sum_overlapping(parts.lower(unique)[inverse].float(), parts.geometry.centre)
        boundary = parts.aggregation(summed, rows.positions, rows.flat_types)
        attend = padded_attention(parts.geometry.num_heads, rows.mask)
        upper = parts.upper.states(rows.pad(boundary), attend)
        return [boundary.float(), *(state[rows.mask].float() for state in upper)]

    def _teacher_states(self, rows: PaddedRows) -> list[Tensor]:
        output = self._teacher(
            input_ids=rows.token_ids,
            token_type_ids=rows.types,
            attention_mask=rows.mask.long(),
            output_hidden_states=True,
        )
        states = output.hidden_states[self._parts.geometry.num_lower_layers :]
        return [state[rows.mask].float() for state in states]

    def _batches(self, texts: Sequence[str]) -> Iterator[list[str]]:
        epoch = 0
        while True:
            seed = self._settings.seed + epoch
            yield from length_batches(texts, self._tokenizer, self._settings.tokens_per_batch, seed)
            epoch += 1

    def _save(self, checkpoint: Checkpoint, step: int) -> None:
        student = {name: tensor for name, tensor in self._student.state_dict().items() if "word_emb" not in name}
        checkpoint.save({"step": step, "student": student, "optimiser": self._optimiser.state_dict()})

    def _resume(self, checkpoint: Checkpoint) -> int:
        content = checkpoint.load()
        if content is None:
            return 0
        self._student.load_state_dict(content["student"], strict=False)
        self._optimiser.load_state_dict(content["optimiser"])
        LOGGER.info("resuming at step %d of %d", content["step"], self._settings.steps)
        return int(content["step"])


def _split(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    if len(texts) < MIN_TEXTS:
        raise InvalidArgumentError(f"the corpus has {len(texts)} texts; distillation needs at least {MIN_TEXTS}")
    held_out = list(texts[::_HELD_OUT_EVERY])[:_MAX_HELD_OUT_TEXTS]
    reserved = set(held_out)
    train = [text for text in texts if text not in reserved]
    if not train:
        raise InvalidArgumentError(
            f"the corpus repeats itself: its {len(texts)} texts hold {len(reserved)} different ones, and those are "
            "held out to measure with, so none is left to learn from"
        )
    return train, held_out


def _schedule(step: int, settings: DistilSettings) -> float:
    """Linear warm-up, then half a cosine down to a twentieth."""
    if step < settings.warmup_steps:
        return step / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))
