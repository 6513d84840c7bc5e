"""Which servers a request goes to first, where not all hold all roots.

Any server answers any request: it loads a root that it does not hold when it is asked for. So what is not named here,
or comes while no holder is ready, goes to any server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from backends.held_roots import Roots, holds
from backends.scheduling.tenants import tenant_of

Servers = tuple[str, ...]
ANY: Servers = ()


@dataclass(frozen=True)
class Routing:
    """Servers by tenant, and by hPLM where those are others than its tenant's; `ANY` for any server."""

    of_tenant: Mapping[str, Servers] = field(default_factory=dict)
    of_hplm: Mapping[str, Servers] = field(default_factory=dict)

    @property
    def groups(self) -> list[Servers]:
        """All different groups of servers, without `ANY`."""
        return sorted({*self.of_tenant.values(), *self.of_hplm.values()} - {ANY})

    @classmethod
    def of(cls, held: Mapping[str, Roots], root_of: Mapping[str, str]) -> Routing:
        """Send requests for each root to the servers that hold it.

        Args:
            held: Roots by server.
            root_of: Roots by hPLM.
        """
        holders = {root: _holders(held, root) for root in set(root_of.values())}
        of_hplm = {hplm: holders[root] for hplm, root in root_of.items()}
        of_tenant = {tenant: found.most_common(1)[0][0] for tenant, found in _by_tenant(of_hplm).items()}
        return cls(
            {tenant: servers for tenant, servers in of_tenant.items() if servers != ANY},
            {hplm: servers for hplm, servers in of_hplm.items() if servers != of_tenant[tenant_of(hplm)]},
        )


def _holders(held: Mapping[str, Roots], root: str) -> Servers:
    found = tuple(sorted(server for server, roots in held.items() if holds(roots, root)))
    return found if len(found) < len(held) else ANY


def _by_tenant(of_hplm: Mapping[str, Servers]) -> Mapping[str, Counter[Servers]]:
    found: defaultdict[str, Counter[Servers]] = defaultdict(Counter)
    for hplm, servers in of_hplm.items():
        found[tenant_of(hplm)][servers] += 1
    return found
