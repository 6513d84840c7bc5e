"""How many rows a second do 16 tenants get whose texts may leave early, against a BERT-base of each tenant's own?

`hplm` and `dedicated` are those of `bench.throughput`, behind the real Triton: PLOT, six shared layers and adapters as
`hplm create` makes them by default, against twelve layers of each tenant's own, in the same dtype. Every hPLM has an
early head after `--after` of the six layers. Weights are random, so no text is easy: which rows leave is imposed by
each tenant's threshold, which the `share` of its texts reaches; `--share` takes that of a task's certificate. Without a
level they are the scheme `ladder`. All schemes take turns in one run, and ratios are medians over the turns.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median

import numpy as np
import torch

from backends.adapters.ladder import Ladder, write_ladder
from backends.engine.exits import NEVER
from backends.engine.precision import fast_float_dtype, missing_for
from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.stack_key import FULL as FULL_LEVEL
from backends.wire import AUTO, EARLY
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, bench
from bench.kit.idle import wait_until_idle
from bench.kit.progress import one_by_one
from bench.kit.random_root import random_ladder
from bench.kit.saturation import draw, saturate
from bench.kit.served import served
from bench.kit.server_metrics import figure_of
from bench.kit.synthetic_home import BERT_BASE, base_home
from bench.throughput import FULL as THROUGHPUT
from bench.throughput import Schemes
from builder.construct.hplm.hplms import publish_linked
from builder.serving import TritonServer
from hplm_client import HplmClient, Request

_ROOT = "half"
_DEDICATED = "dedicated"
_LEFT = 'hplm_answers_total{answer_level="early",reason="confident"'
_LONGEST_WAIT_S = 300.0
_EDGE_ROWS = 64


@dataclass(frozen=True)
class Settings:
    rows: int
    repeats: int
    texts: int
    share: float
    dtype: str
    after: int = 1
    tenants: int = 16
    length: int = 128
    in_flight: int = 128
    geometry: str = "BERT-base, 12 x 768 as 6 + 6"


DEFAULT_SHARE = 0.53
"""What `bench.levels` certified of sci-cite, after one of six layers."""
FULL = Settings(512, repeats=5, texts=64, share=DEFAULT_SHARE, dtype=fast_float_dtype(torch.device("cpu")))
QUICK = replace(FULL, rows=192, repeats=1, texts=16)


@dataclass(frozen=True)
class Taken:
    """Rows a second by scheme, one for each turn, and the share of rows that left early where they might."""

    rows_per_s: Mapping[str, Sequence[float]]
    left: float


class LadderedTenants:
    """The tenants' hPLMs, and the ladders that they are given."""

    def __init__(self, home: Home, hplms: Sequence[str], after: int, seed: int) -> None:
        self._home, self._hplms, self._after, self._seed = home, hplms, after, seed
        self._root = RootFolder(home.root(_ROOT))

    def give(self, thresholds: Mapping[str, float], share: float) -> int:
        """Publish the next version of each, with the same weights; returns which that is."""
        registry = Registry.open(self._home)
        for number, hplm in enumerate(self._hplms):
            ladder = self._ladder(number, thresholds[hplm], share)
            write = partial(write_ladder, ladder=ladder, root_fingerprint=self._root.fingerprint)
            figures = {"levels": [*ladder.levels], "ladder": dict(ladder.certified)}
            version = publish_linked(self._home, registry, registry.hplm(hplm), write, figures).version
        registry.close()
        return version

    def _ladder(self, number: int, threshold: float, share: float) -> Ladder:
        """Make the same early head for a tenant each time."""
        generator = torch.Generator().manual_seed(self._seed + number)
        ladder = random_ladder(self._root.geometry, self._after, threshold, generator)
        return replace(ladder, certified={**ladder.certified, "answered_early": share})

    def thresholds(self, url: str, texts: Sequence[str], share: float) -> dict[str, float]:
        """Return what the confidence of the share of the texts reaches, as the server computes it."""
        with HplmClient(url, timeout_s=_LONGEST_WAIT_S) as client:
            found = {}
            for hplm in self._hplms:
                answers = client.infer_many([Request(hplm, text, level=EARLY) for text in texts])
                found[hplm] = threshold_of([answer.confidence or 0.0 for answer in answers], share)
        return found

    def wait_until_live(self, url: str, version: int) -> None:
        deadline_s = time.monotonic() + _LONGEST_WAIT_S
        with HplmClient(url, timeout_s=_LONGEST_WAIT_S) as client:
            while any(client.infer(hplm, "a", level=EARLY).version != version for hplm in self._hplms):
                if time.monotonic() > deadline_s:
                    raise HplmError(f"version {version} of all hPLMs is not live after {_LONGEST_WAIT_S:g} s")


def threshold_of(confidences: Sequence[float], share: float) -> float:
    """Return a threshold that the share of these confidences reaches, between two of them."""
    descending = [1.0, *sorted(confidences, reverse=True), 0.0]
    leaving = round(share * len(confidences))
    return (descending[leaving] + descending[leaving + 1]) / 2


def measure(schemes: Schemes, settings: Settings, seed: int) -> Taken:
    texts = schemes.build()
    hplms, home = schemes.hplms, schemes.base.home
    tenants = LadderedTenants(home, hplms, settings.after, seed)
    tenants.give(dict.fromkeys(hplms, NEVER), 0.0)
    with served(home, schemes.serving) as server:
        version = tenants.give(tenants.thresholds(server.grpc_url, texts, settings.share), settings.share)
        tenants.wait_until_live(server.grpc_url, version)
        return _taken(server, schemes, settings, texts)


def _taken(server: TritonServer, schemes: Schemes, settings: Settings, texts: Sequence[str]) -> Taken:
    def of_level(level: str) -> float:
        rows = draw(schemes.hplms, texts, settings.rows, schemes.rng)
        return saturate(server.grpc_url, rows, settings.in_flight, level=level).rows_per_s(_EDGE_ROWS)

    ways: dict[str, Callable[[], float]] = {
        "ladder": partial(of_level, AUTO),
        "hplm": partial(of_level, FULL_LEVEL),
        _DEDICATED: partial(schemes.rows_per_s, server.grpc_url, (_DEDICATED, settings.tenants), texts),
    }
    rates: dict[str, list[float]] = {way: [] for way in ways}
    before = figure_of(server, _LEFT)
    for _ in one_by_one(range(settings.repeats), "ladder", "turns"):
        for index in schemes.rng.permutation(len(ways)):
            way = list(ways)[index]
            rates[way].append(ways[way]())
    wait_until_idle(server)
    left = (figure_of(server, _LEFT) - before) / (settings.rows * settings.repeats)
    return Taken(rates, left)


def figures_of(taken: Taken) -> dict[str, float]:
    rates = taken.rows_per_s

    def ratio(one: str, other: str) -> float:
        return median(a / b for a, b in zip(rates[one], rates[other], strict=True))

    return {
        "ladder_over_dedicated_16": ratio("ladder", _DEDICATED),
        "hplm_over_dedicated_16": ratio("hplm", _DEDICATED),
        "ladder_over_hplm_16": ratio("ladder", "hplm"),
        "left_early_share": taken.left,
    }


def add_options(options: ArgumentParser) -> None:
    options.add_argument("--share", type=float, default=DEFAULT_SHARE, help="of rows that leave early [%(default)s]")
    options.add_argument(
        "--after",
        type=int,
        choices=range(1, BERT_BASE.num_upper_layers),
        default=FULL.after,
        help="layers below the early head [%(default)s]",
    )
    options.add_argument("--int8", action="store_true", help="hPLMs and models in int8")


def _settings(options: Namespace) -> Settings:
    if not 0 <= options.share <= 1:
        raise InvalidArgumentError(f"--share is between 0 and 1, not {options.share:g}")
    if options.int8 and (missing := missing_for("int8", torch.device("cpu"))):
        raise InvalidArgumentError(missing)
    settings = replace(QUICK if options.quick else FULL, share=options.share, after=options.after)
    return replace(settings, dtype="int8") if options.int8 else settings


@bench(
    "ladder",
    quick_s=QUICK_LOADS_S,
    bars={"ladder_over_dedicated_16": at_least(2.8)},
    add_options=add_options,
)
def ladder(options: Namespace) -> Result:
    settings = _settings(options)
    of_schemes = replace(
        THROUGHPUT,
        rows=settings.rows,
        cells=(("hplm", settings.tenants), (_DEDICATED, settings.tenants)),
        length=settings.length,
        texts=settings.texts,
        in_flight=settings.in_flight,
        dtype=settings.dtype,
    )
    with base_home(options.seed) as base:
        schemes = Schemes(base, of_schemes, BERT_BASE, np.random.default_rng(options.seed))
        taken = measure(schemes, settings, options.seed)
    rows = [
        {"scheme": scheme, "rows per s": median(rates), "least": min(rates), "most": max(rates)}
        for scheme, rates in taken.rows_per_s.items()
    ]
    return Result(asdict(settings), figures_of(taken), rows)


if __name__ == "__main__":
    ladder.main()
