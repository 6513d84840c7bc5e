"""A home of small real folders, and what a collection takes of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from backends.home import Home
from backends.registry.registry import Registry
from backends.storage import publishing
from builder.lifecycle.garbage import GarbageSettings, collect_garbage

AT_ONCE = GarbageSettings(grace_s=0, unfinished_s=0)


def write(folder: Path, size_bytes: int = 1000) -> Path:
    with publishing(folder) as staged:
        (staged / "weights").write_bytes(b"x" * size_bytes)
    return folder


def add_root(home: Home, registry: Registry, name: str) -> None:
    root, plot = write(home.root(name)), write(home.plot(name, "general", 1))
    registry.publish_root(name, "f00d", home.relative(root), "general", home.relative(plot), {})


def add_domain(home: Home, registry: Registry, name: str, parent: str = "general") -> str:
    version = registry.next_domain_version("mini", name)
    folder = write(home.plot("mini", name, version))
    above = registry.find_domain("mini", parent)
    return registry.publish_domain("mini", name, home.relative(folder), above, {}).label


def add_hplm(home: Home, registry: Registry, hplm: str, domain: str = "general", **options: bool) -> int:
    version = registry.next_hplm_version(hplm)
    folder = write(home.bank("mini", hplm, version))
    tuned_on = registry.find_domain("mini", domain)
    parts = (hplm, tuned_on, "classification", ["a"], home.relative(folder), {})
    return registry.publish_hplm(*parts, **options).version


def folders(home: Home) -> set[str]:
    rooms = ("roots/*", "plots/*/*", "bank/*/*")
    return {path.relative_to(home.path).as_posix() for room in rooms for path in home.path.glob(room)}


def removed(home: Home, registry: Registry, settings: GarbageSettings = AT_ONCE) -> set[str | None]:
    return {removal.folder for removal in collect_garbage(home, registry, settings).removed}


def age(path: Path, seconds: float) -> None:
    at = time.time() - seconds
    for part in [*path.rglob("*"), path]:
        os.utime(part, (at, at))
