"""The peak of the machine: square matrix products of the engine's precision; in int8 on CPUs only."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from backends.engine.precision import fast_float_dtype, precision_of
from backends.root.int8_instructions import int8_instructions
from backends.root.int8_linear import Quantised, QuantisedLinear
from bench.kit.bare import Seconds

_CPU_SIZES = (1024, 2048, 4096)
_GPU_SIZES = (*_CPU_SIZES, 8192)


@dataclass(frozen=True)
class Products:
    """Square products, and how many multiply-adds they are together."""

    run: Callable[[], object]
    multiply_adds: int


def square_products(device: torch.device) -> dict[str, Products]:
    """In bf16, or fp32 where that is faster. On a CPU the threads share a product, or each has one of its own."""
    dtype = precision_of(fast_float_dtype(device), device).states

    def product(size: int) -> Products:
        left, right, out = (torch.randn(size, size, dtype=dtype, device=device) for _ in range(3))

        def run() -> None:
            torch.mm(left, right, out=out)
            out[0, 0].item()

        return Products(run, size**3)

    if device.type == "cpu":
        return {f"square {size}": product(size) for size in _CPU_SIZES} | _side_by_side(partial(_product, dtype))
    return {f"square {size}": product(size) for size in _GPU_SIZES}


def int8_products() -> dict[str, Products]:
    """PyTorch's own product of int8, and oneDNN's with packed weights, scaled back to fp32 as the engine does it.

    Without VNNI PyTorch's own takes as long as twenty products in fp32, and is left out.
    """
    found: dict[str, Products] = {}
    kinds = {"packed": _packed_product} | ({"_int_mm": _int_mm} if int8_instructions() == "VNNI" else {})
    for kind, make in kinds.items():
        shared = {f"int8 {kind} {size}": Products(make(size), size**3) for size in _CPU_SIZES}
        beside = {f"int8 {kind}, {name}": products for name, products in _side_by_side(make).items()}
        found |= shared | beside
    return found


def _product(dtype: torch.dtype, size: int) -> Callable[[], object]:
    left, right, out = (torch.randn(size, size, dtype=dtype) for _ in range(3))
    return lambda: torch.mm(left, right, out=out)


def _int_mm(size: int) -> Callable[[], object]:
    left, right = (torch.randint(-128, 128, (size, size), dtype=torch.int8) for _ in range(2))
    return lambda: torch._int_mm(left, right)


def _packed_product(size: int) -> Callable[[], object]:
    states = Quantised(torch.randint(256, (size, size), dtype=torch.uint8), torch.ones(size))
    linear = QuantisedLinear(torch.randn(size, size), torch.zeros(size), torch.bfloat16)
    return lambda: linear.product(states)


def _side_by_side(make: Callable[[int], Callable[[], object]]) -> dict[str, Products]:
    """As many at once as there are threads, each in a thread of its own."""
    count = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, initializer=_compute_alone)

    def products(size: int) -> Products:
        own = [make(size) for _ in range(count)]

        def run() -> None:
            for future in [pool.submit(one) for one in own]:
                future.result()

        return Products(run, count * size**3)

    return {f"{count} squares {size} side by side": products(size) for size in _CPU_SIZES[:-1]}


def _compute_alone() -> None:
    """One thread for what this one computes; PyTorch keeps the count for each thread once it was read there."""
    torch.get_num_threads()
    torch.set_num_threads(1)


def peak_seconds(seconds: Seconds, squares: Mapping[str, Products]) -> list[float]:
    """Seconds of one multiply-add, per repeat, in the products that were fastest on the whole."""
    per_one = [[each / of.multiply_adds for each in seconds[name]] for name, of in squares.items()]
    return min(per_one, key=statistics.median)
