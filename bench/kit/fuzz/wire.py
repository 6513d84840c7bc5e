"""The part on the wire: cases for a real server's ports, with good requests among them that must get their answers."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.fuzz.exchange import Exchange, Fate
from bench.kit.fuzz.neighbours import Neighbour, learn_neighbours
from bench.kit.fuzz.options import Options
from bench.kit.fuzz.rule import Case
from bench.kit.fuzz.vocabulary import Vocabulary
from bench.kit.fuzz.wire_groups import GROUP, KINDS, Groups, Played, names_of
from bench.kit.served import Serving
from bench.kit.tiny_home import build_tiny_home, ignore, sample_texts, write_tagged
from builder.construct.hplm.hplms import create_hplm
from builder.progress import Step, progress_bars
from builder.requests.hplms import CreateHplm
from builder.serving import TritonServer
from hplm_client import HplmClient

CASES, QUICK_CASES = 100_000, 4_000
_CLIENTS = 2
_NEIGHBOURS, _TEXTS = 60, 40
_GROUPS_AT_ONCE = 20
_MOST_ROWS = 10
_REPEATS = 20
_FRAME = re.compile(r"\s*\d+# ")
_LONGEST_LINE = 300
_SLOTS = {"dtype": "fp32", "slots": "4", "threads": "1"}
"""Fewer slots than hPLMs, so that slots change hands beside the cases; fp32, so that answers are the same each time."""


@dataclass(frozen=True)
class Server:
    """A server as clients need it, in any process."""

    grpc_url: str
    http_url: str
    vocabulary: Vocabulary
    neighbours: Sequence[Neighbour]

    @classmethod
    def of(cls, server: TritonServer, hplms: Sequence[str], seed: int) -> Server:
        """Learn the answers of good requests."""
        vocabulary = Vocabulary(hplms, [text.text for text in sample_texts(_TEXTS, seed)])
        with Exchange(server.grpc_url, server.http_url) as exchange:
            neighbours = learn_neighbours(exchange, vocabulary, _NEIGHBOURS, seed)
        return cls(server.grpc_url, server.http_url, vocabulary, neighbours)

    def play(self, seed: int, groups: Sequence[int], only: str | None = None) -> Played:
        """Send groups of cases one after the other, of one kind or of all."""
        played = Played()
        with Exchange(self.grpc_url, self.http_url) as exchange:
            sender = Groups(exchange, self.vocabulary, self.neighbours, seed)
            for group in groups:
                played.add(sender.play(names_of(seed, group, only)))
        return played

    def repeat(self, case: Case, times: int) -> Played:
        """Send one case at once so many times."""
        with Exchange(self.grpc_url, self.http_url) as exchange:
            return Groups(exchange, self.vocabulary, self.neighbours, case.seed).play([case] * times)


def fuzz_wire(options: Options) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Send random cases of all kinds to a real server; a row for each kind and for what went wrong."""
    cases = options.cases or (QUICK_CASES if options.is_quick else CASES)
    groups = range(-(-cases // GROUP))
    with _fuzzed(options.seed) as (triton, server), progress_bars("bench.fuzz") as report:
        before = processes_of(triton)
        played = Played()
        for part in _played_in_processes(server, options.seed, groups, options.only):
            played.add(part)
            report(Step("cases", played.cases, cases, f"{played.harmed} neighbours harmed"))
            if triton.poll() is not None:
                break
        figures = figures_of(played, ended_of(triton, before), _tracebacks(triton))
        rows = rows_of(played) + _last_words(triton)
    return figures, rows


def repeat_wire_case(case: Case) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Send one case some times, with neighbours."""
    with _fuzzed(case.seed) as (triton, server):
        before = processes_of(triton)
        played = server.repeat(case, _REPEATS)
        figures = figures_of(played, ended_of(triton, before), _tracebacks(triton))
        rows = rows_of(played) + _last_words(triton)
    return figures, rows


def figures_of(played: Played, crashes: int, tracebacks: int) -> dict[str, float]:
    return {
        "wire_cases": float(played.cases),
        "wire_crashes": float(crashes),
        "neighbours_asked": float(played.neighbours),
        "neighbours_harmed": float(played.harmed),
        "wire_silent": float(len(played.silent)),
        "wire_defects": float(len(played.defects) + tracebacks),
    }


def rows_of(played: Played) -> list[dict[str, Any]]:
    by_kind: dict[str, Counter[Fate]] = {kind: Counter() for kind in KINDS}
    for (kind, fate), count in played.fates.items():
        by_kind[kind][fate] += count
    rows: list[dict[str, Any]] = [
        {"target": kind, "cases": fates.total(), **{fate: fates[fate] for fate in Fate}}
        for kind, fates in by_kind.items()
        if fates
    ]
    harms = [(_named(harm.cases), f"a neighbour was harmed: {harm.what}") for harm in played.harms]
    defects = [(str(case), f"a defect: {words}") for case, words in played.defects]
    silent = [(str(case), "no answer came") for case in played.silent]
    wrong = (*harms[:_MOST_ROWS], *defects[:_MOST_ROWS], *silent[:_MOST_ROWS])
    return rows + [{"target": name, "why": why} for name, why in wrong]


def _named(cases: Sequence[Case]) -> str:
    """A case, or the group that begins with it."""
    return str(cases[0]) if len(cases) == 1 else f"{len(cases)} cases from number {cases[0].number} on"


def processes_of(server: TritonServer) -> set[int]:
    """The process IDs of a server and of all that it has started."""
    with suppress(psutil.NoSuchProcess):
        main = psutil.Process(server.pid)
        return {main.pid, *(child.pid for child in main.children(recursive=True))}
    return set()


def ended_of(server: TritonServer, before: set[int]) -> int:
    """How many of a server's processes have ended, a server that is not ready among them."""
    return len(before - processes_of(server)) + (not server.is_ready())


def _played_in_processes(server: Server, seed: int, groups: Sequence[int], only: str | None) -> Iterator[Played]:
    """Play groups in some clients' processes; yields parts as they end."""
    parts = [groups[start : start + _GROUPS_AT_ONCE] for start in range(0, len(groups), _GROUPS_AT_ONCE)]
    waiting: set[Future[Played]] = set()
    with ProcessPoolExecutor(_CLIENTS, get_context("spawn")) as pool:
        try:
            while parts or waiting:
                while parts and len(waiting) < _CLIENTS + 1:
                    waiting.add(pool.submit(server.play, seed, parts.pop(0), only))
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        finally:
            for future in waiting:
                future.cancel()


def _last_words(server: TritonServer) -> list[dict[str, Any]]:
    """Rows of what a server that has ended said at last, without the list of where it was."""
    if server.poll() is None:
        return []
    lines = [line for line in _log(server).splitlines() if line.strip() and not _FRAME.match(line)]
    return [{"target": "the server", "why": line[:_LONGEST_LINE]} for line in lines[-_MOST_ROWS:]]


def _tracebacks(server: TritonServer) -> int:
    """How many errors without a name of their own the server's processes have met."""
    return _log(server).count("Traceback (most recent call last)")


def _log(server: TritonServer) -> str:
    return server.log_path.read_text(encoding="utf-8", errors="replace")


@contextmanager
def _fuzzed(seed: int) -> Iterator[tuple[TritonServer, Server]]:
    """A real server with few slots, on a small home with tasks of two kinds."""
    with tempfile.TemporaryDirectory(prefix="hplm-fuzz-wire-") as folder:
        home = build_tiny_home(Path(folder))
        hplms = _with_entities(home, Path(folder))
        serving = Serving(lower_instances=2, lower={"dtype": "fp32"}, upper=_SLOTS)
        config = replace(serving.config(home), log_path=Path(folder) / "server.log")  # it outlives the server
        with TritonServer(config) as triton:
            _warm_up(triton, hplms)
            yield triton, Server.of(triton, hplms, seed)


def _with_entities(home: Home, work: Path) -> list[str]:
    """Add an hPLM that looks for entities, whose rows have words; returns all."""
    registry = Registry.open(home)
    train, dev = write_tagged(work / "entities", seed=5)
    tune: dict[str, Any] = {"epochs": 4, "learning_rate": 1e-2, "seed": 5}
    request = CreateHplm(id="acme/things", root="tiny", domain="farm", task="ner", train=train, dev=dev, tune=tune)
    create_hplm(home, registry, request, ignore)
    hplms = [entry.id for entry in registry.hplms()]
    registry.close()
    return hplms


def _warm_up(server: TritonServer, hplms: Sequence[str]) -> None:
    with HplmClient(f"grpc://{server.grpc_url}") as client:
        client.infer_many([(hplm, text.text) for hplm in hplms for text in sample_texts(8, 1)])
