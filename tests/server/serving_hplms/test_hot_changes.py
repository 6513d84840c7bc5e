"""New, changed and deleted hPLMs reach a running server, without a reload.

It takes a fraction of a second; the bound is wide because the machine may be busy with other tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from backends.registry.registry import Registry
from bench.kit.tiny_home import ignore, tiny_hplm, write_corpus, write_task
from builder.construct.domain.domains import create_domain
from builder.construct.hplm.hplms import update_hplm
from hplm_client import Answer, ClientError, HplmClient, NotFoundError
from served_home import Served
from short_requests import new_domain, next_hplm
from waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.server


@pytest.fixture
def client(served: Served) -> Iterator[HplmClient]:
    with HplmClient(f"grpc://{served.grpc_url}") as client:
        yield client


def asked(client: HplmClient, hplm: str) -> Answer | ClientError:
    try:
        return client.infer(hplm, "my cat is lovely")
    except ClientError as error:
        return error


def test_create_update_delete_while_serving(served: Served, client: HplmClient) -> None:
    registry = Registry.open(served.home)
    loads = served.server.log_path.read_text().count("successfully loaded")
    tiny_hplm(served.home, registry, served.work, "newcomer/topic", "farm", "topic", seed=900)
    wait_until(lambda: isinstance(asked(client, "newcomer/topic"), Answer))

    train, dev = write_task(served.work / "newcomer", "mood", 901)
    request = next_hplm("newcomer/topic", train, dev, tune={"epochs": 1}, labels_may_change=True, force=True)
    update_hplm(served.home, registry, request, ignore)

    def is_second() -> bool:
        """Each of the server's processes looks by itself, so ask often enough to meet them all."""
        answers = [asked(client, "newcomer/topic") for _ in range(8)]
        return all(isinstance(answer, Answer) and answer.version == 2 for answer in answers)

    wait_until(is_second)
    answer = asked(client, "newcomer/topic")
    assert isinstance(answer, Answer)
    assert set(answer.scores) == {"glad", "sad"}  # type: ignore[attr-defined]

    registry.delete_hplm("newcomer/topic")
    wait_until(lambda: isinstance(asked(client, "newcomer/topic"), NotFoundError))
    assert served.server.log_path.read_text().count("successfully loaded") == loads


def test_a_new_domain_needs_no_reload(served: Served, client: HplmClient) -> None:
    registry = Registry.open(served.home)
    corpus = write_corpus(served.work / "garden.txt", 300, seed=31)
    create_domain(served.home, registry, new_domain("garden", "tiny", (corpus,)), ignore)
    tiny_hplm(served.home, registry, served.work, "newcomer/garden", "garden", "topic", seed=950)
    wait_until(lambda: isinstance(asked(client, "newcomer/garden"), Answer))
    registry.delete_hplm("newcomer/garden")


def test_answers_never_fail_while_versions_change(served: Served, client: HplmClient) -> None:
    """Requests go on through ten updates; each answers with a version that was live within the last seconds."""
    registry = Registry.open(served.home)
    entry = registry.hplm("acme/topic")
    replaced_at: dict[int, float] = {}
    seen = set()
    for _ in range(10):
        parts = (entry.id, entry.domain, entry.task, entry.labels, entry.folder, entry.metrics)
        latest = registry.publish_hplm(*parts).version
        replaced_at[latest - 1] = time.monotonic()
        for _ in range(3):
            asked_at = time.monotonic()
            for answer in client.infer_many([("acme/topic", "cat")] * 20):
                assert answer.version == latest or asked_at - replaced_at[answer.version] <= LIMIT_S
                seen.add(answer.version)
            time.sleep(0.1)
    assert len(seen) > 1
