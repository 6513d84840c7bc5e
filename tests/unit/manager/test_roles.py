"""Who may do what with the manager: all routes by all roles, and what a tenant's admin sees of others."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from backends.errors import CorruptFileError
from backends.home import Home
from backends.registry.registry import Registry
from backends.registry.tokens import Role
from builder.manager.api import jobs, reads, uploads
from builder.manager.api.access import Allowed
from builder.manager.api.app import create_app
from builder.manager.callers import Caller
from builder.manager.service import ManagerConfig, opened_manager
from builder.requests.jobs import stored_request

READERS = {Role.VIEWER, Role.TENANT_ADMIN, Role.OPERATOR, Role.ADMIN}
BUILDERS = READERS - {Role.VIEWER}
ROUTES: dict[tuple[str, str], set[Role]] = {
    ("GET", "/v1/roots"): READERS,
    ("GET", "/v1/domains"): READERS,
    ("GET", "/v1/domains/{root}/{name}"): READERS,
    ("GET", "/v1/domains/{root}/{name}/versions"): READERS,
    ("GET", "/v1/hplms"): READERS,
    ("GET", "/v1/hplms/{tenant}/{name}"): READERS,
    ("GET", "/v1/hplms/{tenant}/{name}/versions"): READERS,
    ("GET", "/v1/tree"): READERS - {Role.TENANT_ADMIN},
    ("GET", "/v1/jobs"): READERS,
    ("POST", "/v1/jobs"): BUILDERS,
    ("GET", "/v1/jobs/{job_id}"): READERS,
    ("POST", "/v1/jobs/{job_id}/cancel"): BUILDERS,
    ("GET", "/v1/jobs/{job_id}/log"): READERS,
    ("PUT", "/v1/uploads"): BUILDERS,
    ("GET", "/v1/uploads"): READERS,
    ("GET", "/v1/uploads/{upload_id}"): READERS,
    ("DELETE", "/v1/uploads/{upload_id}"): BUILDERS,
}
OPEN = {("GET", "/v1/health")}
VALUES = {"root": "mini", "name": "one", "tenant": "acme", "job_id": "99", "upload_id": f"corpus-{'0' * 64}"}
Headers = dict[str, str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("roles") / "home")
    registry = Registry.open(home, create=True)
    general = registry.publish_root("mini", "f" * 32, "roots/mini", "general", "plots/mini/general@1", {})
    for id in ("acme/one", "acme_/one", "globex/one"):
        registry.publish_hplm(id, general, "classification", ("yes", "no"), f"bank/{id}", {}, version=1)
    return home


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[TestClient]:
    with opened_manager(home, ManagerConfig(with_tokens=True)) as manager:
        yield TestClient(create_app(manager), base_url="http://127.0.0.1:8080")


@pytest.fixture(scope="module")
def headers(home: Home) -> dict[str, Headers]:
    """The headers of a caller of each role, and of another tenant's admin."""
    tokens = Registry.open(home).tokens
    texts = {role.value: tokens.create("acme" if role.has_scope else "*", role).text for role in Role}
    texts["other"] = tokens.create("globex", Role.TENANT_ADMIN).text
    return {name: {"Authorization": f"Bearer {text}"} for name, text in texts.items()}


def test_every_route_states_its_roles(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    assert {(method.upper(), path) for path, of_path in described.items() for method in of_path} == {*ROUTES, *OPEN}
    stated: dict[tuple[str, str], set[Role] | None] = {}
    routers = (uploads.router, jobs.router, reads.router, reads.open_router)
    for route in (route for router in routers for route in router.routes):
        assert isinstance(route, APIRoute)
        allowed = [one.call.roles for one in route.dependant.dependencies if isinstance(one.call, Allowed)]
        (method,) = route.methods
        stated[method, route.path] = set(allowed[0]) if allowed else None
    assert stated == {**ROUTES, **dict.fromkeys(OPEN)}


def test_all_routes_by_all_roles(client: TestClient, headers: dict[str, Headers]) -> None:
    for (method, path), roles in ROUTES.items():
        url = re.sub(r"\{(\w+)\}", lambda found: VALUES[found[1]], path)
        for role in Role:
            answer = client.request(method, url, headers=headers[role.value])
            wanted = HTTPStatus.FORBIDDEN if role not in roles else None
            assert (answer.status_code == HTTPStatus.FORBIDDEN) is (wanted is not None), (role, method, path)
            assert answer.status_code != HTTPStatus.UNAUTHORIZED and answer.status_code < 500
        for bad in ({}, {"Authorization": "Bearer x"}, {"Authorization": headers["admin"]["Authorization"][:-1] + "!"}):
            answer = client.request(method, url, headers=bad)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "UNAUTHENTICATED")
    assert client.get("/v1/health").status_code == 200


def test_a_revoked_token_is_no_good_at_once(client: TestClient, home: Home) -> None:
    tokens = Registry.open(home).tokens
    issued = tokens.create("*", Role.VIEWER)
    shown = {"Authorization": f"Bearer {issued.text}"}
    assert client.get("/v1/roots", headers=shown).status_code == 200
    tokens.revoke(issued.entry.id)
    answer = client.get("/v1/roots", headers=shown)
    assert (answer.status_code, answer.json()["error"]["message"]) == (
        401, f"unauthorised: token {issued.entry.id} is revoked",
    )  # fmt: skip


def test_a_tenants_admin_sees_its_own_only(client: TestClient, headers: dict[str, Headers]) -> None:
    mine = headers["tenant-admin"]

    def get(path: str, **shown: Any) -> tuple[int, Any]:
        answer = client.get(path, headers=mine, **shown)
        return answer.status_code, answer.json()

    assert [entry["id"] for entry in get("/v1/hplms")[1]["hplms"]] == ["acme/one"]
    assert get("/v1/hplms", params={"tenant": "globex"})[1]["hplms"] == []
    for id in ("globex/one", "acme_/one", "globex/none"):
        for path in (f"/v1/hplms/{id}", f"/v1/hplms/{id}/versions"):
            status, content = get(path)
            assert (status, content["error"]["message"]) == (404, f"hPLM '{id}' does not exist")
    assert get("/v1/hplms/acme/one")[0] == 200


def test_a_tenants_uploads_and_jobs_are_its_own(client: TestClient, home: Home, headers: dict[str, Headers]) -> None:
    mine, other, admin = headers["tenant-admin"], headers["other"], headers["admin"]
    content = b'{"text": "yes", "label": "a"}\n{"text": "no", "label": "b"}\n'
    ids = {}
    for name in ("tenant-admin", "other", "admin"):
        answer = client.put(
            "/v1/uploads", params={"kind": "task", "name": name}, content=content, headers=headers[name]
        )
        assert answer.status_code == 201, answer.text
        ids[name] = answer.json()["id"]
    assert len(set(ids.values())) == 3
    seen = client.get("/v1/uploads", headers=mine).json()["uploads"]
    assert [upload["name"] for upload in seen] == ["tenant-admin"]
    assert len(client.get("/v1/uploads", headers=admin).json()["uploads"]) == 3
    for method in ("GET", "DELETE"):
        answer = client.request(method, f"/v1/uploads/{ids['other']}", headers=mine)
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            404, f"upload '{ids['other']}' does not exist",
        )  # fmt: skip

    def submit(caller: Headers, file: str, id: str, **more: str) -> tuple[int, Any]:
        request = {"kind": "hplm.update", "id": id, "train": file, "dev": file}
        answer = client.post("/v1/jobs", json=request, headers={**caller, **more})
        return answer.status_code, answer.json()

    for file in (ids["other"], ids["admin"]):
        assert submit(mine, file, "acme/one")[0] == 404
    for id in ("globex/one", "globex/none"):
        assert submit(mine, ids["tenant-admin"], id)[1]["error"]["message"] == f"hPLM '{id}' does not exist"
    status, job = submit(mine, ids["tenant-admin"], "acme/one", **{"Idempotency-Key": "same"})
    assert status == 202
    theirs = submit(other, ids["other"], "globex/one", **{"Idempotency-Key": "same"})
    assert theirs[0] == 202 and theirs[1]["id"] != job["id"]
    assert submit(mine, ids["tenant-admin"], "acme/one", **{"Idempotency-Key": "same"})[0] == 200
    assert [one["id"] for one in client.get("/v1/jobs", headers=mine).json()["jobs"]] == [job["id"]]
    assert len(client.get("/v1/jobs", headers=headers["viewer"]).json()["jobs"]) == 2
    foreign = f"/v1/jobs/{theirs[1]['id']}"
    for method, path in (("GET", foreign), ("GET", f"{foreign}/log"), ("POST", f"{foreign}/cancel")):
        assert client.request(method, path, headers=mine).status_code == 404
    assert client.post(f"/v1/jobs/{job['id']}/cancel", headers=mine).status_code == 202
    assert client.post(f"{foreign}/cancel", headers=headers["operator"]).status_code == 202
    log = Registry.open(home).audit.read()
    told = [(entry.action, entry.target, entry.before, entry.after, entry.who.split()[0]) for entry in log.entries]
    jobs = f"job {job['id']}", f"job {theirs[1]['id']}"
    assert told[-4:] == [
        ("job.submit hplm.update", "hplm:acme/one", None, jobs[0], "token"),
        ("job.submit hplm.update", "hplm:globex/one", None, jobs[1], "token"),
        ("job.cancel", "hplm:acme/one", jobs[0], None, "token"),
        ("job.cancel", "hplm:globex/one", jobs[1], None, "token"),
    ]
    assert [entry.is_about("acme") for entry in log.entries[-4:]] == [True, False, True, False]
    log.require_sound()
    with sqlite3.connect(home.path / "registry.db") as connection:
        connection.execute("DELETE FROM audit WHERE number = ?", (log.entries[-1].number,))
    with pytest.raises(CorruptFileError, match=r"at its end, entry \d+ is missing"):
        Registry.open(home).audit.read().require_sound()


JOBS = {
    "domain.delete": {"root": "mini", "name": "shop"},
    "students.make": {"root": "mini"},
    "gc": {},
    "hplm.delete": {"id": "acme/one"},
    "hplm.rollback": {"id": "acme/one"},
}


@pytest.mark.parametrize("role", [Role.TENANT_ADMIN, Role.OPERATOR, Role.ADMIN])
def test_which_jobs_a_role_may_have(role: Role) -> None:
    caller = Caller("someone", role, "acme" if role is Role.TENANT_ADMIN else None)
    for kind, fields in JOBS.items():
        request = stored_request({"kind": kind, **fields})
        is_hplm = kind.startswith("hplm")
        may = role is Role.ADMIN or is_hplm is (role is Role.TENANT_ADMIN)
        try:
            caller.require_request(request, lambda _: pytest.fail("there is no upload"))
            assert may, kind
        except Exception as error:
            assert not may and str(error).startswith(f"unauthorised: the role {role} may not have a job"), (kind, error)


def test_the_token_of_the_file_is_an_admins(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    other = Home(tmp_path / "home")
    Registry.open(other, create=True).publish_root("mini", "f" * 32, "roots/mini", "general", "plots/general@1", {})
    viewer = Registry.open(other).tokens.create("*", Role.VIEWER).text
    for with_tokens in (True, False):
        config = ManagerConfig(token_file=file, with_tokens=with_tokens)
        with opened_manager(other, config) as manager:
            asking = TestClient(create_app(manager), base_url="http://127.0.0.1:8080")
            statuses = [
                asking.get("/v1/tree", headers={"Authorization": f"Bearer {text}"}).status_code
                for text in ("secret", viewer, "wrong")
            ]
            assert statuses == [200, 200 if with_tokens else 401, 401]
