"""No home of the demo goes into a registry that the shell names for others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError
from backends.home import REGISTRY_VARIABLE
from demo import __main__ as demo
from demo import prebuilding, quickstart


@pytest.mark.parametrize("run", [demo.run, prebuilding.run, quickstart.run], ids=["demo", "prebuilt", "quickstart"])
def test_a_registry_of_others_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., None]
) -> None:
    monkeypatch.setenv(REGISTRY_VARIABLE, f"sqlite:///{tmp_path / 'production.db'}")
    with pytest.raises(InvalidArgumentError, match="this home has a registry of its own"):
        run(home=tmp_path / "home")
    assert not list(tmp_path.iterdir())
