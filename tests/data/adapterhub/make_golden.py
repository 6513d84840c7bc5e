"""Makes the folders beside this file: adapters as the `adapters` library saves them, and the logits it computes.

The library needs another transformers than ours, so this runs in an environment of its own:

    pip install adapters==1.3.0 'transformers~=4.57.6' torch==2.13.0
    python tests/data/adapterhub/make_golden.py

`base/` is the pretrained model (4 layers, hidden size 32), in fp16 as a root keeps it, so that what remains is the
difference between two implementations. `golden.safetensors` holds the hidden states
that go into layer 2, one padded batch, and each folder's logits for it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from adapters import AdapterConfig, AutoAdapterModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

HERE = Path(__file__).parent
LOWER, LAYERS, HIDDEN = 2, 4, 32
LENGTHS = (9, 1, 4, 7, 2)
LABELS = {0: "red", 1: "green", 2: "blue"}
FOLDERS = {
    "seq_bn": {"config": "seq_bn", "reduction_factor": 4},
    "double_seq_bn": {"config": "double_seq_bn", "reduction_factor": 2},
    "pfeiffer_scaled": {"config": "pfeiffer", "reduction_factor": {"2": 4, "default": 8}, "scaling": 1.5},
    "channel_bin": {"config": "double_seq_bn", "reduction_factor": 4, "non_linearity": "gelu", "scaling": "channel"},
    "lower_layers": {"config": "seq_bn", "reduction_factor": 8, "leave_out": [0]},
}


def base_model() -> BertModel:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=40,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=2 * HIDDEN,
        max_position_embeddings=32,
        initializer_range=0.1,
    )
    return BertModel(config)


def add_adapter(model: nn.Module, name: str, settings: dict[str, object]) -> None:
    kind = settings.pop("config")
    settings.setdefault("leave_out", list(range(LOWER)))
    model.add_adapter(name, config=AdapterConfig.load(kind, **settings))
    model.add_classification_head(name, num_labels=3, layers=1 if name == "seq_bn" else 2, id2label=LABELS)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if f".{name}." in key:
                parameter.copy_(torch.randn_like(parameter) * (0.3 if parameter.ndim == 2 else 0.1))
                if key.endswith("scaling"):
                    parameter.add_(1)
    model.set_active_adapters(name)


@torch.no_grad()
def logits(model: nn.Module, hidden: Tensor, mask: Tensor) -> Tensor:
    """What the library says when its lower layers' output is replaced by `hidden`."""

    def replaced(layer: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (hidden, *given[1:])

    hook = model.bert.encoder.layer[LOWER].register_forward_pre_hook(replaced)
    try:
        return model(input_ids=torch.ones(mask.shape, dtype=torch.long), attention_mask=mask.long()).logits
    finally:
        hook.remove()


def main() -> None:
    base_model().half().save_pretrained(HERE / "base")
    model = AutoAdapterModel.from_pretrained(HERE / "base", dtype=torch.float32).eval()
    model.config.name_or_path = "toys/tiny-bert"
    torch.manual_seed(2)
    hidden = torch.randn(len(LENGTHS), max(LENGTHS), HIDDEN).half().float()
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    golden = {"hidden": hidden, "lengths": torch.tensor(LENGTHS)}
    for name, settings in FOLDERS.items():
        add_adapter(model, name, dict(settings))
        model.eval()
        if name != "lower_layers":  # that one is there to be refused
            golden[name] = logits(model, hidden, mask)
        model.save_adapter(str(HERE / name), name, with_head=True, use_safetensors=name != "channel_bin")
    save_file(golden, HERE / "golden.safetensors")


if __name__ == "__main__":
    main()
