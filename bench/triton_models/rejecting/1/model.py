"""Stands in the place of `hplm_lower` in `bench.overload`: reads each request and rejects it, with no work at all."""

import triton_python_backend_utils as pb_utils

_MESSAGE = (
    'predicted to be answered in 1010 ms; the deadline is in 940 ms {"reason": "predicted_late", "retry_after_ms": 70}'
)


class TritonPythonModel:
    def execute(self, requests: list) -> list:
        return [_rejected(request) for request in requests]


def _rejected(request: "pb_utils.InferenceRequest") -> "pb_utils.InferenceResponse":
    for name in ("MODEL", "TEXT"):
        pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1).tolist()
    request.parameters()
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(_MESSAGE, pb_utils.TritonError.UNAVAILABLE))
