"""The guide's own walk, beside a real Triton that is asked all the while."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.kit.tiny_home import TOPICS, write_corpus, write_task
from hplm_client import HplmClient
from managed_home import LONG, managing, worker_of
from served_home import Served

pytestmark = [pytest.mark.server, pytest.mark.long]
GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "use-the-manager.md"


@contextmanager
def asking(served: Served, hplm: str) -> Iterator[list[int]]:
    """Ask again and again meanwhile; the versions that answered. An error ends the test."""
    versions: list[int] = []
    stopping = threading.Event()
    errors: list[Exception] = []

    def ask() -> None:
        with HplmClient(served.grpc_url) as client:
            while not stopping.wait(0.02):
                try:
                    versions.append(client.infer(hplm, "my cat is under the cat").version)
                except Exception as error:
                    errors.append(error)
                    return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield versions
    finally:
        stopping.set()
        thread.join()
    assert not errors


def test_the_walk_of_the_guide_and_a_killed_update(served: Served, tmp_path: Path) -> None:
    script = re.search(r"```bash\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert script is not None
    write_corpus(tmp_path / "shop.txt", 300, seed=77)
    files = write_task(tmp_path, "topic", seed=5)
    with managing(served.home) as managed:
        environment = {**os.environ, "MANAGER": str(managed.http.base_url)}
        walk = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script[1]],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert walk.returncode == 0, walk.stderr
        assert "\ndone\n" in walk.stdout
        assert '"domain":"shop@1"' in walk.stdout
        with HplmClient(served.grpc_url) as client:
            assert client.infer("acme/returns", "my cat is under the cat").label in TOPICS
        with asking(served, "acme/returns") as versions:
            update = managed.tune(files, kind="hplm.update", id="acme/returns", tune=LONG)
            worker_of(managed.at_work(update)).kill()
            managed.at_work(update, attempt=2)
            managed.http.post(f"/v1/jobs/{update}/cancel")
            assert managed.end(update)["state"] == "cancelled"
        assert len(versions) > 10
        assert set(versions) == {1}
        gone = [managed.end(managed.submit(kind="hplm.delete", id="acme/returns"))]
        gone.append(managed.end(managed.submit(kind="domain.delete", name="shop")))
        assert [job["state"] for job in gone] == ["done", "done"]
