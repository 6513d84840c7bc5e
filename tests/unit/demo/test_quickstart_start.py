"""How `make quickstart` starts its server: on which ports, with which log."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.lower.caller_check import AUTH_VARIABLE, Auth
from backends.storage import write_json
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import ServerConfig, ServerStartError, TritonServer
from builder.serving.own_log import own_log
from demo import quickstart


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """The servers that would have been started."""
    started: list[ServerConfig] = []
    monkeypatch.setattr(quickstart, "serve_until_stopped", lambda config, *_, **__: started.append(config))
    return started


@pytest.fixture
def assembled(tiny_home: Home) -> Home:
    render_repository(tiny_home.repository, ExportSettings())
    write_json(tiny_home.path / "quickstart.json", {"prebuilt": "", "assembled": True})
    return tiny_home


def test_a_second_server_on_the_home_has_a_log_of_its_own(assembled: Home, configs: list[ServerConfig]) -> None:
    quickstart.run(assembled.path, port=0)
    with own_log(assembled.run) as other:
        quickstart.run(assembled.path, port=0)
    assert [config.log_path for config in configs] == [other, assembled.run / "server-2.log"]


@pytest.mark.parametrize(
    ("auth", "told"), [(None, "auth off: each caller"), (Auth.TOKENS, "auth tokens: there is none")]
)
def test_it_says_who_may_ask(
    assembled: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    auth: Auth | None,
    told: str,
) -> None:
    """As soon as the server is ready; this one never is, so that nothing comes after it."""
    monkeypatch.setattr(
        quickstart, "serve_until_stopped", lambda config, _, on_ready, **__: on_ready(TritonServer(config))
    )
    with pytest.raises(ServerStartError, match="not started yet"):
        quickstart.run(assembled.path, port=0, auth=auth)
    assert capsys.readouterr().err.startswith(told)


def test_the_server_asks_for_tokens_as_the_screen_says(
    assembled: Home, configs: list[ServerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server inherits the variable, which goes before its configuration."""
    monkeypatch.setenv(AUTH_VARIABLE, Auth.OFF)
    quickstart.run(assembled.path, port=0, auth=Auth.TOKENS)
    assert configs[0].environment[AUTH_VARIABLE] == Auth.TOKENS


def test_the_registry_is_closed_while_it_serves(assembled: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[list[str]] = []

    def note_open_files(*_: object, **__: object) -> None:
        served.append([each.path for each in psutil.Process().open_files()])

    monkeypatch.setattr(quickstart, "serve_until_stopped", note_open_files)
    quickstart.run(assembled.path, port=0)
    assert str(assembled.path / "registry.db") not in served[0]


@pytest.mark.parametrize("port", [-1, 65533, 70000])
def test_four_ports_that_cannot_be(tmp_path: Path, configs: list[ServerConfig], port: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"port {port} and the next three cannot be; 'make quickstart PORT="):
        quickstart.run(tmp_path / "home", port=port)
    assert not configs and not (tmp_path / "home").exists()
