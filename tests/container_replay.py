"""A replay of a container file's lines in an ordinary folder, for machines on which no container runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from source_tree import PROJECT


def instructions(file: Path) -> list[tuple[str, str]]:
    """Return the name and the rest of each instruction, without comments and with continued lines joined."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines()) if name]


class ContainerReplay:
    """Carries out COPY and RUN below `root` and collects what the image would start with.

    RUN lines run as they stand, with two differences: absolute paths in ENV point below `root`, and pip installs no
    dependencies but finds those of the Python that runs the tests.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root
        self.environment = {**os.environ, "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.command: list[str] = []
        self.image = ""

    def run(self, file: Path) -> None:
        for name, rest in instructions(file):
            getattr(self, f"_{name.lower()}")(rest)

    def below_root(self, path: str) -> Path:
        """Return where an absolute path of the image lies here."""
        return self.root / path.lstrip("/") if path.startswith("/") else self.folder / path

    def _from(self, rest: str) -> None:
        self.image = rest

    def _workdir(self, rest: str) -> None:
        self.folder = self.below_root(rest)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        *sources, target = shlex.split(rest)
        for source in sources:
            if (PROJECT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
                shutil.copytree(PROJECT / source, self.below_root(target), ignore=ignored)
            else:
                shutil.copy2(PROJECT / source, self.below_root(target))

    def _run(self, rest: str) -> None:
        done = subprocess.run(
            ["sh", "-c", rest], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"RUN {rest}\n{done.stdout}{done.stderr}"
        for packages in self.folder.glob("venv/lib/python*/site-packages"):
            # Only the folders: what an editable installation adds by hooks, the repository, is not found by this.
            installed = [path for path in sys.path if path.endswith("site-packages")]
            (packages / "of_the_tests.pth").write_text("\n".join(installed))

    def _env(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        value = re.sub(r"(?:(?<=^)|(?<=:))/[^:$]*", lambda path: str(self.below_root(path[0])), value)
        self.environment[name] = re.sub(r"\$\{(\w+)\}", lambda variable: self.environment[variable[1]], value)

    def _entrypoint(self, rest: str) -> None:
        self.command = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        self.command = [*self.command, *json.loads(rest)]

    def _arg(self, _: str) -> None:
        """Build arguments choose the base image, of which there is none here."""

    def _volume(self, rest: str) -> None:
        self.below_root(rest).parent.mkdir(parents=True, exist_ok=True)

    def _expose(self, _: str) -> None:
        """Ports are chosen freely here."""
