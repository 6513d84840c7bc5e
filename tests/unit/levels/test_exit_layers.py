"""The layers that a selection chooses from where none are named."""

from __future__ import annotations

from pathlib import Path

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore, tiny_root, write_task
from builder.construct.hplm.hplms import create_hplm
from builder.levels.exit_layers import default_exits, exits_of, offered_exits, only_exit
from builder.levels.target import Target
from builder.requests.hplms import CreateHplm
from selection_cases import select, written

POINT = Target.of(max_drop=1)


def test_one_is_low_and_one_half_way_up() -> None:
    assert [default_exits(layers) for layers in (2, 3, 4, 6, 12)] == [(1,), (1, 2), (1, 2), (1, 3), (2, 6)]
    assert [only_exit(layers) for layers in (2, 3, 6, 12)] == [1, 2, 2, 4]
    assert exits_of("base", 6, []) == (1, 3) and exits_of("base", 6, [4]) == (4,)


def test_too_few_texts_for_two_are_for_one() -> None:
    assert [offered_exits(6, POINT, texts) for texts in (373, 374)] == [(2,), (1, 3)]
    assert offered_exits(2, POINT, 1) == (1,)


def test_the_default_is_tried_again_by_the_next_version(tmp_path: Path) -> None:
    """What was chosen is not noted: on the same texts it would pass as if it were the only one tried."""
    home = Home(tmp_path / "home")
    tiny_root(home, Registry.open(home, create=True), tmp_path, lower=1)
    train, dev = write_task(tmp_path / "topic", "topic", seed=100, train=160)
    tune = {"epochs": 3, "learning_rate": 1e-2}
    request = CreateHplm.model_validate(
        {"id": "acme/topic", "root": "tiny", "domain": "general", "train": train, "dev": dev, "tune": tune}
    )
    create_hplm(home, Registry.open(home), request, ignore)
    found = select(home, train, written(tmp_path / "held_out.jsonl", "topic", 400, seed=901), Target.of(max_drop=30))
    assert found.ladder is not None and found.figures["tried"] == [1, 2], found.reason
    assert found.ladder.early.after in (1, 2) and "after" not in found.entry.metrics["declared"]
    again = select(home, train, written(tmp_path / "few.jsonl", "topic", 150, seed=902), Target.of(max_drop=2))
    assert again.figures["after"] == 2 and "tried" not in again.figures
