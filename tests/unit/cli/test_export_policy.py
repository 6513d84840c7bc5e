"""`hplm export --policy` and `hplm serve --policy`: what reaches `hplm_upper`, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import cli
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.model_settings import ModelSettings
from backends.scheduling.policies import policy_of
from backends.scheduling.settings import POLICY_VARIABLE, Ageing, DasSettings, PolicyName, PolicySettings
from builder.export.config import from_text
from builder.serving import ServerConfig
from cli import server


def run(monkeypatch: pytest.MonkeyPatch, home: Home, command: str, *options: str) -> str | int | None:
    """Run a command in this process; its exit code, or the line that it ends with."""
    monkeypatch.setattr(sys, "argv", ["hplm", command, "--home", str(home.path), *options])
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    return 0


def parameters(home: Home) -> dict[str, str]:
    return dict(from_text((home.repository / "hplm_upper" / "config.pbtxt").read_text()).parameters)


def read_back(parameters: dict[str, str]) -> PolicySettings:
    """As the model does."""
    config = {"parameters": {name: {"string_value": value} for name, value in parameters.items()}}
    arguments = {"model_config": json.dumps(config), "model_repository": "/home/repository/hplm_upper"}
    return PolicySettings.from_model(ModelSettings.from_triton(arguments))


def test_the_default_is_first_come_first_served(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, tiny_home, "export") in (0, None)
    assert read_back(parameters(tiny_home)) == read_back({}) == PolicySettings()
    assert PolicySettings().name == "fcfs"


def test_what_is_exported_is_what_the_model_reads(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--policy", "slotted-das", "--eta", "0.3", "--q", "0.8", "--patience-ms", "250")
    assert run(monkeypatch, tiny_home, "export", *options) in (0, None)
    found = read_back(parameters(tiny_home))
    assert found == PolicySettings(PolicyName.SLOTTED_DAS, DasSettings(0.3, 0.8), Ageing(250_000))


@pytest.mark.parametrize(
    "options",
    [
        ("--policy", "lifo"),
        ("--eta", "0"),
        ("--eta", "1"),
        ("--eta", "nan"),
        ("--q", "1.5"),
        ("--q", "a half"),
        ("--patience-ms", "-1"),
    ],
)
def test_wrong_options_leave_the_old_repository(
    tiny_home: Home, options: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(monkeypatch, tiny_home, "export", "--policy", "edf") in (0, None)
    assert run(monkeypatch, tiny_home, "export", *options) not in (0, None)
    assert parameters(tiny_home)["policy"] == "edf"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"policy": "lifo"}, "policy 'lifo' is not one of fcfs, sjf, edf, least-slack, das, slotted-das"),
        ({"eta": "much"}, "model parameter 'eta' must be a number, not 'much'"),
        ({"q": "2"}, "q must lie between 0 and 1, not 2.0"),
        ({"patience_ms": "-3"}, "model parameter 'patience_ms' must be a whole number, not '-3'"),
    ],
)
def test_a_model_names_what_is_wrong_with_its_parameters(wrong: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        read_back(wrong)
    assert str(error.value) == told


def test_a_policy_that_predicts_needs_a_cost_model() -> None:
    with pytest.raises(InvalidArgumentError, match="'least-slack' needs a cost model"):
        policy_of(PolicySettings(PolicyName.LEAST_SLACK))


def test_serve_changes_the_policy_of_one_run(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ServerConfig] = []
    monkeypatch.setattr(server, "serve_until_stopped", lambda config, *_, **others: started.append(config))
    assert run(monkeypatch, tiny_home, "export", "--policy", "edf") in (0, None)
    assert run(monkeypatch, tiny_home, "serve", "--policy", "das") in (0, None)
    assert run(monkeypatch, tiny_home, "serve") in (0, None)
    with_policy, without = (dict(each.environment) for each in started)
    assert with_policy == {"HPLM_HOME": str(Path(tiny_home.path).absolute()), POLICY_VARIABLE: "das"}
    assert POLICY_VARIABLE not in without
    assert read_back(parameters(tiny_home)).name == "edf"
    monkeypatch.setenv(POLICY_VARIABLE, "das")
    assert read_back(parameters(tiny_home)).name == "das"
