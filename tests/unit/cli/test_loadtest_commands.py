"""`hplm loadtest` as a user types it wrongly: one line each, before anything is sent or written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import cli
from backends.home import Home
from loadtest.outcome import Kind, Outcome
from loadtest.results import Results
from loadtest.run import LoadTest, write_report
from loadtest.run_folder import RunFolder

DEAD = ("--url", "127.0.0.1:9")
ASKED = ("--hplm", "acme/topic", *DEAD)


def failure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What the command says when it fails."""
    monkeypatch.setattr(sys, "argv", ["hplm", "loadtest", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    line = capsys.readouterr().err.rstrip("\n")
    assert stop.value.code in (1, 2, 3, 4, 5)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steady", *ASKED], "cannot connect to 127.0.0.1:9"),
        (["steady", "--hplm", "acme/topic", "--url", "http://127.0.0.1:9"], "cannot connect to 127.0.0.1:9"),
        (["steady", *ASKED, "--duration", "0"], "--duration must be above 0, not '0'"),
        (["steady", *ASKED, "--duration", "nan"], "--duration: 'nan' is no time such as 500ms, 30s, 5m or 1h"),
        (["steady", *ASKED, "--timeout-s", "1e400"], "--timeout: '1e400' is no time"),
        (["steady", *ASKED, "--max-lateness-ms", "-1"], "--max-lateness must be above 0"),
        (["burst", *ASKED, "--tenants", "zipf:x"], "tenants 'zipf:x': 'x' is no number"),
        (["burst", *ASKED, "--tenants", "some"], "tenants 'some' is not one of uniform, zipf:exponent=EXPONENT, trace"),
        (["burst", *ASKED, "--tenants", "trace"], "leave --tenants out"),
        (["steady", *ASKED, "--lengths", "normal:x"], "'x' is no number"),
        (["steady", *ASKED, "--lengths", "fixed:inf"], "'inf' is no number"),
        (["steady", *ASKED, "--lengths", "trace"], "leave --lengths out"),
        (["steady", *ASKED, "--deadlines", "trace"], "leave --deadlines out"),
        (["steady", *ASKED, "--deadline-ms", "soon"], "deadlines: 'soon' is no number"),
        (["steady", *ASKED, "--deadlines", "0"], "deadlines must be above 0"),
        (["steady", *ASKED, "--deadlines", "5x-20x"], "are for simulations; give milliseconds"),
        (["steady", *ASKED, "--texts", "none.txt"], "none.txt: No such file or directory"),
        (["steady", *ASKED, "--url", "ftp://x"], "unknown protocol 'ftp'"),
        (["burst", *ASKED, "--users", "0"], "users must be a number above 0, not 0"),
        (["overload", *ASKED], "overload needs --load: 200/s, or 2x"),
        (["overload", *ASKED, "--rate", "-1"], "rate must be a number above 0"),
        (["overload", *ASKED, "--load", "-1/s"], "--load must be above 0, not '-1/s'"),
        (["overload", *ASKED, "--rate", "5", "--load", "2"], "--rate and --load both say how much"),
        (["overload", *ASKED, "--rate", "5", "--arrivals", "gama"], "arrivals 'gama' is not one of poisson, even"),
        (["overload", *ASKED, "--rate", "5", "--arrivals", "trace:a.csv"], "hplm loadtest trace --trace a.csv"),
        (["overload", *ASKED, "--rate", "5", "--capacity", "9"], "--capacity goes with a --load in multiples"),
        (["overload", *ASKED, "--load", "2x", "--capacity", "0"], "capacity must be a number above 0, not 0"),
        (["trace", *ASKED, "--trace", "none.csv"], "none.csv: No such file or directory"),
        (["compare", "none", "none"], "none is no folder of a load test"),
        (["report", "none"], "none is no folder of a load test"),
        (["worker", "somewhere"], "'somewhere' is not of the form HOST:PORT"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_one_line_says_what_is_wrong(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in failure(capsys, monkeypatch, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_traces_that_go_backwards_name_their_line_and_equal_times_are_fine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    command = ("trace", *ASKED, "--trace", str(trace), "--out", str(tmp_path / "out"))
    trace.write_text("time_s\n1\n2\n2\n1.5\n")
    message = failure(capsys, monkeypatch, *command)
    assert "trace.csv, line 5" in message
    assert "sort the trace by its times" in message
    trace.write_text("time_s\n1\n2\n2\n3\n")
    assert "cannot connect" in failure(capsys, monkeypatch, *command)


def test_a_folder_with_something_in_it_is_left_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert "exists already" in failure(capsys, monkeypatch, "steady", *ASKED, "--out", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_that_was_there_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    for name in ("mine", "new"):
        assert "cannot connect" in failure(capsys, monkeypatch, "steady", *ASKED, "--out", str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_without_a_home_an_hplm_must_be_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert "no home at" in failure(capsys, monkeypatch, "steady", *DEAD, "--home", str(tmp_path / "none"))
    assert "has no hPLM" in failure(capsys, monkeypatch, "steady", *DEAD, "--home", str(empty_home(tmp_path)))


def empty_home(folder: Path) -> Path:
    from backends.registry.registry import Registry

    home = Home(folder / "empty")
    Registry.open(home, create=True).close()
    return home.path


def test_without_locust_it_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.loadtest_run.find_spec", lambda name: None if name == "locust" else object())
    assert "pip install 'hplm[loadtest]'" in failure(capsys, monkeypatch, "steady", *ASKED)


@pytest.mark.parametrize(
    "arguments",
    [
        ["steady", "--rate", "5"],
        ["steady", "--tenants", "zipf:1"],
        ["burst", "--arrivals", "poisson"],
        ["overload", "--speed", "1"],
        ["trace", "--load", "2x"],
    ],
)
def test_a_scenario_has_its_own_options_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hplm", "loadtest", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert f"No such option: {arguments[1]}" in capsys.readouterr().err


def test_an_unknown_scenario_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hplm", "loadtest", "flood"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "No such command 'flood'" in capsys.readouterr().err


def test_help_names_every_scenario_and_loads_nothing_heavy() -> None:
    code = "import sys, cli; sys.argv = ['hplm', 'loadtest', '--help']\ntry: cli.main()\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'locust', 'matplotlib', 'numpy') if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"
    for name in ("steady", "burst", "overload", "trace", "compare", "report", "worker"):
        assert re.search(rf"\b{name}\b", out)


@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("complete", 0)])
def test_a_run_that_failed_ends_with_an_error_although_no_request_did(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, code: int
) -> None:
    """As where a load worker dies: what it was to send is missing, and what came back is well."""

    def played(folder: RunFolder, test: LoadTest) -> Results:
        folder.write_schedule(test.schedule)
        with folder.writing(test.schedule) as writer:
            at_s = float(test.schedule.times_s[0])
            writer.write([Outcome(0, at_s, at_s + 0.01, Kind.ANSWERED, "", 1)])
        target = {"url": "server:8001", "protocol": "grpc", "timeout_s": None}
        run = {"state": state, "trouble": ["worker 2 is gone"], "settings": {}, "target": target, "workers": 2}
        folder.write_run({**run, "lateness_limit_ms": 1e6, "began_at": "2026-01-02T03:04:05+00:00", "batches": None})
        return write_report(folder)

    monkeypatch.setattr("cli.loadtest_run._played", played)
    monkeypatch.setattr("loadtest.server.check_hplms", lambda *_: frozenset())
    monkeypatch.setattr(sys, "argv", ["hplm", "loadtest", "steady", *ASKED, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert (stop.value.code or 0) == code
    assert ("This run failed: worker 2 is gone" in capsys.readouterr().err) == bool(code)


def test_a_bare_load_is_said_to_be_a_multiple(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for load, is_said in (("10", True), ("10x", False), ("10/s", False)):
        monkeypatch.setattr(sys, "argv", ["hplm", "loadtest", "overload", *ASKED, "--load", load])
        with pytest.raises(SystemExit):
            cli.main()
        told = "--load 10 means 10 times what the server can do; 10/s is a rate" in capsys.readouterr().err
        assert told is is_said, load
