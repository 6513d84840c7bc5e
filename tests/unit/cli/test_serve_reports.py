"""Lines of the watchdog of `hplm serve`, on the screen and in its log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
