"""hPLMs published in a registry that has the root `mini`."""

from __future__ import annotations

from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry


def publish(registry: Registry, hplm: str, domain: str = "general", **options: object) -> HplmEntry:
    tuned_on = registry.find_domain("mini", domain)
    version = registry.next_hplm_version(hplm)
    folder = f"bank/mini/{hplm.replace('/', '--')}@{version}"
    options = {"version": version, **options}
    return registry.publish_hplm(hplm, tuned_on, "classification", ["a", "b"], folder, {"accuracy": 1}, **options)  # type: ignore[arg-type]
