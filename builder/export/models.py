"""The models of the repository, described.

No queue policy, priority level or optional input anywhere, each for a reason: the first two make Triton sweep its queue
every half second while an instance is busy, and overflowing queues inside an ensemble can hang its requests; requests
whose sets of inputs differ never share a batch.

Triton batches for both models or for neither. A model without batches makes a payload for each request that waits, and
once there are a thousand, Triton 24.10 frees the mutex that it holds while it ends a batch of another model.

In mode `engine` such a batch is only what one call brings: the models queue, and the engine chooses what it runs.
"""

from __future__ import annotations

from dataclasses import replace

from backends.deadline_batcher import call_plan_parameters, plugin_parameters
from backends.scheduling.settings import Capacity
from builder.export.config import DynamicBatching, Instances, ModelDescription, Step, Tensor
from builder.export.model_names import ENSEMBLE, LOWER, UPPER, stage_model
from builder.export.settings import HOME_PARAMETER, ExportSettings

# The tenant's model is a tensor: Triton's response cache looks at tensors only.
_MODEL = Tensor("MODEL", "STRING", (1,))
_TEXT = Tensor("TEXT", "STRING", (1,))
_RESULT = Tensor("RESULT", "STRING", (1,))

# The rows of a request laid end to end and folded to [rows, ceil(tokens / rows), hidden size]: Triton wants the rows in
# front, and padding each row to the longest would send numbers that are never read.
_HIDDEN = Tensor("HIDDEN", "FP16", (-1, -1))
_TICKET = Tensor("TICKET", "INT64", (-1,))
# Where the words of a row lie, and its text. Bytes and no string: Triton does not look whether a string is complete
# before it is among those of other requests, and one that is not would fail them all.
_WORDS = Tensor("WORDS", "UINT8", (-1,))
_BETWEEN = (_HIDDEN, _TICKET, _WORDS)

# Between two stages that are models, the rows are folded in the same way.
_STATES = Tensor("STATES", "FP32", (-1, -1))
_MATES = Tensor("MATES", "INT64", (-1,))
_BETWEEN_STAGES = (_STATES, _MATES)

_CALL_ROWS = 1024
"""Rows that `hplm_lower` takes in with one call, at least; what waits in front of it is not counted."""


def all_models(settings: ExportSettings) -> tuple[ModelDescription, ...]:
    if not settings.stage_models:
        return ensemble(settings), lower(settings), upper(settings)
    return ensemble(settings), lower(settings), *(_stage(settings, number) for number in range(settings.stages))


def ensemble(settings: ExportSettings) -> ModelDescription:
    return ModelDescription(
        name=ENSEMBLE,
        max_batch_size=settings.max_batch_size,
        inputs=(_MODEL, _TEXT),
        outputs=(_RESULT,),
        steps=(
            Step(LOWER, inputs=_same(_MODEL, _TEXT), outputs=_same(*_BETWEEN)),
            *(_upper_step(number, _num_models(settings)) for number in range(_num_models(settings))),
        ),
    )


def lower(settings: ExportSettings) -> ModelDescription:
    """It queues and batches itself in both modes, so where Triton batches it takes in all that waits at once.

    A text with a damaged length would fail the batch that it is in; the plugin cuts it. A batch has more rows than a
    request may have.
    """
    is_batched = settings.is_batched_by_triton
    return ModelDescription(
        name=LOWER,
        max_batch_size=max(settings.max_batch_size, _CALL_ROWS) if is_batched else settings.max_batch_size,
        inputs=(_MODEL, _TEXT),
        outputs=_BETWEEN,
        instances=Instances("CPU", settings.lower_instances),
        # No delay, which the plugin relies on. With several instances Triton would also merge batches that are closed.
        batching=DynamicBatching(max_queue_delay_us=0) if is_batched else None,
        parameters={
            HOME_PARAMETER: settings.home,
            **(call_plan_parameters() | {"max_request_rows": str(settings.max_batch_size)} if is_batched else {}),
            **_queue_parameters(settings),
            **settings.lower_parameters,
        },
    )


def upper(settings: ExportSettings) -> ModelDescription:
    # In mode `triton` a moment's delay lets the rows of one batch of the lower model come together; with one instance
    # Triton does not merge what it has closed.
    delay_us = settings.queue_delay_us if settings.mode == "triton" else 0
    return ModelDescription(
        name=UPPER,
        max_batch_size=settings.max_batch_size,
        # Ragged, or a request of another length would end the batch that Triton hands over.
        inputs=tuple(replace(tensor, is_ragged=settings.is_batched_by_triton) for tensor in _BETWEEN),
        outputs=(_RESULT,),
        # One process per device: a second one would hold the shared layers and all adapter slots once more.
        instances=Instances("GPU", 1, _gpus(settings)) if settings.device == "gpu" else Instances("CPU", 1),
        batching=DynamicBatching(delay_us) if settings.is_batched_by_triton else None,
        parameters={HOME_PARAMETER: settings.home, "mode": settings.mode, **_upper_parameters(settings)},
    )


def _num_models(settings: ExportSettings) -> int:
    """Return how many models the upper layers are."""
    return settings.stages if settings.stage_models else 1


def _upper_step(stage: int, num_models: int) -> Step:
    """Describe a stage's step: every stage gets the tickets and words of the lower model."""
    rows = _numbered(stage, *_BETWEEN_STAGES) if stage else _same(_HIDDEN)
    outputs = _same(_RESULT) if stage == num_models - 1 else _numbered(stage + 1, *_BETWEEN_STAGES)
    return Step(stage_model(stage), inputs={**rows, **_same(_TICKET, _WORDS)}, outputs=outputs)


def _stage(settings: ExportSettings, number: int) -> ModelDescription:
    whole, is_ragged = upper(settings), settings.is_batched_by_triton
    between = tuple(replace(tensor, is_ragged=is_ragged) for tensor in (*_BETWEEN_STAGES, _TICKET, _WORDS))
    return replace(
        whole,
        name=stage_model(number),
        inputs=between if number else whole.inputs,
        outputs=(_RESULT,) if number == settings.stages - 1 else _BETWEEN_STAGES,
        instances=Instances("GPU", 1, (number,)) if settings.device == "gpu" else Instances("CPU", 1),
        parameters={**whole.parameters, "stage": str(number)},
    )


def _gpus(settings: ExportSettings) -> tuple[int, ...]:
    """Return the GPUs that have a process each; one whose layers are cut in stages takes the next ones as well."""
    return settings.gpus if settings.gpus or settings.stages == 1 else (0,)


def _queue_parameters(settings: ExportSettings) -> dict[str, str]:
    """Return the bounds of the engine's queue: as many rows may wait in front of it as in it."""
    return {name: value for name, value in settings.upper_parameters.items() if name in ("max_waiting", "tenant_quota")}


def _upper_parameters(settings: ExportSettings) -> dict[str, str]:
    """Write out the bounds of a batch where two read them, the model and the plugin."""
    if settings.mode == "triton":
        return {**plugin_parameters(Capacity(), settings.cost_model), **settings.upper_parameters}
    return {**(call_plan_parameters() if settings.is_batched_by_triton else {}), **settings.upper_parameters}


def _same(*tensors: Tensor) -> dict[str, str]:
    return {tensor.name: tensor.name for tensor in tensors}


def _numbered(stage: int, *tensors: Tensor) -> dict[str, str]:
    """Name what comes to a stage, which the ensemble must tell from what comes to others."""
    return {tensor.name: f"{tensor.name}_{stage}" for tensor in tensors}
