"""Does any input break a reader, or harm a neighbour?

`process`: random inputs, made of good ones by damage of all kinds, for everything that reads what others wrote:
tickets, tensors, texts, parameters, tokens, stored files, adapters, archives, request bodies. Each may be accepted, or
rejected by an error of ours in one short line; another exception, a long message, a second, 256 MiB, the end of the
process or another answer of a good neighbour is a break. A break is named `target:seed:number`; `--only TARGET --case
SEED:NUMBER` repeats it, with its traceback.
`wire`: cases for a real server's ports: bodies, messages, tensors, frames and bytes that no client sends. Beside them
good requests are asked all the time, and each must get its answer (`neighbours_harmed`); no process of the server may
end (`wire_crashes`), no case may stay without an answer (`wire_silent`) or meet a defect (`wire_defects`).
`planted`: bugs, each in a copy of the code, that the project's tests must find.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.kit.entry import Result, at_least, at_most, bench
from bench.kit.fuzz.bugs import BUGS
from bench.kit.fuzz.options import Options
from bench.kit.fuzz.planted import find_planted
from bench.kit.fuzz.process import fuzz_process, repeat_case
from bench.kit.fuzz.rule import Case, Fate
from bench.kit.fuzz.targets import TARGETS
from bench.kit.fuzz.wire import fuzz_wire, repeat_wire_case
from bench.kit.fuzz.wire_groups import KINDS

Part = Callable[[Options], tuple[dict[str, float], list[dict[str, Any]]]]
BUG_NAMES = [bug.name for bug in BUGS]
PARTS: Mapping[str, Part] = {"process": fuzz_process, "wire": fuzz_wire, "planted": find_planted}


def _case(text: str) -> tuple[int, int]:
    seed, colon, number = text.partition(":")
    if not (colon and seed.isdecimal() and number.isdecimal()):
        raise ArgumentTypeError(f"{text!r} is not SEED:NUMBER")
    return int(seed), int(number)


def _add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument(
        "--part", action="append", choices=PARTS, help="one part; can be given several times; by default all"
    )
    arguments.add_argument("--cases", type=int, metavar="N", help="as many cases of each part, instead of its size")
    arguments.add_argument(
        "--only",
        choices=(*TARGETS, *KINDS, *BUG_NAMES),
        metavar="TARGET",
        help=f"one reader of {', '.join(TARGETS)}; one kind of wire cases of {', '.join(KINDS)}; one planted bug of "
        f"{', '.join(BUG_NAMES)}",
    )
    arguments.add_argument(
        "--case", type=_case, metavar="SEED:NUMBER", help="repeat one case of --only TARGET, with its traceback"
    )


@bench(
    "fuzz",
    add_options=_add_options,
    bars={
        "fuzz_cases": at_least(1_000_000),
        "fuzz_crashes": at_most(0),
        "wire_cases": at_least(100_000),
        "wire_crashes": at_most(0),
        "wire_silent": at_most(0),
        "wire_defects": at_most(0),
        "neighbours_harmed": at_most(0),
        "planted_found": at_least(10),
    },
)
def fuzz(options: Namespace) -> Result:
    if options.case is not None:
        return _repeat(options)
    asked = Options(options.seed, options.quick, options.cases, options.only)
    figures: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for name in options.part or _parts_of(options.only):
        found, told = PARTS[name](asked)
        figures |= found
        rows += [{"part": name, **row} for row in told]
    return Result({"quick": options.quick, "cases": options.cases, "only": options.only}, figures, rows)


def _parts_of(only: str | None) -> Sequence[str]:
    if only is None:
        return list(PARTS)
    return ["planted" if only in BUG_NAMES else "wire" if only in KINDS else "process"]


def _repeat(options: Namespace) -> Result:
    if options.only is None:
        sys.exit("bench.fuzz: --case needs --only TARGET")
    case = Case(options.only, *options.case)
    if case.target in KINDS:
        return Result({"case": str(case)}, *repeat_wire_case(case))
    verdict = repeat_case(case)
    row = {"target": str(case), "fate": verdict.fate, "why": verdict.why}
    return Result({"case": str(case)}, {"fuzz_crashes": float(verdict.fate is Fate.BROKEN)}, [row])


if __name__ == "__main__":
    fuzz.main()
