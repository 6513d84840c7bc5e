from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError, NotFoundError
from backends.home import Home
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from cli.listening import require_code, require_guarded

PRIVATE = ("127.0.0.1", "127.8.9.10", "::1", "localhost")
PUBLIC = ("0.0.0.0", "::", "10.0.0.7", "192.168.1.2", "example.com", "localhost.example.com", "::ffff:10.0.0.7", "")


@pytest.mark.parametrize("address", PRIVATE)
def test_this_machine_may_go_without_tokens(address: str) -> None:
    require_guarded(address, asks_for_tokens=False, is_insecure=False)


@pytest.mark.parametrize("address", PUBLIC)
def test_others_need_tokens_or_a_word_of_the_operator(address: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--insecure"):
        require_guarded(address, asks_for_tokens=False, is_insecure=False)
    require_guarded(address, asks_for_tokens=True, is_insecure=False)
    require_guarded(address, asks_for_tokens=False, is_insecure=True)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("serve", "ask every tenant's hPLMs; --auth tokens asks them for tokens, --insecure lets"),
        ("manager", "change every hPLM; --auth tokens or --token-file ask them for tokens, --insecure lets"),
    ],
)
def test_the_command_rejects_before_it_makes_anything(tiny_home: Home, command: str, told: str) -> None:
    hplm = Path(sys.executable).with_name("hplm")
    arguments = [hplm, command, "--home", tiny_home.path, "--address", "0.0.0.0"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hplm: on 0.0.0.0 others could {told}")
    assert not tiny_home.repository.exists()
    assert not (tiny_home.run / "manager.lock").exists()


@pytest.mark.parametrize("options", [("--insecure",), ("--auth", "tokens"), ("--token-file", "{token}")])
def test_a_manager_that_may_listen_everywhere(
    run_hplm: Callable[..., str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Without a home it ends at once; that is found after the check."""
    token = tmp_path / "token"
    token.write_text("secret", encoding="utf-8")
    given = [option.format(token=token) for option in options]
    assert "there is no home" in run_hplm("manager", "--home", tmp_path / "none", "--address", "0.0.0.0", *given)


def test_code_of_another_release_is_told_and_missing_code_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "repository"
    require_code(repository)
    render_repository(repository, ExportSettings(takes_plugin=False))
    require_code(repository)
    assert capsys.readouterr().err == ""
    code = repository / "hplm_upper" / "1" / "model.py"
    code.write_text("# of another release\n")
    require_code(repository)
    assert capsys.readouterr().err.startswith(f"{repository} differs from the installed release; ")
    code.unlink()
    with pytest.raises(NotFoundError, match=f"missing: {code}"):
        require_code(repository)
