"""Runs tritonserver and ends with it: a small process between the server and the program that started it.

It stops the server when its standard input ends, which happens when the program asks for it and also when the program
dies in any way, kill -9 included. It also stops a server one of whose models' processes has died, since Triton restarts
none. SIGUSR1 ends the server at once. Then the keeper ends the whole process group and removes the run folder and every
shared-memory region of the server. Run as a script, so only the standard library, and nothing of ours, is imported.

Usage:
    python keeper.py RUN_FOLDER SHM_PREFIX GRACE_S LOCK_DESCRIPTOR tritonserver --argument …
"""

import contextlib
import ctypes
import glob
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_S = 0.1
_LOOK_EVERY_POLLS = 10
LOST_PROCESS_CODE = 70
"""The exit code when a model's process has ended by itself, which Triton neither restarts nor reports as unready."""
KILL_SIGNAL = signal.SIGUSR1
"""Ends the server at once: also one that is stopped, or finishes requests."""
_STACK_BYTES = 256 << 20
"""The stack of each thread of the server, which takes memory as it is used; enough for bodies of about 120 MB."""
_UMASK = 0o077
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    run_folder, shm_prefix, grace_s, lock, *command = sys.argv[1:]
    starter = os.getppid()
    stopping = threading.Event()
    # KILL_SIGNAL gets its own handler once there is a server to kill.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, KILL_SIGNAL):
        signal.signal(number, lambda _number, _frame: stopping.set())
    # Stubs whose server died become children of this process, which can then wait for their end.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with _removed_at_end(Path(run_folder), shm_prefix):
        return _run(
            command,
            run_folder,
            shm_prefix,
            int(lock),
            float(grace_s),
            lambda: stopping.is_set() or os.getppid() != starter,
        )


def _run(
    command: list[str], folder: str, shm_prefix: str, lock: int, grace_s: float, is_unwanted: Callable[[], bool]
) -> int:
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=2,
        cwd=_empty(folder),  # stubs import what lies where they run, such as a folder "triton" of the operator
        pass_fds=(lock,),
        process_group=0,
        umask=_UMASK,
        preexec_fn=_prepare_server,
    )
    signal.signal(KILL_SIGNAL, lambda _number, _frame: _kill(server))
    try:
        os.write(1, f"{server.pid}\n".encode())
        lost = _wait_for_end(server, shm_prefix, is_unwanted)
        if lost is not None:
            os.write(2, f"a model's process ended by itself, {lost}; the server ends too\n".encode())
        _stop(server, grace_s)
    finally:
        _kill_group(server)
    if lost is not None:
        return LOST_PROCESS_CODE
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def _empty(folder: str) -> str:
    """A new folder in the run folder, with nothing in it that could be imported."""
    path = os.path.join(folder, "work")
    os.mkdir(path)
    return path


def _wait_for_end(server: "subprocess.Popen[bytes]", shm_prefix: str, is_unwanted: Callable[[], bool]) -> str | None:
    """Return when the server has ended, is unwanted, or has lost a process; only then, how that process ended.

    A process counts as lost when two looks, a second apart, find it uncollected: a failed load is collected at once.
    """
    seen: dict[int, str] = {}
    polls = 0
    while server.poll() is None and not is_unwanted():
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if readable:
            return None
        _make_private(shm_prefix)
        polls += 1
        if polls % _LOOK_EVERY_POLLS == 0:
            failed = _failed_children(server.pid)
            for pid in seen.keys() & failed.keys():
                return failed[pid]
            seen = failed
    return None


def _make_private(shm_prefix: str) -> None:
    """Leave new regions to this user alone, as the umask does not; no model has read a text by then."""
    for region in _regions(shm_prefix):
        with contextlib.suppress(OSError):
            region.chmod(0o600)


def _regions(shm_prefix: str) -> Iterator[Path]:
    return Path("/dev/shm").glob(f"{glob.escape(shm_prefix)}*")


def _failed_children(parent: int) -> dict[int, str]:
    """Describe each child that ended by a signal or with an exit code and that its parent has not collected."""
    failed = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name, which may hold blanks and brackets: state, parent, and last the exit status.
            state, parent_of, *_, status = path.read_text().rpartition(")")[2].split()
            if state == "Z" and int(parent_of) == parent and int(status):
                failed[int(path.parent.name)] = _described(int(status))
    return failed


def _described(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"with exit code {os.WEXITSTATUS(status)}"


def _stop(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    if server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(grace_s)


def _kill(server: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def _kill_group(server: "subprocess.Popen[bytes]") -> None:
    _kill(server)
    server.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-server.pid, 0)


@contextlib.contextmanager
def _removed_at_end(run_folder: Path, shm_prefix: str) -> Iterator[None]:
    try:
        yield
    finally:
        remove_remains(run_folder, shm_prefix)


def remove_remains(run_folder: Path, shm_prefix: str) -> None:
    """Remove what a server leaves that has ended: its regions of shared memory, and its folder."""
    for region in _regions(shm_prefix):
        region.unlink(missing_ok=True)
    shutil.rmtree(run_folder, ignore_errors=True)


def _prepare_server() -> None:
    """Run in the child, before it becomes the server."""
    # kill -9 of the keeper ends the server too; the stubs are left to the program that has started the keeper.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Triton 24.10 lays out each HTTP body of JSON on the stack, two bytes for one, and crashes where that ends.
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = _STACK_BYTES if most == resource.RLIM_INFINITY else min(_STACK_BYTES, most)
    resource.setrlimit(resource.RLIMIT_STACK, (wanted, most))


if __name__ == "__main__":
    sys.exit(main())
