"""Outcomes of trials, each in a file of its own, so that a run goes on where the last one was, here or elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from backends.home import Home
from backends.root.store import RootFolder
from backends.storage import file_checksum, json_checksum, read_json, write_json
from bench.tasks.outcome import Outcome
from bench.tasks.schemes import Trial, Workspace
from builder.construct.hplm.dedicated import FINE_TUNING
from builder.construct.hplm.dedicated_teacher import REWRITING, TEACHER_DATA_FORMAT
from builder.settings.hplm import TEACHING

_NEEDS_OF_ROOT = {"adapter": ("lower",), "plot": ("root",), "untaught": ("root",), "hplm": ("root", "teacher")}
_WITH_ADAPTERS = ("adapter", "untaught", "hplm")


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

    def find(self, trial: Trial) -> Outcome | None:
        path = self._path(trial)
        return Outcome.from_json(read_json(path)["outcome"]) if path.exists() else None

    def keep(self, trial: Trial, outcome: Outcome) -> None:
        """Write the trial's file whole, or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
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
        version["data"] = [
            file_checksum(path) for path in sorted((self._workspace.data / "tasks" / trial.task).iterdir())
        ]
        return f"{trial.task}-{trial.scheme}-{trial.settings.seed}-{json_checksum(version)[:12]}"
