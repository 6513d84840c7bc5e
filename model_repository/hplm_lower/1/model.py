"""Triton glue of the lower half: texts in, folded hidden rows and tickets out. The work is in `backends.lower`."""

import logging
import os

from backends.openmp import limit_spinning

limit_spinning()

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from backends.call_limit import CallLimit
from backends.collection import exclude_loaded_objects
from backends.errors import HplmError, InvalidArgumentError, presentable
from backends.lower.metrics import LowerMetrics
from backends.lower.service import LowerService, TextRequest
from backends.lower.settings import FillingSettings
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.trace import TRACE_VARIABLE, Lane, span, start_tracing, stop_tracing
from backends.trimming import Trimming
from backends.triton_errors import triton_error
from backends.wire import HIDDEN, MODEL, TEXT, TICKET, WORDS


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        settings = ModelSettings.from_triton(args)
        threads = settings.number("threads", 1)
        torch.set_num_threads(threads)
        # Read by the tokenizer, which otherwise takes all cores for every batch.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", str(threads > 1).lower())
        start_tracing(os.environ.get(TRACE_VARIABLE), args["model_instance_name"])
        self._snapshot = RegistrySnapshot(Registry.open(settings.home))
        filling = FillingSettings.from_model(settings)
        self._service = LowerService(settings.home, self._snapshot, filling)
        self._service.warm_up()
        self._limit = CallLimit.from_triton(args)
        self._metrics = LowerMetrics(pb_utils, self._service, args["model_instance_name"], filling.parameters)
        exclude_loaded_objects()
        self._trimming = Trimming()

    def execute(self, requests: list) -> list:
        with span(Lane.RETRIEVAL, "read", requests=len(requests)):
            read = [_read(request) for request in requests]
        results = self._service.encode(read)
        with span(Lane.RETRIEVAL, "respond", requests=len(requests)):
            responses = [_response(result) for result in results]
        if not self._limit.was_call_full(_num_rows(read)) and not all(isinstance(one, HplmError) for one in results):
            self._service.delay_for_batching()
        return responses

    def finalize(self) -> None:
        self._trimming.close()
        self._metrics.close()
        self._service.close()
        self._snapshot.close()
        stop_tracing()


def _read(request: "pb_utils.InferenceRequest") -> TextRequest | HplmError:
    try:
        models, texts = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in (MODEL, TEXT))
        return TextRequest(models.reshape(-1).tolist(), texts.reshape(-1).tolist(), request.parameters())
    except UnicodeDecodeError:
        return InvalidArgumentError("the request parameters are not UTF-8")
    except Exception as error:
        return presentable(error)


def _num_rows(read: list[TextRequest | HplmError]) -> int:
    return sum(len(one.texts) for one in read if isinstance(one, TextRequest))


def _response(result: object) -> "pb_utils.InferenceResponse":
    if isinstance(result, HplmError):
        return pb_utils.InferenceResponse(error=triton_error(pb_utils, result))
    words = np.array(result.words, dtype=np.object_).reshape(-1, 1)
    tensors = ((HIDDEN, result.hidden), (TICKET, np.ascontiguousarray(result.tickets)), (WORDS, words))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, tensor) for name, tensor in tensors])
