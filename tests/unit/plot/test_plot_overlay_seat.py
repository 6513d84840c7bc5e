from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from backends.plot.overlay_seat import Seat

HOLD = "import sys; from pathlib import Path; from backends.plot.overlay_seat import Seat;" + (
    "seat = Seat(Path(sys.argv[1])); print(seat.number, flush=True); sys.stdin.read()"
)


def test_each_process_has_its_own_seat_and_a_killed_one_leaves_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == "0"
        first, second = Seat(tmp_path / "run"), Seat(tmp_path / "run")
        assert (first.number, second.number) == (1, 2)
        first.release()
        assert Seat(tmp_path / "run").number == 1
    finally:
        child.kill()
        child.wait()
    assert Seat(tmp_path / "run").number == 0
