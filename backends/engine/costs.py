"""The costs of all roots that one engine serves: from their profiles where these hold for it, learned otherwise."""

from __future__ import annotations

import logging

from backends.engine.settings import EngineSettings
from backends.errors import HplmError
from backends.home import Home
from backends.root.store import RootFolder
from backends.scheduling.cost_model import CostModel
from backends.scheduling.cost_profile import has_profile, profile_for
from backends.scheduling.live_costs import LiveCosts

LOGGER = logging.getLogger(__name__)


class EngineCosts:
    """By root, read when one is first named."""

    def __init__(self, home: Home, settings: EngineSettings) -> None:
        self._home = home
        self._settings = settings
        self._costs: dict[str, LiveCosts] = {}

    def of(self, root: str) -> LiveCosts:
        costs = self._costs.get(root)
        if costs is None:
            costs = self._costs.setdefault(root, LiveCosts(self._profiled(root)))
        return costs

    def _profiled(self, root: str) -> CostModel | None:
        """A profile that cannot be used costs a line in the log, and the first batches their predictions."""
        folder = self._home.profile(root)
        if not has_profile(folder):
            LOGGER.warning("root %s has no cost model, it is learned from live batches; see 'hplm profile'", root)
            return None
        try:
            wanted = self._settings.measured(RootFolder(self._home.root(root)))
            profile = profile_for(folder, wanted)
        except HplmError as error:
            LOGGER.warning(
                "the cost model of root %s is learned from live batches: %s; see 'hplm profile'", root, error
            )
            return None
        LOGGER.info(
            "root %s: batches were predicted with an error of %.1f %% when it was profiled", root, profile.error_percent
        )
        return profile.model
