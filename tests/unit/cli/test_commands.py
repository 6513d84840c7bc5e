"""The `hplm` command as a user types it: what it prints, and one line and an exit code above zero when it fails."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import cli
from backends.home import Home
from bench.kit.tiny_home import write_corpus, write_task
from builder.progress import Step, progress_bars
from builder.serving import ServerConfig
from builder.serving.ports import PortClaims
from cli.options import print_entry, print_rows


def hplm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; exit code, stdout, stderr (the reason of a failure included)."""
    monkeypatch.setattr(sys, "argv", ["hplm", *arguments])
    try:
        cli.main()
        code: int | str | None = 0
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    if isinstance(code, str):
        return 1, out, err + code
    return code or 0, out, err


Run = Callable[..., tuple[int, str, str]]
NO_HOME = "'hplm root add' makes one, --home or HPLM_HOME names another"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    return lambda *arguments: hplm(capsys, monkeypatch, *arguments)


def test_help_teaches(run: Run) -> None:
    for arguments in ([], ["root", "add"], ["domain", "create"], ["create"], ["serve"], ["infer"], ["doctor"]):
        code, out, _ = run(*arguments, "--help")
        assert code == 0
        assert "Usage" in out


def test_list_as_json(run: Run, built_home: Home) -> None:
    code, out, _ = run("list", "--json", "--home", str(built_home.path))
    rows = json.loads(out)
    assert code == 0
    assert [row["id"] for row in rows] == ["acme/mood", "acme/topic", "globex/topic", "initech/mood"]
    assert all({"id", "version", "domain", "task"} <= set(row) for row in rows)


@pytest.mark.parametrize(
    "arguments",
    [["root", "list"], ["root", "show", "tiny"], ["domain", "list"], ["domain", "show", "farm"], ["show", "acme/mood"]],
)
def test_every_read_has_json(run: Run, built_home: Home, arguments: list[str]) -> None:
    code, out, _ = run(*arguments, "--json", "--home", str(built_home.path))
    assert code == 0
    assert json.loads(out)
    code, out, _ = run(*arguments, "--home", str(built_home.path))
    assert code == 0
    assert out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["infer", "--nope"], "No such option: --nope", "try hplm infer --help"),
        (["create"], "Missing argument 'ID'", "try hplm create --help"),
        (["nope"], "No such command 'nope'", "try hplm --help"),
        (["infer", "a/b", "text", "--deadline", "0.4ms"], "--deadline: '0.4ms' is less than a millisecond", None),
    ],
)
def test_a_wrong_command_line_is_one_line(run: Run, arguments: list[str], message: str, hint: str | None) -> None:
    code, _, err = run(*arguments)
    assert (code, err) == (2, f"hplm: {message}; {hint}\n" if hint else f"hplm: {message}\n")
    code, _, err = run(*arguments, "--json")
    error = {"code": "USAGE", "message": message, "hint": hint, "exit_code": 2}
    assert (code, json.loads(err)) == (2, {"error": error})


def test_a_registry_that_is_no_database_is_damaged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "registry.db").write_bytes(bytes(range(256)) * 40)
    code, _, err = run("list", "--home", str(tmp_path))
    assert (code, err) == (6, "hplm: the registry is damaged: file is not a database; restore it from a backup\n")


def test_root_show_gives_the_fidelity(run: Run, built_home: Home) -> None:
    _, out, _ = run("root", "show", "tiny", "--json", "--home", str(built_home.path))
    assert 0 < json.loads(out)["fidelity"]["final_cosine"] <= 1


def test_create_update_delete(run: Run, tiny_home: Home, tmp_path: Path) -> None:
    train, dev = write_task(tmp_path, "mood", seed=70, train=40)
    files = ("--train", str(train), "--dev", str(dev), "--epochs", "1", "--bottleneck", "4")
    home = ("--home", str(tiny_home.path))
    code, out, err = run("create", "new/one", "--domain", "farm", *files, *home, "--json")
    assert code == 0
    assert json.loads(out)["version"] == 1
    assert "tune adapters" in err  # progress is shown where there is no terminal, too
    code, out, _ = run("update", "new/one", *files, *home, "--force", "--json")
    assert json.loads(out)["version"] == 2
    assert run("delete", "new/one", *home)[0] == 0
    code, _, err = run("show", "new/one", *home)
    assert (code, err.strip()) == (3, "hplm: hPLM 'new/one' does not exist")


def failure(run: Run, *arguments: str) -> str:
    """The reason of a command that must fail: one line, no traceback."""
    code, _, err = run(*arguments)
    assert code != 0
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    return lines[0]


def test_failures_are_one_line(run: Run, built_home: Home, tmp_path: Path) -> None:
    home = ("--home", str(built_home.path))
    _, dev = write_task(tmp_path, "mood", seed=70, train=40)
    create = ("create", "new/one", "--domain", "farm", "--dev", str(dev), *home)
    bad = tmp_path / "bad.jsonl"

    bad.write_text('{"text": "cat", "label": "glad"}\nnonsense\n')
    assert "bad.jsonl:2: not JSON" in failure(run, *create, "--train", str(bad))
    bad.write_text("")
    assert "holds no examples" in failure(run, *create, "--train", str(bad))
    bad.write_text('{"text": "cat", "label": "glad"}\n')
    assert "one class only" in failure(run, *create, "--train", str(bad))
    bad.write_text('{"text": "cat", "label": "glad"}\n{"text": "dog", "label": "angry"}\n')
    assert "which" in failure(run, *create, "--train", str(bad))
    assert "does not exist" in failure(run, *create, "--train", str(tmp_path / "gone"))
    assert "tenant/name" in failure(run, "create", "x", "--domain", "farm", "--train", "a", "--dev", "b", *home)
    assert "no home at" in failure(run, "list", "--home", str(tmp_path / "nowhere"))
    assert "'moon'" in failure(run, "domain", "show", "moon", *home)
    corpus = write_corpus(tmp_path / "c.txt", 300, seed=1)
    assert "exists already" in failure(run, "domain", "create", "farm", "--corpus", str(corpus), *home)
    assert "theta" in failure(run, "domain", "create", "x", "--corpus", str(corpus), "--theta", "2", *home)
    for source in ("./nope/", "bert-base-uncased"):
        assert (
            failure(run, "root", "add", "r", "--from", source, "--lower", "2", "--corpus", str(corpus), *home)
            == f"hplm: {source} is not a folder; --from takes a folder, hf:ORG/NAME or pip:NAME==VERSION"
        )


def test_numbers_that_cannot_be_are_one_line(run: Run, built_home: Home, tmp_path: Path) -> None:
    home = ("--home", str(built_home.path))
    for option in ("--slots", "--lower-instances", "--max-batch-size"):
        for number in ("0", "-1"):
            assert "must be" in failure(run, "export", option, number, *home)
    train, dev = write_task(tmp_path, "mood", seed=70, train=40)
    create = ("create", "new/one", "--domain", "farm", "--train", str(train), "--dev", str(dev), *home)
    assert "1 to 256 can" in failure(run, *create, "--bottleneck", "257")
    assert "0 to 256 can" in failure(run, *create, "--entrance", "257")
    assert "must be positive" in failure(run, *create, "--epochs", "0")
    assert not built_home.repository.exists()


def test_what_the_system_refuses_is_one_line(run: Run, built_home: Home, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    sources = ("--from", str(tmp_path), "--lower", "2", "--corpus", str(file))
    assert failure(run, "root", "add", "r", *sources, "--home", str(file)) == f"hplm: {file}: File exists"
    create = ("create", "new/one", "--domain", "farm", "--dev", str(file), "--home", str(built_home.path))
    unreadable = "/proc/self/mem"  # also for root, for whom permissions do not count
    assert failure(run, *create, "--train", unreadable) == "hplm: Input/output error"


def test_reading_writes_nothing(run: Run, tmp_path: Path) -> None:
    for command in (["list"], ["root", "list"], ["domain", "list"], ["export"], ["show", "a/b"]):
        assert "no home at" in failure(run, *command, "--home", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_markup_in_texts_and_labels_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    odd = ["list[int]", "[/b] closed", "[red]x[/red]", ":smile:", "back\\"]
    print_rows([{"text": text} for text in odd], "[/x] title", as_json=False)
    print_entry({"labels": odd}, as_json=False)
    print_rows([], "[/x] rows", as_json=False)
    with progress_bars("[/x] title", Console(file=sys.stdout)) as report:
        report(Step("[/y] phase", 1, 1, "[/z] note"))
    out = capsys.readouterr().out
    for text in [*odd, "[/x] title: [/y] phase 1/1  [/z] note", ", ".join(odd)]:
        assert text in out


def test_a_home_of_a_newer_release(run: Run, tiny_home: Home) -> None:
    with sqlite3.connect(tiny_home.path / "registry.db") as connection:
        connection.execute("UPDATE state SET format_version = 9")
    for command in (["list"], ["export"], ["serve", "--http", "0", "--grpc", "0", "--metrics", "0"]):
        assert "newer release" in failure(run, *command, "--home", str(tiny_home.path))


def test_serving_on_a_port_in_use(run: Run, tiny_home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("export", "--home", str(tiny_home.path))[0] == 0
        arguments = ("--http", str(port), "--grpc", "0", "--metrics", "0", "--home", str(tiny_home.path))
        assert str(port) in failure(run, "serve", *arguments)


def test_asking_a_server_that_is_not_there(run: Run) -> None:
    claims = PortClaims.take(ServerConfig(repository=Path()))
    url = f"grpc://127.0.0.1:{claims.ports.grpc}"
    try:
        assert "hplm: " in failure(run, "infer", "acme/x", "text", "--url", url)
    finally:
        claims.release()


def test_a_pipe_gets_the_parts_of_a_value_apart(capsys: pytest.CaptureFixture[str]) -> None:
    ladder = {"target": "a drop of at most 1 points", "certified_on": 4000}
    print_entry({"ladder": ladder}, as_json=False)
    assert capsys.readouterr().out == "ladder\ttarget a drop of at most 1 points; certified_on 4000\n"
    print_rows([{"id": "a/b", "ladder": ladder}], "hPLMs", as_json=False)
    assert capsys.readouterr().out.splitlines()[1] == "a/b\ttarget a drop of at most 1 points; certified_on 4000"


def test_doctor_in_a_pipe_cuts_nothing(run: Run, tmp_path: Path) -> None:
    home = tmp_path / ("long" * 50)
    home.mkdir()
    _, out, _ = run("doctor", "--home", str(home))
    head, *lines = (line.split("\t") for line in out.splitlines())
    assert head == ["name", "status", "found", "remedy"]
    assert all(len(line) == len(head) for line in lines)
    assert any(line[0] == "disk at home" and str(home) in line[2] for line in lines)


def test_doctor(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("doctor", "--json", "--home", str(tmp_path))
    assert code == 0
    assert {"name", "status", "found", "remedy"} <= set(json.loads(out)[0])


def test_the_installed_script() -> None:
    script = Path(sys.executable).with_name("hplm")
    result = subprocess.run([script, "list", "--home", "/no/such/home"], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr.strip() == f"hplm: there is no home at /no/such/home; {NO_HOME}"
    assert "Traceback" not in result.stderr


def test_errors_are_json_with_json(run: Run, tmp_path: Path) -> None:
    code, out, err = run("list", "--json", "--home", str(tmp_path / "none"))
    assert (code, out) == (3, "")
    message = f"there is no home at {tmp_path / 'none'}"
    assert json.loads(err) == {"error": {"code": "NOT_FOUND", "message": message, "hint": NO_HOME, "exit_code": 3}}


def test_a_pipe_gets_columns_of_tabs(run: Run, built_home: Home) -> None:
    _, out, _ = run("list", "--home", str(built_home.path))
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert head[:2] == ["id", "version"] and len(rows) == 4 and {len(row) for row in rows} == {len(head)}
    _, out, _ = run("show", "acme/mood", "--home", str(built_home.path))
    assert dict(line.split("\t") for line in out.splitlines())["id"] == "acme/mood"
