"""Does the service heal from whatever dies or hangs, and does readiness tell the truth?

`hplm serve` with its watchdog, on a home whose hPLMs bear marks, under callers over gRPC and HTTP, with deadlines and
without, while versions are published. One fault strikes after the other, each once the server is whole again and a
random pause is over: `kill -9` and SIGSTOP of a stub of either model and of tritonserver, a pause of a stub that is
longer than Triton waits, a defect in a loop of either model. The plan is drawn from the seed and stands in the rows.
Meanwhile `/readyz` is asked each 100 ms beside a canary. `--max-restarts` lets the server be restarted each time; by
default it is given up at the sixth death within ten minutes.

- `ready_lies_s_max`: the longest stretch in which `/readyz` says 200 while canaries fail, or from a fault to its 503.
- `recovery_s_*`: from a fault that kills to the first answered canary beside a 200; `hang_recovery_s_max`: of hangs.
- `wrong_weights`: answers that another version computed than the one that they name, or one that was not live.
- `lost_requests`: requests without an outcome within a minute.
- `leftovers`: processes, shared memory and temporary files of the stopped server.
- `false_restarts`: restarts while the load is three times what the server can answer.
"""

from __future__ import annotations

import math
import re
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from backends.errors import UnavailableError
from bench.kit.chaos.defects import code_with_defects
from bench.kit.chaos.faults import Struck, cpu_s, strike
from bench.kit.chaos.home import ChaosHome, Publisher, chaos_home, wrong_weights
from bench.kit.chaos.leftovers import Traces
from bench.kit.chaos.load import Callers, Ended, LoadProcess
from bench.kit.chaos.overload import Flooded, Overload, flood
from bench.kit.chaos.plan import BY_NAME, KINDS, Fault, draw_plan
from bench.kit.chaos.readiness import Sample, Watch
from bench.kit.chaos.verdicts import Recovery, lies_s, recovery_figures, request_figures
from bench.kit.entry import QUICK_LOADS_S, Result, at_most, bench
from bench.kit.progress import one_by_one
from bench.kit.served import Serving
from bench.kit.supervised import SupervisedServer, supervised

_ENDLESS = "1000000"
_UNNOTICED_S = 30.0
_HEALED_S = 180.0
_RESTART = re.compile(r"watchdog: .*; restart \d+ of at most")
_SHOWN_REASONS = 12


@dataclass(frozen=True)
class Settings:
    faults: int
    overload_minutes: float
    pauses_s: tuple[float, float] = (4.0, 9.0)
    """Beyond the three seconds after which a life no longer counts as short, and is not followed by a wait."""
    tenants: int = 32
    texts: int = 256
    callers: int = 8
    pause_s: float = 0.05
    deadlines_ms: tuple[int, int] = (50, 1000)
    publish_every_s: float = 2.0
    overload_times: float = 3.0
    patient_share: float = 0.01
    capacity_rows: int = 2_000


FULL = Settings(faults=40, overload_minutes=20.0)
QUICK = Settings(faults=3, overload_minutes=0.2)


@dataclass(frozen=True)
class Struggle:
    """What happened while faults struck."""

    began_s: float
    recoveries: Sequence[Recovery]
    samples: Sequence[Sample]
    load: LoadProcess
    wrong: int
    published: int

    @property
    def struck_s(self) -> list[float]:
        return [one.struck.at_s for one in self.recoveries]

    def figures(self) -> dict[str, float]:
        # Until a fault is noticed `/readyz` lies, whether or not a canary happens to be struck by it.
        unnoticed_s = [one.unready_s for one in self.recoveries if one.unready_s is not None]
        return {
            "ready_lies_s_max": max([*lies_s(self.samples, self.struck_s), *unnoticed_s], default=0.0),
            **recovery_figures(self.recoveries),
            "wrong_weights": float(self.wrong),
            "publications": float(self.published),
            **request_figures(self.load.asked, self.load.requests),
        }

    def rows(self) -> list[dict[str, Any]]:
        ends_s = [*self.struck_s[1:], math.inf]
        rows = []
        for one, end_s in zip(self.recoveries, ends_s, strict=True):
            own = [sample for sample in self.samples if one.struck.at_s < sample.done_s and sample.at_s < end_s]
            rows.append(one.row(self.began_s, self.load.requests, max(lies_s(own, self.struck_s), default=0.0)))
        failed = Counter(one.reason for one in self.load.requests if one.ended in (Ended.FAILED, Ended.LOST))
        return [
            *rows,
            *(
                {"kind": "in all", "failed meanwhile": count, "why": reason}
                for reason, count in failed.most_common(_SHOWN_REASONS)
            ),
        ]


def measure(settings: Settings, plan: Sequence[Fault], seed: int) -> tuple[dict[str, float], list[dict[str, Any]]]:
    with chaos_home(seed, settings.tenants, settings.texts) as made:
        traces = Traces(made)
        code = code_with_defects(made.folder / "code", made.orders)
        serving = Serving(lower_instances=2, code=code, environment={"TMPDIR": str(made.temporary)})
        with supervised(made.home, serving, ["--max-restarts", _ENDLESS]) as server:
            struggle = _struggle(server, made, settings, plan, traces, seed)
            flooded, overload_figures = _overload(server, made, settings, seed)
            exit_code = server.stop()
        left = traces.left()
    figures = struggle.figures()
    figures |= {**flooded.figures(), **overload_figures} if flooded is not None else {}
    figures["lost_requests"] += flooded.lost if flooded is not None else 0
    figures |= {"leftovers": float(len(left)), "exit_code": float(exit_code)}
    return figures, [*struggle.rows(), *({"kind": "leftover", "what": one} for one in left)]


def _struggle(
    server: SupervisedServer,
    made: ChaosHome,
    settings: Settings,
    plan: Sequence[Fault],
    traces: Traces,
    seed: int,
) -> Struggle:
    callers = Callers(
        f"grpc://{server.grpc_url}",
        f"http://{server.http_url}",
        made.hplms,
        made.texts,
        settings.callers,
        settings.pause_s,
        settings.deadlines_ms,
        seed,
    )
    began_s = time.monotonic()
    with (
        Watch(server, made.hplms[0], made.texts[0]) as watch,
        LoadProcess(callers) as load,
        Publisher(made, settings.publish_every_s, seed) as publisher,
    ):
        _wait_whole(watch, began_s)
        struck = []
        for fault in one_by_one(plan, "chaos", "faults"):
            time.sleep(fault.pause_s)
            _wait_whole(watch, time.monotonic())
            traces.note()
            struck.append(_healed(server, watch, strike(server, fault, made.orders)))
        time.sleep(settings.pauses_s[0])
        traces.note()
    samples = watch.samples
    wrong = wrong_weights(made.timeline, load.requests)
    return Struggle(began_s, _recoveries(struck, samples), samples, load, wrong, publisher.count)


def _recoveries(struck: Sequence[Struck], samples: Sequence[Sample]) -> list[Recovery]:
    ends_s = [*(one.at_s for one in struck[1:]), math.inf]
    return [
        Recovery.of(one, [sample for sample in samples if sample.at_s < end_s])
        for one, end_s in zip(struck, ends_s, strict=True)
    ]


def _wait_whole(watch: Watch, after_s: float) -> None:
    if watch.wait(lambda sample: sample.is_whole, after_s, _HEALED_S) is None:
        raise UnavailableError(f"the server was not whole within {_HEALED_S:g} s")


def _healed(server: SupervisedServer, watch: Watch, struck: Struck) -> Struck:
    """Wait until the server is whole again."""
    unready = watch.wait(lambda sample: not sample.is_ready, struck.at_s, _UNNOTICED_S)
    if unready is None:
        print(f"nobody noticed {struck.fault}", file=sys.stderr)
        return struck
    _wait_whole(watch, unready.at_s)
    return replace(struck, restart_cpu_s=cpu_s(server))


def _overload(
    server: SupervisedServer, made: ChaosHome, settings: Settings, seed: int
) -> tuple[Flooded | None, Mapping[str, float]]:
    """Flood the server; figures of the watchdog meanwhile."""
    if not settings.overload_minutes:
        return None, {}
    restarts, triton = _restarts(server), server.triton_pid()
    overload = Overload(
        server.grpc_url,
        made.hplms,
        made.texts,
        60.0 * settings.overload_minutes,
        settings.overload_times,
        settings.capacity_rows,
        settings.deadlines_ms,
        settings.patient_share,
        seed,
    )
    with Watch(server, made.hplms[0], made.texts[0]) as watch:
        flooded = flood(overload)
    false = max(_restarts(server) - restarts, int(server.triton_pid() != triton))
    unready = sum(not sample.is_ready for sample in watch.samples)
    return flooded, {
        "false_restarts": float(false),
        "overload_unready_share": unready / len(watch.samples),
        "overload_ready_lies_s_max": max(lies_s(watch.samples), default=0.0),
    }


def _restarts(server: SupervisedServer) -> int:
    """Count them in what `hplm serve` has said."""
    return len(_RESTART.findall(server.log_path.read_text(encoding="utf-8", errors="replace")))


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--only", nargs="+", choices=BY_NAME, metavar="KIND", help=f"of {', '.join(BY_NAME)}; all")
    arguments.add_argument("--faults", type=_count, help="how many; 40, or 3 with --quick")
    arguments.add_argument("--overload-minutes", type=_minutes, help="20, or 0.2 with --quick; 0 leaves it out")


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def _minutes(text: str) -> float:
    if not 0 <= (value := float(text)) < math.inf:
        raise ValueError
    return value


@bench(
    "chaos",
    quick_s=QUICK_LOADS_S,
    add_options=add_options,
    bars={
        "ready_lies_s_max": at_most(2),
        "recovery_s_p50": at_most(5),
        "recovery_s_p99": at_most(10),
        "hang_recovery_s_max": at_most(15),
        "not_healed": at_most(0),
        "wrong_weights": at_most(0),
        "lost_requests": at_most(0),
        "leftovers": at_most(0),
        "false_restarts": at_most(0),
    },
)
def chaos(options: Namespace) -> Result:
    settings = QUICK if options.quick else FULL
    if options.faults is not None:
        settings = replace(settings, faults=options.faults)
    if options.overload_minutes is not None:
        settings = replace(settings, overload_minutes=options.overload_minutes)
    kinds = [BY_NAME[name] for name in options.only] if options.only else KINDS
    plan = draw_plan(options.seed, settings.faults, settings.pauses_s, kinds)
    figures, rows = measure(settings, plan, options.seed)
    return Result(asdict(settings), figures, rows)


if __name__ == "__main__":
    chaos.main()
