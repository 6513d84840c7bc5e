"""Triton glue of the upper half: hidden rows in, answers out; or, of a stage that is not the last, states.

In mode `engine`, `execute` copies the tensors of requests and returns nothing; the answers go through their response
senders, whenever the engine has them. In mode `triton`, what `execute` gets is the batch, and it returns the answers.
"""

import json
import logging
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from backends.collection import exclude_loaded_objects, pause_collection
from backends.compiled import limit_compiled_products
from backends.openmp import limit_spinning

pause_collection()
limit_spinning()
limit_compiled_products()

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from backends.deadline_batcher import FILE_NAME
from backends.ending import end_process
from backends.engine.loop import LOOPS, ServeLoop
from backends.engine.metrics import UpperMetrics
from backends.engine.open_request import Answered
from backends.engine.passed import Passed
from backends.engine.service import HiddenRows, UpperService
from backends.engine.settings import EngineSettings
from backends.engine.ticket_gate import AGE_LIMIT_S, TicketGate
from backends.errors import HplmError, InvalidArgumentError, presentable, shown
from backends.heartbeat import Heartbeat
from backends.held_roots import held_roots
from backends.logs import configure_logging
from backends.model_settings import ModelSettings
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.settings import AdmissionSettings, PolicyName, PolicySettings
from backends.scheduling.wait_forecast import ForecastWriter
from backends.seal import Seal
from backends.stage_wire import MATES, STATES, encode_mates
from backends.standstill import LONG_CALLS_S, SHORT_CALLS_S, Standstill
from backends.trace import TRACE_VARIABLE, Lane, span, start_tracing, stop_tracing
from backends.trimming import Trimming
from backends.triton_caller import Caller
from backends.triton_errors import triton_error
from backends.wire import HIDDEN, RESULT, TICKET, WORDS, Int64Array, fold_rows, owned, unfold_words

LOGGER = logging.getLogger("hplm_upper")
_AGE_LIMIT_IN_QUEUE_S = 600.0


class TritonPythonModel:
    loop_type = ServeLoop
    """A bench may run another one."""

    def initialize(self, args: dict[str, str]) -> None:
        configure_logging(args["model_instance_name"])
        settings = ModelSettings.from_triton(args)
        self._batches_by_triton = _batches_by_triton(settings, args)
        self._seal = Seal.of_server()
        start_tracing(os.environ.get(TRACE_VARIABLE), args["model_instance_name"])
        on_gpu = args["model_instance_kind"] == "GPU"
        engine = EngineSettings.from_model(settings, f"cuda:{args['model_instance_device_id']}" if on_gpu else "cpu")
        torch.set_num_threads(1)  # this thread only takes rows in; the serve loop's own computes
        self._snapshot = RegistrySnapshot.open(settings.home)
        is_later_stage, self._is_last_stage = engine.stack.is_later_stage, engine.stack.next_stage is None
        # Rows of later stages are admitted already, and wait for no forecast.
        self._signal = None if is_later_stage else ForecastWriter(args["model_instance_name"])
        self._heartbeat = Heartbeat(args["model_instance_name"], LOOPS)
        admission = AdmissionSettings.from_model(settings)
        self._service = UpperService(
            settings.home,
            self._snapshot,
            engine.stack,
            engine.capacity,
            admission := replace(admission, predicts=False) if is_later_stage else admission,
            policy := PolicySettings() if is_later_stage else _policy(settings, self._batches_by_triton),
            None if self._signal is None else self._signal.tell,
            engine.threads,
            self.loop_type,
            end_process,
            _gate(self._seal, may_wait=self._batches_by_triton or is_later_stage),
            self._heartbeat.beat_of,
            held_roots(),
        )
        in_force = {
            "policy": policy.name.value,
            "mode": settings.text("mode", "engine"),
            **engine.parameters,
            "dtype": engine.dtype_in_force,
            **admission.parameters,
        }
        self._metrics = UpperMetrics(pb_utils, self._service, args["model_instance_name"], in_force, is_later_stage)
        exclude_loaded_objects()
        self._trimming = Trimming(self._service.release_unused)
        self._standstill = Standstill(LONG_CALLS_S if self._batches_by_triton else SHORT_CALLS_S)

    def execute(self, requests: list) -> list | None:
        with self._standstill.call():
            return self._execute(requests)

    def _execute(self, requests: list) -> list | None:
        if self._batches_by_triton:
            self._heartbeat.begin_requests(len(requests))
            answered = self._service.run([_read(request) for request in requests])
            self._heartbeat.end_requests(len(requests))
            with span(Lane.ANSWERING, "send", requests=len(requests)):
                return [_answer(answers) for answers in answered]
        with span(Lane.QUEUE, "read", requests=len(requests)):
            read = [one for one in map(self._taken, requests) if one is not None]
        try:
            self._service.submit_all([(rows, caller.respond) for rows, caller in read])
        except Exception as error:  # a defect; leaving this method, it would end the server for all
            LOGGER.exception("requests could not be queued")
            for _, caller in read:
                caller.respond(presentable(error))
        return None

    def _taken(self, request: "pb_utils.InferenceRequest") -> "tuple[HiddenRows, Caller] | None":
        """Read a request, or answer it with its error; raises nothing."""
        read = _read(request)
        try:
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            is_last = self._is_last_stage or isinstance(read, HplmError)
            respond = _answer if is_last else partial(self._pass_on, owned(read.tickets))
            caller = Caller(request.get_response_sender(), respond, final, on_answered=self._heartbeat.end_requests)
            self._heartbeat.begin_requests()
        except Exception:  # a defect
            LOGGER.exception("a request cannot be answered")
            return None
        if isinstance(read, HplmError):
            caller.respond(read)
            return None
        return read, caller

    def _pass_on(self, tickets: Int64Array, answers: Answered) -> "pb_utils.InferenceResponse":
        """Hand a request's rows to the next stage, sealed with their tickets."""
        if isinstance(answers, HplmError):
            return _answer(answers)
        passed = [answer for answer in answers if isinstance(answer, Passed)]
        states = fold_rows([row.states for row in passed])
        mates = encode_mates([row.mates for row in passed], tickets, self._seal)
        return pb_utils.InferenceResponse([pb_utils.Tensor(STATES, states), pb_utils.Tensor(MATES, mates)])

    def finalize(self) -> None:
        self._standstill.close()
        self._trimming.close()
        self._metrics.close()
        self._service.close()
        if self._signal is not None:
            self._signal.close()
        self._heartbeat.close()
        self._snapshot.close()
        stop_tracing()


def _batches_by_triton(settings: ModelSettings, args: dict[str, str]) -> bool:
    mode = settings.text("mode", "engine")
    if mode not in ("engine", "triton"):
        raise InvalidArgumentError(f"model parameter 'mode' must be 'engine' or 'triton', not {shown(mode)}")
    plugin = Path(args["model_repository"]) / args["model_version"] / FILE_NAME
    if "dynamic_batching" in json.loads(args["model_config"]) and not plugin.exists():
        LOGGER.warning("there is no deadline batcher at %s; Triton closes batches by their rows alone", plugin)
    return mode == "triton"


def _gate(seal: Seal, may_wait: bool) -> TicketGate:
    """Tickets wait in Triton's queue in mode `triton`, or in the stages before; else hardly at all."""
    return TicketGate(seal, _AGE_LIMIT_IN_QUEUE_S if may_wait else AGE_LIMIT_S)


def _policy(settings: ModelSettings, batches_by_triton: bool) -> PolicySettings:
    """Return the exported policy; in mode `triton` the default one, because Triton forms the batches."""
    exported = PolicySettings.from_model(settings)
    if not batches_by_triton or exported.name is PolicyName.FCFS:
        return exported
    LOGGER.warning("policy %s chooses nothing in mode triton, where Triton forms the batches", exported.name.value)
    return PolicySettings()


def _read(request: "pb_utils.InferenceRequest") -> HiddenRows | HplmError:
    try:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        rows = tensors[STATES] if STATES in tensors else tensors[HIDDEN]
        return HiddenRows(rows, tensors[TICKET], unfold_words(tensors[WORDS]), tensors.get(MATES))
    except Exception as error:
        return presentable(error)


def _answer(answers: Answered) -> "pb_utils.InferenceResponse":
    if isinstance(answers, HplmError):
        return pb_utils.InferenceResponse(error=triton_error(pb_utils, answers))
    result = np.array(answers, dtype=np.object_).reshape(-1, 1)
    return pb_utils.InferenceResponse([pb_utils.Tensor(RESULT, result)])
