"""A real tritonserver: ready, asked, stopped, killed; and nothing left behind in any case."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http

from backends.errors import NotFoundError
from builder.serving import (
    PortInUseError,
    ServerConfig,
    ServerNotReadyError,
    ServerStartError,
    TritonServer,
    keeper,
)
from builder.serving.run_folder import shm_prefix
from living_processes import living
from waiting import LIMIT_S, seconds_at_best, wait_until

pytestmark = pytest.mark.server

SHARED_MEMORY = Path("/dev/shm")
PARENT = """
import signal, sys, time
from pathlib import Path
from builder.serving import ServerConfig, TritonServer
from builder.termination import stop_signals_interrupt

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in a shell's background ignore it
with TritonServer(ServerConfig(repository=Path(sys.argv[1]), exit_timeout_s=2)) as server:
    print(server.pid, server.log_path.parent, flush=True)
    time.sleep(600)
"""


@dataclass(frozen=True)
class Traces:
    """What a running server has on this machine: processes, run folder, shared memory."""

    processes: list[psutil.Process]
    folder: Path

    @classmethod
    def of(cls, pid: int, folder: Path) -> "Traces":
        server = psutil.Process(pid)
        keeper = server.parent()
        assert keeper is not None
        traces = cls([keeper, server, *server.children(recursive=True)], folder)
        assert len(traces.processes) == 3  # the keeper, the server, one stub
        assert traces.regions()
        return traces

    def regions(self) -> list[Path]:
        return list(SHARED_MEMORY.glob(f"{shm_prefix(self.folder)}*"))

    def alive(self) -> list[psutil.Process]:
        return living(self.processes)

    def are_gone(self) -> bool:
        return not self.alive() and not self.folder.exists() and not self.regions()

    def is_locked(self) -> bool:
        """A process whose first thread is a zombie keeps its files until its last thread has ended."""
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def wait_until_dead(self) -> None:
        wait_for(lambda: not self.alive() and not self.is_locked(), self)

    def wait_until_gone(self) -> None:
        wait_for(self.are_gone, self)


def wait_for(condition: Callable[[], bool], traces: Traces) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, (traces.alive(), traces.folder, traces.regions())
        time.sleep(0.02)


def traces_of(server: TritonServer) -> Traces:
    return Traces.of(server.pid, server.log_path.parent)


def start_parent(repository: Path, code: str = PARENT) -> tuple[subprocess.Popen[str], Traces]:
    parent = subprocess.Popen([sys.executable, "-c", code, str(repository)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, folder = parent.stdout.readline().split()
    return parent, Traces.of(int(pid), Path(folder))


def ask(client_module, url: str, words: list[str]) -> list[str]:
    with client_module.InferenceServerClient(url) as client:
        tensor = client_module.InferInput("TEXT", [len(words), 1], "BYTES")
        tensor.set_data_from_numpy(np.array(words, dtype=object)[:, None])
        return [each.decode() for each in client.infer("echo", [tensor]).as_numpy("RESULT")[:, 0]]


def test_two_servers_answer_side_by_side_and_leave_nothing(make_repository, tmp_path):
    repository = make_repository()
    seen: list[str] = []
    first = TritonServer(ServerConfig(repository=repository), on_log=seen.append)
    second = TritonServer(ServerConfig(repository=repository, log_path=tmp_path / "logs" / "second.log"))
    with first:
        traces = traces_of(first)
        with second:
            for server in (first, second):
                words = [f"{server.pid} {n} ü" for n in range(5)]
                assert ask(tritonclient.grpc, server.grpc_url, words) == words
                assert ask(tritonclient.http, server.http_url, words) == words
            metrics = urllib.request.urlopen(first.metrics_url).read().decode()
            assert re.search(r'nv_inference_request_success{model="echo",version="1"} 2', metrics)
            assert len({*vars_of(first), *vars_of(second)}) == 6
        # The end of one is nothing to the other.
        assert ask(tritonclient.grpc, first.grpc_url, ["still"]) == ["still"]
        assert len(traces.alive()) == 3
        assert second.poll() == 0
    assert first.poll() == 0
    assert traces.are_gone()
    assert "successfully loaded 'echo'" in "\n".join(seen)
    assert "NVML" not in "\n".join(seen)
    assert "successfully unloaded 'echo'" in second.log_path.read_text()


def vars_of(server: TritonServer) -> list[int]:
    return [server.ports.http, server.ports.grpc, server.ports.metrics]


def test_the_environment_reaches_the_model_and_a_broken_one_fails_in_one_line(make_repository):
    repository = make_repository("raise RuntimeError('threads: ' + os.environ['OMP_NUM_THREADS'])", name="broken")
    server = TritonServer(ServerConfig(repository=repository, environment={"OMP_NUM_THREADS": "3"}))
    with pytest.raises(ServerStartError) as raised, server:
        pass
    message = str(raised.value)
    assert message.startswith(
        "tritonserver ended with code 1 while starting: model 'broken' did not load: RuntimeError: threads: 3"
    )
    assert "model.py" in message
    assert "\n" not in message
    assert len(message) < 400
    assert not server.log_path.parent.exists()


def test_what_lies_where_somebody_serves_from_is_not_imported(make_repository, tmp_path, monkeypatch):
    (tmp_path / "from" / "lies_there").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "from")
    looked_for = "from importlib.util import find_spec; raise RuntimeError(f'found {find_spec(\"lies_there\")}')"
    server = TritonServer(ServerConfig(repository=make_repository(looked_for, name="looking")))
    with pytest.raises(ServerStartError, match="RuntimeError: found None"), server:
        pass


@pytest.mark.long
def test_a_signal_that_ends_a_starting_server_is_named(make_repository):
    kill = "import psutil; next(p for p in psutil.Process().parents() if p.name() == 'tritonserver').send_signal(7)"
    server = TritonServer(ServerConfig(repository=make_repository(kill, name="deadly")))
    with pytest.raises(ServerStartError, match="tritonserver ended by SIGBUS while starting"), server:
        pass


def test_a_port_in_use_is_named_before_anything_starts(make_repository, busy_port):
    server = TritonServer(ServerConfig(repository=make_repository(), grpc_port=busy_port))
    before = set(Path(tempfile.gettempdir()).glob("hplm-triton-*"))

    def start():
        with pytest.raises(PortInUseError, match=f"port {busy_port} on 127.0.0.1 is in use"), server:
            pass

    assert seconds_at_best(start, 1.0) < 1.0
    assert server.poll() is None
    assert set(Path(tempfile.gettempdir()).glob("hplm-triton-*")) <= before


def test_a_missing_repository_is_named(tmp_path):
    with (
        pytest.raises(NotFoundError, match="no/repository"),
        TritonServer(ServerConfig(repository=tmp_path / "no/repository")),
    ):
        pass


def test_a_server_that_is_not_ready_in_time_says_so_and_can_be_stopped(make_repository):
    repository = make_repository("import time; time.sleep(60)", name="slow")
    server = TritonServer(ServerConfig(repository=repository, exit_timeout_s=1))
    server.start()
    with pytest.raises(ServerNotReadyError, match=r"not ready within 1\.5 s"):
        server.wait_ready(1.5)
    traces = traces_of(server)
    server.stop()
    assert traces.are_gone()


def test_a_request_that_hangs_does_not_keep_the_server_alive(make_repository):
    repository = make_repository()
    code = repository / "echo" / "1" / "model.py"
    code.write_text(code.read_text().replace("inputs = [", "import time; time.sleep(60); inputs = ["))
    with TritonServer(ServerConfig(repository=repository, exit_timeout_s=1)) as server:
        traces = traces_of(server)
        client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
        tensor = tritonclient.grpc.InferInput("TEXT", [1, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([["x"]], dtype=object))
        client.async_infer("echo", [tensor], callback=lambda result, error: None)
        time.sleep(0.5)
        started_s = time.monotonic()
        server.stop()
        assert time.monotonic() - started_s < LIMIT_S, "half of what the request takes"
    client.close()
    assert traces.are_gone()


def test_a_server_that_crashes_takes_its_stubs_along(make_repository):
    with TritonServer(ServerConfig(repository=make_repository())) as server:
        traces = traces_of(server)
        os.kill(server.pid, signal.SIGKILL)
        assert server.wait(timeout_s=LIMIT_S) == 128 + signal.SIGKILL
        assert traces.are_gone()


def test_a_killed_keeper_leaves_nothing(make_repository):
    with TritonServer(ServerConfig(repository=make_repository())) as server:
        traces = traces_of(server)
        traces.processes[0].kill()
        assert server.wait(timeout_s=LIMIT_S) == -signal.SIGKILL
    wait_until(traces.are_gone)  # the last process may be about to end


def test_a_model_whose_process_is_killed_takes_the_server_along(make_repository):
    """Triton 24.10 would stay ready, and answer nothing for that model any more."""
    with TritonServer(ServerConfig(repository=make_repository())) as server:
        traces = traces_of(server)
        (stub,) = psutil.Process(server.pid).children()
        os.kill(stub.pid, signal.SIGKILL)
        assert server.wait(timeout_s=LIMIT_S) == keeper.LOST_PROCESS_CODE
        assert server.failure_reason() == "a model's process ended by itself, by SIGKILL; the server ends too"
        assert traces.are_gone()


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, marks=pytest.mark.long),
        signal.SIGKILL,
    ],
    ids=lambda number: number.name,
)
def test_nothing_survives_the_end_of_the_program(make_repository, number):
    parent, traces = start_parent(make_repository())
    parent.send_signal(number)
    parent.wait(LIMIT_S)
    traces.wait_until_gone()


@pytest.mark.long
def test_sigterm_can_unwind_the_program(make_repository):
    code = PARENT.replace("with TritonServer", "with stop_signals_interrupt(), TritonServer")
    parent, traces = start_parent(make_repository(), code)
    parent.send_signal(signal.SIGTERM)
    parent.wait(LIMIT_S)
    assert traces.are_gone()


@pytest.mark.long
def test_a_server_started_on_a_thread_outlives_the_thread(make_repository):
    server = TritonServer(ServerConfig(repository=make_repository(), exit_timeout_s=2))
    with ThreadPoolExecutor(1) as threads:
        threads.submit(server.__enter__).result()
    time.sleep(0.3)
    assert ask(tritonclient.grpc, server.grpc_url, ["here"]) == ["here"]
    server.stop()


@pytest.fixture
def own_folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Servers of other tests start beside this one, and would remove what it leaves."""
    # A short path, since those of sockets are.
    with tempfile.TemporaryDirectory(prefix="hplm-test-") as folder, monkeypatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", None)
        yield


@pytest.mark.usefixtures("own_folders")
def test_the_next_start_removes_what_a_killed_machine_left_and_nothing_of_a_living_server(make_repository):
    repository = make_repository()
    parent, dead = start_parent(repository)
    dead.processes[0].suspend()  # so that the keeper cannot clean up
    for process in [*dead.processes[1:], dead.processes[0]]:
        process.kill()
    parent.kill()
    parent.wait()
    dead.wait_until_dead()
    assert dead.regions()
    assert dead.folder.exists()
    with TritonServer(ServerConfig(repository=repository)) as living:
        assert dead.are_gone()
        traces = traces_of(living)
        with TritonServer(ServerConfig(repository=repository)):
            assert len(traces.alive()) == 3
            assert traces.regions()
            assert ask(tritonclient.grpc, living.grpc_url, ["here"]) == ["here"]
