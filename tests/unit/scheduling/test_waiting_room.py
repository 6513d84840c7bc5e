"""The waiting room against a list."""

from __future__ import annotations

import gc
import math
import random
import weakref

import numpy as np

from backends.scheduling.waiting_room import WaitingRoom
from policy_reference import WaitingJob


def random_jobs(chance: random.Random, now_us: int) -> list[WaitingJob]:
    return [
        WaitingJob(chance.choice("abc"), chance.randrange(99), chance.randint(1, 512), deadline_us, now_us)
        for deadline_us in chance.choices([None, now_us + 1, now_us + 5, now_us + 50], k=chance.choice([0, 1, 3, 90]))
    ]


def columns(room: WaitingRoom[WaitingJob]) -> list[list[object]]:
    roots = [room.root_name(number) for number in room.root.tolist()]
    numbers = [room.hplm_key, room.num_tokens, room.deadline_us, room.arrived_us]
    by_place = [room[place] for place in range(len(room))]
    return [list(room), by_place, roots, *(column.tolist() for column in numbers), [room.next_deadline_us]]


def expected(queue: list[WaitingJob]) -> list[list[object]]:
    deadlines = [math.inf if job.deadline_us is None else job.deadline_us for job in queue]
    fields = [[getattr(job, name) for job in queue] for name in ("root", "hplm_key", "num_tokens")]
    arrivals = [job.arrived_us for job in queue]
    return [queue, queue, *fields, deadlines, arrivals, [min(deadlines, default=math.inf)]]


def test_jobs_come_and_go_as_in_a_list() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    room: WaitingRoom[WaitingJob] = WaitingRoom()
    queue: list[WaitingJob] = []
    for now_us in range(400):
        match chance.choice(["add", "put back", "take", "late", "all"][: 5 if chance.random() < 0.1 else 4]):
            case "add":
                jobs = random_jobs(chance, now_us)
                room.add(jobs)
                queue = [*queue, *jobs]
            case "put back":
                jobs = random_jobs(chance, now_us)[:5]
                for job in reversed(jobs):
                    room.put_back(job)
                queue = [*jobs, *queue]
            case "take":
                places = chance.sample(range(len(queue)), min(len(queue), chance.randint(0, 70)))
                taken = room.take(np.array(places) if chance.random() < 0.5 else places)
                assert taken == [queue[place] for place in places], f"seed {seed}"
                queue = [job for place, job in enumerate(queue) if place not in places]
            case "late":
                late = [job for job in queue if job.deadline_us is not None and job.deadline_us <= now_us]
                assert room.take_late(now_us) == late, f"seed {seed}"
                queue = [job for job in queue if job not in late]
            case _:
                assert room.take_all() == queue
                queue = []
        assert columns(room) == expected(queue), f"seed {seed}"


def test_whoever_has_left_is_forgotten() -> None:
    """Their hidden states are most of the engine's memory."""
    jobs = [WaitingJob("a", key, 3, arrived_us=key) for key in range(200)]
    left = [weakref.ref(job) for job in jobs[:150]]
    room = WaitingRoom(jobs)
    room.take_batch(range(100))
    for job in reversed(room.take(range(50))):
        room.put_back(job)
    del job
    room.take(range(50))
    del jobs
    gc.collect()
    assert [job() for job in left if job() is not None] == []
    assert [job.hplm_key for job in room] == list(range(150, 200))


def test_only_batches_are_counted() -> None:
    room = WaitingRoom([WaitingJob("a", key, 3, deadline_us=key) for key in range(9)])
    room.take([0])
    room.take_late(3)
    assert room.batches_taken == 0
    room.take_batch([0, 1])
    assert room.batches_taken == 1


def test_jobs_stand_where_they_are_due() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    room: WaitingRoom[WaitingJob] = WaitingRoom()
    queue: list[tuple[float, WaitingJob]] = []
    for now_us in range(200):
        start_us = float(chance.randint(0, 50))
        jobs = random_jobs(chance, now_us)[:4]
        room.add(jobs, start_us)
        place = sum(1 for due_us, _ in queue if due_us <= start_us)
        queue[place:place] = [(start_us, job) for job in jobs]
        if chance.random() < 0.2:
            front = random_jobs(chance, now_us)[:2]
            for job in reversed(front):
                room.put_back(job)
            queue[:0] = [(-math.inf, job) for job in front]
        places = chance.sample(range(len(queue)), min(len(queue), chance.randint(0, 3)))
        room.take(places)
        queue = [one for place, one in enumerate(queue) if place not in places]
        assert columns(room) == expected([job for _, job in queue]), f"seed {seed}"
