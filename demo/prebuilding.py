"""`make prebuilt`: take the prebuilt parts from a demo home, and compare what a quickstart home answers with it.

The hPLMs' folders are taken as they are, so the same demo home gives the same files. Seeds and settings of each tuning
stand in its manifest.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from backends.errors import HplmError, NotFoundError
from backends.home import HOME_VARIABLE, Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.storage import file_checksum, publishing
from builder.construct.tasks.jsonl import read_classes
from builder.serving import ServerConfig, TritonServer
from demo.own_registry import require_own_registry
from demo.prebuilt import PREBUILT, Prebuilt
from demo.quickstart import QuickstartHome
from demo.recipes import RECIPES
from demo.root import DISTILLED, ROOT, SOURCE
from hplm_client import Classification, ClientError, HplmClient

_LARGEST_DIFFERENCE = 0.002
"""How far the mean shares of right answers may lie apart, of a quickstart home and of the demo home."""
_OF_THIS_HOME = {"size_bytes"}
"""Figures that are measured again where an hPLM is published."""


def take(home: Home, registry: Registry, target: Path) -> Prebuilt:
    """Copy the demo's hPLMs from a home that `make demo` has built."""
    missing = [recipe.id for recipe in RECIPES if not registry.has_hplm(recipe.id)]
    if missing:
        raise NotFoundError(f"{home.path} lacks {', '.join(missing)}; 'make demo' builds them")
    entries = [registry.hplm(recipe.id) for recipe in RECIPES]
    with publishing(target) as folder:
        prebuilt = Prebuilt(
            folder,
            registry.root(ROOT).fingerprint,
            {"size_bytes": DISTILLED.stat().st_size, "checksum": file_checksum(DISTILLED)},
            {entry.id: _figures(entry) for entry in entries},
            {"model": SOURCE, "python": platform.python_version(), "torch": torch.__version__},
        )
        for entry in entries:
            shutil.copytree(home.path / entry.folder, prebuilt.hplm_folder(entry.id))
        prebuilt.check()
        prebuilt.write()
    return Prebuilt.read(target)


def _figures(entry: HplmEntry) -> dict[str, Any]:
    return {name: value for name, value in entry.metrics.items() if name not in _OF_THIS_HOME}


def first_answers(home: Home, texts: Path, hplms: Mapping[str, object]) -> dict[str, float]:
    """Serve a home and ask each hPLM its held-out texts once; return the share of right answers."""
    config = ServerConfig(repository=home.repository, environment={HOME_VARIABLE: str(home.path)})
    with TritonServer(config) as server, HplmClient(f"grpc://{server.grpc_url}") as client:
        return {hplm: _share_right(client, hplm, texts / hplm / "test.jsonl") for hplm in hplms}


def _share_right(client: HplmClient, hplm: str, file: Path) -> float:
    examples = read_classes(file)
    answers = client.infer_many([(hplm, example.text) for example in examples])
    right = [isinstance(a, Classification) and a.label == e.label for a, e in zip(answers, examples, strict=True)]
    return sum(right) / len(right)


def run(home: Annotated[Path, typer.Option(help="A home that 'make demo' has built.")] = Path("demo_home")) -> None:
    """Take the prebuilt parts from a demo home, and compare."""
    require_own_registry()
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    opened = Home(home.absolute())
    registry = Registry.open(opened)
    prebuilt = take(opened, registry, PREBUILT)
    with TemporaryDirectory() as folder:
        quickstart = Home(Path(folder) / "home")
        QuickstartHome(quickstart, prebuilt, console).assemble()
        found = first_answers(quickstart, opened.path / "texts", prebuilt.hplms)
    _compare([registry.hplm(hplm) for hplm in prebuilt.hplms], found, console)


def _compare(entries: list[HplmEntry], found: Mapping[str, float], console: Console) -> None:
    promised = {entry.id: float(entry.metrics["test_accuracy"]) for entry in entries}
    table = Table("hPLM", "demo home", "quickstart home, first time asked", title="Share of held-out texts right")
    for hplm in found:
        table.add_row(hplm, f"{promised[hplm]:.4f}", f"{found[hplm]:.4f}")
    before, after = (sum(shares.values()) / len(found) for shares in (promised, found))
    table.add_row("mean", f"{before:.4f}", f"{after:.4f}")
    console.print(table)
    if abs(after - before) > _LARGEST_DIFFERENCE:
        raise HplmError(f"a quickstart home answers {after:.4f} right on average, the demo home {before:.4f}")


def main() -> None:
    try:
        typer.run(run)
    except (HplmError, ClientError) as error:
        sys.exit(f"prebuilt: {error}")


if __name__ == "__main__":
    main()
