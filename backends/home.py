"""The folders of one installation: `--home`, `$HPLM_HOME`, or `./hplm_home`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

HOME_VARIABLE = "HPLM_HOME"
REGISTRY_VARIABLE = "HPLM_REGISTRY_URL"


@dataclass(frozen=True)
class Home:
    """The folders of a home; nothing is created before it is written to."""

    path: Path

    @property
    def registry_url(self) -> str:
        database = str(self.path.absolute() / "registry.db")
        return os.environ.get(REGISTRY_VARIABLE) or URL.create("sqlite", database=database).render_as_string(False)

    @property
    def repository(self) -> Path:
        return self.path / "repository"

    @property
    def downloads(self) -> Path:
        return self.path / "downloads"

    @property
    def run(self) -> Path:
        """Logs and process files of servers started on this home."""
        return self.path / "run"

    @property
    def traffic(self) -> Path:
        """What servers recorded of their traffic; all of it can be deleted at any time."""
        return self.path / "traffic"

    @property
    def audits(self) -> Path:
        """Which ladders have promised too much; all of it can be deleted at any time, and servers find out again."""
        return self.path / "audits"

    @property
    def states(self) -> Path:
        """Texts after the lower model, kept between tunings; all of it can be deleted at any time."""
        return self.path / "cache" / "states"

    @property
    def holds_models(self) -> bool:
        """Whether tables or adapters lie here, which mean nothing without their registry."""
        return any(folder.is_dir() and any(folder.iterdir()) for folder in (self.path / "plots", self.path / "bank"))

    def root(self, root: str) -> Path:
        return self.path / "roots" / root

    def profile(self, root: str) -> Path:
        """Return the folder of what was measured of a root on this machine: its cost model."""
        return self.path / "profiles" / root

    @property
    def placement(self) -> Path:
        """What `hplm place` has decided: which stacks stand on which devices."""
        return self.path / "profiles" / "placement.json"

    def plot(self, root: str, domain: str, version: int) -> Path:
        return self.path / "plots" / root / f"{domain}@{version}"

    def bank(self, root: str, hplm: str, version: int) -> Path:
        tenant, name = hplm.split("/", 1)
        return self.path / "bank" / root / f"{tenant}--{name}@{version}"

    def relative(self, folder: Path) -> str:
        """Name a folder as the registry does: without the home, so that a home can be moved or mounted elsewhere."""
        return folder.relative_to(self.path).as_posix()
