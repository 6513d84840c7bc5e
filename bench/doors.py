"""What do callers get who have no right to it: by bad tickets, closed endpoints, others' tokens, costly texts?

Real Triton. `tickets`: made up, changed, replayed, aged and foreign tickets go straight to `hplm_upper`, a tenth of
them one a call, the others 8 or 64 a call, beside honest clients with deadlines; the same load without them by turns.
What the process asks its registry is counted. `endpoints`: the four administrative groups over both protocols.
`tokens`: all tenants, calls, protocols and kinds of tokens; how long a foreign and an absent hPLM take on the wire;
tokens that are revoked, beside publications, and rotated while callers show them. `guarded`: two servers by turns,
10,000 tenants with two tokens each and quotas in one of them, of which a tenth ask. `costs`: processor time of checks,
and of `hplm_lower` for a megabyte without blanks.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from backends.lower.caller_check import AUTH_VARIABLE, Auth
from bench.kit.doors.changes import revoke_in_flight, revoke_many, rotate_under_load
from bench.kit.doors.costs import text_costs, ticket_us, token_us
from bench.kit.doors.endpoints import closed_groups, open_pages
from bench.kit.doors.guarded import GuardedSettings, guarded_over_open
from bench.kit.doors.matrix import ask_all
from bench.kit.doors.tenants import TenantTokens, tenants_home
from bench.kit.doors.ticket_attack import AttackSettings, attack
from bench.kit.doors.timing import foreign_timing
from bench.kit.entry import QUICK_LOADS_S, Result, at_least, at_most, bench
from bench.kit.served import Serving, served
from builder.serving import TritonServer

_CALLERS = 4


@dataclass(frozen=True)
class Settings:
    attack: AttackSettings
    guarded: GuardedSettings
    tenants: int
    timing_asks: int
    revocations: int
    rotations: int
    rounds_in_flight: int
    cost_turns: int
    text_repeats: int


FULL = Settings(
    AttackSettings(tickets=100_000, turns=6, turn_s=8.0, warm_rows=2_000),
    GuardedSettings(tenants=10_000, askers=1_000, rows=3_000, pairs=15),
    tenants=20,
    timing_asks=100_000,
    revocations=100,
    rotations=10,
    rounds_in_flight=5,
    cost_turns=15,
    text_repeats=40,
)
QUICK = Settings(
    AttackSettings(tickets=10_000, turns=2, turn_s=5.0, warm_rows=600),
    GuardedSettings(tenants=500, askers=100, rows=1_000, pairs=3),
    tenants=3,
    timing_asks=4_000,
    revocations=10,
    rotations=2,
    rounds_in_flight=1,
    cost_turns=5,
    text_repeats=8,
)
Part = Callable[[Settings, int], tuple[dict[str, float], list[dict[str, Any]]]]


def endpoints(settings: Settings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    with _guarded(settings) as (server, tokens):
        closed = closed_groups(server)
        named = [page for page, content in open_pages(server) if any(tenant in content for tenant in tokens.tenants)]
    figures = {"closed_groups": float(sum(closed.values())), "pages_that_name_tenants": float(len(named))}
    rows = [{"what": f"{group} over {protocol}", "closed": shut} for (group, protocol), shut in closed.items()]
    return figures, rows + [{"what": f"{page} names a tenant"} for page in named]


def tokens(settings: Settings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    with _guarded(settings) as (server, shown):
        for found, told in (
            ask_all(server, shown),
            foreign_timing(server, shown, settings.timing_asks, np.random.default_rng(seed)),
            revoke_many(server, shown, settings.revocations),
            rotate_under_load(server, shown, settings.rotations, _CALLERS),
            revoke_in_flight(server, shown, settings.rounds_in_flight),
        ):
            figures |= found
            rows += told
    return figures, rows


def costs(settings: Settings, seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    with _guarded(settings) as (server, shown):
        rows = text_costs(server, shown, settings.text_repeats, seed)
    figures = {
        "text_1mb_ms": max(row["cpu ms"] for row in rows),
        "text_1mb_new_ms": max(row["cpu ms, new texts"] for row in rows),
        "ticket_us_per_row": ticket_us(settings.cost_turns),
        "token_us_per_request": token_us(settings.cost_turns),
    }
    return figures, rows


PARTS: Mapping[str, Part] = {
    "tickets": lambda settings, seed: attack(settings.attack, seed),
    "endpoints": endpoints,
    "tokens": tokens,
    "costs": costs,
    "guarded": lambda settings, seed: guarded_over_open(settings.guarded, seed),
}


@contextmanager
def _guarded(settings: Settings) -> Iterator[tuple[TritonServer, TenantTokens]]:
    """A server that asks for tokens, on a home of tenants with hPLMs of three tasks."""
    with tenants_home(settings.tenants) as shown:
        serving = Serving("guarded", lower_instances=2, environment={AUTH_VARIABLE: Auth.TOKENS.value})
        with served(shown.home, serving) as server:
            yield server, shown


def _add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}; all")


@bench(
    "doors",
    quick_s=QUICK_LOADS_S,
    add_options=_add_options,
    bars={
        "forged_accepted": at_most(0),
        "forged_queries": at_most(0),
        "others_on_time_loss_points": at_most(1),
        "closed_groups": at_least(8),
        "pages_that_name_tenants": at_most(0),
        "text_1mb_ms": at_most(5),
        "foreign_answers": at_most(0),
        "own_failed": at_most(0),
        "different_words": at_most(0),
        "foreign_timing_share": at_most(1),
        "revoked_in_time": at_least(100),
        "revoked_wrong": at_most(0),
        "rotation_failed": at_most(0),
        "in_flight_lost": at_most(0),
        "guarded_over_open": at_least(0.98),
        "ticket_us_per_row": at_most(3),
    },
)
def doors(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for name in options.only or PARTS:
        found, told = PARTS[name](settings, options.seed)
        figures |= found
        rows += [{"part": name, **row} for row in told]
    return Result(asdict(settings), figures, rows)


if __name__ == "__main__":
    doors.main()
