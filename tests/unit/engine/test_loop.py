"""The serve loop: every job is answered once, whatever happens to its neighbours."""

from __future__ import annotations

import json
import queue
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from backends.adapters.bank import HplmArtifact
from backends.adapters.host_bank import HostBank
from backends.adapters.parts import Lora
from backends.adapters.slots import SlotTable, StaleLeaseError
from backends.clock import now_us
from backends.engine import answering
from backends.engine.layouts import LAYOUTS
from backends.engine.loop import ServeLoop
from backends.engine.service import UpperService
from backends.engine.stack import StackSettings, UpperStack
from backends.errors import CorruptFileError, HplmError, UnavailableError, UnusableError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.admission import Admission
from backends.scheduling.policies import FirstComeFirstServed
from backends.scheduling.settings import AdmissionSettings, Capacity
from backends.wire import Ticket, encode_tickets, fold_rows
from served_engine import HIDDEN, TINY, Responses, ask, keys_of, running


@contextmanager
def held_in_one_batch(service: UpperService) -> Iterator[None]:
    """What is submitted meanwhile is staged as one."""
    with service._loop._changed:
        yield


def test_a_request_of_mixed_tenants_is_answered_in_its_order(built_home: Home) -> None:
    keys = keys_of(built_home)
    with running(built_home) as service:
        answers = ask(service, list(keys.values())).get(timeout=30)
    assert isinstance(answers, list)
    assert [json.loads(answer)["hplm"] for answer in answers] == list(keys)


def test_more_tenants_than_slots_are_split_not_failed(built_home: Home) -> None:
    keys = list(keys_of(built_home).values())
    with running(built_home, num_slots=2) as service:
        pending = [ask(service, keys) for _ in range(5)]
        assert all(isinstance(responses.get(timeout=30), list) for responses in pending)


def test_a_damaged_adapter_fails_its_own_requests_only(tiny_home: Home, caplog: pytest.LogCaptureFixture) -> None:
    entries = {entry.id: entry for entry in Registry.open(tiny_home).hplms()}
    weights = tiny_home.path / entries["acme/mood"].folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with running(tiny_home) as service:
        bad = ask(service, [entries["acme/mood"].key])
        good = ask(service, [entries["acme/topic"].key])
        error = bad.get(timeout=30)
        assert isinstance(error, UnusableError)
        assert str(error) == "the weights of this hPLM are damaged"
        assert isinstance(good.get(timeout=30), list)
    assert str(weights) in caplog.text


def test_swapped_folders_answer_nobody_with_anothers_weights(tiny_home: Home) -> None:
    entries = {entry.id: entry for entry in Registry.open(tiny_home).hplms()}
    swapped = ("acme/mood", "initech/mood")  # of one root, with the same task and labels
    one, other = (tiny_home.path / entries[hplm].folder for hplm in swapped)
    one.rename(one.with_name("aside"))
    other.rename(one)
    one.with_name("aside").rename(other)
    with running(tiny_home) as service:
        for hplm, entry in entries.items():
            answer = ask(service, [entry.key]).get(timeout=30)
            assert isinstance(answer, UnusableError if hplm in swapped else list)


def test_an_adapter_that_has_vanished_is_an_error_not_a_crash(tiny_home: Home) -> None:
    entries = {entry.id: entry for entry in Registry.open(tiny_home).hplms()}
    shutil.rmtree(tiny_home.path / entries["acme/mood"].folder)
    with running(tiny_home) as service:
        assert isinstance(ask(service, [entries["acme/mood"].key]).get(timeout=30), UnusableError)
        assert isinstance(ask(service, [entries["acme/topic"].key]).get(timeout=30), list)


def test_an_expired_deadline_is_refused_before_compute(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    with running(built_home) as service:
        error = ask(service, [key], deadline_us=now_us() - 1).get(timeout=30)
        assert isinstance(error, UnavailableError)
        assert "deadline" in str(error)
        assert isinstance(ask(service, [key], deadline_us=now_us() + 30_000_000).get(timeout=30), list)
        assert len(service.admission.waiting) == 0


def test_a_batch_that_fails_is_answered_and_the_loop_lives(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(built_home)
    run = UpperStack.run

    def fail(*_: object) -> list[torch.Tensor]:
        raise RuntimeError("a secret of the machine")

    with running(built_home) as service:
        monkeypatch.setattr(UpperStack, "run", fail)
        error = ask(service, [keys["acme/topic"]]).get(timeout=30)
        assert isinstance(error, HplmError)
        assert "secret" not in str(error)
        monkeypatch.setattr(UpperStack, "run", run)
        assert isinstance(ask(service, [keys["acme/mood"]]).get(timeout=30), list)


def failing_once(monkeypatch: pytest.MonkeyPatch, target: object, name: str, error: Exception) -> threading.Event:
    """The next call of `target.name` fails, those after it do not."""
    works: Callable[..., Any] = getattr(target, name)
    has_failed = threading.Event()

    def fail_once(*args: Any, **options: Any) -> Any:
        if has_failed.is_set():
            return works(*args, **options)
        has_failed.set()
        raise error

    monkeypatch.setattr(target, name, fail_once)
    return has_failed


@pytest.mark.parametrize(
    ("target", "name", "error"),
    [(answering, "format_answers", MemoryError("once")), (ServeLoop, "compute", OSError("once"))],
)
def test_a_defect_beside_the_computing_is_answered_and_the_loop_lives(
    built_home: Home, monkeypatch: pytest.MonkeyPatch, target: object, name: str, error: Exception
) -> None:
    keys = list(keys_of(built_home).values())
    with running(built_home) as service:
        failing_once(monkeypatch, target, name, error)
        assert isinstance(ask(service, keys[:1]).get(timeout=30), HplmError)
        assert isinstance(ask(service, keys).get(timeout=30), list)
        assert not any(service._stacks.of(TINY).upper.slots._pins)


def test_a_pin_that_cannot_be_released_costs_nobody_an_answer(
    built_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = list(keys_of(built_home).values())
    with running(built_home) as service:
        has_failed = failing_once(monkeypatch, SlotTable, "release", StaleLeaseError("a defect"))
        assert isinstance(ask(service, keys).get(timeout=30), list)
        assert has_failed.is_set()
        assert isinstance(ask(service, keys).get(timeout=30), list)
        assert sum(service._stacks.of(TINY).upper.slots._pins) == 1, "the others of its batch are released"


def test_a_caller_that_is_gone_costs_the_others_nothing(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]

    def gone(_: list[bytes] | HplmError) -> None:
        raise ConnectionError("gone")

    with running(built_home) as service:
        service.submit(np.zeros((1, 3, HIDDEN), np.float16), encode_tickets([Ticket(key, 3, False, None)]), [b""], gone)
        assert isinstance(ask(service, [key]).get(timeout=30), list)


def test_a_result_that_is_not_a_number_is_an_error(built_home: Home) -> None:
    keys = keys_of(built_home)
    responses: Responses = queue.Queue()
    with running(built_home) as service:
        rows = np.full((1, 3, HIDDEN), np.nan, np.float16)
        service.submit(rows, encode_tickets([Ticket(keys["acme/topic"], 3, False, None)]), [b""], responses.put)
        error = responses.get(timeout=30)
        assert isinstance(error, HplmError)
        assert "not a number" in str(error)
        assert isinstance(ask(service, [keys["acme/topic"]]).get(timeout=30), list)


SCORE_TOLERANCE = {"fp32": 1e-4, "int8": 5e-3}


@pytest.mark.parametrize("fault", ["row", "weights"])
@pytest.mark.parametrize(("layout", "dtype"), [*((layout, "fp32") for layout in LAYOUTS), ("ragged", "int8")])
def test_a_row_that_overflows_fails_alone(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch, layout: str, dtype: str, fault: str
) -> None:
    """Its neighbours are computed beside it, then out of its reach, and come out as if it had never been there."""
    keys = keys_of(tiny_home)
    good, bad = keys["acme/topic"], keys["acme/mood"]
    load = HostBank.artifact

    def overflowing(bank: HostBank, entry: HplmEntry, *args: Any) -> HplmArtifact:
        artifact = load(bank, entry, *args)
        if entry.key != bad or fault == "row":
            return artifact
        huge = {"value": Lora(torch.full((2, 4, HIDDEN), 1e25), torch.full((2, HIDDEN, 4), 1e25))}
        return replace(artifact, adapters=replace(artifact.adapters, loras=huge))

    monkeypatch.setattr(HostBank, "artifact", overflowing)
    seed = random.randrange(1 << 30)
    chance = np.random.default_rng(seed)
    order = [good, bad, good, good, bad, good, bad, bad]
    rows = [chance.normal(size=(5, HIDDEN)).astype(np.float16) for _ in order]
    batches: list[int] = []
    run = UpperStack.run

    def counted(stack: UpperStack, packed: Any, hplms: Any, *rest: Any) -> list[torch.Tensor]:
        batches.append(len(hplms))
        return run(stack, packed, hplms, *rest)

    monkeypatch.setattr(UpperStack, "run", counted)
    for key, row in zip(order, rows, strict=True):
        if key == bad and fault == "row":
            row[2] = np.nan
    with running(tiny_home, layout=layout, dtype=dtype) as service:

        def submit(key: int, row: np.ndarray) -> Responses:
            responses: Responses = queue.Queue()
            service.submit(fold_rows([row]), encode_tickets([Ticket(key, 5, False, None)]), [b""], responses.put)
            return responses

        alone = [submit(key, row).get(timeout=30) for key, row in zip(order, rows, strict=True)]
        batches.clear()
        service._loop.quarantine._by_key.clear()
        with held_in_one_batch(service):
            together = [submit(key, row) for key, row in zip(order, rows, strict=True)]
        for key, expected, responses in zip(order, alone, together, strict=True):
            found = responses.get(timeout=30)
            if key == bad:
                assert "not a number" in str(found) and "not a number" in str(expected), f"seed {seed}"
            else:
                assert isinstance(found, list) and isinstance(expected, list), f"seed {seed}: {found}"
                scores = [list(json.loads(answer[0])["scores"].values()) for answer in (found, expected)]
                np.testing.assert_allclose(*scores, atol=SCORE_TOLERANCE[dtype], err_msg=f"seed {seed}")
    assert batches[0] == len(order) and len(batches) == 2, "many that overflow cost one more batch, not one each"
    assert batches[1] >= order.count(bad)


def test_rows_of_the_wrong_width_fail_alone(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    responses: Responses = queue.Queue()
    with running(built_home) as service:
        tickets = encode_tickets([Ticket(key, 3, False, None)])
        service.submit(np.zeros((1, 3, HIDDEN + 1), np.float16), tickets, [b""], responses.put)
        assert isinstance(responses.get(timeout=30), HplmError)
        assert isinstance(ask(service, [key]).get(timeout=30), list)


@pytest.mark.parametrize("num_tokens", [0, -1, 33])
def test_tickets_with_impossible_lengths_fail_alone(built_home: Home, num_tokens: int) -> None:
    key = keys_of(built_home)["acme/topic"]
    responses: Responses = queue.Queue()
    with running(built_home) as service:
        pending = [ask(service, [key]) for _ in range(3)]
        tickets = encode_tickets([Ticket(key, num_tokens, False, None)])
        service.submit(np.zeros((1, max(num_tokens, 0), HIDDEN), np.float16), tickets, [b""], responses.put)
        assert re.search("tokens|promise", str(responses.get(timeout=30)))
        assert all(isinstance(one.get(timeout=30), list) for one in pending)


def test_one_job_that_cannot_run_does_not_fail_its_batch(built_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = keys_of(built_home)
    run = UpperStack.run

    def fail_on_mood(stack: UpperStack, packed: Any, hplms: Any, *rest: Any) -> list[torch.Tensor]:
        if any(hplm.lease.key == keys["acme/mood"] for hplm in hplms):
            raise RuntimeError("broken")
        return run(stack, packed, hplms, *rest)

    monkeypatch.setattr(UpperStack, "run", fail_on_mood)
    with running(built_home) as service:
        pending = {hplm: ask(service, [key]) for hplm, key in keys.items() for _ in range(3)}
        for hplm, responses in pending.items():
            assert isinstance(responses.get(timeout=30), HplmError if hplm == "acme/mood" else list)


def test_a_full_queue_refuses_at_once(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    snapshot = RegistrySnapshot(Registry.open(built_home))
    settings = StackSettings(dtype="fp32", num_slots=3)
    service = UpperService(
        built_home, snapshot, settings, Capacity(max_adapters=2), AdmissionSettings(max_waiting=2, tenant_quota=2)
    )
    try:
        error = ask(service, [key] * 3).get(timeout=30)
        assert isinstance(error, UnavailableError)
        assert "full" in str(error)
        assert isinstance(ask(service, [key] * 2).get(timeout=30), list)
    finally:
        service.close()
        snapshot.close()


def fails(*_: object) -> list[int]:
    raise ValueError("a defect")


@pytest.mark.parametrize("select", [fails, lambda *_: [0, 0], lambda *_: [10**6], lambda *_: [-1]])
def test_a_policy_that_fails_stops_nobody(
    built_home: Home, monkeypatch: pytest.MonkeyPatch, select: Callable[..., list[int]]
) -> None:
    monkeypatch.setattr(FirstComeFirstServed, "select", select)
    keys = list(keys_of(built_home).values())
    with running(built_home) as service:
        assert isinstance(ask(service, keys).get(timeout=30), list)


def test_an_admission_that_fails_costs_that_request_only(
    built_home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that left `execute` has ended the whole server."""
    key = keys_of(built_home)["acme/topic"]
    with running(built_home) as service:
        with monkeypatch.context() as patched:
            patched.setattr(Admission, "admit", fails)
            assert isinstance(ask(service, [key]).get(timeout=30), HplmError)
        assert "neither admitted nor rejected" in caplog.text
        assert isinstance(ask(service, [key]).get(timeout=30), list)


def test_a_loop_that_has_failed_refuses_instead_of_keeping_callers_waiting(
    built_home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr(Admission, "take_batch", fail)
    keys = list(keys_of(built_home).values())
    with running(built_home) as service:
        asked = ask(service, keys)
        deadline_s = time.monotonic() + 30
        while "has failed" not in caplog.text and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert isinstance(asked.get(timeout=30), UnavailableError), "the batch that was being chosen"
        assert isinstance(ask(service, keys).get(timeout=30), UnavailableError)


def test_closing_refuses_what_comes_after(built_home: Home) -> None:
    key = keys_of(built_home)["acme/topic"]
    with running(built_home) as service:
        pass
    assert isinstance(ask(service, [key]).get(timeout=5), UnavailableError)


def test_a_server_without_a_single_root_does_not_start(tiny_home: Home) -> None:
    weights = tiny_home.root("tiny") / "upper.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CorruptFileError), running(tiny_home):
        pass
