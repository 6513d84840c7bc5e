"""Figures of the lower model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.lower.encode_queue import EncodeQueue
from backends.lower.service import LowerService
from backends.metrics import Counters, Family, Gauge, Info, Reporter, by_label, refusals, registry_age, waiting_rows


class LowerMetrics(Reporter):
    """`pb_utils` is Triton's module, `process` the name of the model instance, `settings` what is in force in it."""

    def __init__(
        self,
        pb_utils: Any,
        service: LowerService,
        queue: EncodeQueue,
        process: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        labels = {"process": process, **(settings or {})}
        info = Info(pb_utils, "hplm_lower_settings_info", "Settings in force; always 1", labels)
        super().__init__([info, *_families(pb_utils, service, queue, process)], "lower-metrics")


def _families(pb_utils: Any, service: LowerService, queue: EncodeQueue, process: str) -> list[Family]:
    looked_up = "Fragments looked up, by the level of the chain that answered"
    filled = "Fragments that no table held, by what became of them"
    recorded = "Records of traffic that were written, and requests that found no room"
    overlay, hits, events = service.domains.figures, service.domains.hits, service.domains.events
    return [
        Counters(pb_utils, "hplm_plot_fragments_total", looked_up, ("root", "level"), hits),
        Counters(pb_utils, "hplm_overlay_fragments_total", filled, ("event",), by_label(events)),
        Gauge(pb_utils, "hplm_overlay_entries", "Fragments learned", process, lambda: overlay().entries),
        Gauge(pb_utils, "hplm_overlay_bytes", "Memory of what was learned", process, lambda: overlay().size_bytes),
        refusals(pb_utils, service.refusals.copy),
        Counters(pb_utils, "hplm_traffic_requests_total", recorded, ("event",), by_label(service.traffic_events)),
        waiting_rows(pb_utils, process, lambda: queue.num_rows),
        registry_age(pb_utils, process, lambda: service.registry_age_s),
    ]
