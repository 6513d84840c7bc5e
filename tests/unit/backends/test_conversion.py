"""Conversion by blocks against conversion of the whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from backends.conversion import concatenated, convert_into, converted

CPU = torch.device("cpu")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = [(), (0,), (3,), (300_001,), (6, 64), (5, 0, 7), (6, 768, 64), (3, 700, 257), (1, 2, 150_000), (2, 3, 4, 5)]


def random_numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (100 * torch.randn(shape)).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("source_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_any_tensor_becomes_what_pytorch_makes_of_it(
    shape: tuple[int, ...], source_dtype: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    source = random_numbers(shape, source_dtype)
    views = [source, source[..., ::2]] if shape else [source]
    if len(shape) > 1:
        views += [source.mT, source[:, 1:], source[1:].mT]
    for view in views:
        assert torch.equal(converted(view, dtype, torch.device(device)).cpu(), view.to(dtype))
        # A part of something larger, turned about or not: as a pool of adapters is filled.
        larger = [torch.zeros(3, *view.shape, dtype=dtype, device=device)]
        if view.ndim > 1:
            larger.append(torch.zeros(3, *view.mT.shape, dtype=dtype, device=device).mT)
        for around in larger:
            convert_into(around[1], view)
            assert torch.equal(around[1].cpu(), view.to(dtype))
            assert not around[0].any() and not around[2].any()


@pytest.mark.parametrize("width", [1, 64, 768, 200_000])
@pytest.mark.parametrize("lengths", [(1,), (170,), (171, 1), (20,) * 40, (3, 500, 1, 169, 2, 700)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_lie_end_to_end(dtype: torch.dtype, lengths: tuple[int, ...], width: int) -> None:
    lengths = lengths if width < 1000 else lengths[:2]
    rows = [random_numbers((min(length, 4) if width > 1000 else length, width), torch.float16) for length in lengths]
    assert torch.equal(concatenated(rows, dtype, CPU), torch.cat(rows).to(dtype))


def test_numbers_beyond_either_dtype() -> None:
    largest = torch.finfo(torch.float16).max
    odd = torch.tensor([largest, -largest, torch.inf, -torch.inf, 6e-8, -0.0, 0.0], dtype=torch.float16)
    assert torch.equal(converted(odd, torch.bfloat16, CPU), odd.to(torch.bfloat16))
    assert converted(torch.tensor([torch.nan], dtype=torch.float16), torch.bfloat16, CPU).isnan().all()


def test_threads_do_not_meet_and_modes_do_not_matter() -> None:
    sources = [random_numbers((40, 100, 100), torch.float16) for _ in range(8)]

    def convert(number: int) -> bool:
        with torch.inference_mode(number % 2 == 0):
            results = [converted(sources[number], torch.bfloat16, CPU) for _ in range(20)]
        return all(torch.equal(result, sources[number].to(torch.bfloat16)) for result in results)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(convert, range(len(sources))))
