"""How a kept program ended, as an operator reads it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from builder.serving.exit_code import why_ended
from builder.serving.kept import KeptProgram
from builder.serving.log import failure_reason
from builder.serving.run_folder import RunFolder


@pytest.fixture
def kept(tmp_path: Path, request: pytest.FixtureRequest) -> KeptProgram:
    folder, log = RunFolder.create(), tmp_path / "program.log"
    program = KeptProgram(
        ["/bin/sh", "-c", request.param], folder, dict(os.environ), log, max_log_bytes=1 << 20, grace_s=1
    )
    try:
        program.start()
    finally:
        folder.unlock()
    request.addfinalizer(program.stop)
    return program


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ("echo wrong library >&2; kill -SEGV $$", "sh ended by SIGSEGV: wrong library"),
        ("echo no room >&2; exit 3", "sh ended with code 3: no room"),
        ("exit 255", "sh ended with code 255: it wrote no log"),
        ("echo ready >&2; kill -KILL $$", "sh ended by SIGKILL"),
    ],
    indirect=["kept"],
)
def test_a_program_that_ends_by_itself(kept: KeptProgram, told: str) -> None:
    code = kept.wait(30)
    kept.stop()
    assert code is not None and why_ended("sh", code, failure_reason(kept.lines)) == told


def test_a_keeper_that_is_killed() -> None:
    assert why_ended("sh", -signal.SIGKILL, "ready") == "the keeper of sh ended by SIGKILL"
