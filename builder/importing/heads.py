"""Heads as the libraries keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from backends.adapters.head import Head
from backends.errors import InvalidArgumentError

_DENSE_ACTIVATIONS = {"roberta": "tanh", "electra": "gelu"}
"""The activation after the dense layer of a model family's classification head."""

_POOLED_CLASSIFIER = {"classifier.weight", "classifier.bias"}
_POOLER = {"pooler.dense.weight", "pooler.dense.bias"}
_DISTILBERT_CLASSIFIER = {"pre_classifier.weight", "pre_classifier.bias", *_POOLED_CLASSIFIER}
_DENSE_CLASSIFIER = {
    "classifier.dense.weight",
    "classifier.dense.bias",
    "classifier.out_proj.weight",
    "classifier.out_proj.bias",
}


@dataclass(frozen=True)
class ImportedHead:
    """A head and the task that it is for; with `needs_pooler` its dense layer is the pretrained model's pooler."""

    head: Head
    task: str
    labels: tuple[str, ...] | None = None
    needs_pooler: bool = False

    @property
    def num_outputs(self) -> int:
        return len(self.head.bias)

    @property
    def pooling(self) -> str:
        return "none" if self.task == "ner" else "cls"


def row_task(num_outputs: int) -> str:
    """Tell the task as the libraries do: one number is a regression."""
    return "regression" if num_outputs == 1 else "classification"


def with_pooler(imported: ImportedHead, pooler: tuple[Tensor, Tensor]) -> Head:
    """The classifier behind BERT's pooler."""
    head, (weight, bias) = imported.head, pooler
    return Head(head.weight, head.bias, weight.float(), bias.float(), "tanh")


def model_head(tensors: Mapping[str, Tensor], family: str, per_token: bool, where: str) -> ImportedHead:
    """The head of the model classes for sequence and token classification, from its tensors' own names."""
    names = set(tensors)
    if names >= _POOLED_CLASSIFIER and names - _POOLED_CLASSIFIER in (set(), _POOLER):
        return _pooled_head(tensors, family, per_token, where)
    if names == _DENSE_CLASSIFIER and not per_token and family in _DENSE_ACTIVATIONS:
        return _row_head(tensors, "classifier.dense", "classifier.out_proj", _DENSE_ACTIVATIONS[family])
    if names == _DISTILBERT_CLASSIFIER and not per_token:
        return _row_head(tensors, "pre_classifier", "classifier", "relu")
    raise InvalidArgumentError(f"{where}: a head of {', '.join(sorted(names))} is of no kind that is known here")


def _row_head(tensors: Mapping[str, Tensor], dense: str, last: str, activation: str) -> ImportedHead:
    head = Head(
        weight=tensors[f"{last}.weight"],
        bias=tensors[f"{last}.bias"],
        dense_weight=tensors[f"{dense}.weight"],
        dense_bias=tensors[f"{dense}.bias"],
        activation=activation,
    )
    return ImportedHead(head, row_task(len(head.bias)))


def _pooled_head(tensors: Mapping[str, Tensor], family: str, per_token: bool, where: str) -> ImportedHead:
    head = Head(tensors["classifier.weight"], tensors["classifier.bias"])
    if per_token:
        return ImportedHead(head, "ner")
    if family != "bert":
        raise InvalidArgumentError(f"{where}: a {family} model has no plain classifier over its rows")
    imported = ImportedHead(head, row_task(len(head.bias)), needs_pooler=True)
    if "pooler.dense.weight" not in tensors:
        return imported
    own = tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]
    return ImportedHead(with_pooler(imported, own), imported.task)
