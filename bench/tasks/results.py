"""Outcomes of trials in one file of JSON lines, so that a run goes on where the last one was, here or elsewhere."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from backends.home import Home
from backends.root.store import RootFolder
from backends.storage import file_checksum, json_checksum
from bench.tasks.data import unlabelled_corpora
from bench.tasks.schemes import Outcome, Trial, Workspace
from builder.construct.hplm.dedicated import FINE_TUNING
from builder.construct.hplm.dedicated_teacher import REWRITING, TEACHER_DATA_FORMAT
from builder.settings.hplm import TEACHING

_NEEDS_OF_ROOT = {"adapter": ("lower",), "plot": ("root",), "untaught": ("root",), "hplm": ("root", "teacher")}
_WITH_ADAPTERS = ("adapter", "untaught", "hplm")


class Results:
    """What was measured of a root and of the model that it was made from; a line names all that it depends on."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        root = RootFolder(Home(workspace.home).root(workspace.root))
        self._path = path
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
        self._outcomes = {line["key"]: Outcome(**line["outcome"]) for line in _lines(path)}

    def find(self, trial: Trial) -> Outcome | None:
        return self._outcomes.get(self._key(trial))

    def keep(self, trial: Trial, outcome: Outcome) -> None:
        key = self._key(trial)
        self._outcomes[key] = outcome
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            line = json.dumps({"key": key, **trial.described(), "outcome": asdict(outcome)})
            file.write(f"{line}\n" if _ends_whole(self._path) else f"\n{line}\n")

    def _key(self, trial: Trial) -> str:
        settings = asdict(trial.settings)
        if trial.scheme not in _WITH_ADAPTERS:
            del settings["recipe"]
        if trial.scheme != "hplm":
            settings = {name: value for name, value in settings.items() if name not in TEACHING}
        version: dict[str, Any] = {**self._of_model, "settings": settings}
        version |= {name: self._of_root[name] for name in _NEEDS_OF_ROOT.get(trial.scheme, ())}
        if trial.scheme == "hplm" and (corpora := unlabelled_corpora(self._workspace.data, trial.task)):
            version["unlabelled"] = [file_checksum(path) for path in corpora]
        version["data"] = [
            file_checksum(path) for path in sorted((self._workspace.data / "tasks" / trial.task).iterdir())
        ]
        return f"{trial.task}-{trial.scheme}-{trial.settings.seed}-{json_checksum(version)[:12]}"


def _ends_whole(path: Path) -> bool:
    return not path.exists() or path.read_bytes()[-1:] in (b"", b"\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    """Without those that a kill has cut off."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines
