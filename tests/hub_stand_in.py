"""A stand-in for the Hugging Face Hub: serves the files of one model repository over HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RESOLVE = f"/resolve/{COMMIT}/"


@dataclass
class Hub:
    """One repository with one commit; `fetched` are the files that clients took, in order."""

    repository: str
    files: dict[str, bytes]
    url: str = ""
    fetched: list[str] = field(default_factory=list)

    def described(self, path: str) -> object | None:
        """Return what the interface says about the repository, or None where there is nothing at the path."""
        model = f"/api/models/{self.repository}"
        siblings = [{"rfilename": name} for name in self.files]
        if path in (model, f"{model}/revision/main", f"{model}/revision/{COMMIT}"):
            return {"id": self.repository, "sha": COMMIT, "siblings": siblings}
        if path == f"{model}/tree/{COMMIT}":
            return [
                {"type": "file", "path": name, "size": len(content), "oid": _object_id(content)}
                for name, content in self.files.items()
            ]
        return None


@contextmanager
def serving_hub(repository: str, folder: Path, **more: bytes) -> Iterator[Hub]:
    """Serve a model folder as `repository`; `more` are further files."""
    hub = Hub(repository, {path.name: path.read_bytes() for path in sorted(folder.iterdir())} | more)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _object_id(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            name = path.partition(f"/{hub.repository}{_RESOLVE}")[2]
            if name in hub.files:
                if with_body:
                    hub.fetched.append(name)
                self._send(200, hub.files[name], with_body)
            elif (description := hub.described(path)) is not None:
                self._send(200, json.dumps(description).encode(), with_body)
            else:
                self._send(404, b"{}", with_body)

        def _send(self, status: int, content: bytes, with_body: bool) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{_object_id(content)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            if status == 404:
                is_revision = self.path.startswith(f"/api/models/{hub.repository}/revision/")
                self.send_header("X-Error-Code", "RevisionNotFound" if is_revision else "RepoNotFound")
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
