"""Outcomes of trials, each in a file of its own, so that a run goes on where the last one was, here or elsewhere.

Beside them `root.json` says what root they were measured on: a report needs nothing but the folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backends.errors import ConflictError, NotFoundError
from backends.home import Home
from backends.root.store import RootFolder
from backends.storage import json_checksum, read_json, write_json
from bench.tasks.data import task_checksums
from bench.tasks.outcome import Outcome
from bench.tasks.schemes import Trial, Workspace
from builder.construct.hplm.dedicated import FINE_TUNING
from builder.construct.hplm.dedicated_teacher import REWRITING, TEACHER_DATA_FORMAT
from builder.construct.root.distilled import seconds_in_all
from builder.settings.hplm import TEACHING

_NEEDS_OF_ROOT = {"adapter": ("lower",), "plot": ("root",), "untaught": ("root",), "hplm": ("root", "teacher")}
_WITH_ADAPTERS = ("adapter", "untaught", "hplm")
_ROOT = "root.json"


class Results:
    """The outcomes for one root and its model; a file's name stands for all that its trial depends on."""

    def __init__(self, workspace: Workspace, folder: Path) -> None:
        root = RootFolder(Home(workspace.home).root(workspace.root))
        self._folder = folder
        self._of_model = {
            "weights": root.manifest.origin["weights_checksum"],
            "caps": asdict(workspace.caps),
            "max_tokens": root.geometry.max_tokens,
        }
        self._of_root = {
            "root": root.fingerprint,
            "lower": root.geometry.num_lower_layers,
            "teacher": {
                "settings": asdict(FINE_TUNING),
                "rewriting": asdict(REWRITING),
                "lessons": TEACHER_DATA_FORMAT,
            },
        }
        self._workspace = workspace
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / _ROOT, _described(root))

    def find(self, trial: Trial) -> Outcome | None:
        path = self._path(trial)
        return Outcome.from_json(read_json(path)["outcome"]) if path.exists() else None

    def keep(self, trial: Trial, outcome: Outcome) -> None:
        """Write the trial's file whole, or not at all."""
        write_json(self._path(trial), {**trial.described(), "outcome": outcome.to_json()})

    def _path(self, trial: Trial) -> Path:
        return self._folder / f"{self._key(trial)}.json"

    def _key(self, trial: Trial) -> str:
        settings = asdict(trial.settings)
        if trial.scheme not in _WITH_ADAPTERS:
            del settings["recipe"]
        if trial.scheme != "hplm":
            settings = {name: value for name, value in settings.items() if name not in TEACHING}
        version: dict[str, Any] = {**self._of_model, "settings": settings}
        version |= {name: self._of_root[name] for name in _NEEDS_OF_ROOT.get(trial.scheme, ())}
        version["data"] = task_checksums(self._workspace.data, trial.task)
        return f"{trial.task}-{trial.scheme}-{trial.settings.seed}-{json_checksum(version)[:12]}"


def kept_outcomes(folder: Path, trials: Iterable[Trial]) -> dict[Trial, Outcome]:
    """Return what the folder has of these trials, with no look at the root that it was measured on."""
    found: dict[Trial, Outcome] = {}
    for trial in trials:
        paths = sorted(folder.glob(f"{trial.task}-{trial.scheme}-{trial.settings.seed}-*.json"))
        if len(paths) > 1:
            raise ConflictError(f"{folder} has {len(paths)} results of {trial.name}; keep one root's in a folder")
        if paths:
            found[trial] = Outcome.from_json(read_json(paths[0])["outcome"])
    return found


def kept_root(folder: Path) -> dict[str, Any]:
    """Return the root that a folder's outcomes were measured on, as a report shows it."""
    if not (folder / _ROOT).exists():
        raise NotFoundError(f"{folder} has no {_ROOT}: nothing was measured there")
    described: dict[str, Any] = read_json(folder / _ROOT)
    return {name: value for name, value in described.items() if name != "checksum"}


def _described(root: RootFolder) -> dict[str, Any]:
    manifest, geometry = root.manifest, root.geometry
    return {
        "root": manifest.name,
        "source": manifest.origin["source"],
        "split": f"{geometry.num_lower_layers} + {geometry.num_upper_layers}",
        "n": geometry.n,
        "K": geometry.num_lower_layers,
        "final_cosine": manifest.fidelity.get("final_cosine"),
        "corpora": ", ".join(Path(path).stem for path in manifest.origin["config"]["corpus"]),
        "distillation_seconds": seconds_in_all(manifest.origin),
    }
