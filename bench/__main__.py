"""`python -m bench`: the list of benches, one of them, or all with one table of their figures."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.kit.catalogue import bench_named, bench_names, question_of
from bench.kit.report import machine, print_table
from bench.kit.suite import Suite, table
from builder.termination import stop_signals_interrupt

_ALL = "all"


def main() -> None:
    names = bench_names()
    match sys.argv[1:]:
        case [] | ["-h" | "--help"]:
            print("python -m bench NAME [--quick] [--json FILE]   one question, with --help for its options")
            print("python -m bench all [--quick] [--only NAME …]  every question, and one table\n")
            print_table("benches", [{"bench": name, "question": question_of(name)} for name in names])
        case [name, *arguments] if name in names:
            bench_named(name).main(arguments)
        case [name, *arguments] if name == _ALL:
            _run_all(names, arguments)
        case [name, *_]:
            sys.exit(f"there is no bench {name!r}; the benches are {', '.join(names)}")


def _run_all(names: list[str], arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench all", description="Run benches one after the other.")
    parser.add_argument("--quick", action="store_true", help="in their quick sizes")
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help="only these")
    parser.add_argument("--resume", action="store_true", help="leave out what has succeeded in the folder already")
    parser.add_argument("--folder", type=Path, default=Path("build/bench"), help="where reports and logs stay")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there")
    options = parser.parse_args(arguments)
    with stop_signals_interrupt():
        rows = table(Suite(options.folder, options.quick).run(options.only or names, options.resume))
    print_table("benches", rows)
    if options.json is not None:
        content = {"machine": machine(), "rows": rows}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
