"""The tutorials, followed word by word on a tiny home: every command works, and prints what the page says it does.

The pages are about the demo's home, so answers, scores and sizes differ; tables must have the same names.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from served_home import Served
from tutorial_reader import Command, NewFile, names_in_table, read_tutorial

pytestmark = pytest.mark.server
PROJECT = Path(__file__).parents[3]
TUTORIALS = PROJECT / "docs" / "tutorials"
NOT_RUN = ("make ", "hplm serve", "export ")
"""What the fixture has done already."""
MARK = "@@ next command"


def follow(page: str, served: Served, folder: Path, replaced: dict[str, str]) -> list[tuple[Command, str]]:
    """Run a tutorial in one shell, as its reader does; every command with what it printed."""
    addresses = {"localhost:8000": served.http_url, "localhost:8001": served.grpc_url}
    commands, script = [], ["set -e"]
    for step in read_tutorial(TUTORIALS / page, addresses | replaced):
        if isinstance(step, NewFile):
            script.append(f"printf %s {shlex.quote(step.content)} > {step.name}")
        elif not step.line.startswith(NOT_RUN):
            commands.append(step)
            script += [f"echo '{MARK}'", step.line]
    environment = {
        **os.environ,
        "HPLM_HOME": str(served.home.path),
        "HPLM_URL": f"grpc://{served.grpc_url}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return list(zip(commands, done.stdout.split(f"{MARK}\n")[1:], strict=True))


def check_tables(followed: list[tuple[Command, str]]) -> None:
    for command, printed in followed:
        missing = [name for name in names_in_table(command.prints) if name not in printed]
        assert missing == [], f"{command.line} printed {printed}"


def printed_by(line: str, followed: list[tuple[Command, str]]) -> list[str]:
    return next(printed.splitlines() for command, printed in followed if command.line.startswith(line))


def test_first_steps(served: Served, tmp_path: Path) -> None:
    followed = follow("first-steps.md", served, tmp_path, {"acme/area": "acme/topic"})
    check_tables(followed)
    assert printed_by("curl", followed)[0].startswith('{"RESULT":"{\\"hplm\\": \\"acme/topic\\"')
    *_, rejected = printed_by("python ask.py", followed)
    assert rejected == "rejected: predicted_late"
    assert printed_by("python many.py", followed)[0].startswith("200 answered, first: ")


@pytest.mark.long
def test_a_tenant_of_ones_own_text(served: Served, tmp_path: Path) -> None:
    short = {
        "docs/tutorials/messages.py": str(TUTORIALS / "messages.py"),
        "--corpus corpus.txt": "--corpus corpus.txt --root tiny --mlm-steps 2 --head-steps 2",
        "--test test.jsonl": "--test test.jsonl --epochs 1",
        "--dev dev.jsonl --force": "--dev dev.jsonl --force --epochs 1",
    }
    followed = follow("your-own-tenant.md", served, tmp_path, short)
    check_tables(followed)
    assert printed_by("python split.py", followed) == [
        "test.jsonl: 60 texts",
        "dev.jsonl: 60 texts",
        "new.jsonl: 60 texts",
        "train.jsonl: 420 texts",
    ]
    assert "shop/subject" not in "".join(printed_by("hplm tree", followed[-1:]))
