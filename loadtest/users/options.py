"""The options of `loadtest/locustfile.py`, on Locust's command line and web page, and the content they describe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.errors import RunError
from loadtest.scenarios import Content
from loadtest.texts import FileTexts, Texts, WordTexts
from workload.forms import read_duration_s, read_number
from workload.lengths import EmpiricalLengths, NormalLengths
from workload.spec import TRACE, parse_arrivals, parse_deadlines, parse_lengths, parse_tenants
from workload.tenants import Tenants

_ASKED_OF_HOME = "no hPLM is known: name them with --hplms acme/area,acme/topic, or their home with --home"


def add_options(parser: Any, **_: Any) -> None:
    """Add the options of all scenarios; each has a variable of the environment too."""
    for name, default, says in (
        ("hplms", "", "hPLMs to ask, separated by commas; by default all of --home"),
        (
            "home",
            os.environ.get("HPLM_HOME") or "hplm_home",
            "the folder whose hPLMs are asked",
        ),
        ("texts", "", "a file of texts, one per line; by default common words in random order"),
        ("lengths", "", "tokens: normal:deviation=20, fixed:tokens=20"),
        ("deadlines", "", "how long an answer is worth waiting for: 200ms, 100ms-400ms; by default no deadline"),
        ("level", "", "the level of the hPLMs' ladders to ask for: auto, early, full; by default the server's choice"),
        ("tenants", "uniform", "whose requests: uniform, zipf:exponent=1.1 (the first hPLM most)"),
        ("arrivals", "poisson", "OverloadUser: poisson, even, gamma:cv=2, bursts:ratio=9,stay=2s"),
        ("rate", "1", "OverloadUser: requests per second of each user"),
        ("every", "", "SteadyUser, BurstUser: time between requests; by default 20s and 1.2s"),
        ("requests", "50", "BurstUser: requests of each user"),
        ("trace", "", "TraceUser: the file, CSV with a header or JSONL"),
        ("speed", "1", "TraceUser: 2 plays an hour in half an hour"),
        ("seed", "0", "decides texts, times and whose requests"),
    ):
        parser.add_argument(f"--{name}", default=default, help=f"hPLM: {says}", env_var=f"LOCUST_HPLM_{name.upper()}")


def check(options: Namespace) -> None:
    """Read every option once, so that a wrong one ends the test before it begins.

    Raises:
        RunError, WorkloadError: An option cannot be read.
    """
    for name in ("rate", "speed"):
        read_number(getattr(options, name), f"--{name}")
    for name in ("requests", "seed"):
        if not str(getattr(options, name)).isdigit():
            raise RunError(f"--{name} must be a whole number, not {getattr(options, name)!r}")
    if int(options.requests) < 1:
        raise RunError("--requests must be 1 or more")
    parse_arrivals(options.arrivals).at_rate(float(options.rate))
    tenants_of(options)
    every_s_of(options, default="1s")


def tenants_of(options: Namespace) -> Callable[[int], Tenants]:
    spec = parse_tenants(options.tenants, count_is_known=True)
    if spec is None:
        raise RunError("--tenants: a trace's tenants are taken wherever it has them")
    return spec.among


def every_s_of(options: Namespace, default: str) -> float:
    return read_duration_s(options.every or default, "--every")


def hplms_of(options: Namespace) -> tuple[str, ...]:
    """Return the hPLMs that were named, or all of the home."""
    named = tuple(name.strip() for name in str(options.hplms).split(",") if name.strip())
    return named or _hplms_of_home(Path(options.home))


def content_of(options: Namespace, hplms: tuple[str, ...], pairs: frozenset[str]) -> Content:
    """Return the content of a load, as the options describe it.

    Raises:
        RunError, WorkloadError: An option cannot be read.
    """
    texts: Texts = WordTexts()
    if options.lengths == TRACE:
        raise RunError("--lengths: a trace's lengths are taken wherever it has them")
    lengths = parse_lengths(options.lengths) if options.lengths else None
    if options.texts:
        texts = FileTexts.read(Path(options.texts))
        lengths = lengths or EmpiricalLengths(texts.lengths, longest=int(texts.lengths.max()))
    if options.deadlines == TRACE:
        raise RunError("--deadlines: a trace's deadlines are taken wherever it has them")
    spec = parse_deadlines(options.deadlines) if options.deadlines else None
    deadlines = None if spec is None else spec.after(full_batch_ms=None)
    level = options.level or None
    return Content(hplms, texts, lengths or NormalLengths(20), deadlines, pairs, level=level)


def _message(failure: str) -> str:
    """Return the message of an error that `hplm --json` has printed; whatever else it printed as it is."""
    try:
        return str(json.loads(failure)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return failure.strip()


def _hplms_of_home(home: Path) -> tuple[str, ...]:
    """Ask the installation: load tests read no registry."""
    beside = Path(sys.executable).with_name("hplm")
    command = str(beside) if beside.exists() else shutil.which("hplm")
    if command is None:
        raise RunError(_ASKED_OF_HOME)
    done = subprocess.run([command, "list", "--json", "--home", str(home)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{_ASKED_OF_HOME} ({_message(done.stderr)})")
    hplms = tuple(str(entry["id"]) for entry in json.loads(done.stdout))
    if not hplms:
        raise RunError(f"{home} has no hPLM; 'hplm create' makes one")
    return hplms
