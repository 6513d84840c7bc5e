"""What samples and requests say about a server that faults have struck."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.kit.chaos.faults import Struck
from bench.kit.chaos.load import Ended, Requested
from bench.kit.chaos.readiness import Sample

_APART_S = 0.5
"""Failing canaries that are no further apart belong to one lie."""


@dataclass(frozen=True)
class Recovery:
    """What a fault led to; None where it did not come about."""

    struck: Struck
    unready_s: float | None
    whole_s: float | None
    why: str
    """The first reason that `/readyz` gave."""

    @classmethod
    def of(cls, struck: Struck, samples: Sequence[Sample]) -> Recovery:
        """Judge by the samples from this fault to the next; a recovery counts once `/readyz` has said no."""
        after = [sample for sample in samples if sample.at_s > struck.at_s]
        unready = next((sample for sample in after if not sample.is_ready), None)
        if unready is None:
            return cls(struck, None, None, "")
        whole = next((sample for sample in after if sample.at_s > unready.at_s and sample.is_whole), None)
        whole_s = None if whole is None else whole.done_s - struck.at_s
        return cls(struck, unready.at_s - struck.at_s, whole_s, unready.why)

    @property
    def ends_s(self) -> float:
        return self.struck.at_s + (self.whole_s or 0.0)

    def row(self, began_s: float, requests: Iterable[Requested], lie_s: float) -> dict[str, Any]:
        meanwhile = [one for one in requests if self.struck.at_s <= one.done_s <= self.ends_s]
        return {
            "kind": str(self.struck.fault.kind),
            "what": self.struck.fault.what,
            "pause s": self.struck.fault.pause_s,
            "instance": self.struck.fault.instance,
            "at s": self.struck.at_s - began_s,
            "503 after s": self.unready_s,
            "lie s": lie_s,
            "whole after s": self.whole_s,
            "processor s": self.struck.restart_cpu_s,
            "failed meanwhile": sum(one.ended is Ended.FAILED for one in meanwhile),
            "why": self.why,
        }


def lies_s(samples: Sequence[Sample], struck_s: Sequence[float] = ()) -> list[float]:
    """How long each stretch lasts in which `/readyz` says 200 while canaries fail.

    It begins with the first canary that fails, or with a fault that strikes while the canary is under way. It ends with
    the sample after the last one: with a 503, or with an outcome.
    """
    stretches: list[float] = []
    began_s = last_s = -math.inf
    for sample, following in zip(samples, [*samples[1:], None], strict=True):
        if not sample.lies:
            continue
        fails_s = _after_fault(sample, struck_s)
        is_by_fault = fails_s > sample.at_s
        if (is_by_fault and began_s < fails_s) or sample.at_s - last_s > _APART_S:
            began_s = fails_s
            stretches.append(0.0)
        last_s = sample.at_s
        end_s = sample.done_s if following is None else following.at_s
        stretches[-1] = max(end_s - began_s, 0.0)
    return stretches


def _after_fault(sample: Sample, struck_s: Sequence[float]) -> float:
    """When a failing canary could first be known to fail: it may have been under way as the fault struck."""
    return max([at_s for at_s in struck_s if sample.at_s < at_s <= sample.done_s], default=sample.at_s)


def recovery_figures(recoveries: Sequence[Recovery]) -> dict[str, float]:
    """A fault that was not noticed, or after which the server did not become whole, is no time but a count."""
    killed = [one.whole_s for one in recoveries if one.whole_s is not None and not one.struck.fault.kind.hangs]
    hung = [one.whole_s for one in recoveries if one.whole_s is not None and one.struck.fault.kind.hangs]
    unready = [one.unready_s for one in recoveries if one.unready_s is not None]
    figures = {"faults": float(len(recoveries)), "not_healed": float(sum(one.whole_s is None for one in recoveries))}
    restarts = [one.struck.restart_cpu_s for one in recoveries if one.struck.restart_cpu_s is not None]
    if restarts:
        figures["restart_cpu_s_p50"] = float(np.median(restarts))
    if unready:
        figures["unready_after_s_max"] = max(unready)
    if killed:
        p50, p99 = np.percentile(killed, [50, 99])
        figures |= {"recovery_s_p50": float(p50), "recovery_s_p99": float(p99)}
    if hung:
        figures["hang_recovery_s_max"] = max(hung)
    return figures


def request_figures(asked: int, requests: Sequence[Requested]) -> dict[str, float]:
    """Requests without any outcome are lost, whether their caller waits in vain or was never told."""
    by_end = {ended: sum(one.ended is ended for one in requests) for ended in Ended}
    told = sum(count for ended, count in by_end.items() if ended is not Ended.LOST)
    return {
        "requests": float(asked),
        **{str(ended): float(by_end[ended]) for ended in Ended if ended is not Ended.LOST},
        "lost_requests": float(asked - told),
    }
