"""Runs tritonserver and ends with it: a small process between the server and the program that started it.

It stops the server when its standard input ends, which happens when the program asks for it and also when the program
dies in any way, kill -9 included. Then it ends the whole process group and removes the run folder and every
shared-memory region of the server. Run as a script, so only the standard library, and nothing of ours, is imported.

Usage:
    python keeper.py RUN_FOLDER SHM_PREFIX GRACE_S LOCK_DESCRIPTOR tritonserver --argument …
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    run_folder, shm_prefix, grace_s, lock, *command = sys.argv[1:]
    starter = os.getppid()
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stopping.set())
    # Stubs whose server died become children of this process, which can then wait for their end.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with _removed_at_end(Path(run_folder), shm_prefix):
        return _run(
            command, run_folder, int(lock), float(grace_s), lambda: stopping.is_set() or os.getppid() != starter
        )


def _run(command: list[str], folder: str, lock: int, grace_s: float, is_unwanted: Callable[[], bool]) -> int:
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        cwd=_empty(folder),  # stubs import what lies where they run, such as a folder "triton" of the operator
        pass_fds=(lock,),
        process_group=0,
        preexec_fn=_die_with_keeper,
    )
    try:
        os.write(1, f"{server.pid}\n".encode())
        _wait_for_end(server, is_unwanted)
        _stop(server, grace_s)
    finally:
        _kill_group(server)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _empty(folder: str) -> str:
    """A new folder in the run folder, with nothing in it that could be imported."""
    path = os.path.join(folder, "work")
    os.mkdir(path)
    return path


def _wait_for_end(server: "subprocess.Popen[bytes]", is_unwanted: Callable[[], bool]) -> None:
    """Return when the server has ended, or when its program has."""
    while server.poll() is None and not is_unwanted():
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable:
            return


def _stop(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    if server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(grace_s)


def _kill_group(server: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-server.pid, 0)


@contextlib.contextmanager
def _removed_at_end(run_folder: Path, shm_prefix: str) -> Iterator[None]:
    try:
        yield
    finally:
        for region in Path("/dev/shm").glob(f"{shm_prefix}*"):
            region.unlink(missing_ok=True)
        shutil.rmtree(run_folder, ignore_errors=True)


def _die_with_keeper() -> None:
    """In the child: a kill -9 of the keeper itself takes the server along; the stubs watch the server themselves."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
