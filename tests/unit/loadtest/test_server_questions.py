"""What a load test asks a server before the load."""

from __future__ import annotations

import pytest

from hplm_client import HplmClient, RequestTimeoutError
from loadtest.server import pairs_among
from small_servers import small_server


def test_a_server_that_answers_nothing_is_asked_twice_and_not_for_every_hplm() -> None:
    with small_server("grpc", "slow") as server:
        client = HplmClient(server.url, retries=0, timeout_s=0.3)
        with client, pytest.raises(RequestTimeoutError):
            pairs_among(client, [f"acme/{number}" for number in range(100)], server.url)
        server.go_on.set()
        assert server.hplms == ["acme/0", "acme/0"]
