"""Triton glue of the lower half: texts in, folded hidden rows and tickets out. The work is in `backends.lower`.

`execute` answers what is wrong or rejected at once. The queue answers the rest, through response senders.
"""

import json
import logging
import os
from pathlib import Path

from backends.collection import exclude_loaded_objects, pause_collection
from backends.openmp import limit_spinning

pause_collection()
limit_spinning()

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from backends.deadline_batcher import FILE_NAME
from backends.draining import draining_error, is_draining
from backends.ending import end_process
from backends.errors import HplmError, InvalidArgumentError, presentable
from backends.heartbeat import Heartbeat
from backends.logs import configure_logging
from backends.lower.caller_check import Auth
from backends.lower.encode_queue import EncodeQueue
from backends.lower.fragments import dtype_in_force
from backends.lower.metrics import LowerMetrics
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, QueueSettings, TextLimits
from backends.model_instances import instances_of
from backends.model_settings import ModelSettings
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.staleness import StalenessSettings
from backends.seal import Seal
from backends.standstill import SHORT_CALLS_S, Standstill
from backends.trace import TRACE_VARIABLE, Lane, span, start_tracing, stop_tracing
from backends.traffic.recorder import TrafficRecorder
from backends.traffic.settings import TrafficSettings
from backends.trimming import Trimming
from backends.triton_caller import Caller
from backends.triton_errors import triton_error
from backends.wire import HIDDEN, MODEL, TEXT, TICKET, WORDS, fold_words

LOGGER = logging.getLogger("hplm_lower")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        configure_logging(args["model_instance_name"])
        settings = ModelSettings.from_triton(args)
        threads = settings.number("threads", 1)
        torch.set_num_threads(threads)
        # Read by the tokenizer, which otherwise takes all cores for every batch.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", str(threads > 1).lower())
        start_tracing(os.environ.get(TRACE_VARIABLE), args["model_instance_name"])
        _warn_without_plugin(args)
        staleness = StalenessSettings.from_model(settings)
        self._snapshot = RegistrySnapshot.open(settings.home, staleness, args["model_instance_name"])
        instances = instances_of(args)
        filling, process = FillingSettings.from_model(settings), args["model_instance_name"]
        traffic = TrafficSettings.from_model(settings)
        self._service = LowerService(
            settings.home,
            self._snapshot,
            filling,
            instances=instances,
            auth=(auth := Auth.from_model(settings)),
            seal=Seal.of_server(),
            limits=TextLimits.from_model(settings),
            traffic=TrafficRecorder(settings.home.traffic, process, traffic) if traffic.record else None,
        )
        self._service.warm_up()
        self._heartbeat = Heartbeat(process, ("encode",))
        queue = QueueSettings.from_model(settings, instances)
        self._queue = EncodeQueue(self._service, queue, end_process, self._heartbeat.beat_of("encode"))
        in_force = {
            **filling.parameters,
            **staleness.parameters,
            **traffic.parameters,
            "auth": auth.value,
            "dtype": dtype_in_force(filling.dtype),
        }
        self._metrics = LowerMetrics(pb_utils, self._service, self._queue, process, in_force)
        exclude_loaded_objects()
        self._trimming = Trimming()
        self._standstill = Standstill(SHORT_CALLS_S)

    def execute(self, requests: list) -> list:
        with self._standstill.call():
            return self._execute(requests)

    def _execute(self, requests: list) -> list:
        if is_draining():
            return [_response(draining_error()) for _ in requests]
        self._queue.begin_call()
        with span(Lane.RETRIEVAL, "read", requests=len(requests)):
            rejections = [self._add(request) for request in requests]
        self._queue.end_call()
        return [None if rejection is None else _response(rejection) for rejection in rejections]

    def _add(self, request: "pb_utils.InferenceRequest") -> HplmError | None:
        """Queue a request, or return why it is answered at once."""
        try:
            read = _read(request)
            if isinstance(read, HplmError):
                return read
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            sender, end = request.get_response_sender(), self._heartbeat.end_requests
            caller: Caller[HiddenRequest] = Caller(sender, _response, final, Lane.RETRIEVAL, end)
            error = self._queue.add(read, caller.respond)
            if error is None:
                self._heartbeat.begin_requests()  # it may be answered by now: for a moment the number is negative
            return error
        except Exception as error:  # a defect; leaving `execute`, it would fail all requests of the call
            LOGGER.exception("a request could not be queued")
            return presentable(error)

    def finalize(self) -> None:
        self._standstill.close()
        self._queue.close()
        self._trimming.close()
        self._metrics.close()
        self._service.close()
        self._snapshot.close()
        self._heartbeat.close()
        stop_tracing()


def _warn_without_plugin(args: dict[str, str]) -> None:
    plugin = Path(args["model_repository"]) / args["model_version"] / FILE_NAME
    if "dynamic_batching" in json.loads(args["model_config"]) and not plugin.exists():
        LOGGER.warning("without %s a text with a damaged length fails the requests that share its batch", plugin)


def _read(request: "pb_utils.InferenceRequest") -> TextRequest | HplmError:
    try:
        models, texts = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in (MODEL, TEXT))
        return TextRequest(models.reshape(-1).tolist(), texts.reshape(-1).tolist(), request.parameters())
    except UnicodeDecodeError:
        return InvalidArgumentError("the request parameters are not UTF-8")
    except Exception as error:
        return presentable(error)


def _response(result: HiddenRequest | HplmError) -> "pb_utils.InferenceResponse":
    if isinstance(result, HplmError):
        return pb_utils.InferenceResponse(error=triton_error(pb_utils, result))
    tickets, words = np.ascontiguousarray(result.tickets), fold_words(result.words)
    tensors = ((HIDDEN, result.hidden), (TICKET, tickets), (WORDS, words))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, tensor) for name, tensor in tensors])
