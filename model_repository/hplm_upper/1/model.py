"""Triton glue of the upper half: hidden rows in, answers out, whenever the engine has them.

`execute` copies the tensors and returns nothing; the answers go through each request's response sender.
"""

import logging

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from backends.engine.service import UpperService
from backends.engine.stack import StackSettings
from backends.errors import HplmError
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
            max_bottleneck=settings.number("max_bottleneck", 64),
        )
        capacity = Capacity(
            max_rows=settings.number("max_rows", 64),
            max_tokens=settings.number("max_tokens", 4096),
            max_adapters=stack.num_slots - 1,
        )
        self._snapshot = RegistrySnapshot(Registry.open(settings.home))
        self._service = UpperService(settings.home, self._snapshot, stack, capacity)

    def execute(self, requests: list) -> None:
        for request in requests:
            hidden, tickets = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in (HIDDEN, TICKET))
            self._service.submit(hidden, tickets, _responder(request.get_response_sender()))

    def finalize(self) -> None:
        self._service.close()
        self._snapshot.close()


def _responder(sender: object) -> object:
    def respond(answers: list[bytes] | HplmError) -> None:
        if isinstance(answers, HplmError):
            response = pb_utils.InferenceResponse(error=triton_error(pb_utils, answers))
        else:
            result = np.array(answers, dtype=np.object_).reshape(-1, 1)
            response = pb_utils.InferenceResponse([pb_utils.Tensor(RESULT, result)])
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    return respond
