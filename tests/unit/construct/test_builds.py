"""Builds that are interrupted, repeated, impossible: nothing is lost, and what serves goes on serving."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from backends.errors import ConflictError, FingerprintMismatchError, HplmError, NotFoundError, TrainingDataError
from backends.home import Home
from backends.lower.layers import fragment_values
from backends.plot.header import Store
from backends.plot.table import Table
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import MAX_TOKENS, ignore, tiny_root, write_corpus, write_task, write_tiny_bert
from builder.construct.domain.domains import create_domain
from builder.construct.hplm.hplms import create_hplm, update_hplm
from builder.construct.root.distilled import export_distilled
from builder.construct.root.roots import add_root
from builder.locks import exclusive
from builder.progress import Step
from builder.requests.hplms import CreateHplm
from builder.settings.domain import PlotSettings
from builder.settings.root import DistilSettings
from short_requests import changed, new_domain, new_hplm, new_root, next_hplm


def stored(home: Home, domain: str) -> dict[Store, tuple[np.ndarray, np.ndarray]]:
    entry = Registry.open(home).domain("tiny", domain)
    with Table.open(home.path / entry.folders[0], RootFolder(home.root("tiny")).fingerprint) as table:
        return {
            store: (keys := table.keys(store), table.vectors(store, np.arange(len(keys))))
            for store in (Store.TRI, Store.BI)
            if store in table
        }


def test_a_table_holds_what_the_lower_layers_compute(built_home: Home) -> None:
    encoder = RootFolder(built_home.root("tiny")).lower()
    for store, (keys, values) in stored(built_home, "general").items():
        some = np.random.default_rng(1).choice(len(keys), min(200, len(keys)), replace=False)
        np.testing.assert_allclose(values[some], fragment_values(encoder, store, keys[some]), rtol=2e-3, atol=2e-3)


def test_a_domain_does_not_repeat_its_parent(built_home: Home) -> None:
    own, parents = (stored(built_home, domain)[Store.TRI][0] for domain in ("farm", "general"))
    assert len(own)
    assert not np.isin(own, parents).any()


SLOW_BUILD = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from backends.home import Home
from backends.registry.registry import Registry
from builder.construct.domain import plots
from builder.construct.domain.domains import create_domain
from builder.requests.domains import CreateDomain
plots._FRAGMENTS_PER_BATCH = 64
home = Home(Path(sys.argv[1]))
from backends.plot import writer
writer.CHECKPOINT_BYTES = 1
def report(step):
    print(step.phase, step.done, flush=True)
    if step.phase.startswith("compute") and step.done > 500:
        time.sleep(600)  # until it is killed
whole = {"theta": 1.0, "max_fragments": None, "mlm_steps": 0}
request = CreateDomain(name="slow", root="tiny", corpus=[Path(sys.argv[2])], **whole)
create_domain(home, Registry.open(home), request, report)
"""


def kill_a_build(home: Home, corpus: Path) -> None:
    """Leave the unfinished build of the domain "slow", some of whose entries are durable."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_BUILD, str(home.path), str(corpus)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("compute") and int(line.split()[-1]) > 500:
            break
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.long
def test_a_killed_domain_build_goes_on_and_ends_the_same(tiny_home: Home, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "slow.txt", 400, seed=41)
    kill_a_build(tiny_home, corpus)
    registry = Registry.open(tiny_home)
    with pytest.raises(NotFoundError):
        registry.domain("tiny", "slow")
    assert registry.domain("tiny", "farm").version == 1  # what was live is live

    steps: list[Step] = []
    create_domain(tiny_home, registry, new_domain("slow", "tiny", (corpus,)), steps.append)
    computed = [step.done for step in steps if step.phase == "compute fragments"]
    assert computed[0] > 0, "the build began again from nothing"
    resumed = stored(tiny_home, "slow")[Store.TRI]

    create_domain(tiny_home, registry, new_domain("again", "tiny", (corpus,)), ignore)
    whole = stored(tiny_home, "again")[Store.TRI]
    assert np.array_equal(resumed[0], whole[0])
    np.testing.assert_allclose(resumed[1], whole[1], rtol=2e-3, atol=2e-3)


@pytest.mark.long
def test_a_killed_domain_build_does_not_go_on_with_another_corpus(
    tiny_home: Home, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kill_a_build(tiny_home, write_corpus(tmp_path / "slow.txt", 400, seed=41))
    registry, corpus = Registry.open(tiny_home), write_corpus(tmp_path / "other.txt", 400, seed=42)
    for name in ("slow", "again"):
        create_domain(tiny_home, registry, new_domain(name, "tiny", (corpus,)), ignore)
    slow, again = (stored(tiny_home, name)[Store.TRI] for name in ("slow", "again"))
    assert "other inputs" in caplog.text
    assert np.array_equal(slow[0], again[0])
    np.testing.assert_allclose(slow[1], again[1], rtol=2e-3, atol=2e-3)


@pytest.mark.long
def test_an_interrupted_distillation_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    class InterruptedRunError(Exception):
        pass

    def interrupt(step: Step) -> None:
        if step.phase.startswith("distil") and step.done == 6:
            raise InterruptedRunError

    model = write_tiny_bert(tmp_path / "model")
    corpus = write_corpus(tmp_path / "corpus.txt", 400, seed=1)
    settings = DistilSettings(steps=8, tokens_per_batch=512, checkpoint_every=4)
    request = new_root("r", str(model), 2, (corpus,), MAX_TOKENS, distil=settings, plot=PlotSettings(max_fragments=9))
    one, two = (Home(tmp_path / name) for name in ("one", "two"))
    with pytest.raises(InterruptedRunError):
        add_root(one, Registry.open(one, create=True), request, interrupt)
    steps: list[Step] = []
    add_root(one, Registry.open(one), request, steps.append)
    assert [step.done for step in steps if step.phase.startswith("distil")] == [5, 6, 7, 8]
    add_root(two, Registry.open(two, create=True), request, ignore)
    assert RootFolder(one.root("r")).fingerprint == RootFolder(two.root("r")).fingerprint


@pytest.mark.long
def test_distillation_learns(tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "model")
    corpus = write_corpus(tmp_path / "corpus.txt", 400, seed=1)
    distances = []
    for steps in (1, 120):
        home = Home(tmp_path / str(steps))
        settings = DistilSettings(steps=steps, tokens_per_batch=512, warmup_steps=5)
        plot = PlotSettings(max_fragments=9)
        request = new_root("r", str(model), 2, (corpus,), MAX_TOKENS, distil=settings, plot=plot)
        add_root(home, Registry.open(home, create=True), request, ignore)
        distances.append(1 - RootFolder(home.root("r")).manifest.fidelity["final_cosine"])
    assert distances[1] < 0.8 * distances[0]


def test_distilled_weights_travel(tmp_path: Path) -> None:
    first, second = (Home(tmp_path / name) for name in ("first", "second"))
    tiny_root(first, Registry.open(first, create=True), tmp_path)
    root = RootFolder(first.root("tiny"))
    distilled = tmp_path / "distilled.safetensors"
    export_distilled(root, distilled)
    corpus = tmp_path / "tiny-general.txt"
    request = new_root("tiny", str(tmp_path / "tiny-model"), 2, (corpus,), MAX_TOKENS, distilled=distilled)
    registry = Registry.open(second, create=True)
    add_root(second, registry, request, ignore)
    assert RootFolder(second.root("tiny")).fingerprint == root.fingerprint
    stranger = write_tiny_bert(tmp_path / "stranger", seed=6)
    with pytest.raises(FingerprintMismatchError, match="another pretrained model"):
        add_root(second, registry, changed(request, name="x", source=str(stranger)), ignore)


def hplm_request(folder: Path, hplm: str) -> CreateHplm:
    train, dev = write_task(folder, "topic", seed=50, train=40)
    return new_hplm(hplm, "tiny", "farm", train, dev)


def test_a_failed_update_leaves_the_old_version_serving(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    before = registry.hplm("acme/topic")
    request = hplm_request(tmp_path, "acme/topic")
    request.train.write_text('{"text": "cat", "label": "x"}\n{"text": 5}\n')
    with pytest.raises(TrainingDataError, match=r"train\.jsonl:2"):
        update_hplm(tiny_home, registry, next_hplm(request.id, request.train, request.dev), ignore)
    assert registry.hplm("acme/topic") == before


def test_names_that_are_taken_or_missing(tiny_home: Home, tmp_path: Path) -> None:
    registry = Registry.open(tiny_home)
    with pytest.raises(ConflictError, match="exists already"):
        create_hplm(tiny_home, registry, hplm_request(tmp_path, "acme/topic"), ignore)
    with pytest.raises(NotFoundError, match="does not exist"):
        update_hplm(tiny_home, registry, next_hplm("acme/new", *write_task(tmp_path, "topic", seed=50)), ignore)
    with pytest.raises(NotFoundError, match="'moon'"):
        create_hplm(tiny_home, registry, changed(hplm_request(tmp_path, "acme/new"), domain="moon"), ignore)
    corpus = write_corpus(tmp_path / "c.txt", 300, seed=3)
    with pytest.raises(ConflictError, match="exists already"):
        create_domain(tiny_home, registry, new_domain("farm", "tiny", (corpus,)), ignore)
    with pytest.raises(ConflictError, match="exists already"):
        tiny_root(tiny_home, registry, tmp_path)


def test_a_corpus_that_is_too_small(tiny_home: Home, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.txt", 3, seed=3)
    with pytest.raises(HplmError, match="needs at least"):
        create_domain(tiny_home, Registry.open(tiny_home), new_domain("small", "tiny", (corpus,)), ignore)


def test_two_builds_of_one_thing_at_once(tiny_home: Home, tmp_path: Path) -> None:
    target = tiny_home.path / "plots/tiny/busy"
    corpus = write_corpus(tmp_path / "c.txt", 300, seed=3)
    started, finish = threading.Event(), threading.Event()

    def hold() -> None:
        with exclusive(tiny_home, target, "domain"):
            started.set()
            finish.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    started.wait()
    try:
        with pytest.raises(ConflictError, match="built by another process"):
            create_domain(tiny_home, Registry.open(tiny_home), new_domain("busy", "tiny", (corpus,)), ignore)
    finally:
        finish.set()
        thread.join()
    assert create_domain(tiny_home, Registry.open(tiny_home), new_domain("busy", "tiny", (corpus,)), ignore)
