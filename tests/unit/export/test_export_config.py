"""Model configurations: description → text → description, and what the committed copies say."""

import random
from pathlib import Path
from typing import Literal

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as schema

from backends.errors import CorruptFileError, InvalidArgumentError
from builder.export.config import (
    DynamicBatching,
    Instances,
    ModelDescription,
    Step,
    Tensor,
    from_text,
    to_message,
    to_text,
)
from builder.export.models import all_models
from builder.export.settings import ExportSettings
from seeds import SEED

MODEL_REPOSITORY = Path(__file__).parents[3] / "model_repository"


def random_tensor(source: random.Random, is_input: bool) -> Tensor:
    dims = tuple(source.choice([-1, 1, source.randint(2, 1000)]) for _ in range(source.randint(1, 3)))
    name = "".join(source.choices("ABCDEF_123", k=8))
    return Tensor(name, source.choice(["STRING", "FP16", "INT64"]), dims, is_input and source.random() < 0.5)


def random_model(source: random.Random) -> ModelDescription:
    is_ensemble = source.random() < 0.3
    kind = source.choice(["CPU", "GPU"])
    gpus = tuple(range(source.randint(0, 3))) if kind == "GPU" else ()
    steps = tuple(Step(f"model_{n}", {"A": f"in_{n}"}, {"B": f"out_{n}"}) for n in range(source.randint(1, 4)))
    return ModelDescription(
        name=f"m{source.randint(0, 9999)}",
        max_batch_size=source.randint(1, 512),
        inputs=tuple(random_tensor(source, True) for _ in range(source.randint(1, 3))),
        outputs=tuple(random_tensor(source, False) for _ in range(source.randint(1, 3))),
        instances=None if is_ensemble or source.random() < 0.2 else Instances(kind, source.randint(1, 8), gpus),
        batching=None if is_ensemble or source.random() < 0.2 else DynamicBatching(source.choice([0, 0, 500])),
        parameters={f"key {n}": source.choice(['a "quoted" path', "ünï", "", "\n\\"]) for n in range(3)},
        steps=steps if is_ensemble else (),
    )


def test_random_descriptions_survive_the_round_trip():
    source = random.Random(SEED)
    for _ in range(200):
        model = random_model(source)
        assert from_text(to_text(model)) == model


def test_the_text_is_what_triton_reads_it_as():
    model = ModelDescription(
        name="m",
        max_batch_size=4,
        inputs=(Tensor("X", "FP16", (-1, 384), is_ragged=True),),
        outputs=(Tensor("Y", "STRING", (1,)),),
        instances=Instances("GPU", 1, (0, 2)),
        batching=DynamicBatching(),
        parameters={"home": ".."},
    )
    message = text_format.Parse(to_text(model), schema.ModelConfig())
    assert message.backend == "python"
    assert message.input[0].data_type == schema.TYPE_FP16
    assert message.input[0].allow_ragged_batch
    assert list(message.input[0].dims) == [-1, 384]
    assert message.HasField("dynamic_batching")
    assert message.instance_group[0].kind == schema.ModelInstanceGroup.KIND_GPU
    assert list(message.instance_group[0].gpus) == [0, 2]
    assert message.parameters["home"].string_value == ".."


def test_the_same_description_gives_the_same_text():
    settings = ExportSettings(upper_parameters={"b": "2", "a": "1"})
    reordered = ExportSettings(upper_parameters={"a": "1", "b": "2"})
    assert [to_text(m) for m in all_models(settings)] == [to_text(m) for m in all_models(reordered)]


@pytest.mark.parametrize("model", all_models(ExportSettings()), ids=lambda model: model.name)
def test_committed_configuration_equals_the_generated_one(model):
    assert (MODEL_REPOSITORY / model.name / "config.pbtxt").read_text() == to_text(model)


def test_steps_of_the_ensemble_fit_the_models_they_name():
    models = {model.name: model for model in all_models(ExportSettings())}
    ensemble = models["hplm"]
    known = {tensor.name: tensor for tensor in ensemble.inputs}
    for step in ensemble.steps:
        model = models[step.model]
        assert set(step.inputs) == {tensor.name for tensor in model.inputs}
        for tensor in model.inputs:
            source = known[step.inputs[tensor.name]]
            assert (source.data_type, source.dims) == (tensor.data_type, tensor.dims)
        known |= {step.outputs[tensor.name]: tensor for tensor in model.outputs}
        assert model.max_batch_size >= ensemble.max_batch_size
    assert {tensor.name for tensor in ensemble.outputs} <= set(known)


def test_settings_reach_the_configuration():
    settings = ExportSettings(
        max_batch_size=16, lower_instances=3, device="gpu", gpus=(1,), upper_parameters={"dtype": "bfloat16"}
    )
    ensemble, lower, upper = (to_message(model) for model in all_models(settings))
    assert {ensemble.max_batch_size, lower.max_batch_size, upper.max_batch_size} == {16}
    assert lower.instance_group[0].count == 3
    assert lower.instance_group[0].kind == schema.ModelInstanceGroup.KIND_CPU
    assert upper.instance_group[0].count == 1
    assert list(upper.instance_group[0].gpus) == [1]
    assert upper.parameters["dtype"].string_value == "bfloat16"
    assert "dtype" not in lower.parameters


def random_settings(source: random.Random, mode: Literal["engine", "triton"], plugin: Path | None) -> ExportSettings:
    return ExportSettings(
        mode=mode,
        plugin=plugin,
        max_batch_size=source.randint(1, 2000),
        lower_instances=source.randint(1, 4),
        device=source.choice(["cpu", "gpu"]),
        queue_delay_us=source.choice([0, 1000]),
        lower_parameters={"threads": "2"} if source.random() < 0.5 else {},
        upper_parameters={"max_waiting": "50"} if source.random() < 0.5 else {},
    )


@pytest.mark.parametrize("plugin", [None, Path("batchstrategy.so")])
@pytest.mark.parametrize("mode", ["engine", "triton"])
def test_triton_batches_for_both_models_or_for_neither(mode, plugin):
    """One that has no batches makes a payload a request; after a thousand, a batch of the other one may end Triton."""
    source = random.Random(SEED)
    for _ in range(50):
        models = [to_message(model) for model in all_models(random_settings(source, mode, plugin))]
        batched = {model.name for model in models if model.HasField("dynamic_batching")}
        expected = {"hplm_lower", "hplm_upper"} if mode == "triton" or plugin else set()
        assert batched == expected, (SEED, models)
        _, lower, upper = models
        assert lower.max_batch_size >= upper.max_batch_size
        assert lower.dynamic_batching.max_queue_delay_microseconds == 0, "the plugin relies on it"


def test_the_limit_of_waiting_rows_is_that_of_both_models():
    limits = {"max_waiting": "50", "tenant_quota": "20"}
    _, lower, upper = (to_message(model) for model in all_models(ExportSettings(upper_parameters=limits)))
    for name, value in limits.items():
        assert lower.parameters[name].string_value == upper.parameters[name].string_value == value


@pytest.mark.parametrize("text", ["name: ", "no_such_field: 3", 'max_batch_size: "many"'])
def test_a_broken_configuration_is_refused_with_its_line(text):
    with pytest.raises(CorruptFileError, match="1:"):
        from_text(text)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch_size": 0},
        {"lower_instances": 0},
        {"device": "tpu"},
        {"gpus": (0,)},
        {"lower_parameters": {"home": "/elsewhere"}},
        {"upper_parameters": {"threads": 2}},
        {"upper_parameters": {"stages": "2"}, "mode": "triton"},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(InvalidArgumentError):
        ExportSettings(**settings)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("max_batch_size", 1, 65_536), ("lower_instances", 1, 1_024), ("queue_delay_us", 0, 10_000_000)],
)
def test_numbers_that_no_server_can_have_are_rejected_in_one_line(name: str, least: int, most: int) -> None:
    """A larger one than 32 bits hold would be a traceback of protobuf's."""
    for value in (least, most):
        settings = ExportSettings(mode="triton", takes_plugin=False, **{name: value})
        assert all(from_text(to_text(model)) == model for model in all_models(settings))
    for value in (least - 1, most + 1, 3_000_000_000):
        with pytest.raises(InvalidArgumentError, match=f"^{name} must be {least:,} to {most:,}, not {value:,}$"):
            ExportSettings(**{name: value})
