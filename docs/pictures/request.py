"""The path of one request through both models, with the files that do each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.canvas import Canvas

_WIDTH, _HEIGHT, _STEP, _LEFT = 138, 96, 156, 166


@dataclass(frozen=True)
class Stage:
    name: str
    says: Sequence[str]
    file: str
    rejects: str = ""


_LOWER = (
    Stage("Accept", ("is the hPLM known?", "stamps the deadline"), "lower/service.py", "full · too late"),
    Stage("Wait", ("as text, in front of", "the encoder"), "lower/encode_queue.py", "forecast: too late"),
    Stage("Tokenise", ("all texts of a call", "together"), "root/tokenizer.py"),
    Stage("Look up", ("tri-grams in tables;", "computes missing ones"), "plot/chain.py"),
    Stage("Add up", ("three vectors a", "token, LayerNorm"), "root/lower.py"),
)
_UPPER = (
    Stage("Admit", ("predicts the answer's", "time; quota, share"), "scheduling/admission.py", "too late · quota"),
    Stage("Select", ("the policy chooses", "the next batch"), "scheduling/policies.py", "too late now"),
    Stage("Stage", ("adapters into slots,", "rows without padding"), "engine/staging.py"),
    Stage("Run", ("shared layers, each", "row's own adapter"), "engine/running.py"),
    Stage("Answer", ("label and scores,", "each job by itself"), "engine/answering.py", "deadline passed"),
)


def request() -> str:
    canvas = Canvas(
        960,
        470,
        "The path of one request",
        "From the client to hplm_lower: accept, wait, tokenise, look up, add up. Then to hplm_upper: admit, select, "
        "stage, run, answer. Rows that cannot meet their deadline are rejected on the way.",
    )
    canvas.text(28, 38, "The path of one request", size=18, bold=True)
    canvas.box(24, 76, 96, 350, "plain", edge="line", radius=6)
    canvas.text(72, 246, "client", size=14, anchor="middle", bold=True)
    canvas.lines(72, 266, ["HTTP, gRPC"], size=12, anchor="middle")
    _model(canvas, 56, "hplm_lower: text → hidden rows, on CPUs, several processes", _LOWER, "table")
    _model(canvas, 270, "hplm_upper: hidden rows → answers, one process per device", _UPPER[::-1], "shared")
    first, last = _LEFT, _LEFT + 4 * _STEP
    canvas.arrow([(120, 136), (first, 136)])
    canvas.text(143, 128, "text", size=12, ink="quiet", anchor="middle")
    canvas.arrow([(first, 350), (120, 350)])
    canvas.text(143, 342, "JSON", size=12, ink="quiet", anchor="middle")
    canvas.arrow([(last + _WIDTH / 2, 184), (last + _WIDTH / 2, 302)])
    canvas.text(last + _WIDTH / 2 - 8, 259, "hidden rows and a ticket", size=12, ink="quiet", anchor="end")
    for number in range(4):
        right = _LEFT + number * _STEP + _WIDTH
        canvas.arrow([(right, 136), (right + _STEP - _WIDTH, 136)])
        canvas.arrow([(right + _STEP - _WIDTH, 350), (right, 350)])
    return canvas.svg()


def _model(canvas: Canvas, y: float, title: str, stages: Sequence[Stage], surface: str) -> None:
    canvas.box(_LEFT - 14, y, 5 * _STEP + 10, 182, "panel", edge="frame", radius=8)
    canvas.text(_LEFT, y + 21, title, size=13, ink="quiet")
    for number, stage in enumerate(stages):
        x, top = _LEFT + number * _STEP, y + 32
        canvas.box(x, top, _WIDTH, _HEIGHT, surface, edge="line", radius=6)
        canvas.text(x + _WIDTH / 2, top + 22, stage.name, size=14, anchor="middle", bold=True)
        canvas.lines(x + _WIDTH / 2, top + 42, stage.says, size=11, anchor="middle")
        canvas.text(x + _WIDTH / 2, top + 85, stage.file, size=9, ink="quiet", anchor="middle", mono=True)
        if stage.rejects:
            canvas.box(x, top + _HEIGHT + 8, _WIDTH, 24, "stop", radius=6)
            canvas.text(x + _WIDTH / 2, top + _HEIGHT + 24, f"✕ {stage.rejects}", size=11, anchor="middle")
