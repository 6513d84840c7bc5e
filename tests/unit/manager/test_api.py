"""The service's routes without a server: who may call, pages of lists, uploads that jobs need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from backends.errors import ConflictError, NotFoundError
from backends.home import Home
from backends.registry.registry import Registry
from builder.manager.api.app import create_app
from builder.manager.manager import Manager
from builder.manager.service import ManagerConfig, opened_manager
from builder.manager.upload_checks import CHECKS
from builder.requests.base import UploadKind
from builder.requests.domains import CreateDomain

AT_HOME = "http://127.0.0.1:8080"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with one root, and hPLMs of two tenants."""
    home = Home(tmp_path / "home")
    registry = Registry.open(home, create=True)
    general = registry.publish_root("mini", "f" * 32, "roots/mini", "general", "plots/mini/general@1", {})
    for id in ("ab/one", "a/three", "a/one", "a/two", "A/one"):
        folder = f"bank/mini/{id.replace('/', '--')}@1"
        registry.publish_hplm(id, general, "classification", ("yes", "no"), folder, {}, version=1)
    return home


@contextmanager
def client_of(home: Home, config: ManagerConfig, base_url: str = AT_HOME) -> Iterator[TestClient]:
    with opened_manager(home, config) as manager:
        yield TestClient(create_app(manager), base_url=base_url)


def test_a_page_of_another_site_reaches_nothing(home: Home) -> None:
    with client_of(home, ManagerConfig()) as client:
        answer = client.post("/v1/jobs/1/cancel", headers={"origin": "http://evil.example"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "PERMISSION_DENIED")
        assert client.post("/v1/jobs/1/cancel", headers={"origin": "null"}).status_code == 403
        assert client.post("/v1/jobs/1/cancel", headers={"origin": AT_HOME}).status_code == 404
        assert client.post("/v1/jobs/1/cancel").status_code == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080"])
def test_another_name_for_this_machine_reaches_nothing(home: Home, host: str) -> None:
    with client_of(home, ManagerConfig()) as client:
        assert client.get("/v1/hplms", headers={"host": host}).status_code == 400
        for ours in ("127.0.0.1:8080", "localhost:8080", "[::1]:8080"):
            assert client.get("/v1/hplms", headers={"host": ours}).status_code == 200


def test_a_service_with_a_token_may_have_any_name(home: Home, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    with client_of(home, ManagerConfig(address="0.0.0.0", token_file=token), "http://gpu1:8080") as client:
        assert client.get("/v1/hplms").status_code == 401
        headers = {"authorization": "Bearer secret", "origin": "https://console.example"}
        assert client.get("/v1/hplms", headers=headers).status_code == 200


def test_a_list_of_hplms_is_read_a_page_at_a_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_all(_: Registry) -> None:
        raise AssertionError("all hPLMs are read for one page")

    monkeypatch.setattr(Registry, "hplms", read_all)
    with client_of(home, ManagerConfig()) as client:
        ids, after = [], None
        while True:
            parameters = {"tenant": "a", "limit": 2} | ({"after": after} if after else {})
            page = client.get("/v1/hplms", params=parameters).json()
            ids.append([entry["id"] for entry in page["hplms"]])
            if (after := page["next_after"]) is None:
                break
        assert ids == [["a/one", "a/three"], ["a/two"]]
        assert len(client.get("/v1/hplms").json()["hplms"]) == 5


def test_an_upload_that_a_job_is_about_to_name_stays(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened_manager(home, ManagerConfig()) as manager:
        upload = kept(manager, b"a text\n")
        request = CreateDomain(name="shop", corpus=[Path(upload)])
        checked, go_on = threading.Event(), threading.Event()
        submit = manager.store.submit

        def slow_submit(*arguments: object) -> object:
            checked.set()
            assert go_on.wait(30)
            return submit(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(manager.store, "submit", slow_submit)
        submitting = threading.Thread(target=manager.admission.submit, args=(request, None))
        outcome: list[Exception | None] = []
        deleting = threading.Thread(target=lambda: outcome.append(deletion(manager, upload)))
        submitting.start()
        assert checked.wait(30)
        deleting.start()
        deleting.join(0.2)  # without the mend it is done by then, and the job names what is gone
        go_on.set()
        submitting.join()
        deleting.join()
        assert isinstance(outcome[0], ConflictError)
        assert manager.uploads.get(upload).id == upload


def test_a_job_cannot_name_an_upload_that_is_gone(home: Home) -> None:
    with opened_manager(home, ManagerConfig()) as manager:
        upload = kept(manager, b"a text\n")
        assert deletion(manager, upload) is None
        with pytest.raises(NotFoundError, match="does not exist"):
            manager.admission.submit(CreateDomain(name="shop", corpus=[Path(upload)]), None)


def kept(manager: Manager, content: bytes) -> str:
    with manager.uploads.receiving(UploadKind.CORPUS, "shop.txt") as incoming:
        incoming.write(content)
        return incoming.keep(CHECKS[UploadKind.CORPUS]).id


def deletion(manager: Manager, upload: str) -> Exception | None:
    try:
        manager.admission.delete_upload(upload)
    except ConflictError as error:
        return error
    return None
