"""A sample of `bench.fuzz --part wire`: whatever comes to the ports, no process ends, neighbours are answered."""

from __future__ import annotations

import pytest

from bench.kit.fuzz.rule import Case
from bench.kit.fuzz.wire import Server, ended_of, processes_of
from bench.kit.fuzz.wire_groups import GROUP, Played
from seeds import SEED
from served_home import Served

pytestmark = pytest.mark.server
HPLMS = ["acme/topic", "acme/mood", "globex/topic", "initech/mood"]
CASES = 1_000


@pytest.fixture(scope="module")
def fuzzed(served: Served) -> Server:
    return Server.of(served.server, HPLMS, SEED)


def assert_harmless(played: Played) -> None:
    assert not played.harmed, [(str(harm.cases[0]), len(harm.cases), harm.what) for harm in played.harms]
    assert not played.silent, list(map(str, played.silent))
    assert not played.defects, [(str(case), what) for case, what in played.defects]


def test_random_cases_end_no_process_and_harm_no_neighbour(served: Served, fuzzed: Server) -> None:
    before = processes_of(served.server)
    played = fuzzed.play(SEED, range(CASES // GROUP + 1))
    assert played.cases >= CASES
    assert_harmless(played)
    assert not ended_of(served.server, before)


@pytest.mark.parametrize("number", range(3))
def test_a_text_that_promises_more_bytes_than_come_harms_no_neighbour(fuzzed: Server, number: int) -> None:
    """Sent many times at once: Triton 24.10 fails all requests that it has batched with one of these."""
    assert_harmless(fuzzed.repeat(Case("grpc-lengths", SEED, number), 32))
