"""The readers that are fuzzed in process, a class in each file."""

from __future__ import annotations

from collections.abc import Mapping

from bench.kit.fuzz.target import Target
from bench.kit.fuzz.targets.tickets import Tickets

TARGETS: Mapping[str, type[Target]] = {target.name: target for target in (Tickets,)}
