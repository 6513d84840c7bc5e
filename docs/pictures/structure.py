"""The rooms of the project: who imports whom, and what lies between building and serving."""

from __future__ import annotations

from dataclasses import dataclass

from builder.canvas import Canvas


@dataclass(frozen=True)
class Room:
    x: float
    y: float
    width: float
    height: float
    name: str
    says: tuple[str, ...]
    surface: str = "plain"

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    def draw(self, canvas: Canvas) -> None:
        canvas.box(self.x, self.y, self.width, self.height, self.surface, edge="line", radius=6)
        canvas.text(self.middle, self.y + 22, self.name, size=14, anchor="middle", bold=True, mono=True)
        canvas.lines(self.middle, self.y + 41, self.says, size=12, anchor="middle")


_TOP = Room(250, 56, 666, 52, "demo/  bench/  tests/", ("the demo, one question per bench, the tests",))
_CLI = Room(250, 140, 666, 52, "cli/", ("the hplm command: options in, one call, a table out",))
_BUILDER = Room(
    250,
    224,
    310,
    70,
    "builder/",
    ("offline: trains, builds, exports, starts servers;", "the manager over HTTP"),
    "shared",
)
_LOADTEST = Room(640, 224, 276, 70, "loadtest/", ("scenarios, Locust, reports",))
_MODELS = Room(44, 350, 166, 70, "model_repository/", ("Triton's folders:", "glue only"), "table")
_BACKENDS = Room(
    250,
    350,
    310,
    70,
    "backends/",
    ("tables, adapters, engine, scheduling, registry;", "testable without Triton"),
    "table",
)
_WORKLOAD = Room(640, 350, 126, 70, "workload/", ("arrivals, lengths,", "tenants"))
_CLIENTS = Room(790, 350, 126, 70, "clients/", ("the SDK, speaks", "HTTP and gRPC"))
_HOME = Room(28, 470, 548, 52, "a home", ("registry.db · roots/ · plots/ · bank/ · profiles/ · repository/",))
_ROOMS = (_TOP, _CLI, _BUILDER, _LOADTEST, _MODELS, _BACKENDS, _WORKLOAD, _CLIENTS, _HOME)


def structure() -> str:
    canvas = Canvas(
        944,
        546,
        "The rooms of the project",
        "demo, bench and tests import cli; cli imports builder and loadtest; builder imports backends and workload; "
        "loadtest imports workload and clients; model_repository imports backends. The builder writes a home, "
        "the models in Triton read it.",
    )
    canvas.text(28, 38, "Imports go one way: down", size=18, bold=True)
    canvas.arrow([(32, 70), (76, 70)])
    canvas.text(86, 75, "imports", size=13, ink="quiet")
    canvas.arrow([(32, 96), (76, 96)], dashes="5 4")
    canvas.text(86, 101, "files", size=13, ink="quiet")
    canvas.box(28, 318, 548, 116, "panel", edge="frame", radius=8)
    canvas.text(44, 339, "runs inside Triton", size=13, ink="quiet")
    for room in _ROOMS:
        room.draw(canvas)
    for above, below, x in (
        (_TOP, _CLI, _TOP.middle),
        (_CLI, _BUILDER, _BUILDER.middle),
        (_CLI, _LOADTEST, _LOADTEST.middle),
        (_BUILDER, _BACKENDS, _BACKENDS.middle),
        (_LOADTEST, _WORKLOAD, _WORKLOAD.middle),
        (_LOADTEST, _CLIENTS, _CLIENTS.middle),
    ):
        canvas.arrow([(x, above.y + above.height), (x, below.y)])
    canvas.arrow([(_MODELS.x + _MODELS.width, 385), (_BACKENDS.x, 385)])
    canvas.arrow([(_BUILDER.x + _BUILDER.width, 276), (624, 276), (624, 385), (_WORKLOAD.x, 385)])
    canvas.arrow([(_BUILDER.x + _BUILDER.width, 244), (600, 244), (600, 496), (576, 496)], dashes="5 4")
    canvas.text(608, 470, "writes", size=12, ink="quiet")
    canvas.arrow([(_BACKENDS.middle, _HOME.y), (_BACKENDS.middle, 422)], dashes="5 4")
    canvas.text(_BACKENDS.middle + 8, 456, "reads", size=12, ink="quiet")
    return canvas.svg()
