"""Roots and hPLMs of any sizes with random weights: good for speed, of no other use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from backends.adapters.adapter_set import ENTRANCE, AdapterSet, part_layers, part_sizes
from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.ladder import EarlyStep, Ladder
from backends.adapters.parts import Bottleneck, Lora, Norm, Part
from backends.adapters.recipe import AdapterRecipe
from backends.root.geometry import RootGeometry
from backends.root.lower import Aggregation, FragmentEncoder
from backends.root.store import RootFolder, write_root
from backends.root.upper import UpperLayers
from builder.settings.hplm import LORA_EVERYWHERE

BERT_BASE_UPPER = RootGeometry(
    vocab_size=1000,
    hidden_size=768,
    intermediate_size=3072,
    num_heads=12,
    num_lower_layers=1,
    num_upper_layers=6,
    max_tokens=512,
    type_vocab_size=2,
    layer_norm_eps=1e-12,
    activation="gelu",
)
"""BERT-base's six upper layers; the lower half is small, since nothing here runs it."""
WIDTH = 64
BOTTLENECK = AdapterRecipe(width=WIDTH)
HEAD_ONLY = AdapterRecipe(bottleneck_sites=())
RECIPES = {
    f"a bottleneck of {WIDTH}": ("", BOTTLENECK),
    "the default recipe": ("_default_recipe", LORA_EVERYWHERE),
}
"""What is measured, and what marks its figures."""


def random_parts(geometry: RootGeometry, generator: torch.Generator) -> dict[str, nn.Module]:
    """Weights of the size that trained ones have, so that no number becomes special."""
    parts: dict[str, nn.Module] = {
        "lower": FragmentEncoder(geometry),
        "aggregation": Aggregation(geometry),
        "upper": UpperLayers(geometry),
    }
    with torch.no_grad():
        for part in parts.values():
            for name, weights in part.named_parameters():
                # The weights of norms stay ones.
                if weights.ndim == 2 or name.endswith("bias"):
                    weights.normal_(std=1 / math.sqrt(weights.shape[-1]), generator=generator)
    return parts


def random_root(folder: Path, geometry: RootGeometry, seed: int) -> RootFolder:
    """Written to `folder`, which must not exist, and read back."""
    folder.mkdir(parents=True)
    tokenizer = folder.with_suffix(".json")
    tokenizer.write_text("{}")
    parts = random_parts(geometry, torch.Generator().manual_seed(seed))
    write_root(folder, folder.name, geometry, tokenizer, parts, {}, {})
    return RootFolder(folder)


NUM_LABELS = 3


def random_ladder(geometry: RootGeometry, after: int, threshold: float, generator: torch.Generator) -> Ladder:
    """Make a ladder for an hPLM of `random_hplm`; none of its rows was certified to leave."""
    size = geometry.hidden_size
    head = Head(torch.randn(NUM_LABELS, size, generator=generator) / math.sqrt(size), torch.zeros(NUM_LABELS))
    certified = {"after": after, "layers": geometry.num_upper_layers, "answered_early": 0.0}
    return Ladder(EarlyStep(after, head, 1.0, threshold), 1.0, certified)


def random_hplm(
    root: RootFolder, generator: torch.Generator, recipe: AdapterRecipe = BOTTLENECK, name: str = "bench/hplm"
) -> HplmArtifact:
    """A classification into three labels; a recipe without sites leaves the adapters out."""
    hidden, num_labels = root.geometry.hidden_size, NUM_LABELS
    adapters = random_adapters(root.geometry, recipe, generator)
    return HplmArtifact(
        hplm=name,
        root_fingerprint=root.fingerprint,
        task="classification",
        labels=tuple(f"label {number}" for number in range(num_labels)),
        pooling="cls",
        adapters=adapters.to(torch.float16),
        head=Head(_normal(generator, num_labels, hidden), torch.zeros(num_labels)),
    )


def random_adapters(geometry: RootGeometry, recipe: AdapterRecipe, generator: torch.Generator) -> AdapterSet:
    def part(key: str, kind: type[Part], width: int) -> Part:
        inputs, outputs = part_sizes(geometry, key)
        shapes = kind.shapes(part_layers(geometry, key), inputs, outputs, width)
        tensors: dict[str, Any] = {name: _normal(generator, *shape) for name, shape in shapes.items()}
        return kind(**tensors)

    kinds: dict[str, tuple[type[Part], int]] = {
        **({ENTRANCE: (Bottleneck, recipe.entrance_width)} if recipe.entrance_width else {}),
        **{f"bottleneck.{site}": (Bottleneck, recipe.width) for site in recipe.bottleneck_sites},
        **{f"lora.{module}": (Lora, recipe.rank) for module in recipe.lora_modules},
        **{f"norm.{site}": (Norm, 0) for site in recipe.norm_sites},
    }
    return AdapterSet.from_parts({key: part(key, kind, width) for key, (kind, width) in kinds.items()})


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=generator) / math.sqrt(shape[-1])


def random_rows(lengths: Sequence[int], hidden_size: int, generator: torch.Generator) -> list[torch.Tensor]:
    """Hidden rows as the lower half sends them, in fp16."""
    return [torch.randn(length, hidden_size, generator=generator).half() for length in lengths]
