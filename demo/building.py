"""The demo's home: texts, root, domains and hPLMs, each made if it is not there yet."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from backends.home import Home
from backends.registry.registry import Registry
from builder.construct.domain.domains import create_domain
from builder.construct.hplm.hplms import create_hplm
from builder.construct.root.roots import add_root
from builder.progress import progress_bars
from builder.requests.domains import CreateDomain
from builder.requests.hplms import CreateHplm
from builder.settings.domain import PlotSettings
from demo.harvest import harvest
from demo.root import DISTILLED, ROOT, root_request
from demo.tasks import DemoTask, demo_tasks, write_lines, write_task
from demo.texts import corpora, general_corpus

_ROOT_PLOT = PlotSettings(max_fragments=60_000, max_bigrams=40_000)
_DOMAIN_FRAGMENTS = 60_000
_EPOCHS = 5


class DemoHome:
    """Builds step by step; `tasks` are all the demo's tasks, the last of which is kept for the running server."""

    def __init__(self, home: Home, registry: Registry, console: Console) -> None:
        self._home = home
        self._registry = registry
        self._console = console
        self._console.print("Harvesting texts from the installed Python packages …")
        self._found = harvest()
        self._console.print("Cutting them into tasks …")
        self.tasks = demo_tasks(self._found)
        self._texts = home.path / "texts"

    def build_all_but_one(self) -> DemoTask:
        """Build everything but the last hPLM; return its task."""
        self._build_root()
        for domain in sorted({task.domain for task in self.tasks}):
            self._build_domain(domain)
        *first, last = self.tasks
        for task in first:
            self._build_hplm(task)
        return last

    def create_while_serving(self, task: DemoTask) -> None:
        """Create the last hPLM, after deleting the one that an earlier demo left."""
        self._console.print(f"\nNow, while the server runs, one more hPLM: {task.id}", highlight=False)
        if self._registry.has_hplm(task.id):
            self._registry.delete_hplm(task.id)
        self._build_hplm(task)

    def _build_root(self) -> None:
        if not self._registry.has_root(ROOT):
            with progress_bars(f"root {ROOT}", self._console) as report:
                request = root_request(self._corpus("general"), DISTILLED, _ROOT_PLOT)
                add_root(self._home, self._registry, request, report)

    def _build_domain(self, domain: str) -> None:
        if domain not in {entry.name for entry in self._registry.domains(ROOT)}:
            with progress_bars(f"domain {domain}", self._console) as report:
                request = CreateDomain(
                    name=domain,
                    root=ROOT,
                    corpus=[self._corpus(domain)],
                    theta=1.0,
                    max_fragments=_DOMAIN_FRAGMENTS,
                    mlm_steps=0,
                )
                create_domain(self._home, self._registry, request, report)

    def _build_hplm(self, task: DemoTask) -> None:
        if not self._registry.has_hplm(task.id):
            files = write_task(task, self._texts)
            request = CreateHplm(
                id=task.id,
                root=ROOT,
                domain=task.domain,
                train=files["train"],
                dev=files["dev"],
                test=files["test"],
                tune={"epochs": _EPOCHS},
            )
            with progress_bars(f"hPLM {task.id}", self._console) as report:
                create_hplm(self._home, self._registry, request, report)

    def _corpus(self, name: str) -> Path:
        """Return the file of a corpus; the first call writes those of all domains."""
        path = self._texts / f"{name}.txt"
        if not path.exists():
            self._console.print("Writing the corpora …")
            self._texts.mkdir(parents=True, exist_ok=True)
            write_lines(self._texts / "general.txt", general_corpus(self._found, self.tasks))
            for domain, texts in corpora(self._found, self.tasks).items():
                write_lines(self._texts / f"{domain}.txt", texts)
        return path
