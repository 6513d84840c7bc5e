"""What an hPLM reaches on a labelled file: as a server of the default export answers it the first time it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backends.adapters.bank import read_artifact
from backends.errors import TrainingDataError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.hplm.states import encoded_set
from builder.construct.hplm.tunable import Tuned
from builder.construct.hplm.tune import Upper, evaluate
from builder.construct.tasks.dataset import TaskData, read_examples
from builder.construct.tasks.examples import Example, LabelledText
from builder.construct.tasks.task_objectives import objective_of
from builder.construct.tasks.trained_texts import TrainedTexts
from builder.progress import Report


def evaluate_hplm(home: Home, registry: Registry, hplm: str, file: Path, report: Report) -> dict[str, Any]:
    """Measure the live version; fragments that no table holds are computed, as `--missing compute` does.

    A label that the hPLM does not know is an answer that it cannot get right.

    Raises:
        TrainingDataError: The file is of another task, or of pairs where the hPLM reads single texts.
    """
    entry = registry.hplm(hplm)
    examples = read_examples(file, entry.task)
    data = TaskData(entry.task, entry.labels, examples, examples)
    if data.pair != entry.pair:
        kinds = {True: "pairs of texts", False: "single texts"}
        raise TrainingDataError(f"{file} holds {kinds[data.pair]}, but hPLM {hplm!r} reads {kinds[entry.pair]}")
    root = RootFolder(home.root(entry.domain.root))
    artifact = read_artifact(home.path / entry.folder, root.fingerprint)
    tuned = Tuned(artifact.adapters, artifact.head, artifact.pooling, {}, 0)
    objective = objective_of(data)
    encoded = encoded_set(home, entry.domain, objective, examples, "file's", report)
    metrics = evaluate(Upper(root.upper(), root.geometry), objective, tuned, encoded)
    return {
        "id": entry.id,
        "version": entry.version,
        "domain": entry.domain.label,
        "task": entry.task,
        "main_metric": objective.main_metric,
        **{name: round(value, 4) for name, value in metrics.items()},
        "texts": len(examples),
        **({"unknown_labels": unknown} if (unknown := _unknown_labels(examples, entry)) else {}),
        "trained_on": TrainedTexts.read(home.path / entry.folder).num_among(examples),
    }


def _unknown_labels(examples: Sequence[Example], entry: HplmEntry) -> list[str]:
    """Return the classes of a file that the hPLM cannot answer."""
    labels = {each.label for each in examples if isinstance(each, LabelledText) and isinstance(each.label, str)}
    return sorted(labels - set(entry.labels))
