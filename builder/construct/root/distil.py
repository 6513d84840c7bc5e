"""Distillation of a root: the fragment encoder learns to hand the upper layers what the unchanged model would.

Loss per batch: Σ over the boundary state and each upper state of MSE(student, teacher) / Var(teacher), and where it is
wanted the same of the upper layers' attention scores. The settings say what learns besides the lower layers, the gate
and the second embeddings, and how fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.tokenizer import RootTokenizer
from builder.construct.root.augment import Pairing, Shortening, TokenNoise
from builder.construct.root.student import Student
from builder.construct.root.teacher import Teacher
from builder.construct.training.checkpoint import Checkpoint
from builder.construct.training.device import mixed_precision
from builder.construct.training.loop import Schedule, TrainingLoop, Watch
from builder.construct.training.optimiser import ParameterGroup
from builder.construct.training.rows import PaddedRows, numbered_batches
from builder.progress import Report
from builder.settings.root import DistilSettings

PHASE = "distil the lower layers"
_FINAL_RATE_SHARE = 0.05


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
        self._schedule = Schedule(
            steps=settings.steps,
            warmup_steps=settings.warmup_steps,
            round_steps=settings.checkpoint_every,
            final_share=_FINAL_RATE_SHARE,
            clip_norm=settings.clip_norm,
            seed=settings.seed,
        )

    def run(self, texts: Sequence[str], measure: Callable[[], float], checkpoint: Checkpoint, report: Report) -> float:
        """Train to the end, from the checkpoint where there is one, and return the seconds that this took in all.

        `measure` gives the held-out cosine and is called before every checkpoint.
        """

        def batches(after_step: int) -> Iterator[list[str]]:
            steps = range(after_step + 1, self._settings.steps + 1)
            return numbered_batches(texts, self._tokenizer, self._settings.tokens_per_batch, self._settings.seed, steps)

        groups = self._parameter_groups()
        loop = TrainingLoop(PHASE, groups, self._schedule, batches, self._loss, _HeldOutCosine(measure))
        seconds = loop.run(checkpoint, report)
        self._modules.requires_grad_(False)
        return seconds

    def _parameter_groups(self) -> list[ParameterGroup]:
        """List the parameters that learn, with their rates; the rest is frozen."""
        settings, words = self._settings, "lower.word_embeddings.weight"
        self._modules.requires_grad_(True)
        named = dict(self._modules.named_parameters())
        upper = {name: one for name, one in named.items() if name.startswith("upper.")}
        lower = {name: one for name, one in named.items() if name not in upper and name != words}
        groups = [
            ParameterGroup(lower, settings.learning_rate, settings.weight_decay),
            ParameterGroup(upper, settings.upper_learning_rate if settings.train_upper else 0, settings.weight_decay),
            # Decay would draw the words that no batch holds towards nothing.
            ParameterGroup({words: named[words]}, settings.embedding_learning_rate, 0.0),
        ]
        for group in groups:
            for parameter in group.parameters.values():
                parameter.requires_grad_(group.learning_rate > 0)
        return [group for group in groups if group.learning_rate]

    def _loss(self, texts: list[str], step: int) -> Tensor:
        """Summed over the states, and over the attention scores."""
        tokens = self._tokenizer.encode(self._pairing.apply(texts, step))
        rows = self._student.padded(self._noise.apply(tokens, step))
        settings = self._settings
        with mixed_precision(rows.mask.device):
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


class _HeldOutCosine(Watch):
    """The student's nearness to its teacher, for the progress."""

    def __init__(self, measure: Callable[[], float]) -> None:
        self._measure = measure
        self._cosine: float | None = None

    def end_round(self, number: int) -> None:
        self._cosine = self._measure()

    @property
    def note(self) -> str:
        return "" if self._cosine is None else f", held-out cosine {self._cosine:.4f}"


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
