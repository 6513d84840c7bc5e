"""Adapters that PEFT saved give PEFT's own logits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from importer import LOWER, Importer
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, RobertaConfig

from backends.errors import FingerprintMismatchError, HplmError, InvalidArgumentError
from builder.importing.base import Base, require_same_base
from builder.importing.peft_lora import read_peft_lora

LENGTHS = (9, 1, 4, 7, 2)
UPPER = [LOWER, LOWER + 1]
ALL_LINEAR = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]
CONFIGS: dict[str, dict[str, Any]] = {
    "default targets": {"r": 4, "lora_alpha": 8},
    "everything": {"r": 5, "lora_alpha": 3, "target_modules": ALL_LINEAR},
    "patterns": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["query", "value", "intermediate.dense"],
        "rank_pattern": {"layer.3.attention.self.query": 9},
        "alpha_pattern": {"value": 3, "layer.2.intermediate.dense": 1},
    },
    "regular expressions": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["query", "value", "intermediate.dense"],
        "rank_pattern": {
            r"^bert\.encoder\.layer\.(2|3)\.attention\.self\.query": 9,
            r".*\.[0-9]+\.intermediate\.dense": 3,
        },
        "alpha_pattern": {r"layer\.\d+\.attention\.self\.(query|value)": 3},
    },
    "rslora": {"r": 6, "lora_alpha": 5, "use_rslora": True},
    "one layer": {"r": 4, "lora_alpha": 8, "layers_to_transform": [LOWER + 1]},
    "own pooler": {"r": 4, "lora_alpha": 8, "modules_to_save": ["classifier", "pooler"]},
}


def make_peft(model: Path, folder: Path, task: str, num_labels: int = 3, **settings: Any) -> nn.Module:
    """A wrapped model with random weights in all that is its own, saved into the folder."""
    kind = AutoModelForSequenceClassification if task == "SEQ_CLS" else AutoModelForTokenClassification
    base = kind.from_pretrained(model, num_labels=num_labels, dtype=torch.float32)
    wrapped = get_peft_model(base, LoraConfig(task_type=task, **{"layers_to_transform": UPPER, **settings}))
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 2 else 0.1))
    wrapped.save_pretrained(folder)
    return wrapped.eval()


@torch.no_grad()
def library_logits(wrapped: nn.Module, hidden: Tensor, mask: Tensor) -> Tensor:
    """What the library says when its lower layers' output is replaced."""

    def replaced(layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (hidden, *given[1:])

    hook = wrapped.get_submodule(f"base_model.model.bert.encoder.layer.{LOWER}").register_forward_pre_hook(replaced)
    try:
        logits: Tensor = wrapped(input_ids=torch.ones(mask.shape, dtype=torch.long), attention_mask=mask.long()).logits
        return logits
    finally:
        hook.remove()


def random_rows(hidden_size: int) -> tuple[Tensor, Tensor]:
    hidden = torch.randn(len(LENGTHS), max(LENGTHS), hidden_size).half().float()
    return hidden, torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]


@pytest.fixture
def importer(importer_of: Callable[[Path], Importer], rounded_bert: Path) -> Importer:
    return importer_of(rounded_bert)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory, rounded_bert: Path) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    make_peft(rounded_bert, folder, "SEQ_CLS")
    return folder


@pytest.fixture
def lora(saved: Path, tmp_path: Path) -> Path:
    """A folder of PEFT's for one test to change."""
    return Path(shutil.copytree(saved, tmp_path / "lora"))


def test_all_kinds_in_one_batch_give_the_librarys_logits(importer: Importer, tmp_path: Path) -> None:
    hidden, mask = random_rows(64)
    asked, expected = [], []
    for number, (name, settings) in enumerate(CONFIGS.items()):
        wrapped = make_peft(importer.model, tmp_path / name, "SEQ_CLS", **settings)
        entry = importer.take(tmp_path / name, f"acme/{number}")
        assert (entry.task, entry.labels) == ("classification", ("a", "b", "c"))
        for row, length, logits in zip(hidden, LENGTHS, library_logits(wrapped, hidden, mask), strict=True):
            asked.append((entry, row[:length]))
            expected.append(logits)
    for (entry, _), got, logits in zip(asked, importer.logits(asked), expected, strict=True):
        assert (got - logits).abs().max() <= 1e-3, list(CONFIGS)[int(entry.id.removeprefix("acme/"))]


def test_token_classification_gives_the_librarys_logits(importer: Importer, tmp_path: Path) -> None:
    hidden, mask = random_rows(64)
    wrapped = make_peft(importer.model, tmp_path / "tokens", "TOKEN_CLS")
    labels = ("O", "B-PER", "I-PER")
    entry = importer.take(tmp_path / "tokens", labels=labels)
    assert (entry.task, entry.labels) == ("ner", labels)
    got = importer.logits([(entry, row[:length]) for row, length in zip(hidden, LENGTHS, strict=True)])
    for logits, expected, length in zip(got, library_logits(wrapped, hidden, mask), LENGTHS, strict=True):
        assert (logits - expected[:length]).abs().max() <= 1e-3


def test_ner_labels_have_a_name_for_what_is_no_entity(importer: Importer, tmp_path: Path) -> None:
    make_peft(importer.model, tmp_path / "tokens", "TOKEN_CLS")
    with refused(importer, "O, for words outside of entities"):
        importer.take(tmp_path / "tokens", labels=["B-LOC", "B-PER", "I-PER"])


@pytest.mark.parametrize(
    ("labels", "wrong"),
    [(["O", "B-PER", "E-PER"], "E-PER"), (["O", "B-PER", "I-LOC"], "I-LOC"), (["O", "S", "B-X"], "S")],
)
def test_ner_labels_of_another_scheme_would_lose_entities(
    importer: Importer, tmp_path: Path, labels: list[str], wrong: str
) -> None:
    make_peft(importer.model, tmp_path / "tokens", "TOKEN_CLS")
    with refused(importer, f"'{wrong}' is none of these"):
        importer.take(tmp_path / "tokens", labels=labels)


def test_a_regression_has_one_output_and_no_labels(importer: Importer, tmp_path: Path) -> None:
    hidden, mask = random_rows(64)
    wrapped = make_peft(importer.model, tmp_path / "value", "SEQ_CLS", num_labels=1)
    entry = importer.take(tmp_path / "value", labels=None)
    assert (entry.task, entry.labels) == ("regression", ())
    got = importer.logits([(entry, row[:length]) for row, length in zip(hidden, LENGTHS, strict=True)])
    assert (torch.stack(got) - library_logits(wrapped, hidden, mask)).abs().max() <= 1e-3


def test_plain_torch_files_are_read_and_may_hold_nothing_but_tensors(importer: Importer, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    make_peft(importer.model, folder, "SEQ_CLS")
    tensors = load_file(folder / "adapter_model.safetensors")
    (folder / "adapter_model.safetensors").unlink()
    torch.save(tensors, folder / "adapter_model.bin")
    entry = importer.take(folder)
    query = importer.artifact(entry).adapters.loras["query"]
    key = f"base_model.model.bert.encoder.layer.{LOWER}.attention.self.query.lora_A.weight"
    assert torch.equal(query.down[0], tensors[key])
    torch.save({"model": nn.Linear(2, 2)}, folder / "adapter_model.bin")
    with pytest.raises(HplmError, match=r"adapter_model\.bin"):
        importer.take(folder, "acme/y")


def test_the_manifest_keeps_the_scaling_and_the_weights_are_kept_exactly(importer: Importer, tmp_path: Path) -> None:
    make_peft(importer.model, tmp_path / "x", "SEQ_CLS", r=4, lora_alpha=10)
    artifact = importer.artifact(importer.take(tmp_path / "x"))
    assert artifact.stored_dtype == "fp32"
    assert artifact.origin["scaling"]["lora_alpha"] == 10
    assert artifact.origin["base_compared_by"] == "weights"
    tensors = load_file(tmp_path / "x" / "adapter_model.safetensors")
    key = f"base_model.model.bert.encoder.layer.{LOWER + 1}.attention.self.value.lora_B.weight"
    assert torch.equal(artifact.adapters.loras["value"].up[1], tensors[key] * 2.5)


@contextmanager
def refused(importer: Importer, match: str, kind: type[HplmError] = InvalidArgumentError) -> Iterator[None]:
    with pytest.raises(kind, match=match):
        yield
    assert importer.registry.hplms() == []
    assert not any((importer.home.path / "bank").rglob("manifest.json"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"use_dora": True}, "use_dora is True; DoRA"),
        ({"lora_bias": True}, "lora_bias is True"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"layers_to_transform": [1, 2, 3]}, r"adapts layer 1 \(attention.*--retune"),
        ({"layers_to_transform": None}, "adapts layer 0"),
    ],
)
def test_what_the_library_saves_but_nobody_can_serve(
    strict_importer: Importer, tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    make_peft(strict_importer.model, tmp_path / "x", "SEQ_CLS", **settings)
    with refused(strict_importer, reason):
        strict_importer.take(tmp_path / "x")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"peft_type": "IA3"}, "'IA3'"),
        ({"task_type": "CAUSAL_LM"}, "'CAUSAL_LM'"),
        ({"fan_in_fan_out": True}, "stored transposed"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"init_lora_weights": "pissa_niter_4"}, "base's own weights"),
        ({"rank_pattern": {"query": 3}}, "has rank 3 there, but 8"),
        ({"r": None}, "r is missing"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
        ({"lora_alpha": "16"}, "lora_alpha is '16', which is not a number"),
        ({"alpha_pattern": {"query": [1]}}, "alpha_pattern of 'query' is"),
        ({"rank_pattern": [8]}, "rank_pattern is not a JSON object"),
        ({"rank_pattern": {"query(": 8}}, r"rank_pattern has 'query\(', which is no regular expression"),
        ({"alpha_pattern": {"*key": 8}}, r"alpha_pattern has '\*key', which is no regular expression"),
        ({"rank_pattern": {"query\ud800": 8}}, "no regular expression that is read here: it is not UTF-8"),
        ({"rank_pattern": {r"(query)\1": 8}}, "no regular expression that is read here: invalid escape sequence"),
        ({"rank_pattern": {"((a{999}){999}){999}": 8}}, "no regular expression that is read here: invalid repetition"),
        ({"rank_pattern": {"q" * 1001: 8}}, "rank_pattern has a pattern of 1001 characters"),
        ({"alpha_pattern": dict.fromkeys(map(str, range(1001)), 8)}, "has 1001 patterns; 1000 are allowed"),
        ({"use_newest_idea": True}, "unknown setting 'use_newest_idea'"),
    ],
)
def test_settings_that_change_what_is_computed(
    strict_importer: Importer, lora: Path, changes: dict[str, Any], reason: str
) -> None:
    path = lora / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes, "unknown_but_unused": None}))
    with refused(strict_importer, reason):
        strict_importer.take(lora)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["(([a-z0-9.]+)+X)", "(.*)*(.*)*(.*)*X"])
def test_a_pattern_that_would_be_tried_in_countless_ways_costs_no_time(lora: Path, pattern: str) -> None:
    config = json.loads((lora / "adapter_config.json").read_text())
    assert len(read_peft_lora(lora, {**config, "rank_pattern": {pattern: 3}}).modules) == 4


@pytest.mark.parametrize(
    "key",
    [
        "base_model.model.bert.encoder.layer.2.attention.self.query.lora_magnitude_vector",
        "base_model.model.bert.encoder.layer.2.attention.self.gate.lora_A.weight",
        "base_model.model.bert.embeddings.word_embeddings.lora_embedding_A",
        "base_model.model.score.weight",
    ],
)
def test_unknown_weights_are_named(strict_importer: Importer, lora: Path, key: str) -> None:
    path = lora / "adapter_model.safetensors"
    save_file({**load_file(path), key: torch.zeros(4)}, path)
    with refused(strict_importer, f"unknown weights '{key}'"):
        strict_importer.take(lora)


def test_half_a_pair_is_refused(strict_importer: Importer, lora: Path) -> None:
    path = lora / "adapter_model.safetensors"
    save_file(
        {name: tensor for name, tensor in load_file(path).items() if "3.attention.self.query.lora_B" not in name}, path
    )
    with refused(strict_importer, r"layer\.3\.attention\.self\.query has lora_A only"):
        strict_importer.take(lora)


def test_labels_must_be_named_and_fit(strict_importer: Importer, lora: Path) -> None:
    for labels, reason in ((None, "--labels"), (("a", "b"), "3 outputs"), (("a", "b", "a"), "2 different labels")):
        with refused(strict_importer, reason):
            strict_importer.take(lora, labels=labels)


def test_an_adapter_without_a_head_is_refused(strict_importer: Importer, lora: Path) -> None:
    path = lora / "adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if "classifier" not in name}, path)
    with refused(strict_importer, "no head; .*--retune"):
        strict_importer.take(lora)


def rename_base(folder: Path, name: str | None) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": name}))


def test_another_base_never_slips_in(importer: Importer, tmp_path: Path, tiny_bert: Path) -> None:
    """Sizes alone do not tell: `tiny_bert` is the same model, but not rounded."""
    folder = tmp_path / "x"
    make_peft(tiny_bert, folder, "SEQ_CLS")
    ours = importer.root.manifest.origin["weights_checksum"]
    with refused(
        importer, rf"weights [0-9a-f]{{32}}, but root 'plain' .* with weights {ours}", FingerprintMismatchError
    ):
        importer.take(folder)
    for name in ("somebody/other-bert", None):
        rename_base(folder, name)
        with refused(
            importer, f"{name or 'does not name'}.*{importer.root.fingerprint}.*--base", FingerprintMismatchError
        ):
            importer.take(folder)
    with refused(importer, "but root 'plain'", FingerprintMismatchError):
        importer.take(folder, base=tiny_bert)
    importer.take(folder, same_base=True)
    importer.take(folder, "a/b", base=importer.model)
    rename_base(folder, f"somebody/{importer.model.name.upper()}")
    entry = importer.take(folder, "a/c")
    assert importer.artifact(entry).origin["base_compared_by"] == "name"


def test_an_adapter_of_another_size_is_refused(importer: Importer, tmp_path: Path) -> None:
    from bench.kit.tiny_home import write_tiny_bert

    model = write_tiny_bert(tmp_path / "narrow", hidden_size=32)
    make_peft(model, tmp_path / "x", "SEQ_CLS")
    with refused(importer, r"shape \(8, 32\) where this root, 64 wide, needs \(8, 64\)"):
        importer.take(tmp_path / "x")


def test_an_adapter_that_is_too_wide_to_be_served_leaves_the_old_version(importer: Importer, tmp_path: Path) -> None:
    make_peft(importer.model, tmp_path / "narrow", "SEQ_CLS")
    served = importer.take(tmp_path / "narrow")
    make_peft(importer.model, tmp_path / "wide", "SEQ_CLS", r=257)
    with pytest.raises(InvalidArgumentError, match=r"lora\.query is 257 wide; the widest that can be served is 256"):
        importer.take(tmp_path / "wide", replace=True)
    assert importer.registry.hplm(served.id) == served


def test_roberta_heads_have_a_dense_layer_of_their_own(tmp_path: Path) -> None:
    from transformers import RobertaForSequenceClassification

    from builder.importing.folder import read_folder

    config = RobertaConfig(
        vocab_size=30, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, num_labels=3
    )
    RobertaForSequenceClassification(config).save_pretrained(tmp_path / "roberta")
    wrapped = make_peft(tmp_path / "roberta", tmp_path / "x", "SEQ_CLS", layers_to_transform=[1])
    imported = read_folder(tmp_path / "x")
    assert imported.head is not None
    states = torch.randn(4, 6, 32)
    with torch.no_grad():
        expected = wrapped.get_submodule("base_model.model.classifier")(states)
    torch.testing.assert_close(imported.head.head.logits(states[:, 0]), expected, rtol=1e-5, atol=1e-5)
    assert {module.layer for module in imported.modules} == {1}


def test_of_an_uploaded_adapter_only_the_name_of_its_base_is_compared(importer: Importer, tiny_bert: Path) -> None:
    manifest = importer.root.manifest
    assert require_same_base(str(importer.model), manifest, Base()) == "weights"
    assert require_same_base(str(importer.model), manifest, Base(is_uploaded=True)) == "name"
    with pytest.raises(FingerprintMismatchError, match="the adapter was made for "):
        require_same_base(str(tiny_bert), manifest, Base(is_uploaded=True))
