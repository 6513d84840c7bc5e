"""Is the first answer of a default server the right one, and what does computing what its tables lack cost?

Two tasks of a data folder, each on a domain table of the default theta, behind the real Triton with the default export,
or with one in another dtype.
All test texts are asked twice, by a few callers who each wait for an answer before they ask the next text; what both
passes cost is read from the processes of `hplm_lower`. What is exact is computed without a server, in fp32. The tables
and hPLMs stay in `--home`, and the same command goes on where it was.
"""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import psutil

from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.scratch_home import copied_home
from bench.kit.server_metrics import figure_of
from bench.tasks.served_tasks import ServedTask, built_tasks, exact_accuracy
from bench.tasks.theta_cases import cases_of_data
from builder.construct.tasks.examples import LabelledText
from builder.progress import progress_bars
from builder.serving import ServerConfig, TritonServer
from builder.settings.domain import PlotSettings
from hplm_client import Classification, HplmClient

_HPLM = str(Path(sys.executable).with_name("hplm"))
_SETTLE_S = 3.0
"""A process hands its counts to Triton every two seconds."""
_LEAST_MISSING_SHARE = 1 / 3
_WARM_UP = ("one text before the first", "and another one that is somewhat longer than the text before")
_LEVEL = re.compile(r'^hplm_plot_fragments_total\{level="([^"]+)"[^}]*\} (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Settings:
    epochs: int
    general_fragments: int
    corpus_texts: int | None = None
    task_texts: int | None = None
    callers: int = 16
    dtype: str | None = None
    """What is exported; the default's where there is none."""


FULL = Settings(epochs=3, general_fragments=30_000, corpus_texts=20_000, task_texts=1_500)
QUICK = Settings(epochs=2, general_fragments=5_000, corpus_texts=1_500, task_texts=250)


@dataclass(frozen=True)
class Question:
    hplm: str
    text: str
    label: str


@dataclass(frozen=True)
class Pass:
    """All questions once.

    Attributes:
        missing_share: Tokens whose whole fragment was in no table, of all.
        computed: Fragments that were computed; two processes may compute the same one.
    """

    answers: Sequence[Classification]
    latencies_ms: Sequence[float]
    lower_cpu_s: float
    missing_share: float
    computed: int

    @property
    def p50_ms(self) -> float:
        return float(np.median(self.latencies_ms))

    def accuracy(self, questions: Sequence[Question], hplm: str) -> float:
        """In points, of one hPLM's questions."""
        pairs = zip(questions, self.answers, strict=True)
        return 100 * mean(answer.label == question.label for question, answer in pairs if question.hplm == hplm)

    def row(self, name: str) -> dict[str, Any]:
        return {
            "pass": name,
            "texts": len(self.answers),
            "exact": sum(answer.exact for answer in self.answers),
            "in no table": self.missing_share,
            "computed": self.computed,
            "p50 ms": self.p50_ms,
            "p99 ms": float(np.percentile(self.latencies_ms, 99)),
            "CPU s of hplm_lower": self.lower_cpu_s,
        }


class Asker:
    """A server's callers, and what its processes of `hplm_lower` count."""

    def __init__(self, server: TritonServer, callers: int) -> None:
        self._server = server
        self._callers = callers
        processes = psutil.Process(server.pid).children(recursive=True)
        self._lower = [process for process in processes if "hplm_lower" in " ".join(process.cmdline())]

    def ask(self, questions: Sequence[Question]) -> Pass:
        before_s, before = self._cpu_s(), self._levels()
        computed_before = self._computed()
        numbers = itertools.count()

        def caller(_: int) -> list[tuple[int, float, Classification]]:
            answered = []
            with HplmClient(f"grpc://{self._server.grpc_url}", rows_per_request=1) as client:
                while (number := next(numbers)) < len(questions):
                    started_s = time.perf_counter()
                    answer = client.infer(questions[number].hplm, questions[number].text)
                    assert isinstance(answer, Classification)
                    answered.append((number, 1e3 * (time.perf_counter() - started_s), answer))
            return answered

        with ThreadPoolExecutor(self._callers) as pool:
            answered = list(itertools.chain.from_iterable(pool.map(caller, range(self._callers))))
        time.sleep(_SETTLE_S)
        _, latencies_ms, answers = zip(*sorted(answered, key=lambda each: each[0]), strict=True)
        looked_up = {level: count - before.get(level, 0) for level, count in self._levels().items()}
        missing = sum(count for level, count in looked_up.items() if "/" in level or "@" not in level)
        share = missing / max(1, sum(looked_up.values()))
        return Pass(answers, latencies_ms, self._cpu_s() - before_s, share, self._computed() - computed_before)

    def _levels(self) -> dict[str, int]:
        """Tokens so far by the level that answered; a table's own name is that of its whole fragments."""
        with urllib.request.urlopen(self._server.metrics_url) as page:
            return {level: int(count) for level, count in _LEVEL.findall(page.read().decode())}

    def _computed(self) -> int:
        return round(figure_of(self._server, 'hplm_overlay_fragments_total{event="computed"}'))

    def _cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._lower)


def served_twice(home: Home, questions: Sequence[Question], settings: Settings) -> tuple[Pass, Pass]:
    """Ask a server that has computed nothing yet, with the default export but for the dtype."""
    options = [] if settings.dtype is None else ["--dtype", settings.dtype]
    subprocess.run([_HPLM, "export", "--home", str(home.path), *options], check=True, capture_output=True)
    config = ServerConfig(repository=home.repository, environment={"HPLM_HOME": str(home.path)})
    with TritonServer(config) as server:
        asker = Asker(server, settings.callers)
        hplms = sorted({question.hplm for question in questions})
        asker.ask([Question(hplm, text, "") for hplm in hplms for text in _WARM_UP * settings.callers])
        return asker.ask(questions), asker.ask(questions)


def questions_of(tasks: Sequence[ServedTask], seed: int) -> list[Question]:
    """The test texts of all tasks, mixed."""
    questions = [
        Question(task.entry.id, example.text, str(example.label))
        for task in tasks
        for example in task.data.test
        if isinstance(example, LabelledText)
    ]
    random.Random(seed).shuffle(questions)
    return questions


def figures(questions: Sequence[Question], exact: dict[str, float], first: Pass, second: Pass) -> dict[str, float]:
    """Points are those of the worst task."""
    labels = [[answer.label for answer in each.answers] for each in (first, second)]
    extra_s = first.lower_cpu_s - second.lower_cpu_s
    return {
        "first_pass_points": max(points - first.accuracy(questions, hplm) for hplm, points in exact.items()),
        "first_pass_p50_ratio": first.p50_ms / second.p50_ms,
        "fragment_us": 1e6 * extra_s / max(1, first.computed),
        "same_answer_share": mean(one == other for one, other in zip(*labels, strict=True)),
        "missing_share": first.missing_share,
        "inexact_answers": float(sum(not answer.exact for answer in first.answers)),
    }


def measure(home: Home, data: Path, settings: Settings, seed: int) -> Result:
    of_data = cases_of_data(data)
    cases = of_data.cases
    if settings.corpus_texts and settings.task_texts:
        folder = home.path / "texts"
        cases = [case.shortened(folder, settings.corpus_texts, settings.task_texts) for case in cases]
    plot = PlotSettings(max_fragments=settings.general_fragments, max_bigrams=settings.general_fragments // 2)
    with progress_bars("served") as report:
        tasks = built_tasks(home, of_data, cases, settings.epochs, plot, report)
    questions = questions_of(tasks, seed)
    exact = {task.entry.id: exact_accuracy(home, task) for task in tasks}
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as work:
        first, second = served_twice(copied_home(home.path, Path(work) / "home"), questions, settings)
    found = figures(questions, exact, first, second)
    if found["missing_share"] < _LEAST_MISSING_SHARE:
        raise InvalidArgumentError(
            f"only {found['missing_share']:.0%} of the fragments were missing; a third are needed"
        )
    rows = [each.row(name) for name, each in (("first", first), ("second", second))]
    rows += [
        {"pass": f"accuracy of {hplm}", "exact points": points, "first": first.accuracy(questions, hplm)}
        for hplm, points in exact.items()
    ]
    return Result({**asdict(settings), "texts": len(questions), "hplms": len(tasks)}, found, rows)


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--data", type=Path, help="a folder with corpora/ and tasks/")
    arguments.add_argument("--home", type=Path, help="kept between runs; a new one gets the demo's root")
    arguments.add_argument("--dtype", choices=("bf16", "fp32", "int8"), help="of the export [the default's]")


@bench(
    "served",
    bars={
        "first_pass_points": at_most(0.2),
        "first_pass_p50_ratio": at_most(2.0),
        "fragment_us": at_most(250.0),
        "same_answer_share": at_least(0.999),
    },
    add_options=add_options,
    quick_s=QUICK_LOADS_S,
)
def served(options: Namespace) -> Result:
    if options.data is None:
        raise NotFoundError("--data names a folder with corpora/ and tasks/; without one there is nothing to ask")
    path = options.home or Path("build") / ("served-quick" if options.quick else "served")
    settings = replace(QUICK if options.quick else FULL, dtype=options.dtype)
    return measure(Home(path.absolute()), options.data, settings, options.seed)


if __name__ == "__main__":
    served.main()
