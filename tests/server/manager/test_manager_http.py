"""What the manager takes, refuses and shows, asked over HTTP as an application would."""

from __future__ import annotations

import io
import re
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.tiny_home import write_corpus, write_task
from managed_home import Managed, managing

LIMIT_MB = 2


@pytest.fixture(scope="module")
def managed(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Managed]:
    """Nothing here makes a job run, so the home stays as it is."""
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("s3cret\n")
    with managing(built_home, "--max-upload-mb", str(LIMIT_MB), "--token-file", str(token)) as running:
        running.http.headers["Authorization"] = "Bearer s3cret"
        yield running


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    content = answer.json()
    assert set(content) == {"error"}
    assert set(content["error"]) == {"code", "message"}
    assert "\n" not in content["error"]["message"]
    return answer.status_code, content["error"]["code"], content["error"]["message"]


def put(managed: Managed, kind: str, name: str, content: Any, **more: Any) -> httpx.Response:
    return managed.http.put("/v1/uploads", params={"kind": kind, "name": name}, content=content, **more)


def test_a_caller_without_the_token_gets_nothing(managed: Managed) -> None:
    for token in ("", "Bearer", "Bearer wrong", "Bearer s3cret2", "Basic s3cret"):
        for path in ("/v1/roots", "/v1/jobs", "/v1/uploads", "/v1/hplms/acme/topic"):
            answer = managed.http.get(path, headers={"Authorization": token})
            assert error_of(answer)[:2] == (401, "UNAUTHENTICATED")
    refused = put(managed, "corpus", "x", b"text\n", headers={"Authorization": "Bearer wrong"})
    assert refused.status_code == 401
    assert managed.http.get("/v1/uploads").json() == {"uploads": []}
    assert managed.http.get("/v1/health", headers={"Authorization": ""}).json()["status"] == "ok"


def test_reads_show_what_the_registry_has(managed: Managed) -> None:
    registry = Registry.open(managed.home)
    get = managed.http.get
    assert [root["name"] for root in get("/v1/roots").json()["roots"]] == ["tiny"]
    domains = get("/v1/domains", params={"root": "tiny"}).json()["domains"]
    assert [(d["name"], d["version"]) for d in domains] == [(d.name, d.version) for d in registry.domains("tiny")]
    assert get("/v1/domains/tiny/farm").json()["version"] == 1
    everything = get("/v1/hplms").json()
    assert [hplm["id"] for hplm in everything["hplms"]] == [entry.id for entry in registry.hplms()]
    first = get("/v1/hplms", params={"limit": 3}).json()
    rest = get("/v1/hplms", params={"limit": 3, "after": first["next_after"]}).json()
    assert first["hplms"] + rest["hplms"] == everything["hplms"]
    assert rest["next_after"] is None
    assert {hplm["id"] for hplm in get("/v1/hplms", params={"tenant": "acme"}).json()["hplms"]} == {
        "acme/topic",
        "acme/mood",
    }
    (tree,) = get("/v1/tree").json()["trees"]
    branches = {branch["domain"]: branch["hplms"] for branch in tree["domains"][0]["domains"]}
    assert [hplm["id"] for hplm in branches["farm@1"]] == ["acme/mood", "acme/topic"]
    assert 0 < branches["street@1"][0]["accuracy"] <= 1
    assert [version["live"] for version in get("/v1/hplms/acme/topic/versions").json()["versions"]] == [True]
    assert [version["version"] for version in get("/v1/domains/tiny/farm/versions").json()["versions"]] == [1]
    shown = get("/v1/hplms/acme/topic").json()
    assert (shown["domain"], shown["labels"]) == ("farm@1", list(registry.hplm("acme/topic").labels))


def test_uploads_are_listed_shown_and_deleted(managed: Managed, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "mine.txt", 30, seed=8)
    upload = managed.upload("corpus", corpus)
    assert managed.upload("corpus", corpus) == upload
    shown = managed.http.get(f"/v1/uploads/{upload}").json()
    assert (shown["name"], shown["summary"], shown["size_bytes"]) == ("mine.txt", "30 texts", corpus.stat().st_size)
    assert managed.http.get("/v1/uploads").json()["uploads"] == [shown]
    assert managed.http.delete(f"/v1/uploads/{upload}").status_code == 204
    assert error_of(managed.http.delete(f"/v1/uploads/{upload}"))[:2] == (404, "NOT_FOUND")


def test_an_upload_over_the_limit_is_refused_however_it_comes(managed: Managed) -> None:
    line = b"a text that goes on and on\n"
    too_much = line * ((LIMIT_MB << 20) // len(line) + 1000)
    chunks = (too_much[start : start + 65536] for start in range(0, len(too_much), 65536))
    for content in (too_much, chunks):
        code, kind, message = error_of(put(managed, "corpus", "big.txt", content))
        assert (code, kind) == (413, "TOO_LARGE")
        assert message.startswith(f"big.txt is larger than {LIMIT_MB} MiB")
    assert put(managed, "corpus", "fits.txt", too_much[: LIMIT_MB << 20]).status_code == 201
    assert not [path for path in (managed.home.path / "uploads").iterdir() if path.name.startswith(".")]


def raw(managed: Managed, head: str, body: bytes, is_cut_off: bool = False) -> bytes:
    """What a client that does not keep to the rules is answered."""
    where = urlsplit(str(managed.http.base_url))
    request = f"{head}\r\nHost: x\r\nAuthorization: Bearer s3cret\r\nConnection: close\r\n\r\n".encode()
    with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
        connection.sendall(request + body)
        if is_cut_off:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_client_that_lies_about_its_length_does_no_harm(managed: Managed) -> None:
    before = managed.http.get("/v1/uploads").json()
    put_line = "PUT /v1/uploads?kind=corpus&name=x.txt HTTP/1.1"
    announced_too_much = raw(managed, f"{put_line}\r\nContent-Length: 99999999999", b"text\n")
    assert b" 413 " in announced_too_much.splitlines()[0]
    waiting = raw(managed, f"{put_line}\r\nExpect: 100-continue\r\nContent-Length: 99999999999", b"")
    assert b" 413 " in waiting.splitlines()[0]
    raw(managed, f"{put_line}\r\nContent-Length: 1000", b"only this\n", is_cut_off=True)
    raw(managed, f"{put_line}\r\nTransfer-Encoding: chunked", b"5\r\ntext\n\r\n", is_cut_off=True)
    assert b" 400 " in raw(managed, f"{put_line}\r\nContent-Length: -5", b"text\n").splitlines()[0]
    assert managed.http.get("/v1/uploads").json() == before
    sent_too_much = raw(managed, f"{put_line}\r\nContent-Length: 5", b"text\n" + b"x" * 1000)
    assert b" 201 " in sent_too_much.splitlines()[0]
    assert b'"size_bytes":5' in sent_too_much
    assert not [path for path in (managed.home.path / "uploads").iterdir() if path.name.startswith(".")]


def zipped(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, "x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "name", "content", "reason"),
    [
        ("corpus", "b.txt", b"ok\n\xff\n", "b.txt:2: not UTF-8"),
        ("corpus", "../b.txt", b"ok\n", "file name '../b.txt' is not allowed"),
        ("task", "t.jsonl", b'{"text": "a", "label": "b"}\n{\n', "t.jsonl:2: not JSON"),
        ("adapter", "a.zip", b"PK", "a.zip is not a readable zip archive"),
        ("adapter", "a.zip", zipped("../x"), "a.zip: '../x' lies outside"),
        ("other", "x", b"x\n", "query.kind: Input should be 'corpus', 'task' or 'adapter'"),
    ],
)
def test_a_bad_file_is_refused_at_once(managed: Managed, kind: str, name: str, content: bytes, reason: str) -> None:
    code, _, message = error_of(put(managed, kind, name, content))
    assert code == 400
    assert message.startswith(reason)


@pytest.mark.parametrize("announced", [True, False])
def test_a_request_that_is_no_upload_is_short(managed: Managed, announced: bool) -> None:
    content = b'{"kind": "' + b"x" * (1 << 20) + b'"}'
    answer = managed.http.post(
        "/v1/jobs", content=content if announced else iter([content[:500_000], content[500_000:]])
    )
    assert error_of(answer) == (413, "TOO_LARGE", "a request has at most 1 MiB")


def test_a_form_is_refused_with_the_right_way(managed: Managed) -> None:
    answer = managed.http.put("/v1/uploads", params={"kind": "corpus", "name": "x"}, files={"file": b"x\n"})
    assert error_of(answer)[2] == "send the file itself as the body (curl -T FILE), not a form"


def test_requests_that_must_fail_are_refused_at_once(managed: Managed, tmp_path: Path) -> None:
    corpus = managed.upload("corpus", write_corpus(tmp_path / "c.txt", 20, seed=1))
    train, dev = (managed.upload("task", path) for path in write_task(tmp_path, "topic", 3, 20))
    files = {"train": train, "dev": dev}
    for request, status, reason in [
        ({"kind": "domain.create", "name": "farm", "corpus": [corpus]}, 409, "domain 'farm' of root 'tiny' exists"),
        ({"kind": "domain.create", "name": "a b", "corpus": [corpus]}, 400, "domain name 'a b' is not allowed"),
        ({"kind": "domain.create", "name": "x", "corpus": []}, 400, "body.domain.create.corpus: List should have"),
        ({"kind": "domain.create", "name": "x", "corpus": [train]}, 400, f"upload {train} is a task file"),
        ({"kind": "domain.create", "name": "x", "corpus": ["nope"]}, 404, "upload 'nope' does not exist"),
        (
            {"kind": "domain.create", "name": "x", "corpus": [corpus], "theta": 7},
            400,
            "body.domain.create.theta: Input",
        ),
        (
            {"kind": "domain.create", "name": "x", "corpus": [corpus], "seed": 2**32},
            400,
            "body.domain.create.seed: Input",
        ),
        (
            {"kind": "domain.create", "name": "x", "corpus": [corpus], "seed": True},
            400,
            "body.domain.create.seed: Input should be a valid integer",
        ),
        ({"kind": "domain.create", "name": "x", "corpus": [corpus], "root": "y"}, 404, "root 'y' does not exist"),
        ({"kind": "domain.create", "name": "x", "corpus": [corpus], "parent": "y"}, 404, "domain 'y' of root 'tiny'"),
        ({"kind": "domain.update", "name": "x", "corpus": [corpus]}, 404, "domain 'x' of root 'tiny' does not"),
        ({"kind": "hplm.create", "id": "new/one", "domain": "x", **files}, 404, "domain 'x' of root 'tiny' does not"),
        ({"kind": "hplm.create", "id": "newone", "domain": "farm", **files}, 400, "hPLM ID 'newone' is not of the"),
        ({"kind": "hplm.create", "id": "acme/topic", "domain": "farm", **files}, 409, "hPLM 'acme/topic' exists"),
        ({"kind": "hplm.create", "id": "a/b", "domain": "farm", "task": "x", **files}, 400, "body.hplm.create.task:"),
        ({"kind": "hplm.update", "id": "new/one", **files}, 404, "hPLM 'new/one' does not exist"),
        ({"kind": "hplm.update", "id": "acme/topic", "domain": "x", **files}, 404, "domain 'x' of root 'tiny' does"),
        ({"kind": "domain.update", "name": "farm", "corpus": [corpus], "parent": "x"}, 404, "domain 'x' of root"),
        ({"kind": "hplm.update", "id": "acme/topic", "tune": {"epoch": 3}, **files}, 400, "tuning setting 'epoch' is"),
        ({"kind": "hplm.update", "id": "acme/topic", "trian": train, **files}, 400, "body.hplm.update.trian: Extra"),
        ({"kind": "hplm.rollback", "id": "acme/topic", "version": 0}, 400, "body.hplm.rollback.version: Input"),
        ({"kind": "hplm.delete", "id": "new/one"}, 404, "hPLM 'new/one' does not exist"),
        ({"kind": "nothing"}, 400, "body: Input tag 'nothing' found using 'kind' does not match"),
        ({}, 400, "body: Unable to extract tag"),
    ]:
        code, _, message = error_of(managed.http.post("/v1/jobs", json=request))
        assert (code, message[: len(reason)]) == (status, reason)
    assert managed.http.get("/v1/jobs").json() == {"jobs": [], "next_before": None}


@pytest.mark.parametrize(
    "path", ["/v1/jobs/77", "/v1/jobs/77/log", "/v1/domains/tiny/none", "/v1/hplms/a/b", "/none", "/v1/domains?root=x"]
)
def test_what_is_not_there_is_not_found(managed: Managed, path: str) -> None:
    assert error_of(managed.http.get(path))[:2] == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "path", ["/v1/jobs/x", "/v1/jobs/0", f"/v1/jobs/{10**30}", "/v1/jobs?limit=0", "/v1/jobs?state=x"]
)
def test_what_cannot_be_meant_is_an_invalid_argument(managed: Managed, path: str) -> None:
    assert error_of(managed.http.get(path))[:2] == (400, "INVALID_ARG")


def test_the_service_describes_itself(managed: Managed) -> None:
    description = managed.http.get("/openapi.json").json()
    paths = description["paths"]
    assert {"/v1/uploads", "/v1/jobs", "/v1/jobs/{job_id}/log", "/v1/hplms/{tenant}/{name}"} <= set(paths)
    for operations in paths.values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if status.startswith("4"):
                    assert "ErrorAnswer" in str(answer)
    assert managed.http.get("/docs").status_code == 200


def test_a_home_has_one_manager_and_a_manager_one_port(
    managed: Managed, tmp_path: Path, tiny_home: Home, run_hplm: Callable[..., str]
) -> None:
    def reason(home: Home, port: str = "0", *options: str) -> str:
        return run_hplm("manager", "--home", home.path, "--port", port, *options)

    assert re.search(r"a manager of .* is running already", reason(managed.home))
    port = str(urlsplit(str(managed.http.base_url)).port)
    assert f"cannot listen on 127.0.0.1:{port}" in reason(tiny_home, port)
    assert "there is no home at" in reason(Home(tmp_path / "none"))
    assert "niceness 20 is not between 0 and 19" in reason(tiny_home, "0", "--niceness", "20")
