"""What an interrupted build left is used for the same inputs only."""

from __future__ import annotations

import resource
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from backends import storage
from backends.errors import InvalidArgumentError, NotFoundError, StorageFullError
from backends.home import Home
from backends.plot.header import Store
from backends.plot.table import Table
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import MAX_TOKENS, ignore, write_corpus, write_tiny_bert
from builder.construct.domain.build import VersionPlan, build_version
from builder.construct.domain.domains import create_domain
from builder.construct.root.roots import add_root
from builder.construct.training.checkpoint import Checkpoint
from builder.progress import Report, Step
from builder.requests.roots import AddRoot
from builder.settings.domain import PlotSettings
from builder.settings.root import DistilSettings
from short_requests import changed, new_domain, new_root


class InterruptedRunError(Exception):
    pass


def interrupt(phase: str, done: int) -> Report:
    def report(step: Step) -> None:
        if step.phase.startswith(phase) and step.done >= done:
            raise InterruptedRunError

    return report


@pytest.fixture
def request_a(tmp_path: Path) -> AddRoot:
    return new_root(
        "r",
        str(write_tiny_bert(tmp_path / "a", seed=5)),
        2,
        (write_corpus(tmp_path / "corpus.txt", 400, seed=1),),
        MAX_TOKENS,
        distil=DistilSettings(steps=6, tokens_per_batch=512, checkpoint_every=2),
        plot=PlotSettings(max_fragments=200, max_bigrams=100),
    )


def other_request(request: AddRoot, what: str, folder: Path) -> AddRoot:
    if what == "model":
        return changed(request, source=str(write_tiny_bert(folder / "b", seed=6)))
    if what == "corpus":
        return changed(request, corpus=[write_corpus(folder / "other.txt", 400, seed=2)])
    return changed(request, distil=replace(request.distil, seed=3))


def open_registry(home: Home) -> Registry:
    return Registry.open(home, create=True)


def built_fingerprint(home: Home, request: AddRoot) -> str:
    add_root(home, open_registry(home), request, ignore)
    return RootFolder(home.root("r")).fingerprint


@pytest.mark.parametrize(
    "what",
    ["corpus", *(pytest.param(other, marks=pytest.mark.long) for other in ("model", "settings"))],
)
@pytest.mark.parametrize(
    ("phase", "done"), [("distil", 5), pytest.param("compute fragments", 1, marks=pytest.mark.long)]
)
def test_a_root_of_other_inputs_starts_anew(
    tmp_path: Path, request_a: AddRoot, phase: str, done: int, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted, fresh = Home(tmp_path / "interrupted"), Home(tmp_path / "fresh")
    with pytest.raises(InterruptedRunError):
        add_root(interrupted, open_registry(interrupted), request_a, interrupt(phase, done))
    request_b = other_request(request_a, what, tmp_path)
    assert built_fingerprint(interrupted, request_b) == built_fingerprint(fresh, request_b)
    assert "other inputs" in caplog.text


def test_a_root_that_only_lacks_its_table_is_not_distilled_again(tmp_path: Path, request_a: AddRoot) -> None:
    home = Home(tmp_path / "home")
    with pytest.raises(InterruptedRunError):
        add_root(home, open_registry(home), request_a, interrupt("compute fragments", 1))
    with pytest.raises(NotFoundError):
        open_registry(home).root("r")
    steps: list[Step] = []
    add_root(home, open_registry(home), request_a, steps.append)
    assert not [step for step in steps if step.phase.startswith("distil")]
    assert open_registry(home).domain("r", "general").version == 1


def test_a_damaged_checkpoint_is_not_used(tmp_path: Path, request_a: AddRoot, caplog: pytest.LogCaptureFixture) -> None:
    home, fresh = Home(tmp_path / "home"), Home(tmp_path / "fresh")
    with pytest.raises(InterruptedRunError):
        add_root(home, open_registry(home), request_a, interrupt("distil", 5))
    (checkpoint,) = (home.path / "roots").glob("*.checkpoint")
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: len(content) // 2])
    assert built_fingerprint(home, request_a) == built_fingerprint(fresh, request_a)
    assert "not readable" in caplog.text


def keys_of(home: Home, domain: str) -> np.ndarray:
    root = RootFolder(home.root("tiny"))
    with Table.open(home.plot("tiny", domain, 1), root.fingerprint) as table:
        return table.keys(Store.TRI)


@pytest.mark.parametrize("what", ["corpus", "held out", "theta", "limit", "nothing"])
def test_a_published_table_that_is_not_registered(tiny_home: Home, tmp_path: Path, what: str) -> None:
    registry, root = Registry.open(tiny_home), RootFolder(tiny_home.root("tiny"))
    corpus = write_corpus(tmp_path / "a.txt", 300, seed=61)
    parent = registry.domain("tiny", "general")
    more, held_out = write_corpus(tmp_path / "b.txt", 300, seed=63), None
    plan = VersionPlan("new", 1, (corpus, more) if what == "held out" else (corpus,), PlotSettings(), parent)
    build_version(tiny_home, root, plan, ignore)  # and then it is killed
    if what == "corpus":
        corpus = write_corpus(tmp_path / "a.txt", 300, seed=62)
    if what == "held out":
        held_out = more
    theta, limit = 0.5 if what == "theta" else 1.0, 500 if what == "limit" else None
    steps: list[Step] = []
    request = new_domain("new", "tiny", (corpus,), held_out=held_out, theta=theta, max_fragments=limit)
    entry = create_domain(tiny_home, registry, request, steps.append)
    assert "inputs" not in entry.metrics
    assert bool(steps) == (what != "nothing")
    create_domain(tiny_home, registry, changed(request, name="fresh"), ignore)
    assert np.array_equal(keys_of(tiny_home, "new"), keys_of(tiny_home, "fresh"))


def test_a_kill_while_an_unregistered_table_is_removed_leaves_no_part_of_it(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, root = Registry.open(tiny_home), RootFolder(tiny_home.root("tiny"))
    corpus = write_corpus(tmp_path / "a.txt", 300, seed=61)
    plan = VersionPlan("new", 1, (corpus,), PlotSettings(), registry.domain("tiny", "general"))
    build_version(tiny_home, root, plan, ignore)  # and then it is killed

    def killed(folder: Path, **_: object) -> None:
        (folder / "tri.keys").unlink()
        raise InterruptedRunError

    with monkeypatch.context() as patched, pytest.raises(InterruptedRunError):
        patched.setattr(storage.shutil, "rmtree", killed)
        build_version(tiny_home, root, replace(plan, plot=PlotSettings(theta=0.5)), ignore)
    create_domain(tiny_home, registry, new_domain("new", "tiny", (corpus,)), ignore)
    assert len(keys_of(tiny_home, "new"))


def test_a_checkpoint_is_not_held_twice(tmp_path: Path) -> None:
    content = {"weights": torch.zeros(8 << 20)}  # 32 MiB, which PyTorch allocates where tracemalloc does not look
    checkpoint = Checkpoint(tmp_path / "checkpoint", "inputs")
    tracemalloc.start()
    checkpoint.save(content)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 << 20
    loaded = checkpoint.load()
    assert loaded is not None and torch.equal(loaded["weights"], content["weights"])


def test_a_checkpoint_on_a_full_disk_leaves_the_old_one(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "checkpoint", "inputs")
    checkpoint.save({"step": 1})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageFullError, match=r"no space left on the disk while writing .*checkpoint"):
            checkpoint.save({"step": 2, "weights": torch.zeros(1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    loaded = checkpoint.load()
    assert loaded is not None and loaded["step"] == 1


def test_a_corpus_of_equal_lines_is_refused(tmp_path: Path, request_a: AddRoot) -> None:
    home = Home(tmp_path / "home")
    corpus = tmp_path / "equal.txt"
    corpus.write_text("the same line again\n" * 300)
    with pytest.raises(InvalidArgumentError, match="none is left to learn from"):
        add_root(home, open_registry(home), changed(request_a, corpus=[corpus]), ignore)


def test_a_repeated_root_names_its_last_recipe(tmp_path: Path, request_a: AddRoot) -> None:
    home = Home(tmp_path / "home")
    with pytest.raises(InterruptedRunError):
        add_root(home, open_registry(home), request_a, interrupt("compute fragments", 1))
    before = RootFolder(home.root("r"))
    entry = add_root(home, open_registry(home), changed(request_a, plot=PlotSettings(max_fragments=90)), ignore)
    after = RootFolder(home.root("r"))
    assert after.fingerprint == before.fingerprint
    assert before.manifest.origin["config"]["plot"]["max_fragments"] == 200
    assert after.manifest.origin["config"]["plot"] == {"theta": 1.0, "max_fragments": 90}
    assert entry.metrics["max_fragments"] == 90
