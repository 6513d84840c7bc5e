"""Tuning of one hPLM: adapters and head learn, everything else stays.

The lower half is frozen, so each text's hidden rows are looked up once, through the same table that will serve
them, and kept; an epoch costs the upper half only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from backends.adapters.bottleneck import MAX_BOTTLENECK, BottleneckAdapter, Head
from backends.engine.heads import POOL_FUNCTIONS
from backends.errors import InvalidArgumentError
from backends.root.encoder import padded_attention
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers
from builder.progress import Report, Step

LOGGER = logging.getLogger(__name__)
_DEV_BATCH_ROWS = 64
_WARMUP_SHARE = 0.1


@dataclass(frozen=True)
class TuneSettings:
    """How an hPLM is tuned; the defaults suit a few hundred to a few thousand texts."""

    bottleneck: int = 48
    pooling: str = "mean"
    epochs: int = 8
    rows_per_batch: int = 32
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    label_smoothing: float = 0.05
    patience: int = 3
    seed: int = 17

    def __post_init__(self) -> None:
        if min(self.bottleneck, self.epochs, self.rows_per_batch, self.patience) < 1 or self.learning_rate <= 0:
            raise InvalidArgumentError(
                "bottleneck, epochs, rows per batch, patience and learning rate must be positive"
            )
        if not math.isfinite(self.learning_rate) or self.seed < 0:
            raise InvalidArgumentError("the learning rate must be a finite number, the seed 0 or more")
        if self.bottleneck > MAX_BOTTLENECK:
            raise InvalidArgumentError(
                f"a bottleneck of {self.bottleneck} cannot be served; the widest is {MAX_BOTTLENECK}"
            )
        if self.pooling not in POOL_FUNCTIONS:
            raise InvalidArgumentError(f"pooling {self.pooling!r} is not one of {', '.join(POOL_FUNCTIONS)}")


@dataclass(frozen=True)
class EncodedSet:
    """Texts after the lower half, with their labels.

    Shape:
        rows: one `[L, H]` fp16 each; targets: `[N]` int64.
    """

    rows: Sequence[Tensor]
    targets: Tensor


@dataclass(frozen=True)
class Tuned:
    adapter: BottleneckAdapter
    head: Head
    metrics: dict[str, float]


class TunableHplm(nn.Module):
    """Frozen shared layers with trainable adapters and head, over padded batches.

    Adapters start as the identity: their up-projections are zero.
    """

    def __init__(self, upper: UpperLayers, geometry: RootGeometry, num_labels: int, settings: TuneSettings) -> None:
        super().__init__()
        layers, hidden, width = geometry.num_upper_layers, geometry.hidden_size, settings.bottleneck
        self._upper = upper.requires_grad_(False)
        self._num_heads = geometry.num_heads
        self._pool = POOL_FUNCTIONS[settings.pooling]
        self.down_weight = nn.Parameter(torch.randn(layers, width, hidden) / math.sqrt(hidden))
        self.down_bias = nn.Parameter(torch.zeros(layers, width))
        self.up_weight = nn.Parameter(torch.zeros(layers, hidden, width))
        self.up_bias = nn.Parameter(torch.zeros(layers, hidden))
        self.classifier = nn.Linear(hidden, num_labels)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """`[B, L, H]` and `[B, L]` → logits `[B, C]`."""
        adapter = self.adapter()
        adapters = [self._adapt(adapter, layer) for layer in range(adapter.num_layers)]
        states = self._upper(rows, padded_attention(self._num_heads, mask), adapters)
        logits: Tensor = self.classifier(self._pool(states, mask))
        return logits

    def adapter(self) -> BottleneckAdapter:
        return BottleneckAdapter(self.down_weight, self.down_bias, self.up_weight, self.up_bias)

    def head(self) -> Head:
        return Head(self.classifier.weight, self.classifier.bias)

    @staticmethod
    def _adapt(adapter: BottleneckAdapter, layer: int) -> Callable[[Tensor], Tensor]:
        return lambda states: adapter.apply(layer, states)


def tune(
    upper: UpperLayers,
    geometry: RootGeometry,
    num_labels: int,
    train: EncodedSet,
    dev: EncodedSet,
    settings: TuneSettings,
    report: Report,
) -> Tuned:
    """Train until the dev accuracy stops rising, and keep the best epoch."""
    torch.manual_seed(settings.seed)
    model = TunableHplm(upper, geometry, num_labels, settings)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, settings.learning_rate, weight_decay=settings.weight_decay)
    steps_per_epoch = math.ceil(len(train.rows) / settings.rows_per_batch)
    steps = steps_per_epoch * settings.epochs
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_share(step, steps))
    order = np.random.default_rng(settings.seed)
    best_accuracy: float | None = None
    best_epoch, best = 0, _copy(model)
    step = 0
    for epoch in range(1, settings.epochs + 1):
        for batch in _shuffled_batches(train, settings.rows_per_batch, order):
            loss = _train_step(model, optimiser, train, batch, settings.label_smoothing)
            schedule.step()
            step += 1
            report(_progress(step, steps, loss, best_accuracy))
        accuracy = evaluate(model, dev)
        if best_accuracy is None or accuracy > best_accuracy:
            best_accuracy, best_epoch, best = accuracy, epoch, _copy(model)
        if epoch - best_epoch >= settings.patience:
            break
    report(_progress(steps, steps, loss, best_accuracy))
    return Tuned(best[0], best[1], {"dev_accuracy": round(best_accuracy or 0.0, 4), "best_epoch": float(best_epoch)})


@torch.no_grad()
def evaluate(model: TunableHplm, dataset: EncodedSet) -> float:
    """Share of texts whose best label is right."""
    right = 0
    for indices in _by_length(dataset, np.arange(len(dataset.rows)), _DEV_BATCH_ROWS):
        rows, mask = _pad(dataset, indices)
        with torch.autocast(rows.device.type, dtype=torch.bfloat16):
            logits = model(rows, mask)
        right += int((logits.argmax(dim=-1) == dataset.targets[torch.from_numpy(indices)]).sum())
    return right / len(dataset.rows)


def load_tuned(upper: UpperLayers, geometry: RootGeometry, tuned: Tuned, settings: TuneSettings) -> TunableHplm:
    """The model that `tune` returned the weights of, to evaluate it or to go on."""
    model = TunableHplm(upper, geometry, len(tuned.head.bias), settings)
    state = {**tuned.adapter.named(), "classifier.weight": tuned.head.weight, "classifier.bias": tuned.head.bias}
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=False)
    return model


def rate_share(step: int, steps: int) -> float:
    """The learning rate of a step, counted from 0, as a share of the highest: linear warm-up, then half a cosine."""
    warmup_steps = max(1, round(_WARMUP_SHARE * steps))
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return 0.5 * (1 + math.cos(math.pi * (step + 1 - warmup_steps) / (steps + 1 - warmup_steps)))


def _progress(step: int, steps: int, loss: float, accuracy: float | None) -> Step:
    note = f"loss {loss:.3f}" + (f", dev accuracy {accuracy:.3f}" if accuracy is not None else "")
    return Step("tune adapters and head", step, steps, note)


def _train_step(
    model: TunableHplm,
    optimiser: torch.optim.Optimizer,
    train: EncodedSet,
    indices: np.ndarray[tuple[int], np.dtype[np.int64]],
    label_smoothing: float,
) -> float:
    rows, mask = _pad(train, indices)
    # Written-out attention: on the CPU the fused kernel's backward pass takes a third of a step at these lengths.
    with torch.autocast(rows.device.type, dtype=torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        logits = model(rows, mask)
    targets = train.targets[torch.from_numpy(indices)]
    loss = functional.cross_entropy(logits.float(), targets, label_smoothing=label_smoothing)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimiser.step()
    return float(loss.detach())


def _shuffled_batches(
    dataset: EncodedSet, size: int, order: np.random.Generator
) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Random batches of similar lengths: shuffled pools, sorted inside, batches shuffled again."""
    indices = order.permutation(len(dataset.rows))
    pools = [indices[start : start + 16 * size] for start in range(0, len(indices), 16 * size)]
    batches = [batch for pool in pools for batch in _by_length(dataset, pool, size)]
    return [batches[place] for place in order.permutation(len(batches))]


def _by_length(
    dataset: EncodedSet, indices: np.ndarray[tuple[int], np.dtype[np.int64]], size: int
) -> list[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    lengths = np.array([len(dataset.rows[index]) for index in indices])
    in_order = indices[np.argsort(lengths, kind="stable")]
    return [in_order[start : start + size] for start in range(0, len(in_order), size)]


def _pad(dataset: EncodedSet, indices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[Tensor, Tensor]:
    rows = [dataset.rows[index] for index in indices]
    padded = nn.utils.rnn.pad_sequence(list(rows), batch_first=True).float()
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(padded.shape[1]) < lengths[:, None]


def _copy(model: TunableHplm) -> tuple[BottleneckAdapter, Head]:
    """The weights as they will be stored, fp16, so that what is measured is what is served."""
    adapter = BottleneckAdapter(**{name: t.detach().clone() for name, t in model.adapter().named().items()})
    head = Head(**{name: t.detach().clone() for name, t in model.head().named().items()})
    return adapter.to(torch.float16), head.to(torch.float16)
