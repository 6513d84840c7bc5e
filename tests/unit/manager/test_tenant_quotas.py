"""Quotas of tenants at the manager: bytes of uploads, jobs that run, jobs of a day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.tokens import Role
from builder.manager import admission
from builder.manager.api.app import create_app
from builder.manager.quotas import QuotaError
from builder.manager.service import ManagerConfig, opened_manager
from builder.manager.upload_checks import CHECKS
from builder.manager.uploads import Uploads
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
