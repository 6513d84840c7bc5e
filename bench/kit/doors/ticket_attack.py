"""Bad tickets by the thousand at `hplm_upper`, beside honest clients with deadlines."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

from backends.errors import HplmError
from backends.registry.registry import Registry
from backends.seal import Seal
from backends.wire import Float16Array, Int64Array, Ticket, encode_tickets
from bench.kit.doors.attack import InnerModels, TicketCall, send_tickets
from bench.kit.doors.forging import Forger
from bench.kit.doors.queries import QueryCounter
from bench.kit.saturation import draw, saturate
from bench.kit.served import Serving, served
from bench.kit.stock_client import ClientProcess, Replies, Sending, send_on_time
from bench.kit.synthetic_home import SMALL, TenantHome, tenant_home
from builder.serving import TritonServer

_TOKENS = 24
_EDGE_ROWS = 64


@dataclass(frozen=True)
class AttackSettings:
    """`sizes`: rows of a call, and which part of the tickets comes in calls of so many."""

    tickets: int
    turns: int
    turn_s: float
    warm_rows: int
    load: float = 0.4
    deadline_ms: int = 250
    tenants: int = 64
    used: int = 64
    sizes: tuple[tuple[int, float], ...] = ((1, 0.1), (8, 0.3), (64, 0.6))


@dataclass(frozen=True)
class BadCalls:
    """The calls of one turn, the hidden rows that come with each ticket, and how each ticket was made."""

    calls: Sequence[TicketCall] = ()
    row: Float16Array = field(default_factory=lambda: np.zeros((1, 1), np.float16))
    ways: Sequence[str] = ()


@dataclass(frozen=True)
class Turn:
    """What honest clients and the attacker were told."""

    honest: Replies
    attack: Replies | None

    @property
    def on_time(self) -> float:
        return float(self.honest.in_time.sum() / (len(self.honest.status) + self.honest.unanswered))


@dataclass(frozen=True)
class Attacked:
    """A running server, its honest rate, and its counter of queries."""

    home: TenantHome
    server: TritonServer
    counter: QueryCounter
    rate: float

    @property
    def seal(self) -> Seal:
        return Seal.of_watched(self.server.pid, self.server.run_folder)


def attack(settings: AttackSettings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Play honest loads beside and without the attack by turns."""
    rng = np.random.default_rng(seed)
    with _attacked(settings, rng, seed) as attacked:
        _require_counting(attacked)
        before = attacked.counter.count
        ways: Counter[str] = Counter()
        with_attack: list[Turn] = []
        without: list[Turn] = []
        for number in range(settings.turns):
            for is_attack in (number % 2 == 0, number % 2 == 1):
                bad = _bad_calls(attacked, settings, rng) if is_attack else BadCalls()
                ways.update(bad.ways)
                (with_attack if is_attack else without).append(_play(attacked, settings, bad, rng))
        queries = attacked.counter.count - before
    told = [turn.attack for turn in with_attack if turn.attack is not None]
    if lost := sum(one.unanswered for one in told):
        raise HplmError(f"{lost} calls of bad tickets got no answer")
    figures = {
        "forged_tickets": float(sum(ways.values())),
        "forged_accepted": float(sum((one.status == "").sum() for one in told)),
        "forged_queries": float(queries),
        "others_on_time_loss_points": 100 * (_mean(without) - _mean(with_attack)),
        "others_on_time_percent": 100 * _mean(without),
    }
    rows: list[dict[str, Any]] = [{"what": f"tickets {way}", "count": count} for way, count in sorted(ways.items())]
    rows += [
        {"what": f"on time, turn {number + 1}", "without %": 100 * quiet.on_time, "under attack %": 100 * loud.on_time}
        for number, (quiet, loud) in enumerate(zip(without, with_attack, strict=True))
    ]
    messages = sum((Counter(one.messages) for one in told), Counter())
    return figures, [*rows, *({"what": f"told: {message}", "count": n} for message, n in messages.most_common(6))]


@contextmanager
def _attacked(settings: AttackSettings, rng: np.random.Generator, seed: int) -> Iterator[Attacked]:
    with (
        tenant_home(SMALL, settings.tenants, (_TOKENS,), seed) as home,
        tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder,
    ):
        counter = QueryCounter(Path(folder))
        with served(home.home, Serving("attacked", code=counter.code)) as server:
            texts = home.texts[_TOKENS]
            warm = [draw(home.hplms, texts, settings.warm_rows, rng) for _ in range(2)]
            played = [saturate(server.grpc_url, rows, 64).rows_per_s(_EDGE_ROWS) for rows in warm]
            yield Attacked(home, server, counter, settings.load * played[-1])


def _require_counting(attacked: Attacked) -> None:
    """Check that a query would be counted: a ticket of the server's own, for a version that does not exist."""
    inner, before = InnerModels(attacked.server.grpc_url), attacked.counter.count
    row, ticket = inner.lower(attacked.home.hplms[0], attacked.home.texts[_TOKENS][0])
    unknown = encode_tickets([Ticket(int(ticket[0, 1]) ^ 1, len(row), False, None)], attacked.seal)
    try:
        inner.upper(unknown, row)
    except InferenceServerException as error:
        if "does not exist" in str(error) and attacked.counter.count > before:
            return
    raise HplmError("the bench does not count queries of hplm_upper")


def _bad_calls(attacked: Attacked, settings: AttackSettings, rng: np.random.Generator) -> BadCalls:
    """Make one turn's part of the tickets, in calls at even times, from tickets that were used a moment ago."""
    inner = InnerModels(attacked.server.grpc_url)
    used = []
    for number in range(settings.used):
        row, ticket = inner.lower(attacked.home.hplms[number % settings.tenants], attacked.home.texts[_TOKENS][0])
        inner.upper(ticket, row)
        used.append(ticket)
    registry = Registry.open(attacked.home.home)
    key = registry.hplm(attacked.home.hplms[0]).key
    registry.close()
    forger = Forger(rng, np.concatenate(used), key, attacked.seal, Seal(rng.bytes(32)))
    rows, names = forger.rows(settings.tickets // settings.turns)
    return BadCalls(_spread(_cut(rows, settings.sizes), settings.turn_s, rng), row, names)


def _cut(rows: Int64Array, sizes: Sequence[tuple[int, float]]) -> list[Int64Array]:
    ends = np.cumsum([round(part * len(rows)) for _, part in sizes])[:-1]
    parts = zip(np.split(rows, ends), sizes, strict=True)
    return [part[start : start + size] for part, (size, _) in parts for start in range(0, len(part), size)]


def _spread(calls: Sequence[Int64Array], span_s: float, rng: np.random.Generator) -> list[TicketCall]:
    order = rng.permutation(len(calls))
    return [TicketCall(span_s * place / len(calls), calls[number]) for place, number in enumerate(order)]


def _play(attacked: Attacked, settings: AttackSettings, bad: BadCalls, rng: np.random.Generator) -> Turn:
    url, texts = attacked.server.grpc_url, attacked.home.texts[_TOKENS]
    count = round(attacked.rate * settings.turn_s)
    at_s = np.sort(rng.uniform(0, settings.turn_s, count))
    sendings = [
        Sending(float(at), hplm, (text,), settings.deadline_ms)
        for at, (hplm, text) in zip(at_s, draw(attacked.home.hplms, texts, count, rng), strict=True)
    ]
    with ClientProcess(send_on_time, url, sendings) as honest:
        if not bad.calls:
            honest.start()
            return Turn(honest.replies(), None)
        with ClientProcess(send_tickets, url, bad.calls, bad.row) as attacker:
            honest.start()
            attacker.start()
            return Turn(honest.replies(), attacker.replies())


def _mean(turns: Sequence[Turn]) -> float:
    return float(np.mean([turn.on_time for turn in turns]))
