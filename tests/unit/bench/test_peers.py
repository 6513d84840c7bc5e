"""`bench.peers`: what its parts promise, so that the comparison is one; the rates themselves are not tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from backends.errors import InvalidArgumentError
from bench.kit.peers.bert import Bert, padded, random_bert
from bench.kit.peers.onnxruntime import OnnxRuntime
from bench.kit.peers.openvino import OpenVino
from bench.kit.peers.picture import draw_peers
from bench.kit.peers.pytorch import PyTorch
from bench.kit.peers.runtime import Dtype, LoadedModel, Runtime, split_installed
from bench.kit.peers.tenants import TenantModels, batches
from bench.kit.peers.turns import Turn, Turns
from bench.kit.synthetic_home import SMALL
from bench.peers import QUICK, SERVED, Peer, Peers, figures, table

TINY = replace(SMALL, hidden_size=64, intermediate_size=256, num_lower_layers=1, num_upper_layers=1)
RUNTIMES: list[Runtime] = [
    PyTorch(TINY, "bf16"),
    PyTorch(TINY, "fp32"),
    OpenVino("bf16"),
    OpenVino("int8"),
    OnnxRuntime("fp32"),
    OnnxRuntime("int8"),
]
LEAST_COSINE = {"fp32": 0.9999, "bf16": 0.99, "int8": 0.9}


def rows_of(lengths: Sequence[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(length, TINY.hidden_size, generator=generator) for length in lengths]


@dataclass(frozen=True)
class Counting:
    """A runtime that says which tenant's model answers, by the order of loading, and counts rows."""

    name: str = "counting"
    dtype: Dtype = "fp32"
    packages: Sequence[str] = ()
    loaded: list[Path] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)

    def prepare(self, model: Bert, rows: Sequence[Tensor], folder: Path) -> Path:
        return folder

    def load(self, path: Path) -> LoadedModel:
        self.loaded.append(path)
        number = float(len(self.loaded))

        def run(hidden: Tensor, mask: Tensor) -> Tensor:
            self.answered.append(len(hidden))
            return torch.full((len(hidden), 1), number)

        return run


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.name)
def test_a_peer_answers_rows_of_any_lengths_as_pytorch_in_fp32_does(runtime: Runtime, tmp_path: Path) -> None:
    for package in runtime.packages:
        pytest.importorskip(package)
    model, rows = random_bert(TINY, seed=1), rows_of([5, 70, 9, 128, 20, 9])
    expected = torch.cat([model(*padded([row], len(row), torch.float32)) for row in rows])
    models = TenantModels(runtime, runtime.prepare(model, rows, tmp_path), max_resident=1)
    answered = torch.stack(models.logits([(0, row) for row in rows]))
    assert functional.cosine_similarity(answered.flatten(), expected.flatten(), dim=0) > LEAST_COSINE[runtime.dtype]


def test_the_least_recently_used_model_makes_room_and_those_in_memory_run_first() -> None:
    runtime = Counting()
    models = TenantModels(runtime, Path("model"), max_resident=2)
    row = rows_of([4])[0]
    models.logits([(0, row), (1, row)])
    # Tenant 2 comes first but is not in memory: its model takes the place of 1, which was used longer ago than 0.
    answers = models.logits([(2, row), (1, row), (0, row)])
    assert [int(answer) for answer in answers] == [3, 2, 1]
    assert [int(answer) for answer in models.logits([(0, row), (2, row)])] == [1, 3]
    assert models.swaps == len(runtime.loaded) == 3


def test_batches_have_every_row_once_and_no_more_than_1024_tokens() -> None:
    lengths = [128] * 20 + [9, 10, 11] * 40
    made = list(batches(lengths))
    assert sorted(index for batch in made for index in batch) == list(range(len(lengths)))
    assert max(len(batch) * max(lengths[index] for index in batch) for batch in made) <= 1024
    assert all(len({lengths[index] > 64 for index in batch}) == 1 for batch in made)


@pytest.mark.parametrize("dtype", ["int8", "bf16", "fp32"])
def test_as_many_rows_wait_for_each_peer_as_ours_has_in_flight(dtype: Dtype, tmp_path: Path) -> None:
    settings = replace(QUICK, served_rows={"128": 1, "20": 1}, in_flight=7, resident=2)
    runtime = Counting(dtype=dtype)
    peers = Peers(settings, {"128": [9] * 3, "20": [4] * 3}, TINY, seed=1)
    taken = peers.measure(Peer(runtime, tmp_path / "model", settings.resident, 1.0), np.random.default_rng(1))
    # What fits into memory is measured warm, the second time.
    assert sum(runtime.answered) == settings.in_flight * sum(1 if cell[2] == 1_000 else 2 for cell in taken)


def test_a_peer_without_its_packages_is_left_out_and_named() -> None:
    here, lines = split_installed([Counting(), Counting("other", packages=("no_such_package",))])
    assert [runtime.name for runtime in here] == ["counting"]
    assert lines == ["other is left out: no_such_package not installed (pip install '.[peers]')"]


RATES = {"A": 10, "B": 20, "ours, bare bf16": 50}


def turn(factor: float) -> Turn:
    cells = [(lengths, tenants) for lengths in ("128", "20") for tenants in (1, 16)]
    return {
        **{(way, *cell): rate * factor for cell in cells for way, rate in RATES.items()},
        **{(SERVED, *cell): 40 * factor for cell in cells},
        **{("ours, with bottlenecks", *cell): 60 * factor for cell in cells},
        ("A", "128", 1_000): 1 * factor,
        ("A", "128, from the disk", 1_000): 0.5 * factor,
        (SERVED, "128", 1_000): 30 * factor,
    }


def test_figures_are_ratios_to_the_fastest_peer_within_a_turn(tmp_path: Path) -> None:
    turns = Turns({}, None, [turn(1), turn(3), turn(2)])
    found = figures(turns.rates())
    assert found["hplm_over_best_peer_16"] == found["hplm_over_best_peer_16_short"] == 2
    assert found["bare_over_best_peer_1"] == 2.5
    assert found["bottlenecks_over_best_peer_16"] == 3
    assert (found["hplm_over_best_peer_1000"], found["hplm_over_best_peer_1000_cached"]) == (60, 30)
    draw_peers(turns.rates(), tmp_path / "peers.svg")
    assert (tmp_path / "peers.svg").read_text(encoding="utf-8").count('id="axes_') >= 6
    assert table(turns.rates())[0]["rows per s"] == 20  # the median of 10, 30 and 20


def test_each_turn_has_a_fastest_peer_of_its_own() -> None:
    cell = ("128", 16)
    turns = Turns({}, None, [turn(1), turn(1) | {("A", *cell): 80.0}])
    # 40 rows a second against 20 of B, then against 80 of A, whose median is the highest.
    assert figures(turns.rates())["hplm_over_best_peer_16"] == (2 + 0.5) / 2


def test_turns_of_several_runs_are_put_together_if_their_settings_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    Turns.opened({"rows": 1, "sizes": (1, 2)}, path).measure(lambda: turn(1), 2)
    again = Turns.opened({"rows": 1, "sizes": (1, 2)}, path)
    again.measure(lambda: turn(3), 1)
    assert again.rates()["A", "20", 16] == [10, 10, 30]
    with pytest.raises(InvalidArgumentError, match="other settings"):
        Turns.opened({"rows": 2, "sizes": (1, 2)}, path)
