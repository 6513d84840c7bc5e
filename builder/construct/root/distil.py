"""Distillation of a root: the fragment encoder learns to hand the upper layers what the unchanged model would.

Loss per batch: Σ over the boundary state and each upper state of MSE(student, teacher) / Var(teacher), and where it is
asked for the same of the upper layers' attention scores. What learns besides the lower layers, the gate and the second
embeddings, and how fast, is for the settings to say.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.tokenizer import RootTokenizer
from builder.construct.root.augment import Pairing, Shortening, TokenNoise
from builder.construct.root.settings import DistilSettings
from builder.construct.root.student import Student
from builder.construct.root.teacher import Teacher
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.divergence import require_finite
from builder.construct.training.rows import PaddedRows, numbered_batches
from builder.progress import Report, Step

LOGGER = logging.getLogger(__name__)
PHASE = "distil the lower half"


class Distiller:
    """Trains a student against its teacher; a checkpoint beside the root makes it resumable."""

    def __init__(self, teacher: Teacher, student: Student, tokenizer: RootTokenizer, settings: DistilSettings) -> None:
        self._teacher = teacher
        self._student = student
        self._tokenizer = tokenizer
        self._settings = settings
        self._shortening = Shortening.of(settings, student.parts.geometry.n)
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


def score_losses(
    layers: Iterable[tuple[nn.Module, nn.Module]],
    states: Iterable[tuple[Tensor, Tensor]],
    rows: PaddedRows,
    num_heads: int,
) -> list[Tensor]:
    """Per upper layer MSE(student, teacher) / Var(teacher) of the scores between a text's own tokens.

    Shape: layers and the states that go into them as (student's, teacher's), states `[T, H]`
    """
    pairs = rows.mask[:, None, :, None] & rows.mask[:, None, None, :]  # (B, 1, L, L)
    chosen = pairs.expand(-1, num_heads, -1, -1)
    losses = []
    # No layer follows the last state.
    for (our_layer, their_layer), (ours, theirs) in zip(layers, states, strict=False):
        with torch.no_grad():
            target = _scores(their_layer, rows.pad(theirs), num_heads)[chosen]
        difference = _scores(our_layer, rows.pad(ours), num_heads)[chosen] - target
        losses.append(difference.square().mean() / target.var())
    return losses


def _scores(layer: nn.Module, hidden: Tensor, num_heads: int) -> Tensor:
    """Shape: `[B, L, H]` → `[B, heads, L, L]`."""
    rows, length, width = hidden.shape
    query, key, _ = layer.get_submodule("query_key_value")(hidden).chunk(3, dim=-1)
    heads = [part.view(rows, length, num_heads, width // num_heads).transpose(1, 2) for part in (query, key)]
    scores: Tensor = torch.matmul(heads[0], heads[1].transpose(-1, -2)) * (width // num_heads) ** -0.5
    return scores
