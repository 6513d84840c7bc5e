"""Distillation of a root: the fragment encoder learns to hand the upper layers what the unchanged model would.

Loss per batch: Σ over the boundary state and each upper state of MSE(student, teacher) / Var(teacher), and where it is
asked for the same of the upper layers' attention scores. What learns besides the lower layers, the gate and the second
embeddings, and how fast, is for the settings to say.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.errors import InvalidArgumentError
from backends.plot.header import Store
from backends.root.tokenizer import RootTokenizer
from builder.construct.root.attention_scores import score_losses
from builder.construct.root.noise import TokenNoise
from builder.construct.root.pairing import Pairing
from builder.construct.root.student import Shortening, Student
from builder.construct.root.teacher import Teacher
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.divergence import require_finite
from builder.construct.training.rows import PaddedRows, numbered_batches
from builder.construct.training.seeds import require_seed
from builder.progress import Report, Step

LOGGER = logging.getLogger(__name__)
PHASE = "distil the lower half"
WORD_EMBEDDINGS = "word_embeddings"


@dataclass(frozen=True)
class DistilSettings:
    """How long and how hard; the defaults suit a 6 × 384 model on two cores.

    The shares say how many of the fragments are shortened while learning, as a table shortens those that it does not
    hold; without that, what falls back fits badly with its neighbours. Tri-grams are a fallback of 5-grams only.
    `pair_share` of the texts are made into pairs, as some tasks are about them, and `noise_share` of the tokens are
    replaced, as other texts have other words.
    `final_weight` is the weight of the last state in the loss, that of every other state is 1; `attention_weight` is
    that of the attention scores. An `embedding_learning_rate` of 0 leaves the word embeddings as they are.
    """

    steps: int = 600
    tokens_per_batch: int = 2048
    learning_rate: float = 1e-3
    train_upper: bool = False
    upper_learning_rate: float = 1e-4
    embedding_learning_rate: float = 0.0
    warmup_steps: int = 40
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    final_weight: float = 1.0
    attention_weight: float = 0.0
    trigram_share: float = 0.25
    bigram_share: float = 0.2
    unigram_share: float = 0.15
    pair_share: float = 0.3
    noise_share: float = 0.3
    seed: int = 17
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        if min(self.steps, self.tokens_per_batch, self.checkpoint_every) < 1 or self.learning_rate <= 0:
            raise InvalidArgumentError(
                "steps, tokens per batch, steps between checkpoints and learning rate must be positive"
            )
        require_seed(self.seed)
        if self.train_upper and self.upper_learning_rate <= 0:
            raise InvalidArgumentError("the upper layers' learning rate must be positive where they learn")
        if min(self.embedding_learning_rate, self.attention_weight, self.warmup_steps, self.weight_decay) < 0:
            raise InvalidArgumentError("learning rates, weights, weight decay and warm-up cannot be negative")
        if min(self.final_weight, self.clip_norm) <= 0:
            raise InvalidArgumentError("the weight of the final state and the norm to clip at must be positive")
        shares = self.shares.values()
        if min(shares) < 0 or sum(shares) > 1:
            raise InvalidArgumentError(
                "the shares of shortened fragments must lie between 0 and 1, and so must their sum"
            )
        if not 0 <= self.pair_share <= 1:
            raise InvalidArgumentError(f"the share of pairs must lie between 0 and 1, not at {self.pair_share}")
        if not 0 <= self.noise_share <= 0.5:
            raise InvalidArgumentError(f"the share of noise must lie between 0 and 0.5, not at {self.noise_share}")

    @property
    def shares(self) -> dict[Store, float]:
        return {Store.TRI: self.trigram_share, Store.BI: self.bigram_share, Store.UNI: self.unigram_share}

    @property
    def trained_parts(self) -> set[str]:
        """What of a root differs from its model afterwards."""
        optional = {"upper": self.train_upper, WORD_EMBEDDINGS: self.embedding_learning_rate > 0}
        return {"lower", "aggregation", *(name for name, learns in optional.items() if learns)}

    def shortening(self, n: int) -> Shortening:
        return Shortening(n, self.shares, self.seed)


class Distiller:
    """Trains a student against its teacher; a checkpoint beside the root makes it resumable."""

    def __init__(self, teacher: Teacher, student: Student, tokenizer: RootTokenizer, settings: DistilSettings) -> None:
        self._teacher = teacher
        self._student = student
        self._tokenizer = tokenizer
        self._settings = settings
        self._shortening = settings.shortening(student.parts.geometry.n)
        self._pairing = Pairing(settings.pair_share, settings.seed)
        self._noise = TokenNoise(tokenizer, student.parts.geometry, settings.noise_share, settings.seed)
        self._modules = nn.ModuleDict(student.parts.modules())
        self._groups = self._parameter_groups()
        self._optimiser = torch.optim.AdamW(self._groups, weight_decay=settings.weight_decay)

    def run(self, texts: Sequence[str], measure: Callable[[], float], checkpoint: Checkpoint, report: Report) -> float:
        """Train to the end, from the checkpoint where there is one, and return the seconds that this took in all.

        `measure` is asked for the held-out cosine at every checkpoint.
        """
        torch.manual_seed(self._settings.seed)
        total = self._settings.steps
        done, seconds = self._resume(checkpoint)
        clock = _Clock(done, seconds)
        cosine = measure()
        for step, batch in self._batches(texts, done):
            loss = self._step(batch, step)
            if step % self._settings.checkpoint_every == 0 or step == total:
                cosine = measure()
                self._save(checkpoint, step, clock.seconds)
            note = f"loss {loss:.3f}, held-out cosine {cosine:.4f}, {clock.minutes_left(step, total)} min left"
            report(Step(PHASE, step, total, note))
        self._modules.requires_grad_(False)
        return clock.seconds

    def _parameter_groups(self) -> list[dict[str, object]]:
        """What learns, with its rate; the rest is frozen."""
        parts, settings = self._student.parts, self._settings
        self._modules.requires_grad_(True)
        words = parts.lower.word_embeddings
        words.requires_grad_(settings.embedding_learning_rate > 0)
        parts.upper.requires_grad_(settings.train_upper)
        lower = [*parts.lower.parameters(), *parts.aggregation.parameters()]
        groups = [
            {"params": [one for one in lower if one is not words.weight], "peak": settings.learning_rate},
            {"params": list(parts.upper.parameters()), "peak": settings.upper_learning_rate},
            # Decay would draw the words that no batch holds towards nothing.
            {"params": [words.weight], "peak": settings.embedding_learning_rate, "weight_decay": 0.0},
        ]
        return [group for group in groups if group["params"][0].requires_grad]  # type: ignore[index]

    def _step(self, batch: list[str], step: int) -> float:
        tokens = self._tokenizer.encode(self._pairing.apply(batch, step))
        rows = self._student.padded(self._noise.apply(tokens, step))
        for group in self._optimiser.param_groups:
            group["lr"] = group["peak"] * _schedule(step, self._settings)
        loss = self._loss(rows, step)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        trained = [parameter for group in self._optimiser.param_groups for parameter in group["params"]]
        norm = nn.utils.clip_grad_norm_(trained, self._settings.clip_norm)
        require_finite(loss, norm, step)
        self._optimiser.step()
        return float(loss.detach()) / (self._student.parts.geometry.num_upper_layers + 1)

    def _loss(self, rows: PaddedRows, step: int) -> Tensor:
        """Summed over the states, and over the attention scores."""
        settings = self._settings
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                targets = self._teacher.states(rows)
            states = self._student.states(rows, self._shortening.apply(rows.fragments, step))
        losses = [
            functional.mse_loss(ours, theirs) / theirs.var() for ours, theirs in zip(states, targets, strict=True)
        ]
        losses[-1] = settings.final_weight * losses[-1]
        loss = torch.stack(losses).sum()
        if settings.attention_weight:
            layers = zip(self._student.parts.upper.layers, self._teacher.upper.layers, strict=True)
            num_heads = self._student.parts.geometry.num_heads
            scores = score_losses(layers, zip(states, targets, strict=True), rows, num_heads)
            loss = loss + settings.attention_weight * torch.stack(scores).sum()
        return loss

    def _batches(self, texts: Sequence[str], done: int) -> Iterator[tuple[int, list[str]]]:
        """The batches of the steps that are still to be done."""
        settings, steps = self._settings, range(done + 1, self._settings.steps + 1)
        return numbered_batches(texts, self._tokenizer, settings.tokens_per_batch, settings.seed, steps)

    def _save(self, checkpoint: Checkpoint, step: int, seconds: float) -> None:
        learns = {name for name, parameter in self._modules.named_parameters() if parameter.requires_grad}
        student = {name: tensor for name, tensor in self._modules.state_dict().items() if name in learns}
        content = {"student": student, "optimiser": self._optimiser.state_dict()}
        checkpoint.save({"step": step, "seconds": seconds, **content})

    def _resume(self, checkpoint: Checkpoint) -> tuple[int, float]:
        """The steps that are done, and the seconds that they took."""
        content = checkpoint.load()
        if content is None:
            return 0, 0.0
        self._modules.load_state_dict(content["student"], strict=False)
        self._optimiser.load_state_dict(content["optimiser"])
        LOGGER.info("resuming at step %d of %d", content["step"], self._settings.steps)
        return int(content["step"]), float(content["seconds"])


class _Clock:
    """Seconds over all runs, and the minutes that are left at this run's pace."""

    def __init__(self, done: int, seconds: float) -> None:
        self._done = done
        self._seconds_before = seconds
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def minutes_left(self, step: int, total: int) -> int:
        per_step = (time.monotonic() - self._started) / (step - self._done)
        return math.ceil(per_step * (total - step) / 60)


def _schedule(step: int, settings: DistilSettings) -> float:
    """Linear warm-up, then half a cosine down to a twentieth."""
    if step < settings.warmup_steps:
        return step / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))
