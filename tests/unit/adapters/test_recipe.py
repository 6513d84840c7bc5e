import pytest

from backends.adapters.adapter_set import LORA_MODULES, SITES
from backends.adapters.recipe import AdapterRecipe
from backends.errors import InvalidArgumentError
from backends.root.geometry import RootGeometry
from backends.root.upper import UpperLayers

GEOMETRY = RootGeometry(100, 16, 32, 2, 1, 2, 32, 2, 1e-12, "gelu")


@pytest.mark.parametrize(
    "recipe",
    [
        AdapterRecipe(width=5),
        AdapterRecipe(bottleneck_sites=SITES, width=3, activation="silu", norm_sites=("output",)),
        AdapterRecipe(bottleneck_sites=(), lora_modules=LORA_MODULES, rank=4, norm_sites=SITES),
        AdapterRecipe(bottleneck_sites=(), lora_modules=("query", "value"), rank=2),
        AdapterRecipe(bottleneck_sites=(), activation="gelu", entrance_width=6),
        AdapterRecipe(width=5, activation="tanh", norm_sites=("output",), entrance_width=7),
    ],
)
def test_a_recipe_is_found_in_the_adapters_that_it_gives(recipe: AdapterRecipe) -> None:
    assert AdapterRecipe.of(recipe.identity(GEOMETRY, UpperLayers(GEOMETRY))) == recipe


@pytest.mark.parametrize("width", [-1, 257])
def test_an_entrance_that_cannot_be_served_is_refused(width: int) -> None:
    with pytest.raises(InvalidArgumentError, match="0 to 256 can"):
        AdapterRecipe(entrance_width=width)
