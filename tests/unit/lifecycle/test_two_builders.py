"""What happens to what a build works on meanwhile: the first to publish wins, and what was deleted stays deleted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from backends.adapters.bank import read_artifact
from backends.errors import ConflictError
from backends.home import Home
from backends.registry.registry import Registry
from backends.storage import file_checksum
from bench.kit.tiny_home import ignore, write_corpus, write_task
from builder.construct.domain.domains import create_domain, update_domain
from builder.construct.hplm.hplms import publish_artifact, update_hplm
from builder.progress import Step
from short_requests import new_domain, next_domain, next_hplm


def test_the_second_is_told_and_touches_nothing(tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    fingerprint = registry.root("tiny").fingerprint
    farm = registry.domain("tiny", "farm")
    first, second = (
        dataclasses.replace(read_artifact(tiny_home.path / registry.hplm(model).folder, fingerprint), hplm="new/one")
        for model in ("acme/topic", "acme/mood")
    )
    version = registry.next_hplm_version("new/one")
    won = publish_artifact(tiny_home, registry, first, farm, {}, version=version)
    weights = tiny_home.path / won.folder / "weights.safetensors"
    checksum = file_checksum(weights)
    with pytest.raises(ConflictError, match="'new/one' was published by another build meanwhile, as version 1"):
        publish_artifact(tiny_home, registry, second, farm, {}, version=version)
    assert registry.hplm("new/one") == won
    assert file_checksum(weights) == checksum
    registry.close()


def test_the_files_of_another_version_are_not_written_over(tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    live = registry.hplm("acme/topic")
    artifact = read_artifact(tiny_home.path / live.folder, registry.root("tiny").fingerprint)
    weights = tiny_home.path / live.folder / "weights.safetensors"
    checksum = file_checksum(weights)
    taken = tiny_home.bank("tiny", "new/one", 1)
    (tiny_home.path / live.folder).rename(taken)
    registry.publish_hplm(live.id, live.domain, live.task, live.labels, tiny_home.relative(taken), {})
    with pytest.raises(ConflictError, match="never written over"):
        publish_artifact(tiny_home, registry, dataclasses.replace(artifact, hplm="new/one"), live.domain, {})
    assert file_checksum(taken / "weights.safetensors") == checksum


def test_an_hplm_that_is_deleted_while_it_is_updated_stays_deleted(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)

    def delete(step: Step) -> None:
        if registry.has_hplm("acme/mood"):
            registry.delete_hplm("acme/mood")

    train, dev = write_task(tmp_path, "mood", seed=5, train=40)
    with pytest.raises(ConflictError, match=r"'acme/mood'.* is live no more"):
        update_hplm(tiny_home, registry, next_hplm("acme/mood", train, dev, tune={"epochs": 1}, force=True), delete)
    assert not registry.has_hplm("acme/mood")


def test_a_domain_that_is_deleted_while_it_is_updated_stays_deleted(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    corpus = write_corpus(tmp_path / "corpus.txt", 200, seed=7)
    create_domain(tiny_home, registry, new_domain("shed", "tiny", (corpus,)), ignore)

    def delete(step: Step) -> None:
        if registry.has_domain("tiny", "shed"):
            registry.delete_domain("tiny", "shed")

    more = write_corpus(tmp_path / "more.txt", 200, seed=8)
    with pytest.raises(ConflictError, match=r"'shed'.* is live no more"):
        update_domain(tiny_home, registry, next_domain("shed", "tiny", (more,)), delete)
    assert not registry.has_domain("tiny", "shed")
