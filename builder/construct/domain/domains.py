"""`hplm domain create` and `hplm domain update`: a corpus becomes a version of a domain, live once it is whole."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from backends.errors import ConflictError
from backends.home import Home
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from builder.construct.domain.build import VersionPlan, build_version
from builder.construct.training.device import training_device
from builder.executors.mapping import ParallelMap, map_here
from builder.locks import Hold, exclusive
from builder.progress import Report
from builder.requests.domains import CreateDomain, UpdateDomain
from builder.settings.domain import DOMAIN_THETA, PlotSettings


def create_domain(
    home: Home, registry: Registry, request: CreateDomain, report: Report, fan_out: ParallelMap = map_here
) -> DomainEntry:
    """Build the first version of a domain and make it live; a killed build goes on where it was."""
    root, device = request.root_name, training_device(request.device)
    with _building(home, root, request.name) as hold:
        if registry.has_domain(root, request.name):
            raise ConflictError(
                f"domain {request.name!r} of root {root!r} exists already; "
                "'hplm domain update' makes a new version of it"
            )
        plan = VersionPlan(
            name=request.name,
            version=registry.next_domain_version(root, request.name),
            corpus=tuple(request.corpus),
            plot=request.plot,
            parent=registry.find_domain(root, request.parent),
            pretrain=request.pretrain,
            held_out=request.held_out,
            device=device,
        )
        return _publish(home, registry, root, plan, hold, report, fan_out)


def update_domain(
    home: Home, registry: Registry, request: UpdateDomain, report: Report, fan_out: ParallelMap = map_here
) -> DomainEntry:
    """Build the next version from the live one's layers and counts, and new texts; until then the old one serves."""
    root, device = request.root_name, training_device(request.device)
    with _building(home, root, request.name) as hold:
        live = registry.domain(root, request.name)
        parent = registry.domain_parent(live)
        if request.parent is not None:
            parent = registry.find_domain(root, request.parent)
        plan = VersionPlan(
            name=request.name,
            version=registry.next_domain_version(root, request.name),
            corpus=tuple(request.corpus),
            plot=_plot_settings(live, request),
            parent=parent,
            before=live,
            pretrain=request.pretrain,
            held_out=request.held_out,
            device=device,
            served=tuple(version.entry for version in registry.domain_versions(root, request.name)),
            keep_learned=request.keep_learned,
        )
        return _publish(home, registry, root, plan, hold, report, fan_out)


def _publish(
    home: Home, registry: Registry, root: str, plan: VersionPlan, hold: Hold, report: Report, fan_out: ParallelMap
) -> DomainEntry:
    started_s = time.monotonic()
    hold.will_read(folder for entry in (plan.before, plan.parent) if entry for folder in entry.folders)
    registry.require_unknown_folder(home.relative(home.plot(root, plan.name, plan.version)))
    built = build_version(home, RootFolder(home.root(root)), plan, report, fan_out)
    metrics = {**built.metrics, "seconds": round(time.monotonic() - started_s, 1)}
    folder = home.relative(built.folder)
    replaces = plan.before.version if plan.before else None
    return registry.publish_domain(
        root, plan.name, folder, plan.parent, metrics, version=plan.version, replaces=replaces
    )


def _building(home: Home, root: str, name: str) -> AbstractContextManager[Hold]:
    """One build of a domain at a time, whichever version it makes."""
    return exclusive(home, home.path / "plots" / root / name, f"domain {name!r}")


def _plot_settings(live: DomainEntry, update: UpdateDomain) -> PlotSettings:
    """Take the requested settings, else those of the live version; versions of older releases do not say."""
    return PlotSettings(
        theta=live.metrics.get("theta", DOMAIN_THETA) if update.theta is None else update.theta,
        max_fragments=live.metrics.get("max_fragments") if update.max_fragments is None else update.max_fragments,
        max_bigrams=live.metrics.get("max_bigrams"),
    )
