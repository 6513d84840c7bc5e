"""Whether the wire tells a foreign hPLM from one that does not exist by the time that it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from backends.errors import HplmError
from bench.kit.doors.tenants import TenantTokens
from builder.export.model_names import ENSEMBLE
from builder.serving import TritonServer

_BATCH = 50
_TEXT = b"my cat is lovely"


def foreign_timing(
    server: TritonServer, tokens: TenantTokens, asks: int, rng: np.random.Generator
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Ask for foreign and for absent hPLMs with one valid token, in batches by turns.

    A paired t-test of the batches' medians, which a scheduler that stops a process for a moment moves less than means.
    """
    caller, *others = tokens.tenants
    names = {
        "foreign": [f"{tenant}/topic" for tenant in others],
        "absent": [f"nobody{number:02}/topic" for number in range(len(others))],
    }
    client = triton.InferenceServerClient(server.grpc_url)
    parameters = {"tenant_token": tokens.right(caller)}
    inputs = {kind: [_inputs(name) for name in of_kind] for kind, of_kind in names.items()}
    _batch_us(client, inputs["foreign"] * 20, parameters)
    medians: dict[str, list[float]] = {"foreign": [], "absent": []}
    for _ in range(asks // (2 * _BATCH)):
        for kind in rng.permutation(["foreign", "absent"]):
            chosen = [inputs[kind][number] for number in rng.integers(len(others), size=_BATCH)]
            medians[kind].append(_batch_us(client, chosen, parameters))
    client.close()
    differences = np.array(medians["foreign"]) - np.array(medians["absent"])
    mean_us = float(np.mean([medians["foreign"], medians["absent"]]))
    error_us = float(differences.std(ddof=1) / np.sqrt(len(differences)))
    figures = {
        "foreign_timing_share": 100 * abs(float(differences.mean())) / mean_us,
        "foreign_timing_t": float(differences.mean()) / error_us,
        "foreign_timing_asks": float(2 * _BATCH * len(differences)),
    }
    row = {f"{kind} us": float(np.mean(of_kind)) for kind, of_kind in medians.items()}
    return figures, [{"what": "time of NOT_FOUND", **row, "error of the difference us": error_us}]


def _batch_us(client: Any, chosen: Sequence[list[Any]], parameters: dict[str, str]) -> float:
    """Return the median time of an ask; each must be told that there is no such hPLM."""
    taken = []
    for inputs in chosen:
        began = time.perf_counter()
        try:
            client.infer(ENSEMBLE, inputs, parameters=parameters)
        except InferenceServerException as error:
            if error.status() == "StatusCode.NOT_FOUND":
                taken.append(1e6 * (time.perf_counter() - began))
                continue
            raise
        raise HplmError("a foreign hPLM has answered")
    return median(taken)


def _inputs(hplm: str) -> list[Any]:
    inputs = []
    for name, value in (("MODEL", hplm.encode()), ("TEXT", _TEXT)):
        inputs.append(triton.InferInput(name, [1, 1], "BYTES"))
        inputs[-1].set_data_from_numpy(np.array([[value]], np.object_))
    return inputs
