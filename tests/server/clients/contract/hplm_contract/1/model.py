"""The smallest server of the wire contract: answers follow from ID and text by rule, so that tests can check them.

`acme/topics`, `globex/topics`: classification; `acme/names`: entities; `acme/length`: regression. `slow/<ms>` answers
late, `fail/<CODE>` with that error, `crash/raise` by an exception, `crash/stub` by ending the process, `raw/<name>`
with a broken RESULT, `echo/parameters` with the request's parameters as its label. Any other ID is unknown.
"""

import json
import os
import re
import threading
import zlib

import numpy as np
import triton_python_backend_utils as pb_utils

_ENTITY = re.compile(r"[^\W\d_]+", re.UNICODE)
_LIMIT_CHARS = 1_000_000
_RAW = {"raw/not_json": b"\xff{", "raw/new_task": b'{"hplm": "raw/new_task", "version": 1, "task": "poetry"}'}


class RejectedError(Exception):
    def __init__(self, code, message):
        super().__init__(message)
        self.code = getattr(pb_utils.TritonError, code)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            models, texts = (_strings(request, name) for name in ("MODEL", "TEXT"))
            delay_s = sum(int(model.split("/")[1]) / 1000 for model in models if model.startswith("slow/"))
            arguments = (request.get_response_sender(), models, texts, request.parameters())
            if delay_s:
                threading.Timer(delay_s, _answer, arguments).start()
            else:
                _answer(*arguments)


def _strings(request, name):
    return [item.decode() for item in pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)]


def _answer(sender, models, texts, parameters):
    try:
        rows = [_row(model, text, parameters) for model, text in zip(models, texts, strict=True)]
        tensor = pb_utils.Tensor("RESULT", np.array(rows, dtype=object).reshape(-1, 1))
        response = pb_utils.InferenceResponse([tensor])
    except RejectedError as refusal:
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(str(refusal), refusal.code))
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _row(model, text, parameters):
    if model in _RAW:
        return _RAW[model]
    answer = {"hplm": model, "version": 3, **_body(model, text, parameters), "a_key_of_tomorrow": [1, 2]}
    if len(text) > _LIMIT_CHARS:
        answer["truncated"] = True
    return json.dumps(answer).encode()


def _body(model, text, parameters):
    tenant, name = model.split("/")
    if tenant == "fail":
        raise RejectedError(name, f"the {name} that was asked for")
    if model == "crash/raise":
        raise ValueError("a bug in the server")
    if model == "crash/stub":
        os._exit(1)
    if "bad row" in text:
        raise RejectedError("INVALID_ARG", f"{model} cannot read this text")
    if tenant == "slow" or name == "topics":
        return topics(model, text)
    if model == "echo/parameters":
        return {"task": "classification", "label": parameters, "score": 1.0, "scores": {parameters: 1.0}}
    if model == "acme/names":
        found = [match for match in _ENTITY.finditer(text) if match.group()[0].isupper()]
        return {"task": "ner", "entities": [_entity(match) for match in found]}
    if model == "acme/length":
        return {"task": "regression", "value": float(len(text))}
    raise RejectedError("NOT_FOUND", f"hPLM {model} is unknown")


def _entity(match):
    return {"start": match.start(), "end": match.end(), "text": match.group(), "label": "NAME", "score": 0.5}


def topics(model, text):
    first = zlib.crc32(f"{model}|{text}".encode()) % 1000 / 999
    scores = {"first": first, "second": 1 - first}
    label = max(scores, key=scores.get)
    return {"task": "classification", "label": label, "score": scores[label], "scores": scores}
