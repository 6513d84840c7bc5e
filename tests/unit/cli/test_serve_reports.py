"""Lines of the watchdog of `hplm serve`, on the screen and in its log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from builder.serving import ServerConfig, ServerStartError, Supervision, Supervisor
from builder.termination import StopRequests
from cli.server import _end_told

REPORTING = """
import sys
from pathlib import Path
from cli.server import _report

_report(Path(sys.argv[1]), "ready again")
"""


def test_a_screen_that_is_full_keeps_no_line_from_the_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with open("/dev/full", "w") as screen:
        result = subprocess.run([sys.executable, "-c", REPORTING, str(log)], stderr=screen)
    assert result.returncode == 0
    assert log.read_text().endswith(" watchdog: ready again\n")


def test_why_a_server_is_given_up_stands_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    supervisor = Supervisor(ServerConfig(repository=tmp_path), Supervision(), list, StopRequests(), lambda line: None)
    with pytest.raises(ServerStartError), _end_told(supervisor, log, with_last_lines=True):
        raise ServerStartError("it was restarted 5 times")
    assert log.read_text().endswith(" watchdog: it was restarted 5 times\n")
