"""Which roots each server of the fleet on this machine is to hold: taken from a plan, kept in the fleet's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backends.errors import InvalidArgumentError, shown
from backends.fields import read_fields
from backends.held_roots import Roots, in_words
from backends.storage import write_json
from builder.placement.planner.change import groups_checksum
from builder.placement.planner.group import Group
from builder.placement.planner.plan import Plan

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class FleetPlacement:
    """The roots of servers by their names; servers that are not named hold all.

    Attributes:
        roots: Of servers.
        order: Servers in the order in which the plan's steps change them; that of others makes no difference.
        groups: `groups_checksum` of the plan, of all its hosts; None without a plan.
        servers: All that the plan says something of, those that hold all too; empty without a plan.
    """

    roots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    groups: str | None = None
    servers: tuple[str, ...] = ()

    def why_out_of_order(self, plan: Plan) -> str | None:
        """Say why a plan's steps may be in a wrong order where this one was applied last; None where they are not."""
        is_unknown = self.groups is None and bool(self.roots)  # an earlier release wrote it
        if plan.change is None or is_unknown or self.groups in (plan.change.previous, groups_checksum(plan.groups)):
            return None
        return "the plan begins with another placement than was applied last, so its steps may interrupt other roots"

    def unlike(self, names: Sequence[str]) -> list[str]:
        """Say where a fleet has more servers than the placement, or fewer, whose roots nobody holds."""
        said = []
        if self.servers and (more := [name for name in names if name not in self.servers]):
            said.append(
                f"the placement says nothing of {', '.join(more)}: such a server holds all roots, if they fit; "
                "hplm place for all servers and hplm fleet apply --placement mend it"
            )
        if missing := sorted({*self.roots} - {*names}):
            said.append(
                f"the placement is for {', '.join(missing)} too, which this fleet does not have: servers load what is "
                "missing when it is asked for; hplm fleet apply --placement, or --everywhere, mends it"
            )
        return said

    @property
    def held(self) -> dict[str, list[str] | None] | None:
        """The roots of each server that it says something of, None for all; None without a placement."""
        names = dict.fromkeys((*self.servers, *self.roots))
        return {name: None if (own := self.roots_of(name)) is None else list(own) for name in names} or None

    def __str__(self) -> str:
        if self.held is None:
            return "no placement is in force: each server holds all roots"
        return f"a placement is in force: {'; '.join(f'{name} {in_words(own)}' for name, own in self.held.items())}"

    def roots_of(self, server: str) -> Roots:
        return self.roots.get(server)

    @classmethod
    def of_plan(cls, plan: Plan, servers: Sequence[str], home_roots: Sequence[str], host: str | None) -> FleetPlacement:
        """Give the groups of one host to the servers, in their order.

        Args:
            plan: Of `hplm place`, checked against the home.
            servers: Names of the fleet's servers.
            home_roots: All roots of the home.
            host: Which of the plan's hosts this machine is; not needed where the plan has one only.

        Raises:
            InvalidArgumentError: This fleet cannot do what the plan says.
        """
        groups = _groups_here(plan, host)
        for group in groups:
            _require_whole(group)
        if len(groups) != len(servers):
            raise InvalidArgumentError(
                f"the placement has {len(groups)} groups of devices here, and the fleet {len(servers)} servers; start "
                f"it with --servers {len(groups)}"
            )
        held = {server: tuple(sorted(group.roots)) for server, group in zip(servers, groups, strict=True)}
        server_of = {group.name: server for server, group in zip(servers, groups, strict=True)}
        changed = [group.name for step in plan.change.steps for group in step.groups] if plan.change else []
        return cls(
            {server: roots for server, roots in held.items() if set(roots) != set(home_roots)},
            tuple(server_of[name] for name in changed if name in server_of),
            groups_checksum(plan.groups),
            tuple(servers),
        )

    @classmethod
    def read(cls, path: Path) -> FleetPlacement:
        """Read what is to be held; where there is no file, all servers hold all roots.

        Raises:
            FileError: The file is damaged, or of a newer format.
        """
        if not path.exists():
            return cls()
        stored = read_fields(path, _FORMAT_VERSION)
        servers = stored.part("servers")
        order = stored.texts("order") if "order" in stored else ()
        groups = stored.text("groups") if "groups" in stored else None
        planned = stored.texts("planned") if "planned" in stored else ()
        return cls({name: servers.texts(name) for name in servers.names()}, order, groups, planned)

    def write(self, path: Path) -> None:
        """Write it, replacing an old one in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        servers = {name: list(roots) for name, roots in self.roots.items()}
        about_plan = {} if self.groups is None else {"groups": self.groups, "planned": list(self.servers)}
        write_json(
            path, {"format_version": _FORMAT_VERSION, "servers": servers, "order": list(self.order), **about_plan}
        )


def levels_apart(plan: Plan) -> list[str]:
    """Say which groups hold some levels of a root only: a server loads all levels of a root that it holds."""
    levels: dict[str, set[str]] = {}
    for stack in (stack for group in plan.groups for stack in group.stacks):
        levels.setdefault(stack.root, set()).add(stack.name)
    return [
        f"group {shown(group.name)} holds {', '.join(sorted(held))} without {', '.join(sorted(levels[root] - held))}; "
        "a server loads all levels of a root that it holds, so it takes more memory than the plan says"
        for group in plan.groups
        for root in group.roots
        if (held := {stack.name for stack in group.stacks if stack.root == root}) != levels[root]
    ]


def _groups_here(plan: Plan, host: str | None) -> list[Group]:
    host_of = {device.name: device.host for device in plan.devices}
    hosts = sorted(set(host_of.values()))
    if host is None and len(hosts) == 1:
        host = hosts[0]
    if host not in hosts:
        said = "which of them is this one" if host is None else f"{shown(host)} is none of them"
        raise InvalidArgumentError(f"the placement is for the hosts {', '.join(hosts)}: --host, {said}")
    return [group for group in plan.groups if host_of[group.devices[0]] == host]


def _require_whole(group: Group) -> None:
    if group.shape.num_devices > 1:
        raise InvalidArgumentError(
            f"group {shown(group.name)} of the placement cuts its roots in {group.shape.stages} stages of "
            f"{group.shape.ways} devices; a server of a fleet runs whole roots on one device"
        )
