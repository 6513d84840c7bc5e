"""A builder that a test kills: `python plot_build.py TARGET`; says "appended" after every batch."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from backends.plot import Store, TableSpec, TableWriter, writer

VOCAB_SIZE = 500
BATCH = 700
BATCHES = 40


def build(target: Path) -> None:
    rng = np.random.default_rng(5)
    keys = rng.permutation(np.arange(1, BATCH * BATCHES + 1, dtype=np.uint64)) << np.uint64(21)
    values = rng.standard_normal((keys.size, 3, 16)).astype(np.float16)
    with TableWriter(target, TableSpec("general@1", "f00d", 16, VOCAB_SIZE)) as table:
        while (start := table.count(Store.TRI)) < keys.size:
            table.append(Store.TRI, keys[start : start + BATCH], values[start : start + BATCH])
            say("appended")
        if not table.count(Store.UNI):
            table.append(Store.UNI, np.arange(VOCAB_SIZE, dtype=np.uint64), values[:VOCAB_SIZE, :1])
        say("finishing")
        table.finish({"tokens": 7})
    say("done")


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    writer.CHECKPOINT_BYTES = 200_000
    build(Path(sys.argv[1]))
