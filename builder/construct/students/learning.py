"""Students in the making: what they say together of a batch, and how far that is from the upper layers.

Of a batch with the final states T of the upper layers, s_k the states of student k, counted from 1, and B_k what the
first k students say: in a chain map_k(s_k), in parallel the sum of their mapped states:

    all together:           Σ_m mean((T - B_m)²) / Var(T)
    boosting of student k:  mean((T - B_(k-1) - map_k(s_k))²) / Var(T)
    stacking of student k:  mean((B_(k-1) - states in the middle of student k)²) / Var(B_(k-1))

Boosting and stacking are for students in parallel. Stacking lets the layers above the middle refine what earlier
students say, as if they stood on top of them. The middle of a narrow student learns that through its map of inputs:
what it would read, did it stand on them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from backends.root.geometry import RootGeometry
from backends.root.student_set import StudentWeights
from backends.root.student_shape import StudentShape
from backends.root.upper import UpperLayers
from builder.construct.students.hidden_texts import HiddenBatch, HiddenTexts
from builder.construct.students.narrowing import narrowed_state, selecting
from builder.construct.training.device import device_of, mixed_precision
from builder.construct.training.least_squares import LeastSquares

_DIGITS = 5


@dataclass(frozen=True)
class Fidelity:
    """Students together against the upper layers, over the tokens of some texts.

    Attributes:
        error: Mean square of the difference, in units of the variance of the upper layers' states.
        cosine: Mean over the tokens.
    """

    error: float
    cosine: float

    def to_json(self) -> dict[str, float]:
        return {"error": round(self.error, _DIGITS), "cosine": round(self.cosine, _DIGITS)}


class LearningStudents(nn.Module):
    """The layers and maps of as many students as there can be, and the upper layers that they learn from."""

    def __init__(self, upper: UpperLayers, root: RootGeometry, shape: StudentShape) -> None:
        super().__init__()
        self.shape = shape
        self._root, self._own = root, shape.geometry(root)
        self._upper = upper.requires_grad_(False)
        weights = StudentWeights.untrained(shape, root)
        self.layers, self.maps, self.inputs = weights.layers, weights.maps, weights.inputs
        self._freeze()

    @property
    def learns(self) -> bool:
        return self.shape.learns(self._root.hidden_size)

    @torch.no_grad()
    def start(self, student: int) -> None:
        """Give a student its first weights.

        A chain has the first upper layers, which read the same rows. The first one in parallel has the last upper
        layers, and says what these say; others are as the one before and say nothing yet, so that they never make the
        sum worse. Narrow ones have some of the channels of the upper layers.
        """
        own = [self.layers.layers[index] for index in self.shape.span(student)]
        is_copy = student not in self.shape.whole
        if is_copy:
            sources = [self.layers.layers[index].state_dict() for index in self.shape.span(student - 1)]
        else:
            sources = [narrowed_state(layer, self._root, self._own) for layer in self._copied_by(student)]
        for layer, source in zip(own, sources, strict=True):
            layer.load_state_dict(source)
        kept = selecting(self._root.hidden_size, self._own.hidden_size)
        weight, bias = (self.maps[student].get_parameter(name) for name in ("weight", "bias"))
        weight.zero_() if is_copy else weight.copy_(kept.T)
        bias.zero_()
        if student >= len(self.inputs):
            return
        if is_copy:
            self.inputs[student].load_state_dict(self.inputs[student - 1].state_dict())
        else:
            self.inputs[student].get_parameter("weight").copy_(kept)
            self.inputs[student].get_parameter("bias").zero_()

    @torch.no_grad()
    def fit_maps(self, texts: HiddenTexts, most: int, report: Callable[[int], None]) -> None:
        """Let each student of a chain say what comes nearest to the upper layers' states, on the first texts."""
        width, hidden_size = self._own.hidden_size, self._root.hidden_size
        fits = [LeastSquares(width, hidden_size, device_of(self.layers)) for _ in self.maps]
        done = 0
        for indices, batch in texts.all(most):
            with mixed_precision(batch.hidden.device):
                target, states = self._target(batch), [*self._states_of_each(batch, len(fits))]
            for fit, each in zip(fits, states, strict=True):
                fit.add(each[batch.mask].float(), target)
            report(done := done + len(indices))
        for fit, own in zip(fits, self.maps, strict=True):
            fit.solve_into(own)

    def parameters_of(self, students: Sequence[int]) -> dict[str, nn.Parameter]:
        """Let these students learn and no others; return what learns, by name."""
        self._freeze()
        found: dict[str, nn.Parameter] = {}
        for student in students:
            parts = {f"layers.{index}": self.layers.layers[index] for index in self.shape.span(student)}
            if student < len(self.inputs):
                parts[f"inputs.{student}"] = self.inputs[student]
            for name, part in {**parts, f"maps.{student}": self.maps[student]}.items():
                found |= {f"{name}.{key}": one for key, one in part.named_parameters()}
        for one in found.values():
            one.requires_grad_(True)
        return found

    def boosting_loss(self, batch: HiddenBatch, student: int, stacking_weight: float) -> Tensor:
        """Compute the loss of one student in parallel, whose earlier ones are done."""
        with mixed_precision(batch.hidden.device):
            with torch.no_grad():
                target = self._target(batch)
                before = self._says(batch, student)[-1] if student else torch.zeros_like(target)
                below = self.inputs.enter(student, before).float()
            states = list(self._states(batch, student, batch.hidden))
            says = self.maps[student](states[-1])[batch.mask].float()
        loss = functional.mse_loss(says, target - before) / target.var()
        if student and self.shape.layers > 1 and stacking_weight:
            middle = states[-(-self.shape.layers // 2) - 1][batch.mask].float()
            loss = loss + stacking_weight * functional.mse_loss(middle, below) / below.var()
        return loss

    def joint_loss(self, batch: HiddenBatch, count: int) -> Tensor:
        """Sum the errors of the first student, of the first two, and so on."""
        with mixed_precision(batch.hidden.device):
            with torch.no_grad():
                target = self._target(batch)
            says = self._says(batch, count)
        return torch.stack([functional.mse_loss(each, target) for each in says]).sum() / target.var()

    @torch.no_grad()
    def fidelity(self, texts: HiddenTexts, count: int, most: int | None = None) -> list[Fidelity]:
        """Measure the first student, the first two, and so on, on all texts or the first ones."""
        sums, tokens, squares = np.zeros((2, count)), 0, [0.0, 0.0]
        for _, batch in texts.all(most):
            target, prefixes = self._both(batch, count)
            for number, each in enumerate(prefixes):
                sums[0, number] += float((each - target).square().mean(dim=-1).double().sum())
                sums[1, number] += float(functional.cosine_similarity(each, target, dim=-1).double().sum())
            tokens += len(target)
            exact = target.double()
            for place, each in enumerate((exact, exact.square())):
                squares[place] += float(each.mean(dim=-1).sum())
        mean, mean_square = (each / tokens for each in squares)
        variance = mean_square - mean**2
        return [Fidelity(error / tokens / variance, cosine / tokens) for error, cosine in sums.T.tolist()]

    @torch.no_grad()
    def residuals(self, texts: HiddenTexts, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Compute each text's mean square of what the first students do not say."""
        found = np.zeros(len(texts))
        for indices, batch in texts.all():
            target, prefixes = self._both(batch, count)
            lengths = texts.lengths[indices].tolist()
            parts = torch.split((target - prefixes[-1]).square().mean(dim=-1), lengths)
            found[indices] = [float(part.mean()) for part in parts]
        return found

    @torch.no_grad()
    def kept(self, count: int) -> tuple[StudentShape, StudentWeights]:
        """Return copies of the first students alone, on the CPU."""
        shape = replace(self.shape, count=count)
        kept = copy.deepcopy(StudentWeights(self.layers, self.maps, self.inputs))
        kept.layers.layers = kept.layers.layers[: count * shape.layers]
        for part in (kept.maps, kept.inputs):
            del part[count:]
        for module in (kept.layers, kept.maps, kept.inputs):
            module.cpu()
        return shape, kept

    def _both(self, batch: HiddenBatch, count: int) -> tuple[Tensor, list[Tensor]]:
        with mixed_precision(batch.hidden.device):
            return self._target(batch), self._says(batch, count)

    def _target(self, batch: HiddenBatch) -> Tensor:
        """Shape: `[T, H]`."""
        states: Tensor = self._upper(batch.hidden, batch.attend(self._root.num_heads))
        return states[batch.mask].float()

    def _says(self, batch: HiddenBatch, count: int) -> list[Tensor]:
        """Compute what the first student says, the first two, and so on: `[T, H]` each."""
        each = zip(self.maps, self._states_of_each(batch, count), strict=False)
        return self.shape.prefixes(own(states)[batch.mask].float() for own, states in each)

    def _states_of_each(self, batch: HiddenBatch, count: int) -> Iterator[Tensor]:
        def run(student: int, hidden: Tensor) -> Tensor:
            *_, states = self._states(batch, student, hidden)
            return states

        return self.shape.pass_each(batch.hidden, run, count)

    def _states(self, batch: HiddenBatch, student: int, hidden: Tensor) -> Iterator[Tensor]:
        """Yield the states after each layer of a student, of what it reads."""
        attend, entered = batch.attend(self._own.num_heads), self.inputs.enter(student, hidden)
        return self.layers.states(entered, attend, span=self.shape.span(student))

    def _copied_by(self, student: int) -> list[nn.Module]:
        """Return the upper layers that a student begins as; they are spread where there are fewer than it has."""
        upper, needed = [*self._upper.layers], self.shape.layers * len(self.shape.whole)
        if not self.shape.is_chained:
            upper = upper[-needed:]
        spread = min(len(upper), needed)
        copied = [upper[index * spread // needed] for index in range(needed)]
        return [copied[index] for index in self.shape.span(student)]

    def _freeze(self) -> None:
        for part in (self.layers, self.maps, self.inputs):
            part.requires_grad_(False)
