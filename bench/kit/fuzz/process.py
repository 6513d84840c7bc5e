"""The part in process: every reader that takes bytes, tensors, files or requests of others."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backends.adapters.recipe import AdapterRecipe
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.fuzz.options import Options
from bench.kit.fuzz.rule import Case, Fate, Verdict
from bench.kit.fuzz.runner import Runner
from bench.kit.fuzz.targets import TARGETS
from bench.kit.fuzz.worker import Stand, Tally, hearing_defects
from bench.kit.tiny_home import build_tiny_home, ignore, write_tagged
from builder.construct.hplm.hplms import create_hplm
from builder.progress import Step, progress_bars
from builder.requests.hplms import CreateHplm

_QUICK_SHARE = 1 / 200
_LEAST = 40
_MOST_REASONS = 30


def fuzz_process(options: Options) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Run random cases of all readers, or of one; a row for each of them and for each case that breaks the rule."""
    counts = case_counts(options)
    with fuzz_home() as home, progress_bars("bench.fuzz") as report:
        done = dict.fromkeys(counts, 0)

        def on_done(target: str, cases: int) -> None:
            done[target] += cases
            report(Step("cases", sum(done.values()), sum(counts.values()), target))

        tallies = Runner(TARGETS, home, os.cpu_count() or 1, on_done).run(counts, options.seed)
    return figures_of(tallies), rows_of(tallies)


def figures_of(tallies: Mapping[str, Tally]) -> dict[str, float]:
    cases, breaks = (sum(of(tally) for tally in tallies.values()) for of in (_cases, _breaks))
    return {"fuzz_cases": float(cases), "fuzz_crashes": float(breaks)}


def _cases(tally: Tally) -> int:
    return tally.cases


def _breaks(tally: Tally) -> int:
    return len(tally.breaks)


def rows_of(tallies: Mapping[str, Tally]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "target": name,
            "cases": tally.cases,
            "seconds": round(tally.took_s, 1),
            "rejected": tally.fates[Fate.REJECTED],
            "accepted": tally.fates[Fate.ACCEPTED],
            "breaks": len(tally.breaks),
        }
        for name, tally in tallies.items()
    ]
    return rows + [row for tally in tallies.values() for row in _breaks_by_reason(tally)]


def _breaks_by_reason(tally: Tally) -> list[dict[str, Any]]:
    """A row for each reason, with the first case that broke for it."""
    of_reason: dict[str, list[Case]] = {}
    for one in tally.breaks:
        of_reason.setdefault(one.why, []).append(one.case)
    ordered = sorted(of_reason.items(), key=lambda item: -len(item[1]))[:_MOST_REASONS]
    return [{"target": str(cases[0]), "breaks": len(cases), "why": why} for why, cases in ordered]


def case_counts(options: Options) -> dict[str, int]:
    """Return how many cases of which target make the wanted size, in the shares of the full one."""
    wanted = {name: target for name, target in TARGETS.items() if options.only in (None, name)}
    full = sum(target.cases for target in wanted.values())
    share = options.cases / full if options.cases else _QUICK_SHARE if options.is_quick else 1.0
    return {name: max(_LEAST, round(share * target.cases)) for name, target in wanted.items()}


def repeat_case(case: Case) -> Verdict:
    """Run one case in this process, and print where its error came through."""
    with fuzz_home() as home, hearing_defects():
        stand = Stand(TARGETS, home)
        try:
            return stand.one(case)
        finally:
            stand.close()


@contextmanager
def fuzz_home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="hplm-fuzz-home-") as folder:
        home = build_tiny_home(Path(folder))
        _add_tagger(home, Path(folder) / "tags")
        yield home


def _add_tagger(home: Home, work: Path) -> None:
    """Make an hPLM that looks for entities, as the tiny home has none."""
    train, dev = write_tagged(work, seed=500)
    tune = {"recipe": asdict(AdapterRecipe(width=8)), "epochs": 1, "learning_rate": 1e-2}
    request = CreateHplm(id="umbra/tags", root="tiny", domain="farm", train=train, dev=dev, tune=tune)
    with closing(Registry.open(home)) as registry:
        create_hplm(home, registry, request, ignore)
