"""Quotas of tenants at the manager: bytes of uploads, jobs that run, jobs of a day."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from backends.errors import InvalidArgumentError, UnavailableError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.tokens import Role
from builder.manager import admission, open_uploads
from builder.manager.api import uploads as routes
from builder.manager.api.app import create_app
from builder.manager.open_uploads import MOST_OPEN_OF_TENANT
from builder.manager.quotas import QuotaError
from builder.manager.service import ManagerConfig, opened_manager
from builder.manager.upload_checks import CHECKS
from builder.manager.uploads import Upload, Uploads
from builder.requests.base import UploadKind

EXAMPLES = b'{"text": "yes", "label": "a"}\n{"text": "no", "label": "b"}\n'
DAY_S = 86_400.0
Headers = dict[str, str]


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    registry = Registry.open(Home(tmp_path / "home"), create=True)
    general = registry.publish_root("mini", "f" * 32, "roots/mini", "general", "plots/mini/general@1", {})
    for id in ("acme/one", "globex/one"):
        registry.publish_hplm(id, general, "classification", ("yes", "no"), f"bank/{id}", {}, version=1)
    yield registry
    registry.close()


@pytest.fixture
def client(registry: Registry, tmp_path: Path) -> Iterator[TestClient]:
    with opened_manager(Home(tmp_path / "home"), ManagerConfig(with_tokens=True)) as manager:
        yield TestClient(create_app(manager), base_url="http://127.0.0.1:8080")


@pytest.fixture
def headers(registry: Registry) -> dict[str, Headers]:
    tokens = {tenant: registry.tokens.create(tenant, Role.TENANT_ADMIN).text for tenant in ("acme", "globex")}
    return {tenant: {"Authorization": f"Bearer {token}"} for tenant, token in tokens.items()}


def upload(client: TestClient, caller: Headers, content: bytes = EXAMPLES) -> Any:
    return client.put("/v1/uploads", params={"kind": "task", "name": "mine"}, content=content, headers=caller)


def submit(client: TestClient, caller: Headers, tenant: str, file: str) -> Any:
    request = {"kind": "hplm.update", "id": f"{tenant}/one", "train": file, "dev": file}
    return client.post("/v1/jobs", json=request, headers=caller)


def rejection(answer: Any) -> tuple[str, dict[str, Any]]:
    """The message, and the facts at its end."""
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "TENANT_QUOTA", answer.text
    message = answer.json()["error"]["message"]
    facts = json.loads(message[message.index("{") :])
    assert answer.headers.get("Retry-After") == (
        str(-(-facts["retry_after_ms"] // 1000)) if "retry_after_ms" in facts else None
    )
    return message, facts


def test_uploads_are_kept_up_to_a_quota(client: TestClient, registry: Registry, headers: dict[str, Headers]) -> None:
    registry.quotas.set("acme", {"upload_bytes": 2 * len(EXAMPLES)})
    first = upload(client, headers["acme"])
    assert first.status_code == 201
    message, facts = rejection(upload(client, headers["acme"], EXAMPLES * 2))
    assert "mine is larger than the 59 bytes that this tenant may still upload (quota upload_bytes)" in message
    assert facts == {"reason": "tenant_quota"}
    assert upload(client, headers["acme"], EXAMPLES.replace(b"yes", b"yep")).status_code == 201
    assert "this tenant keeps 118 bytes of uploads, and may keep 118" in rejection(upload(client, headers["acme"]))[0]
    assert upload(client, headers["globex"], EXAMPLES * 9).status_code == 201
    assert client.delete(f"/v1/uploads/{first.json()['id']}", headers=headers["acme"]).status_code == 204
    assert upload(client, headers["acme"]).status_code == 201


def test_uploads_at_once_do_not_exceed_the_quota_together(tmp_path: Path) -> None:
    uploads = Uploads(Home(tmp_path), max_bytes=1000, quota_of=lambda _: 2 * len(EXAMPLES))

    def send(number: int) -> bool:
        with uploads.receiving(UploadKind.TASK, "mine", "acme") as incoming:
            incoming.write(EXAMPLES.replace(b"yes", b"%03d" % number))
            try:
                incoming.keep(CHECKS[UploadKind.TASK])
            except QuotaError:
                return False
            return True

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda number: _sent(send, number), range(16)))
    assert outcomes.count(True) == 2 and len(uploads.all()) == 2


def _sent(send: Any, number: int) -> bool:
    try:
        return bool(send(number))
    except QuotaError:  # the quota was full before it began
        return False


def test_uploads_under_way_share_what_the_quota_leaves(tmp_path: Path) -> None:
    uploads = Uploads(Home(tmp_path), max_bytes=1000, quota_of=lambda _: 100)
    with ExitStack() as under_way:
        one, two, others = (
            under_way.enter_context(uploads.receiving(UploadKind.TASK, name, tenant))
            for name, tenant in (("one", "acme"), ("two", "acme"), ("others", "globex"))
        )
        one.write(b"x" * 59)
        for take in (lambda: two.expect(42), lambda: two.write(b"x" * 42)):
            with pytest.raises(QuotaError, match="two is larger than the 41 bytes that this tenant may still upload"):
                take()
        two.write(b"x" * 41)
        with pytest.raises(QuotaError, match="one is larger than the 59 bytes"):
            one.write(b"x")
        others.write(b"x" * 100)
    with uploads.receiving(UploadKind.TASK, "three", "acme") as three:
        three.write(b"x" * 100)


def test_an_upload_that_is_kept_leaves_less_for_those_under_way(tmp_path: Path) -> None:
    uploads = Uploads(Home(tmp_path), max_bytes=1000, quota_of=lambda _: 2 * len(EXAMPLES))
    with uploads.receiving(UploadKind.TASK, "late", "acme") as late:
        for _ in range(2):  # the same file again takes nothing more
            with uploads.receiving(UploadKind.TASK, "first", "acme") as first:
                first.write(EXAMPLES)
                first.keep(CHECKS[UploadKind.TASK])
        with pytest.raises(QuotaError, match="late is larger than the 59 bytes"):
            late.write(EXAMPLES + b"x")
        late.write(EXAMPLES.replace(b"yes", b"yep"))
        late.keep(CHECKS[UploadKind.TASK])
    assert len(uploads.all()) == 2


def test_uploads_at_once_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_uploads, "MOST_OPEN", MOST_OPEN_OF_TENANT + 2)
    uploads = Uploads(Home(tmp_path), max_bytes=1000)

    def begin(tenant: str | None) -> None:
        under_way.enter_context(uploads.receiving(UploadKind.TASK, "mine", tenant))

    with ExitStack() as under_way:
        for _ in range(MOST_OPEN_OF_TENANT):
            begin("acme")
        with pytest.raises(QuotaError, match="8 uploads of this tenant are under way, as many as may be"):
            begin("acme")
        begin("globex")
        begin(None)
        with pytest.raises(UnavailableError, match="10 uploads are under way, as many as may be"):
            begin(None)
    with ExitStack() as under_way:
        begin("acme")


def test_files_are_not_read_while_other_callers_wait(
    client: TestClient, registry: Registry, headers: dict[str, Headers], monkeypatch: pytest.MonkeyPatch
) -> None:
    all_uploads, on_event_loop = Uploads.all, list[bool]()

    def noted(uploads: Uploads) -> list[Upload]:
        on_event_loop.append(asyncio._get_running_loop() is not None)
        return all_uploads(uploads)

    monkeypatch.setattr(Uploads, "all", noted)
    registry.quotas.set("acme", {"upload_bytes": 1000})
    assert upload(client, headers["acme"]).status_code == 201
    assert on_event_loop and not any(on_event_loop)


async def test_a_sender_that_has_vanished_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"a"
        await asyncio.sleep(600)

    monkeypatch.setattr(routes, "_IDLE_S", 0.05)
    came = list[bytes]()
    with pytest.raises(InvalidArgumentError, match=r"nothing of mine has come for 0\.05 s"):
        async for chunk in routes._flowing(chunks(), "mine"):
            came.append(chunk)
    assert came == [b"a"]


def test_jobs_that_run_are_bounded(client: TestClient, registry: Registry, headers: dict[str, Headers]) -> None:
    registry.quotas.set("acme", {"running_jobs": 2})
    files = {tenant: upload(client, headers[tenant]).json()["id"] for tenant in headers}
    jobs = [submit(client, headers["acme"], "acme", files["acme"]) for _ in range(2)]
    assert [job.status_code for job in jobs] == [202, 202]
    message, facts = rejection(submit(client, headers["acme"], "acme", files["acme"]))
    assert "2 jobs of this tenant are queued or run, as many as may (quota running_jobs)" in message
    assert facts == {"reason": "tenant_quota", "retry_after_ms": 10_000}
    assert submit(client, headers["globex"], "globex", files["globex"]).status_code == 202
    quick = client.post("/v1/jobs", json={"kind": "hplm.delete", "id": "acme/one"}, headers=headers["acme"])
    assert quick.status_code == 202
    client.post(f"/v1/jobs/{jobs[0].json()['id']}/cancel", headers=headers["acme"])
    assert submit(client, headers["acme"], "acme", files["acme"]).status_code == 202


def test_jobs_of_a_day_are_bounded(
    client: TestClient, registry: Registry, headers: dict[str, Headers], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.quotas.set("acme", {"jobs_per_day": 2})
    file = upload(client, headers["acme"]).json()["id"]
    for _ in range(2):
        job = submit(client, headers["acme"], "acme", file)
        assert job.status_code == 202
        client.post(f"/v1/jobs/{job.json()['id']}/cancel", headers=headers["acme"])
    message, facts = rejection(submit(client, headers["acme"], "acme", file))
    assert "2 jobs of this tenant were submitted within a day, as many as may (quota jobs_per_day)" in message
    assert 0 < 1000 * DAY_S - facts["retry_after_ms"] < 60_000
    monkeypatch.setattr(admission.time, "time", lambda now_s=admission.time.time(): now_s + DAY_S + 60)
    assert submit(client, headers["acme"], "acme", file).status_code == 202
    registry.quotas.set("acme", {"jobs_per_day": 0})
    assert rejection(submit(client, headers["acme"], "acme", file))[1]["retry_after_ms"] == 1000 * DAY_S
