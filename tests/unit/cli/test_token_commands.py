"""`hplm token`, on a copy of the tiny home."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import pytest

import cli
from backends.errors import InvalidArgumentError
from backends.home import Home
from cli.moments import read_moment, shown_moment

OnStderr = Callable[..., str]
NO_MOMENT = "is neither a date such as 2026-12-31 nor a time such as 90d or 12h"


@pytest.fixture
def on_stderr(tiny_home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> OnStderr:
    """Run a command that succeeds, and return what it says on stderr."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hplm", *arguments, "--home", str(tiny_home.path)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code
        return capsys.readouterr().err

    return run


def test_tokens_from_creation_to_revocation(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    def token(*arguments: str) -> str:
        return run_hplm("token", *arguments, "--home", tiny_home.path)

    text = token("create", "acme", "--expires", "90d").strip()
    id = text.split("_")[1]
    assert "\n" not in text and len(text) == 61
    created = json.loads(token("create", "acme/topic", "--not-before", "2999-01-01", "--json"))
    assert (created["role"], created["state"], created["not_before"]) == (
        "caller", "not valid yet", "2999-01-01T00:00:00Z",
    )  # fmt: skip
    operator = json.loads(token("create", "--role", "operator", "--json"))
    assert operator["scope"] == "*"
    new = token("rotate", id, "--grace", "7d").strip()
    listed = {row["id"]: row for row in json.loads(token("list", "--tenant", "acme", "--json"))}
    assert set(listed) == {id, created["id"], new.split("_")[1]}
    assert text not in json.dumps(listed)
    assert token("revoke", id) == f"token {id} of acme is revoked\n"
    assert token("revoke", id) == f"hplm: token {id} is revoked already"
    assert f"{id}\tacme\tcaller\trevoked" in token("list")


@pytest.mark.parametrize(
    ("arguments", "noted"),
    [
        (("token", "create", "acmee"), "note: tenant 'acmee' has no hPLM yet\n"),
        (("token", "create", "acmee", "--role", "tenant-admin"), "note: tenant 'acmee' has no hPLM yet\n"),
        (("token", "create", "acme/topics"), "note: hPLM 'acme/topics' does not exist yet\n"),
        (("quota", "set", "acmee", "--weight", "2"), "note: tenant 'acmee' has no hPLM yet\n"),
        (("token", "create", "acme"), ""),
        (("token", "create", "acme/topic"), ""),
        (("token", "create", "*"), ""),
        (("token", "create", "--role", "viewer"), ""),
        (("quota", "set", "acme", "--weight", "2"), ""),
    ],
)
def test_names_that_nothing_has_are_noted(on_stderr: OnStderr, arguments: tuple[str, ...], noted: str) -> None:
    told = on_stderr(*arguments)
    assert told.startswith(noted) and told.count("note:") == bool(noted)


def test_when_a_token_is_valid_is_said(on_stderr: OnStderr) -> None:
    told = on_stderr("token", "create", "acme", "--not-before", "2999-01-01", "--expires", "2999-02-01")
    assert "caller of acme, valid from 2999-01-01T00:00:00Z until 2999-02-01T00:00:00Z; it is shown only now" in told
    assert "caller of acme, valid until it is revoked; it is" in on_stderr("token", "create", "acme")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create",), "a token of the role caller needs a SCOPE"),
        (("create", "a b"), "tenant name 'a b' is not allowed"),
        (("create", "acme", "--role", "admin"), "the role admin is for all tenants"),
        (("create", "acme", "--expires", "2020-01-01"), "a token cannot expire before it is valid"),
        (("create", "acme", "--expires", "0"), "a token cannot expire before it is valid"),
        (("create", "acme", "--expires", "2020-13-01"), "--expires: '2020-13-01' is neither a date"),
        (("create", "acme", "--expires", "yesterday"), f"--expires: 'yesterday' {NO_MOMENT}"),
        (("create", "acme", "--expires", "-90d"), f"--expires: '-90d' {NO_MOMENT}"),
        (("create", "acme", "--not-before", "d"), f"--not-before: 'd' {NO_MOMENT}"),
        (("rotate", "f00", "--grace", "-1d"), "--grace: '-1d' is no time such as 90d, 12h, 30m or 0"),
        (("rotate", "f00"), "token 'f00' does not exist; 'hplm token list' shows their IDs"),
        (("revoke", "f00"), "token 'f00' does not exist; 'hplm token list' shows their IDs"),
    ],
)
def test_wrong_commands_get_one_line(
    run_hplm: Callable[..., str], tiny_home: Home, arguments: tuple[str, ...], message: str
) -> None:
    printed = run_hplm("token", *arguments, "--home", tiny_home.path)
    assert printed.startswith(f"hplm: {message}")
    assert "\n" not in printed


def test_moments() -> None:
    assert shown_moment(read_moment("2026-12-31", "--since")) == "2026-12-31T00:00:00Z"
    assert shown_moment(read_moment("2026-12-31T18:00+02:00", "--since")) == "2026-12-31T16:00:00Z"
    assert read_moment("2d", "--expires") == pytest.approx(time.time() + 172_800, abs=60)
    assert read_moment("12h", "--since", sign=-1) == pytest.approx(time.time() - 43_200, abs=60)
    with pytest.raises(InvalidArgumentError, match="'12-moons' is neither"):
        read_moment("12-moons", "--since")
