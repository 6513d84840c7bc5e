"""What the checks cost a processor: of a ticket, of a token, of a megabyte of text that has no blanks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import psutil

from backends.engine.ticket_gate import TicketGate
from backends.registry.access import AccessTokens
from backends.registry.tokens import Role, TokenEntry, token_digest
from backends.seal import OWN_SEAL, Seal
from backends.wire import Int64Array, Ticket, decode_tickets, encode_tickets
from bench.kit.doors.attack import InnerModels
from bench.kit.doors.tenants import TenantTokens
from builder.export.model_names import LOWER
from builder.serving import TritonServer

MEGABYTE = 1 << 20
_KINDS: Mapping[str, str] = {
    "one letter": "a",
    "letters": "thequickbrownfox",
    "capitals": "ABÇDÉ",
    "digits": "0123456789",
    "punctuation": "!?.,;",
    "letters and punctuation": "a!b?",
    "Chinese": "中文字符",
    "emoji": "😀🚀",
    "combining marks": "e\u0301o\u0308",
    "no-break spaces": "a\u00a0",
    "Devanagari": "हिन्दी",
}
_TICKETS, _TOKENS, _CHECKS = 2000, 20_000, 20_000
_SHUFFLED = 1000
"""More than are read of a text."""


class _Unsealed(Seal):
    """Takes no time to sign and to check."""

    def of(self, content: bytes) -> bytes:
        return bytes(16)


def ticket_us(turns: int) -> float:
    """Processor time of signing and checking a row's ticket, less that of a ticket that is only written and read."""

    def row_us(seal: Seal, read: Callable[[Int64Array], object]) -> float:
        began = time.thread_time()
        for _ in range(_TICKETS):
            read(encode_tickets([Ticket(7, 3, False, None)], seal))
        return 1e6 * (time.thread_time() - began) / _TICKETS

    unsealed = _Unsealed(bytes(32))
    only_read = partial(decode_tickets, seal=unsealed)
    return median(row_us(OWN_SEAL, TicketGate(OWN_SEAL).accept) - row_us(unsealed, only_read) for _ in range(turns))


def token_us(turns: int) -> float:
    """Processor time of checking a request's token among two each of 10,000 tenants."""
    texts = [f"hplm_{number:012x}_{'s' * 43}" for number in range(_TOKENS)]
    tokens = AccessTokens()
    tokens.apply(
        TokenEntry(text[5:17], f"tenant{number // 2}", Role.CALLER, token_digest(text), 0.0, 0.0, None, None)
        for number, text in enumerate(texts)
    )
    taken = []
    for _ in range(turns):
        began = time.thread_time()
        for number in range(_CHECKS):
            tokens.require(texts[number * 7919 % _TOKENS], Role.CALLER).allows("tenant7/topic")
        taken.append(1e6 * (time.thread_time() - began) / _CHECKS)
    return median(taken)


def text_costs(server: TritonServer, tokens: TenantTokens, repeats: int, seed: int) -> list[dict[str, Any]]:
    """Processor time of `hplm_lower` for a text of a megabyte, by kind, less what it takes anyway in that time.

    One text again and again, and texts of which each is new: what they lack in the tables is computed.
    """
    processes, inner, rng = _lower_processes(server), InnerModels(server.grpc_url), np.random.default_rng(seed)
    tenant = tokens.tenants[0]
    parameters = {"tenant_token": tokens.right(tenant)}

    def ask(text: str) -> None:
        inner.lower(f"{tenant}/topic", text, parameters)

    def measured(kind: str, piece: str) -> dict[str, Any]:
        known, *new = (_megabyte(_shuffled(piece, rng)) for _ in range(1 + repeats))
        ask(known)
        return {
            "what": f"1 MB of {kind}",
            "cpu ms": _cpu_ms(processes, partial(ask, known), repeats),
            "cpu ms, new texts": _cpu_ms(processes, lambda: ask(new.pop()), repeats),
        }

    return [measured(kind, piece) for kind, piece in _KINDS.items()]


def _shuffled(piece: str, rng: np.random.Generator) -> str:
    """A thousand of its characters, in any order."""
    return "".join(rng.choice(list(piece), _SHUFFLED))


def _megabyte(piece: str) -> str:
    text = piece * (MEGABYTE // len(piece.encode()))
    return text + "a" * (MEGABYTE - len(text.encode()))


def _cpu_ms(processes: Sequence[psutil.Process], ask: Callable[[], None], repeats: int) -> float:
    began_s, before = time.monotonic(), _cpu_s(processes)
    for _ in range(repeats):
        ask()
    took_s, used_s = time.monotonic() - began_s, _cpu_s(processes) - before
    idle = _cpu_s(processes)
    time.sleep(took_s)
    return 1e3 * max(0.0, used_s - (_cpu_s(processes) - idle)) / repeats


def _lower_processes(server: TritonServer) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process(server.pid).children(recursive=True)
        if any(f"/{LOWER}/" in argument for argument in process.cmdline())
    ]


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    """To the nanosecond, where `cpu_times` counts hundredths of a second."""
    total_ns = 0
    for process in processes:
        for thread in process.threads():
            with open(f"/proc/{process.pid}/task/{thread.id}/schedstat", encoding="ascii") as file:
                total_ns += int(file.read().split()[0])
    return total_ns / 1e9
