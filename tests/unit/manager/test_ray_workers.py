"""What workers of a Ray cluster are told, without a cluster."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from backends.home import REGISTRY_VARIABLE, Home
from builder.manager import ray_workers

URL = "postgresql://hplm:secret@db/registry"


def test_the_registrys_url_goes_to_workers_in_a_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    monkeypatch.setenv(REGISTRY_VARIABLE, URL)
    ray_workers._write_url(home)
    ray_workers._write_url(home)
    (path,) = home.run.iterdir()
    assert path.read_text() == URL and stat.S_IMODE(path.stat().st_mode) == 0o600
    monkeypatch.delenv(REGISTRY_VARIABLE)
    monkeypatch.setattr(ray_workers, "run_attempt", lambda *_: int(os.environ.get(REGISTRY_VARIABLE) == URL))
    monkeypatch.setattr(ray_workers, "cluster_map", lambda _: None)
    assert ray_workers.Attempt().run(str(tmp_path), 1, 1, 1, "cpu") == 1
    monkeypatch.delenv(REGISTRY_VARIABLE)
    ray_workers._write_url(home)
    assert list(home.run.iterdir()) == []
    assert ray_workers.Attempt().run(str(tmp_path), 1, 1, 1, "cpu") == 0
