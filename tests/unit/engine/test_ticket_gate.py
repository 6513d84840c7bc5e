"""No ticket is believed that this server has not sealed lately, and none twice."""

from __future__ import annotations

import os
import queue
import random
import stat
import time
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import pytest

from backends import wire
from backends.engine import ticket_gate
from backends.engine.service import HiddenRows
from backends.engine.ticket_gate import AGE_LIMIT_S, TicketGate
from backends.engine.used_tickets import UsedTickets
from backends.errors import CorruptFileError, HplmError, InvalidArgumentError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.seal import OWN_SEAL, Seal
from backends.server_folder import FOLDER_VARIABLE, file_prefix
from backends.wire import TICKET_COLUMNS, Int64Array, Ticket, encode_tickets, fold_rows
from served_engine import HIDDEN, keys_of, running

EXTREMES = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63))
CASES = 20_000


def ticket(key: int = 7) -> Int64Array:
    return encode_tickets([Ticket(key, 3, False, None)])


def damaged(rows: Int64Array, chance: random.Random) -> Int64Array:
    """One bit flipped, one column swapped for an extreme or for another's, or all of it made up."""
    changed = rows.copy()
    column = chance.randrange(len(TICKET_COLUMNS))
    match chance.randrange(4):
        case 0:
            changed.view(np.uint8)[0, chance.randrange(rows.nbytes)] ^= 1 << chance.randrange(8)
        case 1:
            changed[0, column] = chance.choice(EXTREMES)
        case 2:
            changed[0, column] = ticket(8)[0, column]
        case _:
            changed[0, 1:] = [chance.randrange(-(2**63), 2**63) for _ in TICKET_COLUMNS[1:]]
    return changed


def clock(monkeypatch: pytest.MonkeyPatch, now_us: int) -> None:
    for module in (wire, ticket_gate):
        monkeypatch.setattr(module, "now_us", lambda: now_us)


def test_damaged_tickets_are_rejected_in_one_line_and_reach_no_registry(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, answers = random.Random(26), queue.SimpleQueue[tuple[bool, list[bytes] | HplmError]]()
    (key, *_) = keys_of(tiny_home).values()
    hidden = fold_rows([np.zeros((3, HIDDEN), np.float16)])

    def respond(is_good: bool, answer: list[bytes] | HplmError) -> None:
        answers.put((is_good, answer))

    monkeypatch.setattr(Registry, "hplms_by_key", lambda *_: pytest.fail("a damaged ticket was looked up"))
    with running(tiny_home) as service:
        for start in range(0, CASES, 100):
            good = ticket(key)
            bad = [one for one in (damaged(good, chance) for _ in range(100)) if not np.array_equal(one, good)]
            call = [*bad[:50], good, *bad[50:]]
            responds = [partial(respond, rows is good) for rows in call]
            service.submit_all([(HiddenRows(hidden, rows, [b""]), to) for rows, to in zip(call, responds, strict=True)])
            for _ in range(len(bad) + 1):
                is_good, answer = answers.get(timeout=30)
                assert is_good == isinstance(answer, list), (start, answer)
                if isinstance(answer, HplmError):
                    assert isinstance(answer, InvalidArgumentError) and "\n" not in str(answer)
                    assert "not made by this server" in str(answer) or "has version" in str(answer)


def test_a_ticket_is_good_for_one_answer() -> None:
    gate, rows = TicketGate(), encode_tickets([Ticket(7, 3, False, None)] * 2)
    assert gate.accept(rows) == [Ticket(7, 3, False, None)] * 2
    for again in (rows, rows[:1], rows[1:]):
        with pytest.raises(InvalidArgumentError, match="has been used before"):
            gate.accept(again)
    with pytest.raises(InvalidArgumentError, match="has been used before"):
        gate.accept(np.repeat(ticket(), 2, axis=0))


def test_a_ticket_of_another_server_is_rejected() -> None:
    foreign = encode_tickets([Ticket(7, 3, False, None)], Seal(bytes(32)))
    with pytest.raises(InvalidArgumentError, match="TICKET was not made by this server"):
        TicketGate().accept(foreign)


def test_tickets_age_and_those_that_are_forgotten_are_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, limit_us, chance = TicketGate(), int(1e6 * AGE_LIMIT_S), random.Random(3)
    sealed: list[tuple[int, Int64Array]] = []
    for now in range(10**12, 10**12 + 4 * limit_us, limit_us // 50):
        clock(monkeypatch, now)
        sealed.append((now, ticket()))
        gate.accept(sealed[-1][1])
        at, old = chance.choice(sealed)
        with pytest.raises(UnavailableError if now - at > limit_us else InvalidArgumentError, match="TICKET"):
            gate.accept(old)


def test_used_tickets_take_a_bit_each_and_are_forgotten() -> None:
    """Two processes that number 10,000 tickets a second together, of which a tenth never comes; 10 s are kept."""
    used, chance = UsedTickets(kept_us=10_000_000), random.Random(5)
    serials, sizes = [2**61 + 7, 12_345], []
    for now_us in range(0, 30_000_000, 100):
        process = now_us // 100 % 2
        serials[process] += 1
        if now_us % 1000:
            assert used.use(serials[process], now_us, now_us)
            assert chance.random() > 0.001 or not used.use(serials[process], now_us, now_us)
        if now_us % 5_000_000 == 0:
            sizes.append(used.size_bytes)
    assert max(sizes) <= 1.7 * 100_000 / 8, sizes


def test_a_ticket_of_before_the_machine_started_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 10**12)
    rows = ticket()
    clock(monkeypatch, 10**6)
    with pytest.raises(UnavailableError, match="older than 60 s"):
        TicketGate().accept(rows)


def test_processes_of_a_server_share_a_key_that_only_its_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with ThreadPool(8) as pool:
        seals = pool.map(lambda _: Seal.of_server(), range(32))
    assert len({seal.of(b"a ticket") for seal in seals}) == 1
    (key,) = tmp_path.iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert seals[0].of(b"a ticket") != OWN_SEAL.of(b"a ticket")


@pytest.mark.parametrize(("content", "mode"), [(bytes(32), 0o644), (bytes(31), 0o600), (b"", 0o600)])
def test_a_key_that_others_may_know_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, mode: int
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    path = tmp_path / file_prefix("seal-key")
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(CorruptFileError, match="not a key that only this user can read"):
        Seal.of_server()
    path.unlink()
    path.symlink_to("/etc/hostname")
    with pytest.raises(OSError, match=os.strerror(40)):
        Seal.of_server()


@pytest.mark.serial
def test_signing_and_checking_cost_at_most_three_microseconds_a_row() -> None:
    class Unsealed(Seal):
        def of(self, content: bytes) -> bytes:
            return bytes(16)

        def is_of(self, content: bytes, seal: bytes) -> bool:
            return True

    def row_us(seal: Seal) -> float:
        gate, began = TicketGate(seal), time.thread_time()
        for _ in range(2000):
            gate.accept(encode_tickets([Ticket(7, 3, False, None)], seal))
        return (time.thread_time() - began) / 2000 * 1e6

    differences = [row_us(OWN_SEAL) - row_us(Unsealed(bytes(32))) for _ in range(9)]
    assert sorted(differences)[4] <= 3.0, differences
