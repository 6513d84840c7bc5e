"""The policies once more, slow and obvious: lists, loops, one job after the other."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.scheduling.cost_model import BatchShape, CostModel
from backends.scheduling.settings import Capacity


@dataclass(frozen=True, eq=False)
class WaitingJob:
    root: str
    hplm_key: int
    num_tokens: int
    deadline_us: int | None = None
    arrived_us: int = 0
    depth: float = 1.0
    least_depth: float = 1.0
    most_depth: float = 1.0
    exit_depth: float = 1.0
    kept: float = 1.0


Queue = Sequence[WaitingJob]
Rank = Callable[[WaitingJob], float]


@dataclass(frozen=True)
class Moment:
    """All that a decision depends on, for the reference."""

    queue: Queue
    now_us: int
    capacity: Capacity
    patience_us: int
    batches_taken: int = 0


def random_moment(chance: random.Random) -> Moment:
    now_us = 1_000_000
    queue = sorted((_random_job(chance, now_us) for _ in range(chance.randint(1, 60))), key=lambda job: job.arrived_us)
    capacity = Capacity(chance.randint(1, 20), chance.randint(1, 400), chance.randint(1, 12))
    return Moment(queue, now_us, capacity, patience_us=chance.choice([0, 500, 900]), batches_taken=chance.randint(0, 7))


def _random_job(chance: random.Random, now_us: int) -> WaitingJob:
    deadline_us = chance.choice([None, now_us + chance.randint(1, 30), now_us + chance.randint(1, 3000)])
    return WaitingJob(
        chance.choice("aab"), chance.randrange(15), chance.randint(1, 60), deadline_us, now_us - chance.randint(0, 1000)
    )


def fits(jobs: Queue, capacity: Capacity) -> bool:
    within = (
        len(jobs) <= capacity.max_rows
        and sum(job.num_tokens for job in jobs) <= capacity.max_tokens
        and len({job.hplm_key for job in jobs}) <= capacity.max_adapters
    )
    return len(jobs) == 1 or within


def extended(batch: Queue, jobs: Queue, capacity: Capacity) -> list[WaitingJob]:
    """With all that fit, one after the other."""
    result = list(batch)
    for job in jobs:
        if fits([*result, job], capacity):
            result.append(job)
    return result


def until_full(batch: Queue, jobs: Queue, capacity: Capacity) -> list[WaitingJob]:
    """With the first ones, until the next does not fit."""
    result = list(batch)
    for job in jobs:
        if not fits([*result, job], capacity):
            break
        result.append(job)
    return result


def first_come(moment: Moment) -> list[WaitingJob]:
    return until_full([], [job for job in moment.queue if job.root == moment.queue[0].root], moment.capacity)


def aged(moment: Moment) -> list[WaitingJob]:
    oldest = moment.now_us - moment.patience_us
    return [job for job in moment.queue if job.deadline_us is None and job.arrived_us <= oldest]


def roots_that_may_run(moment: Moment) -> list[str]:
    """In the order in which they came."""
    old = aged(moment)
    if old and moment.batches_taken % 4 == 0:
        return [old[0].root]
    return list(dict.fromkeys(job.root for job in moment.queue))


def begun(moment: Moment, root: str) -> list[WaitingJob]:
    """The aged jobs' part."""
    limits = moment.capacity
    part = Capacity(*(max(1, most // 4) for most in (limits.max_rows, limits.max_tokens, limits.max_adapters)))
    return until_full([], [job for job in aged(moment) if job.root == root], part)


def ranked(moment: Moment, rank: Rank) -> list[WaitingJob]:
    roots = roots_that_may_run(moment)
    first = min((job for job in moment.queue if job.root in roots), key=rank)
    batch = begun(moment, first.root)
    others = [job for job in moment.queue if job.root == first.root and job not in batch]
    return extended(batch, sorted(others, key=rank), moment.capacity)


def shortest(moment: Moment) -> list[WaitingJob]:
    return ranked(moment, lambda job: job.num_tokens)


def earliest(moment: Moment) -> list[WaitingJob]:
    return ranked(moment, deadline)


def least_slack(moment: Moment, models: dict[str, CostModel]) -> list[WaitingJob]:
    def rank(job: WaitingJob) -> float:
        slack_us = deadline(job) - moment.now_us - models[job.root].predict_us(BatchShape.of([job], [job.depth]))
        return slack_us if slack_us >= 0 else math.inf

    return ranked(moment, rank)


def deadline_aware(moment: Moment, eta: float, q: float, slotted: bool = False) -> list[WaitingJob]:
    root = max(roots_that_may_run(moment), key=lambda root: most_worth(moment, root))
    limits = moment.capacity
    old = begun(moment, root)
    others = [job for job in moment.queue if job.root == root and job not in old]
    by_utility = sorted(others, key=lambda job: job.num_tokens)
    saturating = len(until_full(old, by_utility, limits)) - len(old)
    dominant = by_utility[: math.ceil(eta * saturating)]
    rest = by_utility[len(dominant) :]
    mean = sum(1 / job.num_tokens for job in dominant) / len(dominant) if dominant else math.inf
    worthy = [job for job in rest if 1 / job.num_tokens >= q * mean * (1 - 1e-9)]
    batch = extended([*old, *dominant], sorted(worthy, key=deadline), limits)
    batch = extended(batch, [job for job in rest if job not in worthy], limits)
    chosen = batch[len(old) :]
    if not slotted or (dominant and len(chosen) == len(others)):
        return batch
    return [*old, *in_slots(old, chosen, dominant, limits)]


def most_worth(moment: Moment, root: str) -> float:
    """Add up the worths of the shortest jobs that fit together, whatever their adapters."""
    limits = Capacity(moment.capacity.max_rows, moment.capacity.max_tokens, max_adapters=len(moment.queue))
    shortest = sorted((job for job in moment.queue if job.root == root), key=lambda job: job.num_tokens)
    return sum(1 / job.num_tokens for job in until_full([], shortest, limits))


def in_slots(old: Queue, chosen: Queue, dominant: Queue, limits: Capacity) -> list[WaitingJob]:
    if not dominant:
        return []
    size = max(job.num_tokens for job in dominant)
    slots: list[list[WaitingJob]] = [[] for _ in range(max(1, (limits.max_tokens - tokens_of(old)) // size))]
    kept = []
    for job in chosen:
        slot = next((slot for slot in slots if tokens_of([*slot, job]) <= size), None)
        if slot is not None:
            slot.append(job)
            kept.append(job)
    return kept


def tokens_of(jobs: Queue) -> int:
    return sum(job.num_tokens for job in jobs)


def deadline(job: WaitingJob) -> float:
    return math.inf if job.deadline_us is None else job.deadline_us
