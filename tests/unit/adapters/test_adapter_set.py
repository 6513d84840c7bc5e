"""Sets of adapters that tuning starts from and trains through."""

from __future__ import annotations

import random

import pytest
import torch

from adapter_reference import KINDS, random_artifact, reference_logits
from backends.adapters.adapter_set import LORA_MODULES, SITES, AdapterSet, require_part_fits
from backends.adapters.parts import Lora
from backends.adapters.recipe import AdapterRecipe
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.root.encoder import padded_attention
from backends.root.store import RootFolder

RECIPES = {
    "default": AdapterRecipe(),
    "both sites": AdapterRecipe(bottleneck_sites=SITES, width=8, activation="gelu"),
    "lora": AdapterRecipe(bottleneck_sites=(), lora_modules=LORA_MODULES, rank=4),
    "norms": AdapterRecipe(bottleneck_sites=(), norm_sites=SITES),
    "entrance": AdapterRecipe(bottleneck_sites=(), activation="gelu", entrance_width=8),
    "all": AdapterRecipe(SITES, 8, "silu", LORA_MODULES, 4, SITES, 8),
    "nothing": AdapterRecipe(bottleneck_sites=()),
}


@pytest.fixture(scope="module")
def root(built_home: Home) -> RootFolder:
    return RootFolder(built_home.root("tiny"))


@pytest.mark.parametrize("name", list(RECIPES))
def test_new_adapters_change_nothing_and_every_tensor_learns(root: RootFolder, name: str) -> None:
    upper = root.upper()
    adapters = RECIPES[name].identity(root.geometry, upper)
    for key, part in adapters.parts().items():
        require_part_fits(key, part, root.geometry)
    rows = torch.randn(3, 9, root.geometry.hidden_size)
    attend = padded_attention(root.geometry.num_heads, torch.ones(3, 9, dtype=torch.bool))
    trained = adapters.map(lambda _, tensor: tensor.clone().requires_grad_())
    out = upper(rows, attend, trained)
    torch.testing.assert_close(out, upper(rows, attend), rtol=1e-5, atol=1e-5)
    if not trained.parts():
        return
    out.square().sum().backward()
    for key, tensor in trained.named().items():
        assert tensor.grad is not None
        starts_at_zero = any(key.endswith(end) for end in (".up", ".up_weight", ".up_bias", ".weight", ".bias"))
        assert bool(tensor.grad.any()) == starts_at_zero, key


@pytest.mark.parametrize("kind", KINDS)
def test_one_hplm_alone_over_padded_rows(root: RootFolder, kind: str) -> None:
    """The way that tuning computes, against the obvious one."""
    torch.manual_seed(11)
    artifact = random_artifact(random.Random(11), root, kind)
    rows = torch.randn(4, 9, root.geometry.hidden_size)
    lengths = torch.tensor([9, 1, 4, 7])
    mask = torch.arange(9) < lengths[:, None]
    with torch.no_grad():
        states = root.upper()(rows, padded_attention(root.geometry.num_heads, mask), artifact.adapters)
    for row, length, state in zip(rows, lengths.tolist(), states, strict=True):
        pooled = state[0] if artifact.pooling == "cls" else state[:length].mean(dim=0)
        expected = reference_logits(root, artifact, row[:length])
        torch.testing.assert_close(artifact.head.logits(pooled), expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_served_is_refused(root: RootFolder) -> None:
    for wrong in ({"width": 257}, {"rank": 0}, {"bottleneck_sites": ("before",)}, {"lora_modules": ("gate",)}):
        with pytest.raises(InvalidArgumentError):
            AdapterRecipe(**wrong)  # type: ignore[arg-type]
    hidden = root.geometry.hidden_size
    wide = Lora(torch.randn(2, 257, hidden), torch.randn(2, hidden, 257))
    with pytest.raises(InvalidArgumentError, match="257 wide"):
        require_part_fits("lora.query", wide, root.geometry)
    swapped = Lora(torch.randn(2, 4, 2 * hidden), torch.randn(2, hidden, 4))
    with pytest.raises(InvalidArgumentError, match=r"lora\.ffn_in\.down has shape"):
        require_part_fits("lora.ffn_in", swapped, root.geometry)
    with pytest.raises(InvalidArgumentError, match=r"no part lora\.gate"):
        AdapterSet.from_parts({"lora.gate": swapped})
