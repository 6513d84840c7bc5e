"""The cost models of roots that a plan is made by; read without PyTorch."""

from __future__ import annotations

from backends.errors import InvalidArgumentError, shown
from backends.home import Home
from backends.registry.entries import RootEntry
from backends.scheduling.cost_profile import CostProfile, ForeignProfileError, has_profile, read_profile


def root_profile(home: Home, entry: RootEntry) -> CostProfile:
    """Read a root's cost model.

    Raises:
        InvalidArgumentError: There is none, or by it a batch takes no time.
        ForeignProfileError: It was measured with other weights.
    """
    root = entry.name
    if not has_profile(home.profile(root)):
        raise InvalidArgumentError(f"root {shown(root)} has no cost model yet; 'hplm profile --root {root}' makes one")
    profile = read_profile(home.profile(root))
    if profile.measured.root_fingerprint != entry.fingerprint:
        raise ForeignProfileError(
            f"the cost model of root {shown(root)} was measured with other weights; 'hplm profile --root {root}' makes "
            "one for these"
        )
    if not any(profile.model.to_json().values()):
        raise InvalidArgumentError(
            f"by the cost model of root {shown(root)} a batch takes no time; 'hplm profile --root {root}' measures it"
        )
    return profile
