"""A bench's entry: its options, its report, its errors, and the bars that its figures are to keep.

Usage:
    @bench("lookup", bars={"speedup": at_least(10)})
    def lookup(options: Namespace) -> Result:
        ...

    if __name__ == "__main__":
        lookup.main()
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backends.errors import HplmError
from bench.kit.report import Report, parser
from loadtest.errors import RunError

QUICK_S, QUICK_LOADS_S = 50.0, 480.0
"""How long a quick size may take; the second is for benches with several servers or loads."""


@dataclass(frozen=True)
class Bar:
    """The least or the most that a figure may be."""

    limit: float
    is_least: bool

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit

    def __str__(self) -> str:
        return f"{'≥' if self.is_least else '≤'} {self.limit:g}"


def at_least(limit: float) -> Bar:
    return Bar(limit, is_least=True)


def at_most(limit: float) -> Bar:
    return Bar(limit, is_least=False)


@dataclass(frozen=True)
class Result:
    """What a bench has measured."""

    settings: Mapping[str, Any]
    figures: Mapping[str, float]
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Bench:
    """One question; `measure` answers it, `add_options` adds options of its own, `quick_s` bounds the quick size."""

    name: str
    question: str
    measure: Callable[[Namespace], Result]
    bars: Mapping[str, Bar] = field(default_factory=dict)
    add_options: Callable[[ArgumentParser], None] = lambda _: None
    quick_s: float = QUICK_S

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Measure, print, and write where `--json` says; an error ends the process with one line."""
        options_parser = parser(self.name, self.question)
        self.add_options(options_parser)
        _ask_this_machine_directly()
        arguments = sys.argv[1:] if arguments is None else arguments
        options = options_parser.parse_args(arguments)
        try:
            result = self.measure(options)
        except (HplmError, RunError) as error:
            sys.exit(f"bench.{self.name}: {error}")
        report = Report(self.name, result.settings, options.seed, result.figures, result.rows, arguments=arguments)
        report.publish(options.json)


def bench(
    name: str,
    bars: Mapping[str, Bar] | None = None,
    add_options: Callable[[ArgumentParser], None] = lambda _: None,
    quick_s: float = QUICK_S,
) -> Callable[[Callable[[Namespace], Result]], Bench]:
    """Make a function a bench; the first line of its module's docstring is the question."""

    def made(measure: Callable[[Namespace], Result]) -> Bench:
        question = (sys.modules[measure.__module__].__doc__ or name).splitlines()[0]
        return Bench(name, question, measure, bars or {}, add_options, quick_s)

    return made


def _ask_this_machine_directly() -> None:
    """Keep a proxy of the environment from what a bench, or a program that it starts, asks the servers of this machine.

    gRPC and Python's library both read this variable.
    """
    kept = os.environ.get("no_proxy", os.environ.get("NO_PROXY"))
    os.environ["no_proxy"] = ",".join(filter(None, (kept, "127.0.0.1", "localhost")))
