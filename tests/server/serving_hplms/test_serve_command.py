"""`hplm serve` and `hplm infer` as an operator types them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from backends.home import Home
from living_processes import living
from served_home import lines_without_stalls

pytestmark = pytest.mark.server
LOADED_AT_ONCE = "class TritonPythonModel:\n    pass\n"
"""Triton loads the other models to their end before it gives up."""
HPLM = str(Path(sys.executable).with_name("hplm"))


def shared_memory(processes: list[psutil.Process]) -> set[Path]:
    """The shared memory that these processes have mapped; servers of other tests have some too."""
    mapped = {Path(region.path) for process in processes for region in process.memory_maps()}
    return {path for path in mapped if path.parent == Path("/dev/shm") and path.exists()}


@pytest.mark.parametrize(
    "stop",
    [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGTERM, id="sigterm", marks=pytest.mark.long)],
)
def test_serve_infer_and_stop(tiny_home: Home, stop: signal.Signals) -> None:
    home = tiny_home.path.rename(tiny_home.path.with_name("a home; with ?blanks"))
    command = [HPLM, "serve", "--home", str(home), "--http", "0", "--grpc", "0", "--metrics", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        ready = next(line for line in server.stdout if line.startswith("ready:"))  # renders the repository by itself
        children = psutil.Process(server.pid).children(recursive=True)
        shared = shared_memory(children)
        assert shared
        for url in re.findall(r"(?:grpc|http)://[\d.:]+", ready)[:2]:
            ask = [HPLM, "infer", "acme/topic", "my cat", "the rain", "--url", url, "--json"]
            answers = json.loads(subprocess.run(ask, capture_output=True, text=True, check=True).stdout)
            assert [answer["hplm"] for answer in answers] == ["acme/topic"] * 2
        wrong = [HPLM, "infer", "acme/none", "x", "--url", url]
        failed = subprocess.run(wrong, capture_output=True, text=True, check=False)
        assert failed.returncode == 3
        assert failed.stderr.strip() == "hplm: hPLM 'acme/none' does not exist; hplm list shows those there are"
        assert failed.stdout == ""
    finally:
        server.send_signal(stop)
        try:
            out, err = server.communicate(timeout=60)
        finally:
            server.kill()
    assert server.returncode == 0
    assert out.strip().endswith("stopped")
    lines = lines_without_stalls(err)
    assert [line.partition(" ")[0] for line in lines[:3]] == ["starting", "settings:", "auth"]
    assert [line.partition(" watchdog: ")[2].partition(":")[0] for line in lines[3:]] == [
        "draining by a signal",
        "drained",
    ]
    assert "Started HTTPService" in (home / "run" / "server.log").read_text()
    assert not living(children)
    assert not [path for path in shared if path.exists()]


@pytest.mark.parametrize(
    "options", [pytest.param((), id="quiet"), pytest.param(("--verbose",), id="verbose", marks=pytest.mark.long)]
)
def test_a_server_that_does_not_start_shows_the_end_of_its_log(
    tiny_home: Home, run_hplm: Callable[..., str], options: tuple[str, ...]
) -> None:
    home = ("--home", str(tiny_home.path))
    run_hplm("export", *home)
    for model, code in (("hplm_upper", "raise RuntimeError('not today')\n"), ("hplm_lower", LOADED_AT_ONCE)):
        (tiny_home.repository / model / "1" / "model.py").write_text(code)
    ports = ("--http", "0", "--grpc", "0", "--metrics", "0")
    done = subprocess.run([HPLM, "serve", *home, *ports, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ("loading: hplm_upper:1" in done.stderr) == bool(options)  # no error, and not at the end
    assert ("the log ends with:" in done.stderr) == (not options)
    assert "not today" in done.stderr.splitlines()[-1]
