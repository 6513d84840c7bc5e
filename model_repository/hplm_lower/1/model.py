"""Triton glue of the lower half: texts in, folded hidden rows and tickets out. The work is in `backends.lower`."""

import logging

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from backends.errors import HplmError, InvalidArgumentError, presentable
from backends.lower.metrics import HitMetrics
from backends.lower.service import LowerService, TextRequest
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.triton_errors import triton_error
from backends.wire import HIDDEN, MODEL, TEXT, TICKET


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        settings = ModelSettings.from_triton(args)
        torch.set_num_threads(settings.number("threads", 1))
        self._snapshot = RegistrySnapshot(Registry.open(settings.home))
        self._service = LowerService(settings.home, self._snapshot)
        self._service.warm_up()
        self._metrics = HitMetrics(pb_utils, lambda: self._service.statistics)

    def execute(self, requests: list) -> list:
        results = self._service.encode([_read(request) for request in requests])
        return [_response(result) for result in results]

    def finalize(self) -> None:
        self._metrics.close()
        self._snapshot.close()


def _read(request: "pb_utils.InferenceRequest") -> TextRequest | HplmError:
    try:
        models, texts = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in (MODEL, TEXT))
        return TextRequest(models.reshape(-1).tolist(), texts.reshape(-1).tolist(), request.parameters())
    except UnicodeDecodeError:
        return InvalidArgumentError("the request parameters are not UTF-8")
    except Exception as error:
        return presentable(error)


def _response(result: object) -> "pb_utils.InferenceResponse":
    if isinstance(result, HplmError):
        return pb_utils.InferenceResponse(error=triton_error(pb_utils, result))
    hidden = pb_utils.Tensor(HIDDEN, result.hidden)
    return pb_utils.InferenceResponse([hidden, pb_utils.Tensor(TICKET, np.ascontiguousarray(result.tickets))])
