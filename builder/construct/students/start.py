"""What the tuning of an hPLM's students begins with."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.head import Head
from backends.adapters.parts import Bottleneck, Part
from backends.adapters.pooling import PAIR_POOLING, POOLED_STATES
from backends.adapters.recipe import AdapterRecipe
from builder.construct.hplm.tunable import Tuned, head_through
from builder.construct.students.tunable import StudentLayers, TunedStudents


def start_of(students: StudentLayers, recipe: AdapterRecipe, own: Tuned) -> TunedStudents:
    """Return the adapters and heads that students begin with, by what the hPLM has of its `own`.

    Students that are the root's first upper layers begin with what its adapters change in these, as far as the recipe
    has room for all of them; others with adapters that change nothing.

    Heads say what students say to the hPLM's own head. What is pooled of a sum of mapped states is the sum of what is
    pooled, except for pairs, and a dense layer in front is not linear. So in parallel such a head is the hPLM's own,
    and those of students that do not say everything by themselves say nothing yet; of pairs it is also in a chain,
    unless students are narrow.
    """
    fresh = recipe.identity(students.geometry, students.layers)
    adapters = _begun_as(own.adapters, fresh) if students.are_first_layers else fresh
    return TunedStudents(adapters, tuple(_heads(students, own.head, own.pooling)))


def _begun_as(own: AdapterSet, fresh: AdapterSet) -> AdapterSet:
    """Return adapters that change the first layers as `own` do; `fresh` ones where these lack the room."""
    parts, tensors = fresh.parts(), own.named()
    if not all(key in parts and _has_room(parts[key], part) for key, part in own.parts().items()):
        return fresh

    def begun(name: str, tensor: Tensor) -> Tensor:
        if name not in tensors:
            return tensor
        first, begun = tensors[name][: len(tensor)], tensor.clone()
        # What is wider than the own adapters has zeros on one side, which change nothing.
        begun[tuple(map(slice, first.shape))] = first.to(begun)
        return begun

    return fresh.map(begun)


def _has_room(fresh: Part, own: Part) -> bool:
    if isinstance(fresh, Bottleneck) and isinstance(own, Bottleneck):
        alike = (fresh.activation, fresh.norm_first) == (own.activation, own.norm_first)
        return alike and own.width <= fresh.width
    return own.width <= fresh.width


def _heads(students: StudentLayers, head: Head, pooling: str) -> list[Head]:
    is_whole = [student in students.shape.whole for student in range(students.shape.count)]
    if head.dense_weight is not None or pooling == PAIR_POOLING:
        is_mapped = len(students.inputs) > 0 or (students.shape.is_chained and pooling != PAIR_POOLING)
        own = [head_through(head, each, POOLED_STATES[pooling]) if is_mapped else head for each in students.maps]
        return [each if says else _silent(own[0]) for each, says in zip(own, is_whole, strict=True)]
    silent = replace(head, bias=torch.zeros(len(head.bias)))
    pairs = zip(students.maps, is_whole, strict=True)
    return [head_through(head if says else silent, each, 1) for each, says in pairs]


def _silent(head: Head) -> Head:
    said = ("weight", "bias")
    return head.map(lambda name, one: torch.zeros_like(one) if name in said else one.clone())
