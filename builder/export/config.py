"""A Triton model configuration as a typed description, and both ways between that and `config.pbtxt`.

Usage:
    text = to_text(ModelDescription(name="echo", max_batch_size=8, inputs=(Tensor("TEXT", "STRING", (1,)),), …))
    assert from_text(text) == description
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from backends.errors import CorruptFileError, InvalidArgumentError

DataType = Literal["STRING", "FP16", "FP32", "INT32", "INT64", "UINT8", "BOOL"]
InstanceKind = Literal["CPU", "GPU"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output; `dims` are without the batch dimension, -1 is any size."""

    name: str
    data_type: DataType
    dims: tuple[int, ...]
    is_ragged: bool = False


@dataclass(frozen=True, slots=True)
class Instances:
    """The number of processes that run a model; GPU without `gpus` means `count` on each GPU there is."""

    kind: InstanceKind
    count: int
    gpus: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidArgumentError("a model needs at least one instance")
        if self.gpus and self.kind != "GPU":
            raise InvalidArgumentError("only GPU instances can name their GPUs")


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    max_queue_delay_us: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One model of an ensemble; each map goes from the model's tensor name to the ensemble's."""

    model: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A Python-backend model, or an ensemble where there are `steps`."""

    name: str
    max_batch_size: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    instances: Instances | None = None
    batching: DynamicBatching | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if self.max_batch_size < 1:
            raise InvalidArgumentError(f"max_batch_size of {self.name} must be at least 1")
        if self.steps and (self.instances or self.batching):
            raise InvalidArgumentError(f"{self.name} is an ensemble; it has neither instances nor batches of its own")
        if any(tensor.is_ragged for tensor in self.outputs):
            raise InvalidArgumentError(f"only inputs of {self.name} can be ragged")


def to_text(model: ModelDescription) -> str:
    return str(text_format.MessageToString(to_message(model)))


def from_text(text: str) -> ModelDescription:
    try:
        return from_message(text_format.Parse(text, schema.ModelConfig()))
    except text_format.ParseError as error:
        raise CorruptFileError(f"not a Triton model configuration: {error}") from error


def to_message(model: ModelDescription) -> schema.ModelConfig:
    message = schema.ModelConfig(name=model.name, max_batch_size=model.max_batch_size)
    _set_runtime(message, model)
    _set_inputs(message, model.inputs)
    _set_outputs(message, model.outputs)
    _set_instances(message, model.instances)
    _set_batching(message, model.batching)
    _set_parameters(message, model.parameters)
    _set_steps(message, model.steps)
    return message


def from_message(message: schema.ModelConfig) -> ModelDescription:
    return ModelDescription(
        name=message.name,
        max_batch_size=message.max_batch_size,
        inputs=tuple(_get_tensor(each, each.allow_ragged_batch) for each in message.input),
        outputs=tuple(_get_tensor(each, False) for each in message.output),
        instances=_get_instances(message),
        batching=_get_batching(message),
        parameters={name: parameter.string_value for name, parameter in message.parameters.items()},
        steps=tuple(_get_step(each) for each in message.ensemble_scheduling.step),
    )


def _set_runtime(message: schema.ModelConfig, model: ModelDescription) -> None:
    if model.steps:
        message.platform = "ensemble"
    else:
        message.backend = "python"


def _set_inputs(message: schema.ModelConfig, tensors: tuple[Tensor, ...]) -> None:
    for tensor in tensors:
        added = message.input.add()
        _set_tensor(added, tensor)
        added.allow_ragged_batch = tensor.is_ragged


def _set_outputs(message: schema.ModelConfig, tensors: tuple[Tensor, ...]) -> None:
    for tensor in tensors:
        _set_tensor(message.output.add(), tensor)


def _set_tensor(added: Any, tensor: Tensor) -> None:
    added.name = tensor.name
    added.data_type = schema.DataType.Value(f"TYPE_{tensor.data_type}")
    added.dims.extend(tensor.dims)


def _set_instances(message: schema.ModelConfig, instances: Instances | None) -> None:
    if instances is not None:
        kind = schema.ModelInstanceGroup.Kind.Value(f"KIND_{instances.kind}")
        message.instance_group.add(kind=kind, count=instances.count, gpus=instances.gpus)


def _set_batching(message: schema.ModelConfig, batching: DynamicBatching | None) -> None:
    if batching is not None:
        message.dynamic_batching.SetInParent()
        message.dynamic_batching.max_queue_delay_microseconds = batching.max_queue_delay_us


def _set_parameters(message: schema.ModelConfig, parameters: Mapping[str, str]) -> None:
    for name, value in parameters.items():
        message.parameters[name].string_value = value


def _set_steps(message: schema.ModelConfig, steps: tuple[Step, ...]) -> None:
    for step in steps:
        added = message.ensemble_scheduling.step.add(model_name=step.model, model_version=-1)
        added.input_map.update(step.inputs)
        added.output_map.update(step.outputs)


def _get_tensor(message: Any, is_ragged: bool) -> Tensor:
    data_type = schema.DataType.Name(message.data_type).removeprefix("TYPE_")
    return Tensor(message.name, data_type, tuple(message.dims), is_ragged)


def _get_instances(message: schema.ModelConfig) -> Instances | None:
    if not message.instance_group:
        return None
    group = message.instance_group[0]
    kind = schema.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
    return Instances(kind, group.count, tuple(group.gpus))


def _get_batching(message: schema.ModelConfig) -> DynamicBatching | None:
    if not message.HasField("dynamic_batching"):
        return None
    return DynamicBatching(message.dynamic_batching.max_queue_delay_microseconds)


def _get_step(message: Any) -> Step:
    return Step(message.model_name, dict(message.input_map), dict(message.output_map))
