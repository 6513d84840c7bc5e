"""`--ready-timeout`: how long a server may take until it is ready."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backends.home import Home
from builder.serving import ServerConfig
from cli import server


def test_a_server_has_the_time_that_it_is_given(
    run_hplm: Callable[..., str], tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ServerConfig] = []
    monkeypatch.setattr(server, "serve_until_stopped", lambda config, *_, **others: started.append(config))
    for options in ((), ("--ready-timeout", "30m")):
        run_hplm("serve", "--home", tiny_home.path, *options)
    assert [config.ready_timeout_s for config in started] == [600.0, 1800.0]


@pytest.mark.parametrize("command", [("serve",), ("fleet", "serve")])
@pytest.mark.parametrize(
    ("given", "message"), [("0", "0 leaves a server no time to load"), ("soon", "'soon' is no time such as")]
)
def test_times_that_cannot_be(
    run_hplm: Callable[..., str], tiny_home: Home, command: tuple[str, ...], given: str, message: str
) -> None:
    said = run_hplm(*command, "--home", tiny_home.path, "--ready-timeout", given)
    assert f"--ready-timeout: {message}" in said
