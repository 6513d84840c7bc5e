"""Overload and floods on the real Triton, with an engine that a test can make slow or stop."""

from __future__ import annotations

import fcntl
import re
import shutil
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from backends.home import Home
from backends.registry.registry import Registry
from backends.scheduling.settings import AdmissionSettings
from bench.kit.turns import Ablation, code_with_turns
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import TritonServer
from hplm_client import HplmClient
from served_home import config_of

pytestmark = [pytest.mark.server, pytest.mark.serial]
DEADLINE_MS = 1000
GRACE_MS = 3000
"""For this test's own threads, on a machine that does other things too; without refusals answers come far later."""


@dataclass(frozen=True)
class Slow:
    """A server whose batches hold two rows, and whose engine stands still while `stopped`."""

    server: TritonServer
    turns: Path

    @contextmanager
    def stopped(self) -> Iterator[None]:
        with self.turns.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def slowed(self, batch_s: float = 0.03) -> Iterator[None]:
        """A batch takes at least so long."""
        ending = threading.Event()

        def hold_now_and_then() -> None:
            while not ending.wait(0.003):
                with self.stopped():
                    time.sleep(batch_s)

        thread = threading.Thread(target=hold_now_and_then)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self.server.metrics_url) as response:
            lines = response.read().decode().splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith(name)]
        return sum(float(value) for _, value in found)


@pytest.fixture(scope="module")
def slow(built_home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    folder = tmp_path_factory.mktemp("slow")
    home = Home(Path(shutil.copytree(built_home.path, folder / "home")))
    turns = folder / "turns"
    admission = AdmissionSettings(max_waiting=2000, tenant_quota=1500)
    parameters = {"dtype": "fp32", "slots": "5", "threads": "1", "max_rows": "2"}
    render_repository(
        home.repository,
        ExportSettings(lower_instances=1, upper_parameters={**parameters, **admission.parameters}),
        code_with_turns(folder / "code", Ablation(upper_turns=turns)),
    )
    with TritonServer(config_of(home)) as server:
        with HplmClient(f"grpc://{server.grpc_url}") as client:
            for entry in Registry.open(home).hplms():
                client.infer(entry.id, "my cat is lovely")
        yield Slow(server, turns)


@dataclass
class Asked:
    """Requests that were sent, and what came of them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    latencies_ms: list[float] = field(default_factory=list)
    errors: list[InferenceServerException] = field(default_factory=list)
    sent: int = 0

    @property
    def done(self) -> int:
        return len(self.latencies_ms) + len(self.errors)

    def send(self, client: Any, tensors: list[Any], deadline_ms: int | None = None, model: str = "hplm") -> Any:
        began = time.monotonic()

        def note(result: object, error: InferenceServerException | None) -> None:
            with self.lock:
                if error is not None:
                    self.errors.append(error)
                else:
                    self.latencies_ms.append(1000 * (time.monotonic() - began))

        self.sent += 1
        parameters = None if deadline_ms is None else {"deadline_ms": deadline_ms}
        return client.async_infer(model, tensors, note, parameters=parameters)


def text_tensors(hplm: str) -> list[Any]:
    tensors = []
    for name, value in (("MODEL", hplm), ("TEXT", "the cat and the hammer were lovely in the rain today")):
        tensors.append(triton.InferInput(name, [1, 1], "BYTES"))
        tensors[-1].set_data_from_numpy(np.array([[value.encode()]], np.object_))
    return tensors


def wait_until(is_so: Callable[[], bool], timeout_s: float = 120.0) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.05)


def test_at_overload_everybody_is_answered_in_time_or_refused(slow: Slow) -> None:
    asked, client = Asked(), triton.InferenceServerClient(slow.server.grpc_url)
    before = slow.metric('hplm_refusals_total{reason="predicted_late"}')
    with slow.slowed(batch_s=0.1):
        end = time.monotonic() + 6
        while time.monotonic() < end:
            asked.send(client, text_tensors("acme/topic"), DEADLINE_MS)
            time.sleep(0.005)
        wait_until(lambda: asked.done == asked.sent)
    late = [latency for latency in asked.latencies_ms if latency > DEADLINE_MS + GRACE_MS]
    assert not late, f"{len(late)} of {len(asked.latencies_ms)} answers came late, the last after {max(late)} ms"
    assert len(asked.latencies_ms) > 30, "overload is no reason to answer nobody"
    assert asked.errors, "this was no overload"
    assert all("UNAVAILABLE" in str(error.status()) for error in asked.errors)
    predicted = [error for error in asked.errors if "predicted to be answered in" in error.message()]
    assert predicted, Counter(error.message() for error in asked.errors).most_common(5)
    for error in predicted:
        told = re.search(r"predicted to be answered in (\d+) ms; the deadline is in (\d+) ms", error.message())
        assert told is not None and int(told[1]) >= int(told[2])
    wait_until(lambda: slow.metric('hplm_refusals_total{reason="predicted_late"}') >= before + len(predicted))
    for kind in ("predicted", "uncorrected", "measured"):
        assert slow.metric(f'hplm_batch_us_total{{time="{kind}"}}') > 0


def test_a_flood_of_one_tenant_does_not_starve_the_others(slow: Slow) -> None:
    """First come, first served would let the others wait for all of the flood, and miss their deadlines."""
    flood, others, client = Asked(), Asked(), triton.InferenceServerClient(slow.server.grpc_url)
    with slow.slowed(0.045):  # figures are two seconds old, and shall still see the flood
        learned = Asked()
        for _ in range(100):  # the engine must find out first how slow it has become
            learned.send(client, text_tensors("acme/mood"))
        wait_until(lambda: learned.done == learned.sent)
        for _ in range(900):
            flood.send(client, text_tensors("acme/topic"))
        wait_until(lambda: slow.metric("hplm_waiting_rows") >= 400)
        for _ in range(30):
            for hplm in ("globex/topic", "initech/mood"):
                others.send(client, text_tensors(hplm), deadline_ms=5000)
            while flood.sent - flood.done < 600:  # the engine is faster where this process lacks its core
                flood.send(client, text_tensors("acme/topic"))
            time.sleep(0.1)
        wait_until(lambda: others.done == others.sent)
        assert flood.done < flood.sent, "the flood ended before it could harm anybody"
    wait_until(lambda: flood.done == flood.sent, timeout_s=240)
    answered = len(others.latencies_ms) / others.sent
    assert answered >= 0.95, [str(error) for error in others.errors[:5]]
    assert not flood.errors, "nor is the flood starved"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 12.5, 2**63, True, "5"])
def test_deadlines_that_are_no_whole_numbers(slow: Slow, value: Any) -> None:
    request = triton.service_pb2.ModelInferRequest(model_name="hplm")
    for name, content in (("MODEL", b"acme/topic"), ("TEXT", b"cat")):
        request.inputs.add(name=name, datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(content)
    parameter = request.parameters["deadline_ms"]
    match value:
        case bool():
            parameter.bool_param = value
        case int():
            parameter.uint64_param = value
        case float():
            parameter.double_param = value
        case str():
            parameter.string_param = value
    client = triton.InferenceServerClient(slow.server.grpc_url)
    with pytest.raises(Exception, match=r"deadline_ms|parameters") as caught:
        client._client_stub.ModelInfer(request)
    assert "INVALID_ARGUMENT" in str(caught.value)
