"""Packed fragments against the lower layers as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from backends.lower.fragments import PackedFragments, PlainFragments, even_parts, filled_count, fragment_computer
from backends.root.geometry import ACTIVATIONS, RootGeometry
from backends.root.lower import FragmentEncoder
from backends.root.packed import cpu_multiplies_bf16
from seeds import SEED

RNG = np.random.default_rng(SEED)
RELATIVE_ERROR = {"bf16": 0.02, "fp32": 1e-3}
"""Errors of a fragment's vectors; those of fp32 are rounded to fp16."""
needs_bf16 = pytest.mark.skipif(not cpu_multiplies_bf16(), reason="this CPU has no bf16 instructions")


def geometry(
    n: int = 3, activation: str = "gelu", num_sinks: int = 0, embedding_size: int | None = None
) -> RootGeometry:
    sizes = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4}
    layers = {"num_lower_layers": 3, "num_upper_layers": 1, "max_tokens": 32, "type_vocab_size": 2}
    shape = {"n": n, "num_sinks": num_sinks, "embedding_size": embedding_size}
    return RootGeometry(**sizes, **layers, **shape, layer_norm_eps=1e-12, activation=activation)


def random_encoder(shape: RootGeometry) -> FragmentEncoder:
    """No bias is zero and no norm the identity, so that each left out or taken twice shows."""
    encoder = FragmentEncoder(shape).eval().requires_grad_(False)
    for parameter in encoder.parameters():
        values = RNG.normal(scale=parameter.shape[-1] ** -0.5, size=parameter.shape)
        parameter.copy_(torch.from_numpy(values) + (0.2 if parameter.dim() == 1 else 0.0))
    return encoder


def random_fragments(count: int, shape: RootGeometry) -> torch.Tensor:
    """Empty slots on either side, as at borders; one fragment is wholly empty."""
    ids = RNG.integers(1, shape.vocab_size, (count, shape.n))
    ids[RNG.random(count) < 0.2, 0] = 0
    ids[RNG.random(count) < 0.2, -1] = 0
    ids[RNG.integers(count)] = 0
    return torch.from_numpy(ids)


def largest_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    differences = (found.float() - expected).flatten(1).norm(dim=1)
    return float((differences / expected.flatten(1).norm(dim=1).clamp(min=1e-6)).max())


SHAPES = [
    geometry(),
    *(geometry(activation=name) for name in ACTIVATIONS[1:]),
    geometry(num_sinks=2),
    geometry(n=2, num_sinks=1),
    geometry(n=5),
    geometry(embedding_size=32),
]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fragments_are_what_the_lower_layers_say(shape: RootGeometry, dtype: str) -> None:
    encoder = random_encoder(shape)
    compute = fragment_computer(encoder, shape, dtype)  # type: ignore[arg-type]
    for count in (1, 7, 40, 300):
        ids = random_fragments(count, shape)
        found = compute(ids)
        assert found.dtype == torch.float16
        with torch.inference_mode():
            assert largest_error(found, encoder(ids)) < RELATIVE_ERROR[dtype]
        assert not found[ids == 0].any()


@needs_bf16
@pytest.mark.parametrize("shape", [geometry(), geometry(num_sinks=2)], ids=str)
def test_a_fragment_is_the_same_in_any_company(shape: RootGeometry) -> None:
    compute = PackedFragments(random_encoder(shape), shape)
    ids = random_fragments(150, shape)
    together = compute(ids)
    for size in (1, 3, 16, 50):
        assert torch.equal(torch.cat([compute(part) for part in torch.split(ids, size)]), together)


@needs_bf16
def test_bf16_is_packed_and_fp32_is_not() -> None:
    shape = geometry()
    encoder = random_encoder(shape)
    assert isinstance(fragment_computer(encoder, shape, "bf16"), PackedFragments)
    assert isinstance(fragment_computer(encoder, shape, "fp32"), PlainFragments)


def test_few_numbers_of_fragments_occur() -> None:
    """Each number has a compiled form of its own for every product."""
    counts = [filled_count(count) for count in range(1, 193)]
    assert all(0 <= filled - count < 16 for count, filled in enumerate(counts, start=1))
    assert all(filled <= 1.25 * count for count, filled in enumerate(counts, start=1) if count >= 16)
    assert len(set(counts)) <= 22


@pytest.mark.parametrize("count", [0, 1, 192, 193, 1000])
def test_many_fragments_are_cut_evenly(count: int) -> None:
    sizes = [len(part) for part in even_parts(torch.zeros(count, 3))]
    assert sum(sizes) == count
    assert len(sizes) == max(1, -(-count // 192))
    assert max(sizes) - min(sizes) <= 1
