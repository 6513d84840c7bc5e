"""The demo's view of the running server."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from backends.adapters.bank import read_artifact
from backends.home import Home
from backends.lower.model import LowerModel, RootFront
from backends.plot.statistics import HitStatistics
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.serving import TritonServer
from demo.root import ROOT
from demo.tasks import DemoTask
from demo.texts import SHARED_TEXTS
from hplm_client import Classification, ClientError, HplmClient

_REPEATS = 5
_MAX_WAIT_S = 30.0
_SHOWN_CHARACTERS = 56


class Showing:
    def __init__(
        self, home: Home, registry: Registry, tasks: Sequence[DemoTask], server: TritonServer, console: Console
    ) -> None:
        self._home = home
        self._registry = registry
        self._tasks = {task.id: task for task in tasks}
        self._server = server
        self._console = console

    def ask_everyone(self) -> None:
        """Ask every hPLM one held-out text, over gRPC and over HTTP."""
        table = Table("hPLM", "held-out text", "answer", "score", "gRPC ms", "HTTP ms", title="One server, many models")
        with (
            HplmClient(f"grpc://{self._server.grpc_url}") as grpc,
            HplmClient(f"http://{self._server.http_url}") as http,
        ):
            for entry in self.own():
                text = self._tasks[entry.id].test[0].text
                (answer, grpc_ms), (same, http_ms) = (timed(client, entry.id, text) for client in (grpc, http))
                agreed = answer.label if same.label == answer.label else f"{answer.label} / {same.label}"
                table.add_row(
                    entry.id, shortened(text), agreed, f"{answer.score:.2f}", f"{grpc_ms:.1f}", f"{http_ms:.1f}"
                )
        self._console.print(table)

    def same_text_for_all(self) -> None:
        """Ask several tenants' hPLMs the same text."""
        text = SHARED_TEXTS[0]
        table = Table("hPLM", "asks", "answer", "score", title=f'The same text for all: "{text}"')
        entries = self.own()
        with HplmClient(f"grpc://{self._server.grpc_url}") as client:
            answers = client.infer_many([(entry.id, text) for entry in entries])
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(answer, Classification):
                table.add_row(entry.id, self._tasks[entry.id].question, answer.label, f"{answer.score:.2f}")
        self._console.print(table)

    def ask_new_hplm(self, task: DemoTask) -> None:
        """Measure how long after its creation an hPLM answers; nothing notifies the server but the registry."""
        created = time.monotonic()
        with HplmClient(f"grpc://{self._server.grpc_url}") as client:
            while True:
                try:
                    answer, _ = timed(client, task.id, task.test[0].text, repeats=1)
                    break
                except ClientError:
                    if time.monotonic() - created > _MAX_WAIT_S:
                        raise
                    time.sleep(0.02)
        self._console.print(
            f"{task.id} answered {time.monotonic() - created:.2f} s after it was created, without a reload: "
            f"{answer.label} ({answer.score:.2f})",
            highlight=False,
        )

    def own(self) -> list[HplmEntry]:
        """List the demo's own hPLMs that have been measured; a home may hold others."""
        return [
            entry for entry in self._registry.hplms() if entry.id in self._tasks and "test_accuracy" in entry.metrics
        ]

    def quality(self) -> None:
        table = Table("hPLM", "domain", "question", "labels", "held-out accuracy", "majority", title="Quality")
        for entry in self.own():
            table.add_row(
                entry.id,
                entry.domain.label,
                self._tasks[entry.id].question,
                str(len(entry.labels)),
                f"{entry.metrics['test_accuracy']:.3f}",
                f"{entry.metrics['test_majority_share']:.3f}",
            )
        self._console.print(table)

    def hit_rates(self) -> None:
        """Show which table layer answers the fragments of held-out texts."""
        front = RootFront(RootFolder(self._home.root(ROOT)))
        table = Table(
            "domain", "texts", "own tri-grams", "parent's tri-grams", "bi-grams", "uni-grams", title="PLOT hits"
        )
        for domain in self._registry.domains(ROOT):
            texts = [e.text for task in self._tasks.values() if task.domain == domain.name for e in task.test]
            if texts:
                hits = LowerModel.open(self._home, domain, front).encode(texts).statistics
                table.add_row(domain.label, str(len(texts)), *_shares(hits))
        self._console.print(table)

    def memory(self) -> None:
        """Show what one more hPLM costs."""
        fingerprint = RootFolder(self._home.root(ROOT)).fingerprint
        sizes = [_size_kib(self._home, entry, fingerprint) for entry in self.own()]
        root_mib = sum(path.stat().st_size for path in self._home.root(ROOT).iterdir()) / 2**20
        self._console.print(
            f"Memory per additional hPLM: {max(sizes):.0f} KiB in the bank and, while it is resident, in its slot "
            f"(bf16); nothing while it is not. A model of its own would be {root_mib:.0f} MiB (fp16).",
            highlight=False,
        )


def timed(
    client: HplmClient, hplm: str, text: str, repeats: int = _REPEATS, level: str | None = None
) -> tuple[Classification, float]:
    """Ask a few times; return the answer and the median time in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        answer = client.infer(hplm, text, level=level)
        times.append(1000 * (time.perf_counter() - start))
    if not isinstance(answer, Classification):
        raise ClientError(f"{hplm} is not a classifier", hplm)
    return answer, sorted(times)[len(times) // 2]


def _shares(hits: HitStatistics) -> list[str]:
    own, parent, bigrams, unigrams = hits.rates().values()
    return [f"{share:.1%}" for share in (own, parent, bigrams, unigrams)]


def _size_kib(home: Home, entry: HplmEntry, fingerprint: str) -> float:
    return read_artifact(home.path / entry.folder, fingerprint).size_bytes / 1024


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
