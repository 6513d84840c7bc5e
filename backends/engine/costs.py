"""The costs of an engine's stacks: from their roots' profiles if these fit the engine, else learned."""

from __future__ import annotations

import logging

from backends.engine.settings import EngineSettings
from backends.engine.stage_cuts import StageCuts
from backends.errors import HplmError
from backends.home import Home
from backends.root.store import RootFolder
from backends.scheduling.cost_model import CostModel
from backends.scheduling.cost_profile import has_profile, profile_for
from backends.scheduling.estimator import LiveCosts
from backends.stack_key import StackKey

LOGGER = logging.getLogger(__name__)


class EngineCosts:
    """Live costs by stack, read at first use: of cut stacks what a batch takes in the slowest stage. Thread-safe."""

    def __init__(self, home: Home, settings: EngineSettings, cuts: StageCuts) -> None:
        self._home = home
        self._settings = settings
        self._cuts = cuts
        self._costs: dict[StackKey, LiveCosts] = {}

    def of(self, key: StackKey) -> LiveCosts:
        costs = self._costs.get(key)
        if costs is None:
            costs = LiveCosts(self._profiled(key), self._settings.stack.stages - 1)
            costs = self._costs.setdefault(key, costs)
        return costs

    def forget(self, key: StackKey) -> None:
        self._costs.pop(key, None)

    def _profiled(self, key: StackKey) -> CostModel | None:
        """Read a root's profile; None, and a line in the log, where there is none that fits."""
        root = key.root
        folder = self._home.profile(root)
        if not has_profile(folder):
            LOGGER.info("root %s has no cost model, it is learned from live batches; see 'hplm profile'", root)
            return None
        try:
            of_root = RootFolder(self._home.root(root))
            profile = profile_for(folder, self._settings.measured(of_root))
        except HplmError as error:
            LOGGER.warning(
                "the cost model of root %s is learned from live batches: %s; see 'hplm profile'", root, error
            )
            return None
        LOGGER.info(
            "root %s: batches were predicted with an error of %.1f %% when it was profiled", root, profile.error_percent
        )
        return profile.model.scaled(self._cuts.slowest_share(key, of_root))
