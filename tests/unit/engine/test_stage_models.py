"""Stages that are a process each: rows pass from one engine to the next, with their mates, and no faster than that."""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import stage_wire
from backends.clock import now_us
from backends.engine import mate_gathering, part_stack
from backends.engine.encoder_stack import EncoderBatch
from backends.engine.mate_gathering import PATIENCE_US
from backends.engine.part_stack import PartStack
from backends.engine.service import HiddenRows
from backends.engine.stack_protocol import Emit, Stack
from backends.errors import HplmError, InvalidArgumentError, NotANumberError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.scheduling.rejection import RejectedError
from backends.scheduling.settings import Capacity
from backends.seal import Seal
from backends.stack_key import StackKey
from backends.stage_wire import Mates, encode_mates
from backends.wire import EARLY, Int64Array, Ticket, encode_tickets, fold_rows
from bench.kit.marks import Mark
from ladder_cases import ladder_of
from marked_engine import marked_keys
from served_engine import keys_of
from served_engine import running as running_whole
from stage_chain import HIDDEN, Chain, Responses, running_chain
from waiting import wait_until

RunningChain = Callable[..., Any]


@pytest.fixture
def chain_of(tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningChain:
    return lambda **limits: running_chain(tiny_home, tmp_path, monkeypatch, **limits)


@pytest.fixture
def chain(chain_of: RunningChain) -> Iterator[Chain]:
    with chain_of() as running:
        yield running


class Runs:
    """Batches that come to the stages, of which the last one waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.came: queue.Queue[tuple[int, list[int]]] = queue.Queue()
        run = PartStack.run

        def noted(stack: PartStack, batch: EncoderBatch, emit: Emit) -> None:
            stage = int(stack._span.start > 0)
            self.came.put((stage, [job.num_tokens for job in batch.jobs]))
            if stage:
                assert self.go.wait(30)
            run(stack, batch, emit)

        monkeypatch.setattr(PartStack, "run", noted)

    def next(self) -> tuple[int, list[int]]:
        return self.came.get(timeout=30)


def answer(responses: Responses) -> dict[str, Any]:
    (found,) = responses.get(timeout=30)  # type: ignore[misc]
    return dict(json.loads(found))


def error_of(responses: Responses) -> HplmError:
    error = responses.get(timeout=30)
    assert isinstance(error, HplmError)
    return error


def test_answers_are_those_of_the_whole_stack(tiny_home: Home, chain: Chain) -> None:
    """Bit for bit: all rows are one batch in the first stage, and so in the next."""
    keys = list(keys_of(tiny_home).values())
    cases = [(key, length) for key in keys for length in (1, 5, 31)]
    rows = [np.random.default_rng(key % 1000).normal(size=(length, HIDDEN)).astype(np.float16) for key, length in cases]
    with running_whole(tiny_home) as whole:
        expected: list[Responses] = [queue.Queue() for _ in cases]
        with whole._loop._changed:
            for row, (key, length), responses in zip(rows, cases, expected, strict=True):
                whole.submit(fold_rows([row]), encode_tickets([Ticket(key, length, False, None)]), [b""], responses.put)
        wanted = [answer(responses) for responses in expected]
    with chain.stages[0]._loop._changed:
        found = [chain.ask_rows([row], [Ticket(*case, False, None)]) for row, case in zip(rows, cases, strict=True)]
    assert [answer(responses) for responses in found] == wanted


def test_tenants_are_never_mixed(tiny_home: Home, chain_of: RunningChain, seed: int) -> None:
    """Far more hPLMs than slots in both stages, requests of several rows, several callers at once."""
    entries = marked_keys(tiny_home)
    pending: list[tuple[int, int, Responses]] = []
    with chain_of(num_slots=6, capacity=Capacity(max_rows=3, max_adapters=2)) as chain:

        def client(number: int) -> None:
            chance = random.Random(seed + number)
            for _ in range(60):
                key, num_rows = chance.choice(list(entries)), chance.choice([1, 1, 1, 2, 5])
                lengths = [chance.randint(1, 9) for _ in range(num_rows)]
                pending.append((key, num_rows, chain.ask(key, lengths)))
                time.sleep(chance.choice([0, 0, 0.002]))

        threads = [threading.Thread(target=client, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for key, num_rows, responses in pending:
            answers = responses.get(timeout=60)
            assert isinstance(answers, list) and len(answers) == num_rows, f"seed {seed}: {answers}"
            for one in map(json.loads, answers):  # type: ignore[arg-type]
                assert (one["hplm"], one["version"]) == entries[key], f"seed {seed}"
                assert Mark.of(*entries[key]).fits(one["scores"]), f"seed {seed}"


def test_the_rows_of_a_batch_are_a_batch_in_the_next_stage(
    tiny_home: Home, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mate_gathering, "PATIENCE_US", 20_000_000)
    runs, keys = Runs(monkeypatch), list(keys_of(tiny_home).values())
    runs.go.set()
    with chain.stages[0]._loop._changed:
        pending = [chain.ask(keys[number % len(keys)], [number]) for number in range(1, 8)]
    first, (stage, lengths) = runs.next(), runs.next()
    assert (first, stage, sorted(lengths)) == ((0, [1, 2, 3, 4, 5, 6, 7]), 1, [1, 2, 3, 4, 5, 6, 7])
    assert all(answer(responses) for responses in pending)


def test_a_row_waits_for_mates_that_never_come_for_a_moment(tiny_home: Home, chain: Chain) -> None:
    key = next(iter(keys_of(tiny_home).values()))
    begun_s = time.monotonic()
    responses = pass_on(chain, key, Mates(batch=7, rows=3, layers=1))
    assert answer(responses)
    assert time.monotonic() - begun_s > PATIENCE_US / 1e6
    assert chain.stages[1]._mates is not None and not chain.stages[1]._mates._held


def pass_on(chain: Chain, key: int, mates: Mates, states: np.ndarray | None = None) -> Responses:
    """Ask the last stage as if the first one had passed a row of three tokens on."""
    responses: Responses = queue.Queue()
    given = np.ones((1, 3, HIDDEN), np.float32) if states is None else states
    tickets = encode_tickets([Ticket(key, 3, False, None)])
    chain.submit(1, HiddenRows(given, tickets, [b""], encode_mates([mates], tickets)), responses)
    return responses


def test_the_first_stage_is_two_batches_ahead_at_most(
    tiny_home: Home, chain_of: RunningChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch is computed in the last stage, one waits there, and one is held back; others wait to be admitted."""
    runs, key = Runs(monkeypatch), next(iter(keys_of(tiny_home).values()))
    with chain_of(capacity=Capacity(max_rows=1, max_adapters=1)) as chain:
        pending = [chain.ask(key, [3])]
        assert [runs.next(), runs.next()] == [(0, [3]), (1, [3])]
        pending += [chain.ask(key, [4])]
        assert runs.next() == (0, [4])
        wait_until(lambda: chain.rows_in_last_stage == 2)
        pending += [chain.ask(key, [length]) for length in (5, 6, 7)]
        assert runs.next() == (0, [5])
        with pytest.raises(queue.Empty):
            runs.came.get(timeout=0.3)
        runs.go.set()
        assert all(answer(responses) for responses in pending)
        assert sorted(runs.next() for _ in range(5)) == [(0, [6]), (0, [7]), (1, [4]), (1, [5]), (1, [6])]
        assert chain.stages[0].admission.batches.figures.batches == 5


def test_a_row_that_is_no_number_fails_alone(tiny_home: Home, chain: Chain) -> None:
    good, bad = list(keys_of(tiny_home).values())[:2]
    spoilt = np.full((4, HIDDEN), np.nan, np.float16)
    with chain.stages[0]._loop._changed:
        pending = [chain.ask(good), chain.ask_rows([spoilt], [Ticket(bad, 4, False, None)]), chain.ask(good, [9])]
    assert answer(pending[0]) and answer(pending[2])
    assert "what is not a number" in str(error_of(pending[1]))
    nowhere = pass_on(chain, bad, Mates(1, 1, 1), np.full((1, 3, HIDDEN), np.inf, np.float32))
    assert "what is not a number" in str(error_of(nowhere))
    assert answer(chain.ask(bad))


@pytest.mark.parametrize(
    ("states", "mates", "complaint"),
    [
        (np.ones((1, 3, HIDDEN), np.float16), Mates(1, 1, 1), "STATES is of float16"),
        (np.ones((1, 4, HIDDEN), np.float32), Mates(1, 1, 1), "its tickets promise float32 and [1, 3, hidden]"),
        (np.ones((1, 3, 8), np.float32), Mates(1, 1, 1), "hidden rows are 8 wide, not 64"),
        (np.ones((1, 3, HIDDEN), np.float32), Mates(1, 1, 2), "are cut in different places"),
        (np.ones((1, 3, HIDDEN), np.float32), Mates(1, 1, -1), "are cut in different places"),
    ],
)
def test_what_the_stage_before_cannot_have_sent_is_an_error(
    tiny_home: Home, chain: Chain, states: np.ndarray, mates: Mates, complaint: str
) -> None:
    key = next(iter(keys_of(tiny_home).values()))
    assert complaint in str(error_of(pass_on(chain, key, mates, states)))
    assert answer(chain.ask(key))


def forged(tickets: Int64Array) -> dict[str, tuple[Int64Array, str]]:
    """Mates that no stage of this server has sealed with these tickets, and what is said of them."""
    others = encode_tickets([Ticket(1, 3, False, None)])
    sealed = encode_mates([Mates(1, 1, 1)], tickets)
    changed = sealed.copy()
    changed[0, 0] += 1
    foreign = "MATES was not made by this server"
    return {
        "too narrow": (sealed[:, :3], "MATES is of int64 and shape [1, 3], not of int64 and [1, 6]"),
        "of another number of rows": (np.concatenate([sealed, sealed]), "MATES is of int64 and shape [2, 6]"),
        "of another type": (sealed.astype(np.int32), "MATES is of int32"),
        "changed": (changed, foreign),
        "of another ticket": (encode_mates([Mates(1, 1, 1)], others), foreign),
        "of another server": (encode_mates([Mates(1, 1, 1)], tickets, Seal(b"other")), foreign),
    }


@pytest.mark.parametrize("case", forged(encode_tickets([Ticket(1, 3, False, None)])))
def test_only_the_stage_before_can_pass_a_row_on(tiny_home: Home, chain: Chain, case: str) -> None:
    key, responses = next(iter(keys_of(tiny_home).values())), Responses()
    tickets = encode_tickets([Ticket(key, 3, False, None)])
    mates, complaint = forged(tickets)[case]
    chain.submit(1, HiddenRows(np.ones((1, 3, HIDDEN), np.float32), tickets, [b""], mates), responses)
    error = error_of(responses)
    assert isinstance(error, InvalidArgumentError) and complaint in str(error)


def test_what_was_passed_on_long_ago_is_rejected(
    tiny_home: Home, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = next(iter(keys_of(tiny_home).values()))
    monkeypatch.setattr(stage_wire, "now_us", lambda: now_us() - 61_000_000)
    error = error_of(pass_on(chain, key, Mates(1, 1, 1)))
    assert isinstance(error, UnavailableError) and "MATES is older than 60 s" in str(error)


def test_huge_numbers_are_their_senders_fault(tiny_home: Home, chain: Chain) -> None:
    """They overflow between two layers; the hPLM goes on serving others."""
    key = next(iter(keys_of(tiny_home).values()))
    huge = np.full((1, 3, HIDDEN), 3e38, np.float32)
    huge[0, 0] = -3e38
    assert "much too large" in str(error_of(pass_on(chain, key, Mates(1, 1, 1), huge)))
    assert answer(chain.ask(key))


def test_an_hplm_whose_states_become_huge_is_kept_out(
    tiny_home: Home, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that happens, and not in the next stage, which could not tell whose fault it is."""
    key, other = list(keys_of(tiny_home).values())[:2]
    with monkeypatch.context() as patched:
        patched.setattr(part_stack, "on_cpu", lambda rows: [1e30 * row for row in rows])
        assert isinstance(error_of(chain.ask(key)), NotANumberError)
    assert chain.stages[0]._loop.quarantine.error(key) is not None
    assert answer(chain.ask(other))


def test_a_late_row_goes_no_further(tiny_home: Home, chain_of: RunningChain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a row that is late in the last stage as waiting there no longer."""
    runs, key = Runs(monkeypatch), next(iter(keys_of(tiny_home).values()))
    with chain_of(capacity=Capacity(max_rows=1, max_adapters=1)) as chain:
        first = chain.ask(key, [3])
        assert [runs.next(), runs.next()] == [(0, [3]), (1, [3])]
        rows = [np.ones((4, HIDDEN), np.float16)]
        late = chain.ask_rows(rows, [Ticket(key, 4, False, now_us() + 2_000_000)])
        assert runs.next() == (0, [4])
        wait_until(lambda: chain.rows_in_last_stage == 2)
        time.sleep(2.0)
        runs.go.set()
        assert answer(first)
        assert isinstance(error_of(late), UnavailableError)
        wait_until(lambda: chain.rows_in_last_stage == 0)


def test_rows_of_a_root_that_only_the_last_stage_must_load_wait_there(tiny_home: Home, chain: Chain) -> None:
    """They are not counted as waiting for the engine, which would hold up the first stage; too many are rejected."""
    keys = list(keys_of(tiny_home).values())
    last = chain.stages[1]
    last._stacks.keep(set())
    loading, go = threading.Event(), threading.Event()
    build = last._builder.build

    def slow(key: StackKey) -> Stack:
        loading.set()
        assert go.wait(30)
        return build(key)

    last._builder.build = slow  # type: ignore[method-assign]
    most = 2 * Capacity().max_rows
    pending = [chain.ask(keys[number % len(keys)]) for number in range(most + 3)]
    assert loading.wait(30)
    wait_until(lambda: sum(not responses.empty() for responses in pending) == 3)
    rejected = [responses for responses in pending if not responses.empty()]
    assert {type(error_of(responses)) for responses in rejected} == {RejectedError}
    assert chain.rows_in_last_stage == 0
    go.set()
    assert all(answer(responses) for responses in pending if responses not in rejected)


@pytest.mark.parametrize("level", ["auto", "full"])
def test_an_hplm_with_a_ladder_answers_by_all_layers_and_says_so(
    tiny_home: Home, chain_of: RunningChain, level: str
) -> None:
    entry = Registry.open(tiny_home).hplm("acme/topic")
    ladder_of(tiny_home, entry, threshold=0.0)
    with chain_of() as chain:
        found = answer(chain.ask(entry.key, level=level))
    assert found["level"] == "full" and 0 < found["confidence"] <= 1


def test_an_early_answer_is_not_promised(tiny_home: Home, chain: Chain) -> None:
    key = next(iter(keys_of(tiny_home).values()))
    error = error_of(chain.ask(key, level=EARLY))
    assert isinstance(error, InvalidArgumentError) and "ask for full" in str(error)


def test_what_is_held_at_the_end_is_rejected(
    tiny_home: Home, chain_of: RunningChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mate_gathering, "PATIENCE_US", 60_000_000)
    key = next(iter(keys_of(tiny_home).values()))
    with chain_of() as chain:
        responses = pass_on(chain, key, Mates(batch=1, rows=2, layers=1))
        wait_until(lambda: bool(chain.stages[1]._mates and chain.stages[1]._mates._held))
    assert isinstance(error_of(responses), UnavailableError)
