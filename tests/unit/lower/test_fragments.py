"""Packed fragments against the lower layers as they are."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from backends.errors import CorruptFileError
from backends.home import Home
from backends.lower import fragments, int8_products, layers
from backends.lower.fragments import (
    FastFragments,
    PlainFragments,
    dtype_in_force,
    even_parts,
    filled_count,
    fragment_computer,
    rounding_of,
)
from backends.lower.layers import LowerLayers
from backends.lower.settings import LowerDtype
from backends.plot.overlay_log import LogOrigin
from backends.root.encoder import EncoderLayer
from backends.root.geometry import ACTIVATIONS, RootGeometry
from backends.root.int8_instructions import int8_instructions
from backends.root.lower import FragmentEncoder
from backends.root.packed import cpu_multiplies_bf16
from backends.root.store import RootFolder
from seeds import SEED

RNG = np.random.default_rng(SEED)
RELATIVE_ERROR: dict[LowerDtype, float] = {"bf16": 0.02, "fp32": 1e-3, "int8": 0.06}
"""Errors of a fragment's vectors; those of fp32 are rounded to fp16."""
FAST: tuple[LowerDtype, ...] = (
    *(("bf16",) if cpu_multiplies_bf16() else ()),
    *(("int8",) if int8_instructions() else ()),
)


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


@pytest.mark.parametrize("dtype", RELATIVE_ERROR)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fragments_are_what_the_lower_layers_say(shape: RootGeometry, dtype: LowerDtype) -> None:
    encoder = random_encoder(shape)
    compute = fragment_computer(encoder, shape, dtype)
    for count in (1, 7, 40, 300):
        ids = random_fragments(count, shape)
        found = compute(ids)
        assert found.dtype == torch.float16
        with torch.inference_mode():
            assert largest_error(found, encoder(ids)) < RELATIVE_ERROR[dtype]
        assert not found[ids == 0].any()


@pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")
@pytest.mark.parametrize("has_bf16", [True, False] if cpu_multiplies_bf16() else [False])
def test_int8_is_as_exact_beside_fp32_as_beside_bf16(has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "cpu_multiplies_bf16", lambda: has_bf16)
    test_fragments_are_what_the_lower_layers_say(geometry(num_sinks=2), "int8")


@pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")
def test_smoothing_makes_up_for_a_large_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = geometry()
    encoder = random_encoder(shape)
    encoder.embedding_norm.weight[3] *= 100
    first = encoder.layers[0]
    assert isinstance(first, EncoderLayer)
    first.query_key_value.weight[:, 3] /= 100
    states = encoder.embedding_norm(torch.randn(200, shape.hidden_size))
    expected = first.query_key_value(states)[:, shape.hidden_size :]  # queries are scaled

    def error() -> float:
        found = int8_products.int8_products_of(encoder)(first, shape, torch.float32).query_key_value(states)
        return largest_error(found[:, shape.hidden_size :], expected)

    smooth = error()
    monkeypatch.setattr(int8_products, "smoothing_by", lambda *_: defaultdict(lambda: torch.ones(64)))
    assert smooth < 0.2 * error()


@pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")
def test_layers_of_nan_are_an_error() -> None:
    encoder = random_encoder(geometry())
    encoder.slot_embeddings.weight[0, 0] = torch.nan
    with pytest.raises(CorruptFileError, match="the states of lower layers are NaN or infinite"):
        fragment_computer(encoder, geometry(), "int8")


@pytest.mark.parametrize("has_bf16", [True, False] if cpu_multiplies_bf16() else [False])
@pytest.mark.parametrize("dtype", FAST)
@pytest.mark.parametrize("shape", [geometry(), geometry(num_sinks=2)], ids=str)
def test_a_fragment_is_the_same_in_any_company(
    shape: RootGeometry, dtype: LowerDtype, has_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype == "bf16" and not has_bf16:
        pytest.skip("these are the root's own layers")
    monkeypatch.setattr(fragments, "cpu_multiplies_bf16", lambda: has_bf16)
    compute = fragment_computer(random_encoder(shape), shape, dtype)
    ids = random_fragments(150, shape)
    together = compute(ids)
    for size in (1, 3, 16, 50):
        assert torch.equal(torch.cat([compute(part) for part in torch.split(ids, size)]), together)


@pytest.mark.parametrize(
    ("dtype", "has_int8", "has_bf16", "computed_in"),
    [
        ("bf16", True, True, "bf16"),
        ("bf16", True, False, "fp32"),
        ("fp32", True, True, "fp32"),
        ("int8", True, True, "int8"),
        ("int8", True, False, "int8"),
        ("int8", False, True, "bf16"),
        ("int8", False, False, "fp32"),
    ],
)
def test_what_a_processor_lacks_is_replaced(
    dtype: LowerDtype, has_int8: bool, has_bf16: bool, computed_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments, "cpu_multiplies_bf16", lambda: has_bf16)
    monkeypatch.setattr(fragments, "int8_instructions", lambda: "VNNI" if has_int8 else None)
    made: list[str] = []
    monkeypatch.setattr(fragments, "packed_products", lambda *_: made.append("bf16"))
    monkeypatch.setattr(int8_products, "int8_products_of", lambda _: lambda *_: made.append("int8"))
    computer = fragment_computer(random_encoder(geometry()), geometry(), dtype)
    assert set(made) == ({computed_in} - {"fp32"})
    assert isinstance(computer, PlainFragments if computed_in == "fp32" else FastFragments)
    assert dtype_in_force(dtype) == computed_in
    assert bool(rounding_of(dtype)) == (computed_in == "int8")


def test_what_int8_has_computed_is_not_taken_for_what_others_compute(
    built_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = RootFolder(built_home.root("tiny"))
    named: dict[str, set[LogOrigin]] = {}
    for dtype in RELATIVE_ERROR:
        for instructions in ("VNNI", "AVX2"):
            for has_bf16 in (True, False):
                monkeypatch.setattr(fragments, "int8_instructions", lambda instructions=instructions: instructions)
                monkeypatch.setattr(fragments, "cpu_multiplies_bf16", lambda has_bf16=has_bf16: has_bf16)
                named.setdefault(dtype, set()).add(LowerLayers(root, dtype).origin([]))
    assert named["bf16"] == named["fp32"] and len(named["bf16"]) == 1
    assert len(named["int8"]) == 4 and not named["int8"] & named["bf16"]


@pytest.mark.parametrize("has_own_layers", [False, True])
def test_layers_that_cannot_be_used_are_named(
    built_home: Home, has_own_layers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise CorruptFileError("the states of lower layers are NaN or infinite")

    monkeypatch.setattr(layers, "fragment_computer", fail)
    monkeypatch.setattr(layers, "has_own_layers", lambda _: has_own_layers)
    monkeypatch.setattr(layers, "domain_encoder", lambda root, _: root.lower())
    root = RootFolder(built_home.root("tiny"))
    named = tmp_path if has_own_layers else root.path
    with pytest.raises(CorruptFileError, match=f"{named}: the states of lower layers"):
        LowerLayers(root, "int8").prepare([tmp_path])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_without_int8_lower_layers_load_no_numba(built_home: Home, dtype: str) -> None:
    """It takes a process a second and tens of megabytes."""
    code = (
        "import sys; from pathlib import Path; import backends.lower.service; from backends.lower.layers import *;"
        f"LowerLayers(RootFolder(Path({str(built_home.root('tiny'))!r})), {dtype!r}).prepare([]);"
        "print('numba' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


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
