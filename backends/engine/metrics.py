"""Metrics of `hplm_upper`: rejections, and how good the predictions are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.engine.service import UpperService
from backends.metrics import Counters, Family, Info, Reporter, by_label, refusals, registry_age, waiting_rows


class UpperMetrics(Reporter):
    """`pb_utils` is Triton's module, `process` the name of the model instance, `settings` what is in force in it.

    Batches are counted in the first stage only: Triton adds up what processes report by the same labels.
    """

    def __init__(
        self,
        pb_utils: Any,
        service: UpperService,
        process: str,
        settings: Mapping[str, str] | None = None,
        is_later_stage: bool = False,
    ) -> None:
        labels = {"process": process, **(settings or {})}
        info = Info(pb_utils, "hplm_upper_settings_info", "Settings in force; always 1", labels)
        families = [info, *_families_of_each(pb_utils, service, process)]
        if not is_later_stage:
            families += _batches(pb_utils, service)
        super().__init__(families, "upper-metrics")


def _families_of_each(pb_utils: Any, service: UpperService, process: str) -> list[Family]:
    return [
        refusals(pb_utils, service.refusals.copy),
        waiting_rows(pb_utils, process, lambda: len(service.admission.waiting)),
        registry_age(pb_utils, process, lambda: service.registry_age_s),
        Counters(
            pb_utils,
            "hplm_answers_total",
            "Answers by ladders and students, by level and why that one answered",
            ("answer_level", "reason"),
            lambda: {(level, reason): count for (level, reason), count in service.answers.items()},
        ),
        Counters(
            pb_utils,
            "hplm_answer_us_total",
            "Time from arrival in the engine to the answer, by ladders and students, by level",
            ("answer_level",),
            by_label(lambda: service.answer_us),
        ),
        Counters(
            pb_utils,
            "hplm_audited_answers_total",
            "Early answers that were compared with those of all layers",
            ("result",),
            by_label(lambda: service.audit.counts),
        ),
        Counters(
            pb_utils,
            "hplm_audit_failures_total",
            "Versions that answer by all their layers because their early answers differ too often",
            (),
            lambda: {(): service.audit.num_failed},
        ),
    ]


def _batches(pb_utils: Any, service: UpperService) -> list[Family]:
    figures = service.admission.batches.figures
    took = "What batches took, were predicted to take, and would be by the profile alone"
    return [
        Counters(
            pb_utils,
            "hplm_batch_us_total",
            took,
            ("time",),
            by_label(
                lambda: {
                    "predicted": figures.predicted_us,
                    "uncorrected": figures.uncorrected_us,
                    "measured": figures.measured_us,
                }
            ),
        ),
        Counters(pb_utils, "hplm_batches_total", "Batches that ran", (), lambda: {(): figures.batches}),
        Counters(
            pb_utils,
            "hplm_student_count_changes_total",
            "Changes of the number of students that answer, from one batch to the next",
            (),
            lambda: {(): figures.student_count_changes},
        ),
    ]
