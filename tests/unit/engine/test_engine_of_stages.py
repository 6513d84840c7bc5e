"""An engine whose layers are cut in stages: batches follow one another through them. Real stacks, real weights."""

from __future__ import annotations

import json
import queue
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from admitted_rows import MODEL
from backends.engine.cut_layers import CutLayers
from backends.engine.cut_stack import CutUpperStack
from backends.engine.memory_sizes import layers_bytes, slots_bytes
from backends.engine.service import UpperService
from backends.engine.settings import EngineSettings
from backends.engine.stack import StackSettings
from backends.engine.stage_cuts import DeviceMemoryError
from backends.errors import HplmError, InvalidArgumentError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.store import RootFolder
from backends.scheduling.cost_profile import CostProfile, Measured, write_profile
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.stack_key import STUDENTS, StackKey
from bench.kit.marks import Mark
from bench.kit.tiny_home import tiny_hplm, tiny_root
from marked_engine import Responses, ask, marked_keys
from served_engine import TINY, keys_of
from waiting import wait_until

TWO_ROWS = Capacity(max_rows=2, max_adapters=2)


@contextmanager
def running(
    home: Home, stages: int = 2, num_slots: int = 8, capacity: Capacity | None = None, device_memory: int | None = None
) -> Iterator[UpperService]:
    snapshot = RegistrySnapshot(Registry.open(home))
    settings = StackSettings(dtype="fp32", num_slots=num_slots, stages=stages, device_memory=device_memory)
    limits = capacity or Capacity(max_adapters=num_slots - 1)
    service = UpperService(home, snapshot, settings, limits, AdmissionSettings(), threads=2)
    try:
        yield service
    finally:
        ending = threading.Thread(target=service.close, daemon=True)
        ending.start()
        ending.join(30)
        assert not ending.is_alive()
        snapshot.close()


@dataclass
class Held:
    """Batches that wait in front of the last stage, and those that have come to each."""

    go: threading.Event = field(default_factory=threading.Event)
    came: queue.Queue[tuple[int, int]] = field(default_factory=queue.Queue)

    def next(self) -> tuple[int, int]:
        """The stage and the number of tokens of the next batch that comes to one."""
        return self.came.get(timeout=30)


def hold_last_stage(monkeypatch: pytest.MonkeyPatch, then: Callable[[int, int], None] = lambda *_: None) -> Held:
    held, run = Held(), CutLayers._pass

    def noted(layers: CutLayers, stage: int, hidden: Tensor, *others: Any) -> Tensor:
        held.came.put((stage, len(hidden)))
        if stage:
            assert held.go.wait(30)
        then(stage, len(hidden))
        return run(layers, stage, hidden, *others)

    monkeypatch.setattr(CutLayers, "_pass", noted)
    return held


def answer(responses: Responses) -> dict[str, Any]:
    (found,) = responses.get(timeout=30)
    return dict(json.loads(found))


def test_answers_are_those_of_the_whole_stack(tiny_home: Home) -> None:
    keys = keys_of(tiny_home).values()
    found = []
    for stages in (1, 2):
        with running(tiny_home, stages) as service:
            with service._loop._changed:  # so that all are one batch, which rounds the same
                pending = [ask(service, key, length) for key in keys for length in (1, 5, 31)]
            found.append([answer(responses) for responses in pending])
            assert isinstance(service._stacks.of(TINY).upper, CutUpperStack) == (stages == 2)  # type: ignore[attr-defined]
    assert found[0] == found[1]


def test_batches_in_several_stages_never_mix_tenants(tiny_home: Home, seed: int) -> None:
    """Far more hPLMs than slots, asked in a random order by several threads; every answer shows its own weights."""
    entries = marked_keys(tiny_home)
    pending: list[tuple[int, Responses]] = []
    with running(tiny_home, num_slots=6, capacity=Capacity(max_rows=3, max_adapters=2)) as service:

        def client(number: int) -> None:
            chance = random.Random(seed + number)
            for _ in range(40):
                key = chance.choice(list(entries))
                pending.append((key, ask(service, key, chance.randint(1, 9))))
                time.sleep(chance.choice([0, 0, 0.002]))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for key, responses in pending:
            found = answer(responses)
            assert (found["hplm"], found["version"]) == entries[key], f"seed {seed}"
            assert Mark.of(*entries[key]).fits(found["scores"]), f"seed {seed}"


def test_a_batch_begins_while_the_one_before_is_in_the_last_stage(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no third one: the second has the first stage until it has the last one. Mates stay together."""
    key = next(iter(marked_keys(tiny_home, versions=0)))
    held = hold_last_stage(monkeypatch)
    with running(tiny_home, capacity=TWO_ROWS) as service:
        pending = [ask(service, key, length=3)]
        assert [held.next() for _ in range(2)] == [(0, 3), (1, 3)]
        with service._loop._changed:
            pending += [ask(service, key, length=4), ask(service, key, length=6)]
        assert held.next() == (0, 10)
        pending += [ask(service, key, length=7)]
        with pytest.raises(queue.Empty):
            held.came.get(timeout=0.3)
        held.go.set()
        assert {held.next() for _ in range(3)} == {(1, 10), (0, 7), (1, 7)}
        assert [answer(responses)["hplm"] for responses in pending]


def test_rows_join_a_batch_until_the_first_stage_is_free(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine waits for a full batch only as long as none could begin."""
    key = next(iter(marked_keys(tiny_home, versions=0)))
    held = hold_last_stage(monkeypatch)
    with running(tiny_home, capacity=Capacity(max_rows=8, max_adapters=7)) as service:
        pending = [ask(service, key, length=3)]
        assert [held.next() for _ in range(2)] == [(0, 3), (1, 3)]
        pending += [ask(service, key, length=4)]
        assert held.next() == (0, 4)  # alone: the first stage was free
        pending += [ask(service, key, length=5), ask(service, key, length=6)]
        time.sleep(0.1)
        held.go.set()
        assert {held.next() for _ in range(3)} == {(1, 4), (0, 11), (1, 11)}
        assert len([answer(responses) for responses in pending]) == 4


@pytest.mark.parametrize("failing", [0, 1], ids="stage {}".format)
def test_an_error_in_a_stage_fails_its_batch_only(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Its rows run again by themselves, so only the one that fails alone as well is an error."""
    bad, good, *_ = marked_keys(tiny_home, versions=0)

    def fail(stage: int, tokens: int) -> None:
        if stage == failing and tokens in (9, 20):
            raise RuntimeError("a secret of the machine")

    held = hold_last_stage(monkeypatch, fail)
    with running(tiny_home, capacity=TWO_ROWS) as service:
        first = ask(service, good, length=3)
        assert [held.next() for _ in range(2)] == [(0, 3), (1, 3)]
        with service._loop._changed:
            mates = [ask(service, bad, length=9), ask(service, good, length=11)]
        others = [ask(service, good, length=4) for _ in range(4)]
        held.go.set()
        assert all(answer(responses) for responses in (first, mates[1], *others))
        error = mates[0].get(timeout=30)
        assert isinstance(error, HplmError) and "secret" not in str(error)
        assert answer(ask(service, good, length=5))


def test_closing_finishes_what_is_in_the_stages(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    key = next(iter(marked_keys(tiny_home, versions=0)))
    held = hold_last_stage(monkeypatch)
    with running(tiny_home, capacity=Capacity(max_rows=1, max_adapters=1)) as service:
        running_ones = [ask(service, key, length=3)]
        assert [held.next() for _ in range(2)] == [(0, 3), (1, 3)]
        running_ones += [ask(service, key, length=4)]
        assert held.next() == (0, 4)
        others = [ask(service, key, length=5) for _ in range(3)]
        wait_until(lambda: service._loop._staged is not None)
        ending = threading.Thread(target=service.close)
        ending.start()
        wait_until(lambda: service._loop._queue.is_closed)
        assert ending.is_alive()
        held.go.set()
        ending.join(30)
        assert not ending.is_alive()
        assert all(answer(responses) for responses in running_ones)
        assert all(isinstance(responses.get(timeout=1), UnavailableError) for responses in others)


def test_what_cannot_be_cut_is_an_error_of_one_line(tiny_home: Home) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be cut into 3 stages: it has 2 upper layers"):
        snapshot = RegistrySnapshot(Registry.open(tiny_home))
        UpperService(tiny_home, snapshot, StackSettings(dtype="fp32", stages=3), Capacity(), threads=3)
    with pytest.raises(InvalidArgumentError, match="2 stages compute on at least 2 threads, and there are 1"):
        UpperService(tiny_home, snapshot, StackSettings(dtype="fp32", stages=2), Capacity(), threads=1)
    snapshot.close()
    with running(tiny_home) as service, pytest.raises(InvalidArgumentError, match="students of root 'tiny' are not"):
        service._stacks.of(StackKey("tiny", STUDENTS, edition="some"))
    for wrong in ({"stages": 0}, {"device_memory": 0}):
        with pytest.raises(InvalidArgumentError):
            StackSettings(**wrong)  # type: ignore[arg-type]


def test_a_root_that_does_not_fit_is_not_served_and_fits_when_it_is_cut(tiny_home: Home, tmp_path: Path) -> None:
    """A budget for a part of the root; one for both roots' halves serves both, one for less serves the first only."""
    with closing(Registry.open(tiny_home)) as registry:
        tiny_root(tiny_home, registry, tmp_path, name="young")
        tiny_hplm(tiny_home, registry, tmp_path, "new/one", "general", "topic", 3, root="young")
        folders = [tiny_home.path / entry.folder for entry in registry.hplms() if entry.domain.root == "tiny"]
    keys = keys_of(tiny_home)
    slots = slots_bytes(folders, 7, torch.float32)
    whole = layers_bytes(RootFolder(tiny_home.root("tiny")).upper_bytes, "fp32") + slots
    complaint = r"root 'tiny' takes .* MB in 1 stage, and of the .* MB are left"
    with pytest.raises(DeviceMemoryError, match=complaint), running(tiny_home, 1, device_memory=whole * 3 // 4):
        pass
    with running(tiny_home, stages=2, device_memory=whole * 3 // 4) as service:
        assert answer(ask(service, keys["acme/topic"]))
        error = ask(service, keys["new/one"]).get(timeout=30)
        assert isinstance(error, DeviceMemoryError) and "root 'young' takes" in str(error)
    with running(tiny_home, stages=2, device_memory=whole * 5 // 4) as service:
        assert answer(ask(service, keys["acme/topic"])) and answer(ask(service, keys["new/one"]))


def test_an_unloaded_root_leaves_its_memory_to_others(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = layers_bytes(RootFolder(tiny_home.root("tiny")).upper_bytes, "fp32")
    with running(tiny_home, stages=1, num_slots=2, device_memory=3 * whole) as service:
        for name in ("one", "two", "three"):
            shutil.copytree(tiny_home.root("tiny"), tiny_home.root(name))
        service._stacks.of(StackKey("one"))
        with pytest.raises(DeviceMemoryError):
            service._stacks.of(StackKey("two"))
        monkeypatch.setattr(service._snapshot, "stacks", lambda: {TINY})
        service.release_unused()
        service._stacks.of(StackKey("two"))


@pytest.mark.parametrize(("layers_us", "cut"), [((10, 90), (1, 2)), ((), (1, 2)), ((5, 5), (1, 2))])
def test_costs_are_those_of_the_slowest_stage(
    tiny_home: Home, layers_us: tuple[int, ...], cut: tuple[int, ...]
) -> None:
    """Costs by the profile, if that was measured with the threads of one stage; the rest of the way counts as well."""
    root = RootFolder(tiny_home.root("tiny"))
    engine = EngineSettings(StackSettings(dtype="fp32", stages=2), Capacity(), 2)
    measured = engine.measured(root)
    assert isinstance(measured, Measured) and measured.threads == 1
    write_profile(tiny_home.profile("tiny"), CostProfile(MODEL, measured, "2", 40, 1.0, layers_us))
    share = max(layers_us) / sum(layers_us) if layers_us else 0.5
    with running(tiny_home) as service:
        costs = service.admission.costs_of(TINY)
        assert costs.tail == 1
        assert costs.model.constant_us == pytest.approx(share * MODEL.constant_us)
        assert service._stacks.of(TINY).upper._spans[0].stop == cut[0]  # type: ignore[attr-defined]
