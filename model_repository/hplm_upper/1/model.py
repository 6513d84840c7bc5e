"""Triton glue of the upper half: hidden rows in, answers out, whenever the engine has them.

`execute` copies the tensors and returns nothing; the answers go through each request's response sender.
"""

import logging

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from backends.adapters.bottleneck import MAX_BOTTLENECK
from backends.engine.loop import DEFAULT_MAX_WAITING
from backends.engine.service import RespondRequest, UpperService
from backends.engine.stack import StackSettings
from backends.errors import HplmError, presentable
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.policy import Capacity
from backends.triton_errors import triton_error
from backends.wire import HIDDEN, RESULT, TICKET


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        settings = ModelSettings.from_triton(args)
        if threads := settings.number("threads", 0):
            torch.set_num_threads(threads)
        on_gpu = args["model_instance_kind"] == "GPU"
        stack = StackSettings(
            device=f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu",
            dtype=settings.text("dtype", "bf16"),
            num_slots=settings.number("slots", 65),
            max_bottleneck=settings.number("max_bottleneck", MAX_BOTTLENECK),
        )
        capacity = Capacity(
            max_rows=settings.number("max_rows", 64),
            max_tokens=settings.number("max_tokens", 4096),
            max_adapters=stack.num_slots - 1,
        )
        self._snapshot = RegistrySnapshot(Registry.open(settings.home))
        max_waiting = settings.number("max_waiting", DEFAULT_MAX_WAITING)
        self._service = UpperService(settings.home, self._snapshot, stack, capacity, max_waiting)

    def execute(self, requests: list) -> None:
        for request in requests:
            respond = _responder(request.get_response_sender())
            try:
                tensors = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in (HIDDEN, TICKET)]
            except Exception as error:
                respond(presentable(error))
            else:
                self._service.submit(*tensors, respond)

    def finalize(self) -> None:
        self._service.close()
        self._snapshot.close()


def _responder(sender: object) -> RespondRequest:
    def respond(answers: list[bytes] | HplmError) -> None:
        try:
            sender.send(_response(answers), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception as error:  # shared memory may be full; a short error may still get through
            sender.send(_response(presentable(error)), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    return respond


def _response(answers: list[bytes] | HplmError) -> "pb_utils.InferenceResponse":
    if isinstance(answers, HplmError):
        return pb_utils.InferenceResponse(error=triton_error(pb_utils, answers))
    result = np.array(answers, dtype=np.object_).reshape(-1, 1)
    return pb_utils.InferenceResponse([pb_utils.Tensor(RESULT, result)])
