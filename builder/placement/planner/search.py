"""AlpaServe's Algorithm 2: buckets of models, devices for each, and the groups and models of each by simulation."""

from __future__ import annotations

from collections.abc import Sequence

from builder.placement.planner.baselines import Baselines, baselines, everywhere, fits_everywhere
from builder.placement.planner.buckets import Bucket, bucketings, convoys, deals
from builder.placement.planner.frames import framings, single_frames
from builder.placement.planner.group import Device
from builder.placement.planner.problem import Problem
from builder.placement.planner.selecting import Selected, Selector
from builder.placement.planner.selection import Selection
from builder.progress import Report, Step, ignore

_BEAM_CELLS = 64
"""Where models times groups are more, the fast form is all there is."""
_BEAM_FRAMINGS = 2
_WORTH_STAGES = 0.002
"""The share of the requests that stages must gain: pool, then replicate, then split."""


def best_selection(problem: Problem, report: Report = ignore, simple: Baselines | None = None) -> Selected:
    """Search for the placement that answers most requests in time.

    Where models are to be pooled no search is needed: all stand everywhere. `simple` are the problem's baselines where
    they are known.
    """
    judge = Selector(problem, range(len(problem.models)), problem.traffic)
    if is_to_be_pooled(problem):
        return judge.judged(everywhere(problem))
    return _simplest([judge.judged(each) for each in _candidates(problem, report, simple)])


def is_to_be_pooled(problem: Problem) -> bool:
    """Whether every model fits on every device, and none delays another."""
    return fits_everywhere(problem) and not convoys(problem)


def _simplest(found: Sequence[Selected]) -> Selected:
    """Return the best one, but of those that are about as good one that is cut in as few stages as possible."""
    best = max(each.score for each in found)
    missing, attainment = best[0], best[1]
    good = [each for each in found if each.score[0] == missing and each.score[1] >= attainment - _WORTH_STAGES]
    return min(
        good,
        key=lambda each: (max((group.num_stages for group in each.selection.groups), default=1), _worst_first(each)),
    )


def _worst_first(selected: Selected) -> tuple[float, ...]:
    return tuple(-part for part in selected.score)


def _candidates(problem: Problem, report: Report, simple: Baselines | None) -> list[Selection]:
    """Return the best selection of each way to cut and deal, and what it is compared with: none of these beats it."""
    searched = _Search(problem)
    dealt = [(way, deal) for way in bucketings(problem) for deal in searched.deals(way)]
    found = []
    for number, (way, deal) in enumerate(dealt, start=1):
        found.append(searched.joined(way, deal))
        report(Step("ways to deal the devices", number, len(dealt)))
    whole = Selector(problem, range(len(problem.models)), problem.traffic)
    found.append(whole.fast(single_frames(problem)).selection)
    simple = baselines(problem) if simple is None else simple
    return [*(each for each in simple.values() if each is not None), *found]


class _Search:
    """Remembers what a bucket came to on so many devices of a kind: deals share most of their parts."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._found: dict[object, Selection] = {}
        devices = problem.devices
        # Short models come first, and need less memory.
        places = range(len(devices))
        self._ordered = sorted(places, key=lambda place: (devices[place].host, devices[place].memory_bytes))

    def deals(self, way: Sequence[Bucket]) -> list[tuple[int, ...]]:
        demands = [sum(self._problem.demand[model] for model in bucket) for bucket in way]
        return deals(demands, len(self._problem.devices))

    def joined(self, way: Sequence[Bucket], deal: Sequence[int]) -> Selection:
        """Give each bucket its devices, and put the best selections of all together."""
        whole = Selection((), ())
        begin = 0
        for bucket, count in zip(way, deal, strict=True):
            whole = whole.beside(self._best(bucket, self._ordered[begin : begin + count]))
            begin += count
        return whole

    def _best(self, bucket: Bucket, places: Sequence[int]) -> Selection:
        devices = [self._problem.devices[place] for place in places]
        key = bucket, _kinds(devices)
        if key not in self._found:
            numbers = {place: number for number, place in enumerate(places)}
            self._found[key] = self._searched(bucket, places).on(numbers)
        return self._found[key].on(dict(enumerate(places)))

    def _searched(self, bucket: Bucket, places: Sequence[int]) -> Selection:
        selector = Selector(self._problem, bucket, self._problem.traffic)
        tried = [(selector.fast(frames), frames) for frames in framings(self._problem, places)]
        tried.sort(key=lambda each: each[0].score, reverse=True)
        best = tried[0][0]
        for _, frames in tried[:_BEAM_FRAMINGS]:
            if len(bucket) * len(frames) <= _BEAM_CELLS:
                best = max(best, selector.beam(frames), key=lambda each: each.score)
        return best.selection


def _kinds(devices: Sequence[Device]) -> tuple[tuple[int, int], ...]:
    """Return the same for devices that are alike, whatever their names: memory, and which share a host."""
    hosts = {host: number for number, host in enumerate(dict.fromkeys(device.host for device in devices))}
    return tuple((device.memory_bytes, hosts[device.host]) for device in devices)
