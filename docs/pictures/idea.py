"""The idea: a whole model for each tenant beside tables, shared layers and small adapters."""

from __future__ import annotations

from results import row

from builder.canvas import Canvas

TENANTS = 10_000
LAYERS = 12
_COLOURS = ("first", "second", "third")
_NAMES = ("acme/returns", "globex/mood", "initech/names")
_SHORT = ("acme", "globex", "initech")
_FLOOR = 350
"""The y of the lowest layer's lower edge."""


def idea() -> str:
    dedicated_mb = row("memory", scheme="dedicated, bf16")["each further MB"]
    hplm = row("memory", scheme="hPLM of the default recipe, resident, bf16")
    shared_mb, adapter_mb = hplm["first MB"], hplm["each further MB"]
    canvas = Canvas(
        960,
        450,
        "The idea of hplm",
        f"Left: each tenant has a whole model of {LAYERS} layers. Right: the lower layers are a lookup table per "
        "domain, the upper layers are shared, and each tenant has only small adapters and a head.",
    )
    _whole_models(canvas, dedicated_mb)
    canvas.arrow([(404, 222), (452, 222)])
    _taken_apart(canvas, shared_mb, adapter_mb)
    return canvas.svg()


def _whole_models(canvas: Canvas, each_mb: float) -> None:
    canvas.text(28, 38, "A fine-tuned BERT for each tenant", size=18, bold=True)
    for number, (colour, name) in enumerate(zip(_COLOURS, _SHORT, strict=True)):
        x = 34 + number * 92
        for layer in range(LAYERS):
            surface = "table" if layer < LAYERS // 2 else "shared"
            canvas.box(x, _FLOOR - 18 - layer * 19, 70, 15, surface)
            canvas.box(x + 60, _FLOOR - 18 - layer * 19, 10, 15, colour)
        canvas.box(x, _FLOOR - 28 - LAYERS * 19, 70, 20, colour)
        canvas.text(x + 35, _FLOOR + 20, name, size=13, ink="quiet", anchor="middle")
    canvas.text(304, 165, "upper layers", size=13, ink="quiet")
    canvas.text(304, 281, "lower layers", size=13, ink="quiet")
    canvas.text(304, 376, "…", size=18, ink="quiet")
    total_tb = TENANTS * each_mb / 1e6
    canvas.text(28, 402, f"{each_mb:.0f} MB each", size=16, bold=True)
    canvas.text(28, 426, f"{TENANTS:,} tenants: {total_tb:.1f} TB", size=14, ink="quiet")


def _taken_apart(canvas: Canvas, shared_mb: float, adapter_mb: float) -> None:
    left, width = 474, 300
    note = left + width + 16
    canvas.text(left, 38, "hplm: the same model, taken apart", size=18, bold=True)
    for number, (colour, name) in enumerate(zip(_COLOURS, _NAMES, strict=True)):
        x = left + number * 103
        canvas.box(x, 58, 94, 20, colour)
        canvas.text(x + 47, 94, name, size=12, ink="quiet", anchor="middle")
    canvas.text(note, 73, "heads", size=14, bold=True)

    canvas.box(left - 6, 104, width + 12, 128, "panel", edge="frame")
    for layer in range(LAYERS // 2):
        y = 111 + layer * 19.5
        canvas.box(left, y, width, 16, "shared")
        for number, colour in enumerate(_COLOURS):
            canvas.box(left + 70 + number * 103, y, 24, 16, colour)
    canvas.text(note, 135, "upper layers", size=14, bold=True)
    canvas.lines(note, 155, ["shared by all tenants", f"{shared_mb:.0f} MB, once"])
    canvas.text(note, 202, "adapters", size=14, bold=True)
    canvas.lines(note, 221, ["of each tenant"])

    for number, domain in enumerate(("medicine", "retail", "software")):
        _lookup_table(canvas, left + number * 103, 262, domain)
    canvas.arrow([(left + width / 2, 258), (left + width / 2, 237)])
    canvas.text(note, 280, "lower layers", size=14, bold=True)
    canvas.lines(note, 300, ["a lookup table of", "n-grams per domain:", "memory instead of", "computation"])

    canvas.text(left, 402, f"{adapter_mb:.1f} MB for one more tenant", size=16, bold=True)
    canvas.text(left, 426, "one batch mixes any tenants; new ones need no reload", size=14, ink="quiet")


def _lookup_table(canvas: Canvas, x: float, y: float, domain: str) -> None:
    canvas.box(x, y, 94, 88, "table", edge="frame")
    for line in range(5):
        top = y + 8 + line * 15
        canvas.box(x + 8, top, 34, 10, "plain", radius=2)
        for cell in range(3):
            canvas.box(x + 50 + cell * 13, top, 10, 10, "plain", radius=2)
    canvas.text(x + 47, _FLOOR + 20, domain, size=13, ink="quiet", anchor="middle")
