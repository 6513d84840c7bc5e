"""Mode `engine`: Triton hands over in one call what waits, and no request costs those of its call anything."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from bad_rows import check_bad_rows_fail_alone
from hplm_client import HplmClient
from served_home import Served

pytestmark = pytest.mark.server
MIB = 1 << 20


def calls(served: Served, model: str) -> dict[int, int]:
    """How many calls of how many rows a model was given."""
    client = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    (statistics,) = client.get_inference_statistics(model).model_stats
    return {batch.batch_size: batch.compute_infer.count for batch in statistics.batch_stats}


def ask_at_once(served: Served, texts: list[bytes], parameters: dict[str, Any] | None = None) -> list[Any]:
    client = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    pending: list[Future[Any]] = [Future() for _ in texts]
    for text, future in zip(texts, pending, strict=True):
        tensors = []
        for name, value in (("MODEL", b"acme/topic"), ("TEXT", text)):
            tensor = tritonclient.grpc.InferInput(name, [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[value]], dtype=np.object_))
            tensors.append(tensor)
        client.async_infer(
            "hplm",
            tensors,
            lambda result, error, future=future: future.set_result(error or result),
            parameters=parameters,
        )
    return [future.result(timeout=60) for future in pending]


def test_a_call_brings_what_waits(served: Served) -> None:
    log = served.server.log_path.read_text()
    assert log.count("several requests share a call up to 16777216 bytes") == 2, "one for each model"
    before = {model: calls(served, model) for model in ("hplm_lower", "hplm_upper")}
    texts = [b"the cat is very good"] * 400
    answers = ask_at_once(served, texts)
    assert not any(isinstance(each, InferenceServerException) for each in answers)
    for model, earlier in before.items():
        made = {rows: count - earlier.get(rows, 0) for rows, count in calls(served, model).items()}
        assert sum(made.values()) < len(texts), f"{model}, of each number of rows: {made}"
        assert any(count for rows, count in made.items() if rows > 2), f"{model}, of each number of rows: {made}"


@pytest.mark.parametrize("where", ["text", "parameter"])
def test_a_call_of_several_requests_has_16_mib_at_most(served: Served, where: str) -> None:
    """Shared memory holds a call; one that finds too little fails with all its requests."""
    before = calls(served, "hplm_lower")
    text, parameters = (b"cat " * MIB, None) if where == "text" else (b"cat", {"unknown": "x" * (4 * MIB)})
    answers = ask_at_once(served, [text] * 24, parameters)
    errors = [str(each) for each in answers if isinstance(each, InferenceServerException)]
    expected = "bytes of this tenant's texts wait" if where == "text" else "unknown request parameter 'unknown'"
    assert all(expected in error for error in errors), set(errors)
    assert where == "text" or len(errors) == len(answers)
    after = calls(served, "hplm_lower")
    assert all(count == before.get(rows, 0) for rows, count in after.items() if rows > 3), (before, after)


def test_a_request_has_as_many_rows_as_the_ensemble_takes(served: Served) -> None:
    """Calls of `hplm_lower` may have more, so Triton lets such a request through to who asks it directly."""
    client = tritonclient.grpc.InferenceServerClient(served.grpc_url)
    tensors = []
    for name, value in (("MODEL", b"acme/topic"), ("TEXT", b"cat")):
        tensor = tritonclient.grpc.InferInput(name, [65, 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[value]] * 65, dtype=np.object_))
        tensors.append(tensor)
    with pytest.raises(InferenceServerException, match="a request has 65 rows, and only 64 may be in it"):
        client.infer("hplm_lower", tensors)


def test_a_bad_request_costs_its_call_nothing(served: Served) -> None:
    check_bad_rows_fail_alone(served.grpc_url)
    with HplmClient(f"grpc://{served.grpc_url}") as client:
        assert client.infer("acme/topic", "cat").hplm == "acme/topic"
