"""The container file's lines, replayed; they must give a server that answers.

The replay shows that the copied files are enough, that pip builds and installs both distributions from them, that the
entry point is found on the PATH, and that the installed packages serve a mounted home. It does not show what only the
image has: its Python and pip, its own Triton, CUDA, and that all pinned dependencies can be fetched there.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.home import Home
from container_replay import ContainerReplay, instructions
from hplm_client import Classification, HplmClient
from source_tree import PROJECT

pytest.importorskip("setuptools", minversion="77")  # older ones know no license expressions

pytestmark = pytest.mark.server
FILE = PROJECT / "deploy" / "Containerfile"
FREE_PORTS = ["--http", "0", "--grpc", "0", "--metrics", "0"]


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> ContainerReplay:
    replay = ContainerReplay(tmp_path_factory.mktemp("container"))
    replay.run(FILE)
    return replay


@pytest.fixture
def address(container: ContainerReplay, tiny_home: Home) -> Iterator[str]:
    """The address of the server that the entry point starts on a mounted home."""
    home = Path(container.environment["HPLM_HOME"])
    shutil.copytree(tiny_home.path, home)
    program = shutil.which(container.command[0], path=container.environment["PATH"])
    assert program is not None and Path(program).is_relative_to(container.root)
    command = [program, *container.command[1:], *FREE_PORTS]
    server = subprocess.Popen(
        command,
        cwd=container.root,
        env={**container.environment, "HPLM_INSECURE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert server.stdout is not None
        ready = next(line for line in server.stdout if line.startswith("ready:"))
        yield re.findall(r"grpc://[\d.:]+", ready)[0].replace("0.0.0.0", "127.0.0.1")
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


@pytest.mark.long
def test_the_entry_point_serves_a_mounted_home(address: str) -> None:
    with HplmClient(address) as client:
        answer = client.infer("acme/topic", "my cat")
    assert isinstance(answer, Classification) and answer.hplm == "acme/topic"


@pytest.mark.long
def test_the_server_does_not_run_the_code_of_the_repository(container: ContainerReplay) -> None:
    program = (
        "import backends, builder, cli, hplm_client; print(backends.__file__, builder.__file__, hplm_client.__file__)"
    )
    command = [container.folder / "venv" / "bin" / "python", "-c", program]
    done = subprocess.run(command, cwd=container.root, capture_output=True, text=True, check=True)
    assert all(Path(file).is_relative_to(container.root) for file in done.stdout.split())


def test_the_image_is_a_triton_with_python_312() -> None:
    steps = dict(instructions(FILE))
    release = float(steps["ARG"].partition("=")[2])
    assert steps["FROM"] == "nvcr.io/nvidia/tritonserver:${TRITON}-py3" and release >= 25.07


def test_the_build_context_holds_what_is_copied() -> None:
    context = (FILE.with_name("Containerfile.dockerignore")).read_text(encoding="utf-8").splitlines()
    copied = {source for name, rest in instructions(FILE) if name == "COPY" for source in rest.split()[:-1]}
    assert copied == {line[1:] for line in context if line.startswith("!")}
