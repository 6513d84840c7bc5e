"""How much of a domain's table can be left out before its tasks notice?

For two domains the lower layers are pretrained further once, and an hPLM of each is tuned for every seed. Then its test
file is read through tables of the `theta` most frequent fragments, from none of the domain's own to all of them: what
the table takes on disk, and what the hPLM reaches (mean over seeds) where a server computes or learns what the tables
lack, and where shorter fragments answer for that. One hPLM through all tables: between two tunings lies more than
between two tables.

A table larger than the default is built for those fragments only that occur in the test file, as no others are ever
looked up; its size is computed for all of them. What was built and tuned stays in `--home`, and the same command goes
on where it was.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch

from backends.adapters.bank import read_artifact
from backends.home import Home
from backends.lower.encoder import WEIGHTS_NAME
from backends.lower.model import LowerModel
from backends.plot.arrays import Keys
from backends.plot.counts import FragmentCounts
from backends.plot.header import TableSpec
from backends.plot.store_writer import expected_bytes
from backends.plot.table import Table
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.wire import Float16Array
from bench.kit.entry import Result, bench
from bench.tasks.theta_cases import Case, CaseData, cases_of_data, cases_of_demo
from builder.construct.domain.coverage import draw_coverage
from builder.construct.domain.domains import create_domain
from builder.construct.domain.ngrams import CountTexts, count_fragments
from builder.construct.domain.plots import ComputeFragments, build_table, held_by
from builder.construct.hplm.exact_lower import exact_lower
from builder.construct.hplm.hplms import create_hplm
from builder.construct.hplm.tunable import EncodedSet, Tuned
from builder.construct.hplm.tune import Upper, evaluate
from builder.construct.root.roots import add_root
from builder.construct.tasks.dataset import TaskData, TaskFiles, read_task
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.training.corpus import split_corpus
from builder.progress import Report as Progress
from builder.progress import progress_bars
from builder.requests.domains import CreateDomain
from builder.requests.hplms import CreateHplm
from builder.settings.domain import DOMAIN_THETA, PlotSettings
from demo.root import DISTILLED, ROOT, root_request

_TEXTS_PER_BATCH = 1024
_NO_TABLE = 0.0
_FIRST_SEED = 1


@dataclass(frozen=True)
class Settings:
    thetas: tuple[float, ...]
    seeds: tuple[int, ...]
    mlm_steps: int
    head_steps: int
    epochs: int
    corpus_texts: int | None = None
    task_texts: int | None = None
    general_fragments: int = 200_000


FULL = Settings((_NO_TABLE, DOMAIN_THETA, 0.02, 0.1, 1.0), seeds=(1, 2, 3), mlm_steps=150, head_steps=300, epochs=6)
QUICK = Settings(
    (DOMAIN_THETA, 1.0),
    seeds=(1,),
    mlm_steps=2,
    head_steps=2,
    epochs=1,
    corpus_texts=1000,
    task_texts=120,
    general_fragments=1000,
)


def with_seeds_from(settings: Settings, first: int) -> Settings:
    """As many seeds, from another one on; each seed's hPLMs are kept under their own names."""
    return replace(settings, seeds=tuple(first + number for number in range(len(settings.seeds))))


class Tables:
    """Domains, tables and hPLMs of one home; whatever is there already is taken as it is."""

    def __init__(self, home: Home, root: str, settings: Settings, progress: Progress) -> None:
        self.home = home
        self.registry = Registry.open(home)
        self.root = RootFolder(home.root(root))
        self.settings = settings
        self._progress = progress

    def rows(self, case: Case) -> tuple[list[dict[str, Any]], FragmentCounts]:
        domain = self._domain(case)
        counts = self._counts(case)
        return [self._row(case, domain, counts, theta) for theta in self.settings.thetas], counts

    def _domain(self, case: Case) -> DomainEntry:
        name = f"theta-{case.domain}"
        if self.registry.has_domain(self._root_name, name):
            return self.registry.domain(self._root_name, name)
        request = CreateDomain(
            name=name,
            root=self._root_name,
            corpus=[case.corpus],
            max_fragments=None,
            mlm_steps=self.settings.mlm_steps,
            head_steps=self.settings.head_steps,
        )
        return create_domain(self.home, self.registry, request, self._progress)

    def _counts(self, case: Case) -> FragmentCounts:
        """Count the fragments of the whole corpus, as the domain's table did."""
        corpus = split_corpus([case.corpus], None)
        batches = corpus.batches(_TEXTS_PER_BATCH)
        return count_fragments(batches, CountTexts(self.root.path), corpus.num_texts, self._progress)

    def _row(self, case: Case, domain: DomainEntry, counts: FragmentCounts, theta: float) -> dict[str, Any]:
        kept = counts.top(theta)
        read = self._with_theta(case, domain, counts, theta)
        exact, shortened = (self._scores(case, half) for half in (exact_lower(self.home, read), self._half(read)))
        return {
            "domain": case.domain,
            "task": case.task,
            "theta": theta,
            "fragments": len(kept.keys),
            "table bytes": expected_bytes(self._spec("size", None), self._spec("size", None).main, len(kept.keys)),
            "share of occurrences": kept.num_occurrences / counts.num_occurrences,
            "accuracy": 100 * mean(exact),
            "sd": 100 * stdev(exact) if len(exact) > 1 else 0.0,
            "accuracy, shorter fragments": 100 * mean(shortened),
        }

    def _with_theta(self, case: Case, domain: DomainEntry, counts: FragmentCounts, theta: float) -> DomainEntry:
        """The domain with this share of its fragments: itself, its parent, or a child that holds the rest."""
        if theta == DOMAIN_THETA:
            return domain
        if theta == _NO_TABLE:
            return self.registry.domain_parent(domain) or domain
        name = f"theta-{case.domain}-{theta:g}"
        if self.registry.has_domain(self._root_name, name):
            return self.registry.domain(self._root_name, name)
        target = self.home.plot(self._root_name, name, 1)
        folders = tuple(self.home.path / folder for folder in domain.folders)
        spec = self._spec(f"{name}@1", domain.label)
        if not target.exists():
            kept = counts.top(theta).keys
            asked = np.isin(kept, self._test_fragments(case))
            with Table.open(folders[0], self.root.fingerprint) as table:
                missing = kept[asked & ~held_by([table], spec.main, kept)]
            compute = ComputeFragments(self.root.path, folders)
            build_table(target, spec, compute, {spec.main: missing}, {"theta": theta}, self._progress)
        return self.registry.publish_domain(self._root_name, name, self.home.relative(target), domain, {"theta": theta})

    def _test_fragments(self, case: Case) -> Keys:
        return CountTexts(self.root.path)([example.text for example in _task(case).test]).keys

    def _half(self, domain: DomainEntry) -> LowerModel:
        return LowerModel.open(self.home, domain)

    def _scores(self, case: Case, half: LowerModel) -> list[float]:
        """The test accuracy of each seed's hPLM, its texts read by this lower half."""
        data = _task(case)
        objective = objective_of(data)
        rows: list[Float16Array] = []
        for start in range(0, len(data.test), _TEXTS_PER_BATCH):
            rows += half.encode([example.text for example in data.test[start : start + _TEXTS_PER_BATCH]]).rows
        no_words = [None] * len(rows)
        states, lengths = [torch.from_numpy(row) for row in rows], np.array([len(row) for row in rows])
        encoded = EncodedSet(states, objective.targets(data.test, no_words), lengths, no_words)
        upper = Upper(self.root.upper(), self.root.geometry)
        tuned = [self._tuned(case, seed) for seed in self.settings.seeds]
        return [evaluate(upper, objective, each, encoded)["accuracy"] for each in tuned]

    def _tuned(self, case: Case, seed: int) -> Tuned:
        """The hPLM of a seed, tuned on the domain as it is published."""
        hplm = f"theta-{case.domain}/{seed}"
        if not self.registry.has_hplm(hplm):
            request = CreateHplm(
                id=hplm,
                root=self._root_name,
                domain=f"theta-{case.domain}",
                train=case.train,
                dev=case.dev,
                test=case.test,
                tune={"epochs": self.settings.epochs, "seed": seed},
            )
            create_hplm(self.home, self.registry, request, self._progress)
        artifact = read_artifact(self.home.path / self.registry.hplm(hplm).folder, self.root.fingerprint)
        return Tuned(artifact.adapters, artifact.head, artifact.pooling, {}, 0)

    def _spec(self, name: str, parent: str | None) -> TableSpec:
        geometry = self.root.geometry
        sizes = (geometry.hidden_size, geometry.vocab_size)
        return TableSpec(name, self.root.fingerprint, *sizes, parent=parent, n=geometry.n)

    @property
    def _root_name(self) -> str:
        return self.root.manifest.name


@lru_cache(maxsize=2)
def _task(case: Case) -> TaskData:
    return read_task(TaskFiles(case.train, case.dev, case.test))


def prepared_home(
    path: Path, root: str | None, data: CaseData, settings: Settings, progress: Progress
) -> tuple[Home, str]:
    """The home and its root's name; a new home gets the demo's root."""
    home = Home(path.absolute())
    registry = Registry.open(home, create=True)
    if not registry.roots():
        plot = PlotSettings(max_fragments=settings.general_fragments, max_bigrams=settings.general_fragments // 2)
        add_root(home, registry, root_request(data.general, DISTILLED, plot), progress)
    return home, registry.root(root or ROOT).name


def figures(rows: Sequence[dict[str, Any]], tables: Tables) -> dict[str, float]:
    result: dict[str, float] = {}
    for domain in dict.fromkeys(row["domain"] for row in rows):
        of_theta = {row["theta"]: row for row in rows if row["domain"] == domain}
        chosen, everything = of_theta[DOMAIN_THETA], of_theta[1.0]
        entry = tables.registry.domain(tables.root.manifest.name, f"theta-{domain}")
        layers_bytes = (tables.home.path / entry.folders[0] / WEIGHTS_NAME).stat().st_size
        result[f"{domain}_space_ratio"] = everything["table bytes"] / chosen["table bytes"]
        result[f"{domain}_space_ratio_with_layers"] = everything["table bytes"] / (chosen["table bytes"] + layers_bytes)
        result[f"{domain}_task_change"] = chosen["accuracy"] - everything["accuracy"]
        result[f"{domain}_change_with_shorter_fragments"] = (
            chosen["accuracy, shorter fragments"] - everything["accuracy"]
        )
        result[f"{domain}_mlm_loss_before"] = entry.metrics["mlm_loss_before"]
        result[f"{domain}_mlm_loss_after"] = entry.metrics["mlm_loss_after"]
    result["least_space_ratio"] = min(value for name, value in result.items() if name.endswith("_space_ratio"))
    changes = [abs(value) for name, value in result.items() if name.endswith("_task_change")]
    return {**result, "largest_task_change": max(changes)}


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--data", type=Path, help="corpora and tasks; otherwise the demo's texts are used")
    arguments.add_argument("--home", type=Path, help="kept between runs; a new one gets the demo's root")
    arguments.add_argument("--root", help=f"which root of the home ({ROOT})")
    arguments.set_defaults(seed=_FIRST_SEED)


@bench(
    "theta",
    add_options=add_options,
)
def theta(options: Namespace) -> Result:
    settings = with_seeds_from(QUICK if options.quick else FULL, options.seed)
    path = options.home or Path("build") / ("theta-quick" if options.quick else "theta")
    data = cases_of_data(options.data) if options.data else cases_of_demo(path / "texts")
    rows: list[dict[str, Any]] = []
    counts: dict[str, FragmentCounts] = {}
    with progress_bars("theta") as progress:
        home, root = prepared_home(path, options.root, data, settings, progress)
        tables = Tables(home, root, settings, progress)
        for case in data.cases:
            if settings.corpus_texts and settings.task_texts:
                case = case.shortened(path / "texts/short", settings.corpus_texts, settings.task_texts)
            of_case, counts[case.domain] = tables.rows(case)
            rows += of_case
    if options.json is not None:
        draw_coverage(counts, DOMAIN_THETA, options.json.with_suffix(".svg"))
    return Result(asdict(settings), figures(rows, tables), rows)


if __name__ == "__main__":
    theta.main()
