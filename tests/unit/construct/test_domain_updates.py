"""Updates of domains: what they take over of the live version, and of what servers learned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from backends.errors import (
    ConflictError,
    NotFoundError,
    TrainingDataError,
)
from backends.home import Home
from backends.lower.encoder import WEIGHTS_NAME
from backends.lower.model import LowerModel
from backends.plot.counts import FragmentCounts
from backends.plot.overlay_log import LearnedFragments, overlay_folder, write_uses
from backends.registry.registry import Registry
from bench.kit.tiny_home import (
    held_out_of,
    ignore,
    sample_texts,
    write_corpus,
)
from builder.construct.domain.domains import create_domain, update_domain
from garden_domain import PRETRAIN, InterruptedRunError, counted, interrupt, keys_of
from short_requests import new_domain, next_domain


def distance(some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> float:
    common = some.keys() & others.keys()
    assert common
    return sum(float((some[name].float() - others[name].float()).square().sum()) for name in common)


def test_an_update_adds_counts_and_goes_on_from_the_live_layers(home: Home, corpus: Path, tmp_path: Path) -> None:
    registry = Registry.open(home)
    new = write_corpus(tmp_path / "new.txt", 200, seed=32)
    update = next_domain("garden", "tiny", (new,), pace=PRETRAIN)
    entry = update_domain(home, registry, update, ignore)
    assert (entry.version, entry.folders[1:]) == (2, registry.domain("tiny", "garden", 1).folders[1:])
    texts = []
    for path in (corpus, new):
        lines = path.read_text().splitlines()
        texts += [text for text in lines if text not in held_out_of(lines)]
    counts = counted(home, texts)
    stored = FragmentCounts.read(home.path / entry.folders[0])
    assert np.array_equal(stored.keys, counts.keys)
    assert np.array_equal(stored.counts, counts.counts)
    assert np.array_equal(keys_of(home, "garden"), counts.top(0.5).keys)  # theta as it was
    first, second = (registry.domain("tiny", "garden", version).metrics for version in (1, 2))
    root, one, two = (
        load_file(path)
        for path in (
            home.root("tiny") / "lower.safetensors",
            *(home.plot("tiny", "garden", version) / WEIGHTS_NAME for version in (1, 2)),
        )
    )
    assert distance(two, one) < distance(two, root)
    assert second["boundary_cosine"] < first["boundary_cosine"]


def test_an_update_without_pretraining_keeps_the_live_layers(home: Home, tmp_path: Path) -> None:
    new = write_corpus(tmp_path / "new.txt", 200, seed=33)
    entry = update_domain(home, Registry.open(home), next_domain("garden", "tiny", (new,), theta=0.3), ignore)
    one, two = (home.plot("tiny", "garden", version) / WEIGHTS_NAME for version in (1, 2))
    assert one.read_bytes() == two.read_bytes()
    assert entry.metrics["theta"] == 0.3
    assert entry.metrics["mlm_loss_after"] == Registry.open(home).domain("tiny", "garden", 1).metrics["mlm_loss_after"]


def test_an_update_folds_in_what_servers_learned(home: Home, tmp_path: Path) -> None:
    registry = Registry.open(home)
    live = home.path / registry.domain("tiny", "garden").folders[0]
    learned = np.sort(np.array([5 << 42 | 6 << 21 | 7, 8 << 42 | 9 << 21 | 10], np.uint64))
    overlay_folder(live).mkdir()
    write_uses(overlay_folder(live) / "0.uses", LearnedFragments(learned, np.array([5000, 7000], np.uint32)))
    new = write_corpus(tmp_path / "new.txt", 100, seed=34)
    update_domain(home, registry, next_domain("garden", "tiny", (new,)), ignore)
    assert keys_of(home, "garden")[:2].tolist() == learned[::-1].tolist()


def learn(home: Home, version: int, uses: dict[int, int]) -> np.ndarray:
    """Let servers have learned fragments, `a << 42 | b << 21 | c` of token ids, beside a version of the garden."""
    keys = np.array(sorted(uses), np.uint64)
    folder = overlay_folder(home.plot("tiny", "garden", version))
    folder.mkdir(exist_ok=True)
    counts = np.array([uses[int(key)] for key in keys], np.uint32)
    write_uses(folder / "0.uses", LearnedFragments(keys, counts))
    return keys


def test_what_was_learned_outlives_theta_in_all_later_versions(home: Home, tmp_path: Path) -> None:
    registry = Registry.open(home)
    rare = learn(home, 1, {5 << 42 | 6 << 21 | 7: 1, 8 << 42 | 9 << 21 | 10: 2})
    new = write_corpus(tmp_path / "new.txt", 100, seed=34)
    second = update_domain(home, registry, next_domain("garden", "tiny", (new,), theta=0.01), ignore)
    counts = FragmentCounts.read(home.path / second.folders[0])
    assert keys_of(home, "garden").tolist() == [*counts.top(0.01).keys.tolist(), int(rare[1]), int(rare[0])]
    assert second.metrics["learned_fragments"] == 2
    update_domain(home, registry, next_domain("garden", "tiny", (new,)), ignore)
    assert np.isin(rare, keys_of(home, "garden")).all()
    cut = update_domain(home, registry, next_domain("garden", "tiny", (new,), keep_learned=False), ignore)
    assert not np.isin(rare, keys_of(home, "garden")).any()
    assert cut.metrics["learned_fragments"] == 0


def test_what_was_learned_takes_half_of_a_small_table(home: Home, tmp_path: Path) -> None:
    registry = Registry.open(home)
    rare = learn(home, 1, {9 << 42 | 9 << 21 | token: 1 + token for token in range(5, 15)})
    new = write_corpus(tmp_path / "new.txt", 100, seed=34)
    update = next_domain("garden", "tiny", (new,), max_fragments=9)
    entry = update_domain(home, registry, update, ignore)
    counts = FragmentCounts.read(home.path / entry.folders[0])
    assert keys_of(home, "garden").tolist() == [*counts.keys[:5].tolist(), *rare[:-5:-1].tolist()]


def test_what_older_versions_learned_is_folded_in_once(home: Home, tmp_path: Path) -> None:
    registry = Registry.open(home)
    first, later = 5 << 42 | 6 << 21 | 7, 8 << 42 | 9 << 21 | 10
    learn(home, 1, {first: 1000})
    new = write_corpus(tmp_path / "new.txt", 100, seed=34)
    update_domain(home, registry, next_domain("garden", "tiny", (new,)), ignore)
    learn(home, 1, {first: 1000, later: 700})  # asked by an hPLM that stays on version 1
    learn(home, 2, {later: 10})
    entry = update_domain(home, registry, next_domain("garden", "tiny", (new,)), ignore)
    counts = FragmentCounts.read(home.path / entry.folders[0])
    known = dict(zip(counts.keys.tolist(), counts.counts.tolist(), strict=True))
    assert (known[first], known[later]) == (1000, 710)


def test_a_failed_update_leaves_the_live_version(home: Home, tmp_path: Path) -> None:
    registry = Registry.open(home)
    before = registry.domain("tiny", "garden")
    new = write_corpus(tmp_path / "new.txt", 100, seed=35)
    with pytest.raises(InterruptedRunError):
        update_domain(home, registry, next_domain("garden", "tiny", (new,)), interrupt("compute", 1))
    (tmp_path / "bad.txt").write_bytes(b"fine\n" * 100 + b"\xff\n")
    with pytest.raises(TrainingDataError, match=r"bad\.txt:101: not UTF-8"):
        update_domain(home, registry, next_domain("garden", "tiny", (tmp_path / "bad.txt",)), ignore)
    assert registry.domain("tiny", "garden") == before
    with pytest.raises(NotFoundError):
        update_domain(home, registry, next_domain("moon", "tiny", (new,)), ignore)
    with pytest.raises(ConflictError, match="domain update"):
        create_domain(home, registry, new_domain("garden", "tiny", (new,)), ignore)


def test_the_roots_own_domain_can_be_updated(home: Home, tmp_path: Path) -> None:
    new = write_corpus(tmp_path / "new.txt", 200, seed=36)
    entry = update_domain(home, Registry.open(home), next_domain("general", "tiny", (new,)), ignore)
    assert entry.folders == ("plots/tiny/general@2",)
    assert set(entry.metrics["entries"]) == {"tri", "bi", "uni"}
    assert LowerModel.open(home, entry).encode([text.text for text in sample_texts(3, seed=1)]).rows


@pytest.mark.parametrize("nothing", [{"theta": 0.0}, {"max_fragments": 0}])
def test_an_update_to_nothing_is_refused(tiny_home: Home, corpus: Path, nothing: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        update_domain(tiny_home, Registry.open(tiny_home), next_domain("farm", "tiny", (corpus,), **nothing), ignore)
