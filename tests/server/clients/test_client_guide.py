"""The programs of the pages about asking run as they stand, against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_client_answers_served import expected_score

pytestmark = pytest.mark.server

DOCS = Path(__file__).parents[3] / "docs"
PAGES = (DOCS / "how-to" / "ask-from-python.md", DOCS / "reference" / "wire.md")
PROGRAMS = [
    program
    for page in PAGES
    for program in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
]

# The pages ask hPLMs of the quickstart's home; the stand-in server has others.
STANDS_FOR = (("acme/area", "acme/topics"), ("globex/action", "globex/topics"))


def run(program, server):
    here = program
    for written, meant in (*STANDS_FOR, ("localhost:8001", server.grpc_url), ("localhost:8000", server.http_url)):
        here = here.replace(written, meant)
    done = subprocess.run([sys.executable, "-c", here], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_blocking_program(server):
    answer, pair = run(PROGRAMS[0], server)
    assert answer.split()[0] in ("first", "second") and pair == str(float(len("Is it new? It was used.")))


def test_the_asyncio_program(server):
    assert run(PROGRAMS[1], server) == ["NAME Ada 0 3", "NAME Grace 8 13", "NAME London 17 23"]


def test_the_program_of_questions_by_task(server):
    *classified, other = run(PROGRAMS[2], server)
    assert [line.split()[0] in ("first", "second") for line in classified] == [True, True]
    assert other.startswith("12.0 ") and "Grace" in other


def test_the_program_for_many(server):
    lines = run(PROGRAMS[3], server)
    assert len(lines) == 3 and all("answered: Classification" in line for line in lines)


def test_the_program_with_several_addresses(server):
    """The first address answers; no server listens at the second."""
    assert run(PROGRAMS[4], server)[0] in ("first", "second")


def test_the_stock_tritonclient_program(server):
    """gRPC and HTTP, each with one row and with 16 rows of two tenants."""
    lines = run(PROGRAMS[5], server)
    rows = [0, *range(16)] * 2
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        hplm = ["acme/topics", "globex/topics"][row % 2]
        first = expected_score(hplm, f"Order {row} arrived broken.")
        label, score = ("first", first) if first >= 0.5 else ("second", 1 - first)
        assert line == f"{hplm} 3 {label} {score}"


def test_every_program_is_tested():
    assert len(PROGRAMS) == 6
