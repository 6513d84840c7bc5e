"""What does it cost to decide what runs next, and how far from the best is it?

- `10: ms` to `10,000: ms`: a decision among so many waiting jobs, of two kinds: one root and deadlines, or eight roots,
  a third of the jobs without a deadline and most of these aged, and fewer adapters than rows. `turn`: the decision, the
  batch taken out and as many new jobs let in, at the longest queue.
- `% at 400/s`: a decision's share of a batch's time, with as many waiting as come while a batch of as many runs on this
  machine (10,000 if it does not keep up): TCB's wide lengths, random weights of BERT's size.
- `worst` and `mean`: what the policy reaches of the exact optimum of small random instances. TCB's Theorem 5.1 says how
  little it may be for DAS: the figure `bound`, for the default settings.
"""

from __future__ import annotations

import random
import statistics
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from backends.scheduling.cost_model import CostModel
from backends.scheduling.deadline_aware import DeadlineAware
from backends.scheduling.policies import Policy, policy_of
from backends.scheduling.settings import Capacity, DasSettings, PolicyName, PolicySettings
from backends.scheduling.waiting_room import WaitingRoom
from backends.stack_key import StackKey
from bench.kit.bare import ROWS, bare_engine, interleaved
from bench.kit.entry import Result, at_most, bench
from bench.kit.small_instances import Instance, optimum, random_instance
from bench.limit import geometry_of

RATE = 400
"""Requests per second."""
MOST_WAITING = 10_000
BATCH_SIZES = (1, 2, 4, 8, 16, 32, ROWS)
NOW_US = 10_000_000
LINEAR = CostModel(constant_us=2000, per_row_us=10, per_token_us=50, per_squared_length_us=0.05, per_adapter_us=50)
OTHER_DAS_SETTINGS = (DasSettings(0.25, 0.75), DasSettings(0.75, 0.25), DasSettings(0.9, 0.9))


@dataclass(frozen=True)
class Settings:
    repeats: int
    instances: int
    layers: int
    engine_repeats: int
    waiting: Sequence[int] = (10, 100, 1000, MOST_WAITING)
    rate: int = RATE


FULL = Settings(repeats=301, instances=10_000, layers=6, engine_repeats=9)
QUICK = Settings(repeats=31, instances=800, layers=6, engine_repeats=3)


@dataclass(frozen=True, eq=False)
class QueuedJob:
    root: StackKey
    hplm_key: int
    num_tokens: int
    deadline_us: int | None
    arrived_us: int
    depth: float = 1.0
    least_depth: float = 1.0
    most_depth: float = 1.0
    exit_depth: float = 1.0
    kept: float = 1.0


@dataclass(frozen=True)
class Kind:
    """What waits, and what a batch may hold of it."""

    roots: int
    share_without_deadline: float
    capacity: Capacity

    def job(self, rng: random.Random) -> QueuedJob:
        deadline_us = None if rng.random() < self.share_without_deadline else NOW_US + rng.randrange(10**6)
        arrived_us = NOW_US - rng.randrange(2 * 10**6)
        root = StackKey(f"root {rng.randrange(self.roots)}")
        return QueuedJob(root, rng.randrange(1000), random_length(rng), deadline_us, arrived_us)


KINDS = {
    "one root, deadlines": Kind(1, 0.0, Capacity(max_adapters=127)),
    "mixed": Kind(8, 1 / 3, Capacity(max_adapters=16)),
}


def random_length(rng: random.Random) -> int:
    """TCB's: 3 to 100 tokens around 20, with a standard deviation of 20."""
    return min(max(round(rng.gauss(20, 20)), 3), 100)


@dataclass(frozen=True)
class Case:
    """A policy, and how it is called in the table."""

    label: str
    policy: Policy


def cases() -> list[Case]:
    das = [Case(f"das, eta {each.eta}, q {each.q}", DeadlineAware(each)) for each in OTHER_DAS_SETTINGS]
    return [Case(name.value, policy_of(PolicySettings(name), lambda _: LINEAR)) for name in PolicyName] + das


# --- the cost of a decision ---


@dataclass(frozen=True)
class Cost:
    """Medians; a turn is the decision, the batch taken out, and as many new jobs let in."""

    decision_ms: float
    turn_ms: float


def cost(policy: Policy, kind: Kind, waiting: int, repeats: int, seed: int) -> Cost:
    rng = random.Random(seed)
    room = WaitingRoom(sorted((kind.job(rng) for _ in range(waiting)), key=lambda job: job.arrived_us))
    decisions, turns = [], []
    for _ in range(repeats):
        coming = [kind.job(rng) for _ in range(kind.capacity.max_rows)]
        start = time.perf_counter()
        ranks = policy.select(room, NOW_US, kind.capacity)
        decided = time.perf_counter()
        room.take_batch(ranks)
        room.add(coming[: len(ranks)])
        turns.append(1000 * (time.perf_counter() - start))
        decisions.append(1000 * (decided - start))
    return Cost(statistics.median(decisions), statistics.median(turns))


# --- its share of a batch's time ---


@dataclass(frozen=True)
class SteadyState:
    """As many jobs wait as come while a batch of as many runs; a full queue's where no batch keeps up."""

    waiting: int
    batch_ms: float

    @classmethod
    def at(cls, rate: int, batch_ms: Mapping[int, float]) -> SteadyState:
        for rows, ms in sorted(batch_ms.items()):
            if rate * ms / 1000 <= rows:
                return cls(rows, ms)
        return cls(MOST_WAITING, batch_ms[max(batch_ms)])


def batch_times_ms(settings: Settings, seed: int) -> dict[int, float]:
    """Measure batches by their number of rows, each row of an hPLM of its own."""
    rng = random.Random(seed)
    with bare_engine(geometry_of(settings.layers), ROWS, seed) as engine:
        stack = engine.stack()
        batches = {size: engine.rows([random_length(rng) for _ in range(size)]) for size in BATCH_SIZES}
        ways = {str(size): engine.waiting(stack, rows, size).run for size, rows in batches.items()}
        seconds = interleaved(ways, settings.engine_repeats)
    return {size: 1000 * statistics.median(seconds[str(size)]) for size in BATCH_SIZES}


# --- how far from the best ---


@dataclass(frozen=True)
class SolvedInstances:
    instances: Sequence[Instance]
    optima: Sequence[float]

    @classmethod
    def drawn(cls, count: int, seed: int) -> SolvedInstances:
        rng = random.Random(seed)
        instances = [random_instance(rng) for _ in range(count)]
        return cls(instances, [optimum(instance) for instance in instances])

    def ratios(self, policy: Policy) -> list[float]:
        """What the policy reaches of each optimum."""
        pairs = zip(self.instances, self.optima, strict=True)
        return [instance.reached_by(policy) / most for instance, most in pairs]


def measure(settings: Settings, seed: int) -> tuple[dict[str, float], list[dict[str, object]]]:
    steady = SteadyState.at(settings.rate, batch_times_ms(settings, seed))
    solved = SolvedInstances.drawn(settings.instances, seed)
    slowest_ms, largest_share, worst = 0.0, 0.0, {}
    rows: list[dict[str, object]] = []
    for case in cases():
        ratios = solved.ratios(case.policy)
        worst[case.label] = min(ratios)
        for name, kind in KINDS.items():
            by_waiting = {count: cost(case.policy, kind, count, settings.repeats, seed) for count in settings.waiting}
            steady_ms = cost(case.policy, kind, steady.waiting, settings.repeats, seed).decision_ms
            share = 100 * steady_ms / steady.batch_ms
            largest_share = max(largest_share, share)
            slowest_ms = max(slowest_ms, by_waiting[MOST_WAITING].decision_ms)
            rows.append(
                {
                    "policy": case.label,
                    "jobs": name,
                    **{f"{count:,}: ms": each.decision_ms for count, each in by_waiting.items()},
                    "turn: ms": by_waiting[MOST_WAITING].turn_ms,
                    f"% at {settings.rate}/s": share,
                    "worst": min(ratios),
                    "mean": statistics.mean(ratios),
                }
            )
    figures = {
        "decision_ms_10000": slowest_ms,
        "decision_share_percent_400": largest_share,
        "batch_ms_400": steady.batch_ms,
        "waiting_400": steady.waiting,
        "worst_ratio": worst[PolicyName.DAS.value],
        "bound": DasSettings().bound,
    }
    return figures, rows


@bench(
    "decision",
    bars={"decision_ms_10000": at_most(5), "decision_share_percent_400": at_most(2)},
)
def decision(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    return Result(asdict(settings), *measure(settings, options.seed))


if __name__ == "__main__":
    decision.main()
