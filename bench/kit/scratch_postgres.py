"""A PostgreSQL server of its own, which lives as long as the block, from the programs that this machine has."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backends.errors import UnavailableError

_DEBIAN = Path("/usr/lib/postgresql")
_OWNER = "postgres"
_DATABASE = "hplm"
_PROGRAMS = ("initdb", "pg_ctl", "pg_dump", "psql", "createdb")


@dataclass(frozen=True)
class ScratchPostgres:
    programs: Path
    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://{_OWNER}@127.0.0.1:{self.port}/{_DATABASE}"

    def dump(self) -> str:
        """The whole database as it is now, as SQL."""
        return self._run("pg_dump", "--clean", "--if-exists", *self._where())

    def restore(self, dump: str) -> None:
        """In one transaction, as an operator would."""
        self._run("psql", "--quiet", "--single-transaction", "-v", "ON_ERROR_STOP=1", *self._where(), given=dump)

    def _where(self) -> Sequence[str]:
        return ("-h", "127.0.0.1", "-p", str(self.port), "-U", _OWNER, _DATABASE)

    def _run(self, program: str, *arguments: str, given: str | None = None) -> str:
        return _run([str(self.programs / program), *arguments], given)


@contextmanager
def scratch_postgres(*settings: str) -> Iterator[ScratchPostgres]:
    """Start a server with PostgreSQL's defaults, but for `settings` such as `fsync=off`.

    Raises:
        UnavailableError: PostgreSQL is not installed, or does not start.
    """
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as name:
        folder = Path(name)
        if os.geteuid() == 0:  # which PostgreSQL refuses to run as
            shutil.chown(folder, _OWNER)
        server = ScratchPostgres(programs, folder / "data", _free_port())
        told = ("listen_addresses=127.0.0.1", f"unix_socket_directories={folder}", *settings)
        options = " ".join([f"-p {server.port}", *(f"-c {setting}" for setting in told)])
        control = [str(programs / "pg_ctl"), "-D", str(server.folder), "-w"]
        _run([str(programs / "initdb"), "-D", str(server.folder), "-U", _OWNER, "--auth", "trust", "--no-sync"])
        _run([*control, "-l", str(folder / "log"), "-o", options, "start"])
        try:
            _run([str(programs / "createdb"), *server._where()])
            yield server
        finally:
            _run([*control, "-m", "immediate", "stop"])


def _programs() -> Path:
    """The newest version's folder."""
    found = shutil.which("initdb")
    of_debian = sorted(_DEBIAN.glob("*/bin"), key=lambda path: int(path.parent.name))
    candidates = of_debian if found is None else [Path(found).resolve().parent]
    for folder in reversed(candidates):
        if all((folder / program).exists() for program in _PROGRAMS):
            return folder
    raise UnavailableError(f"PostgreSQL is not installed: its programs {', '.join(_PROGRAMS)} were not found")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _run(command: Sequence[str], given: str | None = None) -> str:
    # Not by `subprocess`: it forks for another user, and a fork may fail where gRPC's threads are at work.
    as_owner = ("setpriv", f"--reuid={_OWNER}", f"--regid={_OWNER}", "--clear-groups") if os.geteuid() == 0 else ()
    done = subprocess.run([*as_owner, *command], input=given, text=True, capture_output=True, cwd="/")
    if done.returncode:
        raise UnavailableError(f"{Path(command[0]).name} failed: {done.stderr.strip()[-200:]}")
    return done.stdout
