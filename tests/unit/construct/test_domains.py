"""Domains of a tiny root: what pretraining changes, what a table keeps, what an update takes over."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from backends.errors import (
    CorruptFileError,
    FingerprintMismatchError,
    HplmError,
    NotFoundError,
    TrainingDataError,
)
from backends.home import Home
from backends.lower.encoder import WEIGHTS_NAME, domain_encoder
from backends.lower.layers import fragment_values
from backends.lower.model import LowerModel
from backends.plot.counts import FragmentCounts
from backends.plot.header import Store
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import file_checksum
from bench.kit.tiny_home import (
    MAX_TOKENS,
    held_out_of,
    ignore,
    tiny_root,
    write_corpus,
    write_tiny_bert,
)
from builder.construct.domain.domains import create_domain, update_domain
from builder.construct.domain.mlm_head import HeadFile
from builder.construct.root.roots import add_root
from builder.executors.processes import ProcessMap
from builder.progress import Step
from builder.settings.root import DistilSettings
from garden_domain import PRETRAIN, InterruptedRunError, counted, folders, interrupt, keys_of, opened
from short_requests import changed, new_domain, new_root, next_domain


def test_pretraining_lowers_the_held_out_loss_and_changes_the_lower_layers_only(pretrained: Home) -> None:
    root, entry, _ = opened(pretrained, "garden")
    assert entry.metrics["mlm_loss_after"] < entry.metrics["mlm_loss_before"] - 0.02
    assert 0.5 < entry.metrics["boundary_cosine"] < 0.999
    before, after = (part.state_dict() for part in (root.lower(), domain_encoder(root, folders(pretrained, entry))))
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == set(before) - {"word_embeddings.weight"}
    assert RootFolder(pretrained.root("tiny")).fingerprint == root.fingerprint


def test_its_table_holds_what_its_own_layers_compute(pretrained: Home) -> None:
    root, entry, table = opened(pretrained, "garden")
    keys = table.keys(Store.TRI)
    own = fragment_values(domain_encoder(root, folders(pretrained, entry)), Store.TRI, keys)
    stored = table.vectors(Store.TRI, np.arange(len(keys)))
    np.testing.assert_allclose(stored, own, rtol=2e-3, atol=2e-3)
    assert np.abs(stored - fragment_values(root.lower(), Store.TRI, keys)).max() > 0.05


def test_it_keeps_the_top_theta_also_where_a_parent_has_them(pretrained: Home, corpus: Path) -> None:
    _, entry, table = opened(pretrained, "garden")
    texts = corpus.read_text().splitlines()
    held_out = held_out_of(texts)
    counts = counted(pretrained, [text for text in texts if text not in held_out])
    kept = table.keys(Store.TRI)
    assert np.array_equal(kept, counts.keys[: -(-len(counts.keys) // 2)])
    assert np.isin(kept, keys_of(pretrained, "general")).any()
    share = counts.counts[: len(kept)].sum() / counts.num_occurrences
    assert entry.metrics["own_share"] == pytest.approx(share, abs=1e-4)


def test_the_report_counts_what_lookups_find(pretrained: Home, corpus: Path) -> None:
    _, entry, _ = opened(pretrained, "garden")
    texts = corpus.read_text().splitlines()
    half = LowerModel.open(pretrained, entry)
    statistics = half.encode(sorted(held_out_of(texts))).statistics.rates()
    assert entry.metrics["held_out_own_share"] == pytest.approx(statistics["garden@1"], abs=1e-4)
    whole = sum(statistics[name] for name in ("garden@1", "farm@1", "general@1"))
    assert entry.metrics["held_out_chain_share"] == pytest.approx(whole, abs=1e-4)
    assert entry.metrics["chain_share"] > entry.metrics["own_share"]


def test_the_bytes_of_all_fragments_are_those_of_such_a_table(home: Home, corpus: Path) -> None:
    everything = new_domain("whole", "tiny", (corpus,), "garden", PRETRAIN)
    create_domain(home, Registry.open(home), everything, ignore)
    _, entry, table = opened(home, "whole")
    table_bytes = sum(path.stat().st_size for path in table.folder.glob("tri.*"))
    assert entry.metrics["all_fragments_bytes"] == pytest.approx(table_bytes, rel=0.02)
    assert entry.metrics["own_table_bytes"] == entry.metrics["all_fragments_bytes"]


def test_a_child_without_pretraining_repeats_only_what_other_layers_computed(home: Home, corpus: Path) -> None:
    """The garden's layers are the child's too; those of the farm and of the root are others."""
    request = new_domain("child", "tiny", (corpus,), "garden")
    create_domain(home, Registry.open(home), request, ignore)
    own = keys_of(home, "child")
    assert not np.isin(own, keys_of(home, "garden")).any()
    assert np.isin(own, keys_of(home, "general")).any()
    root, entry, table = opened(home, "child")
    layers = domain_encoder(root, folders(home, entry))
    stored = table.vectors(Store.TRI, np.arange(len(own)))
    np.testing.assert_allclose(stored, fragment_values(layers, Store.TRI, own), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("phase", "done", "first_done", "skipped"),
    [
        ("train the", 11, 9, []),
        ("pretrain", 6, 5, ["train the"]),
        ("compute", 1, 0, ["train the", "pretrain", "count"]),
    ],
)
def test_an_interrupted_build_ends_as_an_uninterrupted_one(
    tiny_home: Home, pretrained: Home, corpus: Path, phase: str, done: int, first_done: int, skipped: list[str]
) -> None:
    registry = Registry.open(tiny_home)
    request = new_domain("garden", "tiny", (corpus,), "farm", PRETRAIN, theta=0.5)
    with pytest.raises(InterruptedRunError):
        create_domain(tiny_home, registry, request, interrupt(phase, done))
    with pytest.raises(NotFoundError):
        registry.domain("tiny", "garden")
    half_written = next((tiny_home.path / "plots/tiny").glob(".garden@1.building"), None)
    if half_written:
        (half_written / "lower.safetensors.new").write_bytes(b"cut short")
    steps: list[Step] = []
    create_domain(tiny_home, registry, request, steps.append)
    first = {step.phase: step.done for step in reversed(steps)}
    assert not [name for name in first if name.startswith(tuple(skipped))]
    assert [done for name, done in first.items() if name.startswith(phase)] == [first_done]
    one, two = (each.plot("tiny", "garden", 1) for each in (tiny_home, pretrained))
    assert {path.name: path.read_bytes() for path in one.iterdir()} == {
        path.name: path.read_bytes() for path in two.iterdir()
    }
    assert not list((tiny_home.path / "plots/tiny").glob(".garden*"))


def test_a_parents_version_can_be_named(home: Home, corpus: Path, tmp_path: Path) -> None:
    registry = Registry.open(home)
    update_domain(home, registry, next_domain("farm", "tiny", (corpus,)), ignore)
    for parent, label in (("farm@1", "farm@1"), ("farm", "farm@2")):
        name = f"under-{label.replace('@', '-')}"
        entry = create_domain(home, registry, new_domain(name, "tiny", (corpus,), parent), ignore)
        assert entry.folders[1] == f"plots/tiny/{label}"
    moved = update_domain(home, registry, next_domain("under-farm-1", "tiny", (corpus,), parent="farm@2"), ignore)
    assert moved.folders[1] == "plots/tiny/farm@2"
    with pytest.raises(NotFoundError):
        create_domain(home, registry, new_domain("x", "tiny", (corpus,), "farm@9"), ignore)


def test_held_out_texts_of_their_own(home: Home, corpus: Path, tmp_path: Path) -> None:
    held_out = write_corpus(tmp_path / "held-out.txt", 30, seed=37)
    both = tmp_path / "both.txt"
    both.write_text(corpus.read_text() + held_out.read_text())
    registry = Registry.open(home)
    counts = []
    for name, file in (("plain", corpus), ("with", both)):
        request = new_domain(name, "tiny", (file,), held_out=held_out)
        entry = create_domain(home, registry, request, ignore)
        counts.append(FragmentCounts.read(home.path / entry.folders[0]))
    assert np.array_equal(counts[0].keys, counts[1].keys)
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(TrainingDataError, match="holds no text"):
        create_domain(home, registry, new_domain("x", "tiny", (corpus,), held_out=tmp_path / "empty.txt"), ignore)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("one text\n" * 500, "0 texts besides the 1 that are held out; a table needs at least 50"),
        ("", "0 texts"),
    ],
)
def test_a_corpus_that_is_too_small(tiny_home: Home, tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "small.txt"
    path.write_text(content)
    with pytest.raises(HplmError, match=message):
        create_domain(tiny_home, Registry.open(tiny_home), new_domain("small", "tiny", (path,)), ignore)


@pytest.mark.long
def test_other_processes_build_the_same_table(home: Home, corpus: Path) -> None:
    registry = Registry.open(home)
    for name, fan_out in (("here", None), ("there", ProcessMap(2))):
        request = new_domain(name, "tiny", (corpus,), "garden")
        create_domain(home, registry, request, ignore, **({"fan_out": fan_out} if fan_out else {}))
    here, there = (opened(home, name)[2] for name in ("here", "there"))
    rows = np.arange(here.store(Store.TRI).entries)
    assert np.array_equal(here.keys(Store.TRI), there.keys(Store.TRI))
    np.testing.assert_allclose(here.vectors(Store.TRI, rows), there.vectors(Store.TRI, rows), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("n", [2, pytest.param(5, marks=pytest.mark.long)])
def test_domains_of_other_fragments(tmp_path: Path, corpus: Path, n: int) -> None:
    home = Home(tmp_path / "home")
    registry = Registry.open(home, create=True)
    general = write_corpus(tmp_path / "general.txt", 400, seed=38)
    settings = DistilSettings(steps=2, tokens_per_batch=512)
    model = write_tiny_bert(tmp_path / "model")
    add_root(home, registry, new_root("tiny", str(model), 2, (general,), MAX_TOKENS, n=n, distil=settings), ignore)
    request = new_domain("garden", "tiny", (corpus,), theta=0.5, pace=PRETRAIN)
    created = create_domain(home, registry, request, ignore)
    assert created.metrics["mlm_loss_after"] < created.metrics["mlm_loss_before"]
    update_domain(home, registry, next_domain("garden", "tiny", (general,)), ignore)
    _, entry, table = opened(home, "garden")
    kept = table.keys(table.spec.main)
    counts = FragmentCounts.read(table.folder)
    assert counts.num_occurrences == entry.metrics["tokens"] > created.metrics["tokens"]
    assert np.array_equal(kept, counts.top(0.5).keys)
    assert LowerModel.open(home, entry).encode(["the cat is near"]).rows


def test_roots_are_isolated(home: Home, corpus: Path, tmp_path: Path) -> None:
    registry = Registry.open(home)
    tiny_root(home, registry, tmp_path, name="other", seed=7)
    request = new_domain("garden", "other", (corpus,), "general", theta=0.5)
    entry = create_domain(home, registry, request, ignore)
    assert entry.folders == ("plots/other/garden@1", "plots/other/general@1")
    with pytest.raises(NotFoundError):
        create_domain(home, registry, changed(request, name="x", parent="farm"), ignore)
    other = RootFolder(home.root("other"))
    with pytest.raises(FingerprintMismatchError):
        domain_encoder(other, folders(home, registry.domain("tiny", "garden")))


def test_damaged_layers_are_refused(home: Home) -> None:
    root, entry, table = opened(home, "garden")
    weights = table.folder / WEIGHTS_NAME
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CorruptFileError, match=WEIGHTS_NAME):
        domain_encoder(root, folders(home, entry))


def test_a_small_corpus_is_refused_before_anything_is_trained(tiny_home: Home, tmp_path: Path) -> None:
    path = tmp_path / "small.txt"
    path.write_text("".join(f"text {number}\n" for number in range(60)))
    steps: list[Step] = []
    small = new_domain("small", "tiny", (path,), pace=PRETRAIN)
    with pytest.raises(HplmError, match="tokens; a table needs at least 1000"):
        create_domain(tiny_home, Registry.open(tiny_home), small, steps.append)
    assert steps == []
    assert not HeadFile(RootFolder(tiny_home.root("tiny"))).exists()


def test_a_head_says_what_it_was_trained_with(pretrained: Home, corpus: Path) -> None:
    with safe_open(HeadFile(RootFolder(pretrained.root("tiny"))).path, framework="pt") as file:
        origin = json.loads(file.metadata()["origin"])
    assert (origin["steps"], origin["corpus"]) == (PRETRAIN.head.steps, [file_checksum(corpus)])


def test_divergence_publishes_nothing(tiny_home: Home, corpus: Path) -> None:
    registry = Registry.open(tiny_home)
    wild = replace(PRETRAIN, head=replace(PRETRAIN.head, learning_rate=1e20, steps=4))
    with pytest.raises(HplmError, match=r"diverged at step \d; try a lower learning rate"):
        create_domain(tiny_home, registry, new_domain("wild", "tiny", (corpus,), pace=wild), ignore)
    assert not registry.has_domain("tiny", "wild")
