"""An adapter that another library made is imported into a running server and answers as that library does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import ignore, sample_texts
from builder.construct.hplm.exact_lower import exact_lower
from builder.importing.hplms import import_hplm
from hplm_client import Classification, HplmClient
from served_home import Served, wait_until_served
from short_requests import adapter_import

pytestmark = pytest.mark.server
LABELS = ("glad", "sad", "neither")


def test_an_import_is_served_beside_the_others(served: Served) -> None:
    registry = Registry.open(served.home)
    wrapped, folder = peft_model(served)
    entry = import_hplm(
        served.home, registry, adapter_import("newcomer/lora", "tiny", "farm", folder, labels=LABELS), ignore
    )
    texts = [text.text for text in sample_texts(12, seed=77)]
    wait_until_served(served, ["newcomer/lora"])
    with HplmClient(f"grpc://{served.grpc_url}") as client:
        others = [("acme/topic", text) for text in texts]
        answers = client.infer_many([("newcomer/lora", text) for text in texts] + others)
    hidden = exact_lower(served.home, entry.domain, "fp32").encode(texts).rows
    for answer, row in zip(answers, hidden, strict=False):
        assert isinstance(answer, Classification)
        got = torch.tensor([answer.scores[label] for label in LABELS])
        assert (got - library_scores(wrapped, torch.from_numpy(row).float())).abs().max() <= 1e-3
    registry.delete_hplm("newcomer/lora")


def peft_model(served: Served) -> tuple[Any, Path]:
    """LoRA over the root's own model, rounded to fp16 as the root keeps it, with random weights."""
    root = RootFolder(served.home.root("tiny"))
    model = AutoModelForSequenceClassification.from_pretrained(root.manifest.origin["source"], num_labels=3)
    upper = list(range(root.geometry.num_lower_layers, model.config.num_hidden_layers))
    config = LoraConfig(
        task_type="SEQ_CLS", r=4, lora_alpha=8, layers_to_transform=upper, modules_to_save=["classifier", "pooler"]
    )
    wrapped = get_peft_model(model.half().float(), config).eval()
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.copy_(torch.randn_like(parameter) / 4)
    wrapped.save_pretrained(served.work / "lora")
    return wrapped, served.work / "lora"


@torch.no_grad()
def library_scores(wrapped: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The library's own answer to a row of the lower half."""
    layers = wrapped.get_submodule("base_model.model.bert.encoder.layer")
    hook = layers[2].register_forward_pre_hook(lambda layer, given: (hidden[None], *given[1:]))
    try:
        logits = wrapped(input_ids=torch.ones(1, len(hidden), dtype=torch.long)).logits
    finally:
        hook.remove()
    return torch.softmax(logits[0], dim=-1)
