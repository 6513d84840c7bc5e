"""The format of `RESULT` for each task. A batch's answers are made in few array operations, and before any is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json import JSONEncoder
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.engine.answer_level import AnswerLevel, Scored
from backends.engine.entities import ScoredSpan, find_entities
from backends.engine.job import Answer, Job
from backends.errors import HplmError, presentable

Numbers = npt.NDArray[np.floating[Any]]
Starts = npt.NDArray[np.int64]
Fields = dict[str, object]

# One encoder for all answers: making one costs more than most answers.
_encode = JSONEncoder(ensure_ascii=False).encode


def format_answers(jobs: Sequence[Job], scored: Sequence[Scored]) -> list[Answer | HplmError]:
    """Make each job's answer from its finite logits, `[C]`, or `[L, C]` without pooling."""
    if not jobs:
        return []
    flat, starts = end_to_end([each.logits for each in scored])
    numbers = flat.astype(np.float64)
    scores = np.split(_softmax(numbers, starts), starts[1:])
    sure = _surest(numbers, starts, [1.0 if each.level is None else each.level.temperature for each in scored])
    return [_answer(*of_job) for of_job in zip(jobs, scored, scores, sure.tolist(), strict=True)]


def end_to_end(outputs: Sequence[Tensor]) -> tuple[Numbers, Starts]:
    """Lay the numbers of all outputs end to end; returns them, and where each output begins."""
    # Each operation on a tensor lets other threads go first, so most outputs, of one dimension, are taken as they are.
    flat = [output if output.ndim == 1 else output.flatten() for output in outputs]
    starts: Starts = np.cumsum([0, *(output.shape[0] for output in flat[:-1])])
    return torch.cat(flat).numpy(), starts


def _softmax(numbers: Numbers, starts: Starts) -> Numbers:
    """Compute the softmax of each output; only those of outputs of one dimension are used."""
    sizes = np.diff(starts, append=len(numbers))
    exponentials = np.exp(numbers - np.repeat(np.maximum.reduceat(numbers, starts), sizes))
    shares: Numbers = exponentials / np.repeat(np.add.reduceat(exponentials, starts), sizes)
    return shares


def _surest(numbers: Numbers, starts: Starts, temperatures: Sequence[float]) -> Numbers:
    """Compute the largest score of each output at its temperature."""
    scaled = numbers / np.repeat(temperatures, np.diff(starts, append=len(numbers)))
    surest: Numbers = np.maximum.reduceat(_softmax(scaled, starts), starts)
    return surest


def _answer(job: Job, scored: Scored, scores: Numbers, confidence: float) -> Answer | HplmError:
    entry, (output, level) = job.entry, scored
    try:
        found: Fields = {
            "hplm": entry.id,
            "version": entry.version,
            "task": entry.task,
            **_OF_TASK[entry.task](job, output, scores),
        }
        if job.truncated:
            found["truncated"] = True
        if not job.exact:
            found["exact"] = False
        if level is not None:
            found |= _of_level(job, output, level, confidence)
        return _encode(found).encode()
    except Exception as error:
        return presentable(error)


def _of_level(job: Job, output: Tensor, level: AnswerLevel, confidence: float) -> Fields:
    """Say how the answer came about; of tags, the least sure word counts, and numbers have no confidence."""
    said: Fields = {"level": level.name}
    if job.entry.task != "regression":
        is_of_words = job.words is not None and output.ndim > 1
        said["confidence"] = _rounded(_least_sure(job, output, level.temperature) if is_of_words else confidence)
    return said | ({"doubtful": True} if level.is_doubtful else {})


def _least_sure(job: Job, output: Tensor, temperature: float) -> float:
    first = [] if job.words is None else job.words.words.first_tokens.tolist()
    sure = torch.softmax(output[first] / temperature, dim=-1).amax(dim=-1)
    return float(sure.min()) if sure.numel() else 1.0


def _classification(job: Job, output: Tensor, scores: Numbers) -> Fields:
    rounded = [_rounded(score) for score in scores.tolist()]
    best = max(range(len(rounded)), key=rounded.__getitem__)
    labels = job.entry.labels
    return {"label": labels[best], "score": rounded[best], "scores": dict(zip(labels, rounded, strict=True))}


def _ner(job: Job, output: Tensor, scores: Numbers) -> Fields:
    if job.words is None:
        raise HplmError("a row of a NER task came without its words")
    text, words = job.words.text, job.words.words
    entities = find_entities(output[words.first_tokens.tolist()], words, text, job.entry.labels)
    return {"entities": [_entity(found, text) for found in entities]}


def _entity(found: ScoredSpan, text: str) -> Fields:
    span = found.span
    return {
        "start": span.start,
        "end": span.end,
        "text": text[span.start : span.end],
        "label": span.label,
        "score": _rounded(found.score),
    }


def _regression(job: Job, output: Tensor, scores: Numbers) -> Fields:
    return {"value": _rounded(float(output[0]))}


def _rounded(number: float) -> float:
    """Round to the precision of fp32."""
    return float(f"{number:.7g}")


_OF_TASK: Mapping[str, Callable[[Job, Tensor, Numbers], Fields]] = MappingProxyType(
    {"classification": _classification, "ner": _ner, "regression": _regression}
)
