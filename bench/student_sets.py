"""Which students come nearest to the upper layers at equal arithmetic: chained, boosted, bagged, or plain exits?

Each set is made once, from the same texts with the same steps, and kept in `--cache`, where `bench.students_quality`
finds it. What all students of a set say together is compared with the upper layers' states, on texts of the corpus that
were held out, and on those of `--foreign`, of other corpora. `error` is a share of the variance of these states.

- chained: as `hplm students make` makes them; each reads what the one before computed, and together they are the first
  upper layers, as they are;
- deep: one student that began as the last upper layers, and learned to say what all upper layers say;
- boosted: students in parallel, each of which says what those before it do not;
- unstacked: the same, but no middle layer learns to say what earlier students say; only where they have two layers;
- bagged: students in parallel, each of which learned by itself to say what the upper layers say;
- exits: one student in place of all of a chain;
- narrow: chained, half as wide, so each costs about a quarter.

`second_over_first` is what a second student leaves of the first one's error. Those that begin with `chained_over` are
the error of a whole chain as a share of that of the others: below 1 the chain is nearer.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from backends.home import Home
from backends.root.store import RootFolder
from bench.kit.entry import QUICK_LOADS_S, Result, bench
from bench.quality import ensure_demo_root
from bench.tasks.data import Caps, write_demo_tasks
from bench.tasks.schemes import Workspace
from bench.tasks.student_sets import BAGGED, BOOSTED, CHAINED, DEEP, EXITS, UNSTACKED, Sets
from builder.construct.students.hidden_texts import HiddenTexts
from builder.construct.training.corpus import whole_corpus
from builder.settings.students import StudentSettings

_NARROW = "narrow"
BESIDE = (EXITS, DEEP, BOOSTED, UNSTACKED, BAGGED)
_FOREIGN_TEXTS = 400
FULL = StudentSettings(count=2)
QUICK = StudentSettings(count=2, layers=1, steps=10, max_texts=300)


def rows_of(name: str, sets: Sets, kind: str, texts: Sequence[tuple[str, HiddenTexts]]) -> Iterator[dict[str, Any]]:
    """Yield one row for one student of a set, one for two, and so on."""
    measured = {of: sets.fidelity(kind, each) for of, each in texts}
    for number in range(len(measured[texts[0][0]])):
        yield {
            "set": name,
            "students": number + 1,
            "share of the upper layers": sets.depth(kind) * (number + 1),
            **{f"{of} {figure}": value for of in measured for figure, value in measured[of][number].to_json().items()},
        }


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    errors: dict[str, list[float]] = {}
    for row in rows:
        errors.setdefault(row["set"], []).append(row["held-out error"])
    chained = errors[CHAINED]
    found = {"second_over_first": chained[1] / chained[0]} if len(chained) > 1 else {}
    others = {name: of_set[-1] for name, of_set in errors.items() if name not in (CHAINED, _NARROW)}
    found |= {f"chained_over_{name}": chained[-1] / error for name, error in others.items()}
    return {name: round(value, 4) for name, value in found.items()}


def measured_sets(
    sets: Sets, beside: Sequence[str], narrow: Sets | None, foreign: Sequence[Path]
) -> list[dict[str, Any]]:
    texts = [("held-out", sets.hidden_texts(sets.corpus().held_out, "held-out"))]
    if foreign:
        texts.append(("foreign", sets.hidden_texts(whole_corpus(foreign).sample(_FOREIGN_TEXTS), "foreign")))
    wanted = [kind for kind in beside if kind != UNSTACKED or sets.shape.layers > 1]
    rows = [row for kind in (CHAINED, *wanted) for row in rows_of(kind, sets, kind, texts)]
    return rows + ([] if narrow is None else [*rows_of(_NARROW, narrow, CHAINED, texts)])


def _add_options(options: ArgumentParser) -> None:
    options.add_argument("--home", type=Path, help="a home, whose root's students are replaced (one with a demo root)")
    options.add_argument("--root", default="minilm", help="the root")
    options.add_argument("--corpus", type=Path, nargs="+", default=[], help="what students learn from (the root's own)")
    options.add_argument("--foreign", type=Path, nargs="+", default=[], help="texts unlike those of the corpus")
    options.add_argument("--count", type=int, default=FULL.count, help="students of a set")
    options.add_argument("--layers", type=int, help="layers of each (2, of a root with fewer than four 1)")
    options.add_argument("--cache", type=Path, default=Path("build/students_quality"), help="where sets stay")
    options.add_argument("--beside", nargs="*", choices=BESIDE, default=BESIDE, help="sets to compare with (all)")
    options.add_argument("--without-narrow", action="store_true", help="no narrow students")


@bench("student_sets", quick_s=QUICK_LOADS_S, add_options=_add_options)
def student_sets(options: Namespace) -> Result:
    cache = options.cache / "quick" if options.quick else options.cache
    settings = QUICK if options.quick else replace(FULL, count=options.count, layers=options.layers)
    home = Home((options.home or cache / "home").absolute())
    if options.home is None:
        data = write_demo_tasks(cache / "demo_tasks")
        ensure_demo_root(Workspace(data.absolute(), home.path, options.root, cache, Caps()))
    root = RootFolder(home.root(options.root))

    def sets(width: int | None) -> Sets:
        return Sets(home, root, options.corpus, replace(settings, width=width), cache / "sets")

    narrow = None if options.without_narrow or options.quick else sets(root.geometry.hidden_size // 2)
    rows = measured_sets(whole := sets(None), options.beside, narrow, options.foreign)
    return Result({**asdict(settings), "root": options.root, "shape": asdict(whole.shape)}, figures_of(rows), rows)


if __name__ == "__main__":
    student_sets.main()
