"""Bugs that are planted into a copy of the code, and the tests that are to find them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """One replacement in one file, and what it breaks; `tests` are files or single tests."""

    name: str
    breaks: str
    path: str
    right: str
    wrong: str
    tests: Sequence[str]


_DURABILITY = "tests/unit/storage/test_durability.py"
_GATE = "tests/unit/engine/test_ticket_gate.py"
_TOKENS = "tests/unit/registry/test_tokens.py"

BUGS = (
    Bug(
        "no-fsync",
        "a file that was written is not on the disk",
        "backends/storage.py",
        "                os.fsync(file.fileno())\n",
        "",
        (_DURABILITY,),
    ),
    Bug(
        "no-folder-fsync",
        "a published folder's name is not on the disk",
        "backends/storage.py",
        "        fsync_folder_entry(target.parent)\n",
        "",
        (_DURABILITY,),
    ),
    Bug(
        "no-slot-generation",
        "a lease holds for what was loaded into its slot later",
        "backends/adapters/slots.py",
        "            self._generations[slot] += 1\n            return slot",
        "            return slot",
        ("tests/unit/adapters/test_slots.py",),
    ),
    Bug(
        "another-norm",
        "a tenant's LayerNorm is that of another one's slot",
        "backends/adapters/segments.py",
        "normalise_segments(memory_of(states), *self._segments, *own",
        "normalise_segments(memory_of(states), *self._segments[:2], self._segments[2][::-1].copy(), *own",
        ("tests/unit/engine/test_product.py",),
    ),
    Bug(
        "ready-always",
        "/readyz is 200 whatever has died",
        "builder/serving/health.py",
        "self._send(HTTPStatus.OK if verdict.is_so else otherwise, content)",
        "self._send(HTTPStatus.OK, content)",
        ("tests/unit/serving/test_health.py",),
    ),
    Bug(
        "ticket-seal",
        "a ticket is believed whoever has made it",
        "backends/wire.py",
        "if not seal.is_of(sealed, row[_SEALED.size :]):",
        "if not seal.of(sealed):",
        (f"{_GATE}::test_a_ticket_of_another_server_is_rejected",),
    ),
    Bug(
        "ticket-age",
        "a ticket is good for ever",
        "backends/engine/ticket_gate.py",
        "        self._require_fresh(sealed, now)\n",
        "",
        (f"{_GATE}::test_tickets_age_and_those_that_are_forgotten_are_too_old",),
    ),
    Bug(
        "ticket-again",
        "a ticket is good for many answers",
        "backends/engine/used_tickets.py",
        "        page.bits[at] |= mask\n",
        "",
        (f"{_GATE}::test_a_ticket_is_good_for_one_answer",),
    ),
    Bug(
        "token-prefix",
        "of a token only its ID counts",
        "backends/registry/access.py",
        "hmac.compare_digest(token_digest(text), entry.sha256 if entry else _NO_DIGEST)",
        "entry is not None",
        (_TOKENS,),
    ),
    Bug(
        "token-revoked",
        "a revoked token stays valid",
        "backends/registry/tokens.py",
        "        if self.revoked_at is not None:\n            return Validity.REVOKED\n",
        "",
        (_TOKENS,),
    ),
    Bug(
        "late-rows",
        "rows are admitted that cannot meet their deadline",
        "backends/scheduling/admission.py",
        "            return predicted_late(finish_in_us, deadline_in_us)\n",
        "            return None\n",
        ("tests/unit/scheduling/test_admission.py",),
    ),
    Bug(
        "neighbours-error",
        "a bad request fails all requests of its call",
        "backends/engine/service.py",
        "self._once_known(self._read(rows), respond, self._jobs_or_cold_start)\n"
        "        except Exception as error:\n"
        "            respond(presentable(error))\n",
        "self._once_known(self._read(rows), respond, self._jobs_or_cold_start)\n"
        "        except Exception as error:\n"
        "            raise presentable(error) from error\n",
        ("tests/unit/engine/test_loop.py::test_rows_of_the_wrong_width_fail_alone",),
    ),
    Bug(
        "neighbours-words",
        "rows of several domains get each other's states and words",
        "backends/lower/encoding.py",
        "    return [encoded[index] for index in range(len(rows))]\n",
        "    return list(encoded.values())\n",
        ("tests/unit/lower/test_service.py::test_rows_of_mixed_domains_come_back_in_their_order",),
    ),
    Bug(
        "answers-order",
        "the rows of a request are answered in the order in which they end",
        "backends/engine/open_request.py",
        "[self._answers[number] for number in range(self._num_rows)]",
        "list(self._answers.values())",
        ("tests/unit/engine/test_open_request.py",),
    ),
    Bug(
        "quota-not-counted",
        "what a tenant has sent does not count for its quota",
        "backends/lower/tenant_rates.py",
        "0.0 if per_s is None else left + amount",
        "0.0 if per_s is None else left",
        ("tests/unit/lower/test_tenant_rates.py",),
    ),
)
QUICK = ("no-fsync", "ready-always")
