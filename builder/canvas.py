"""A small SVG writer: boxes, lines, arrows and texts in colours that follow the reader's light or dark scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]

# name: (light, dark)
_SURFACES = {
    "page": ("#ffffff", "#0d1117"),
    "panel": ("#f6f8fa", "#161b22"),
    "table": ("#d3e5f8", "#1b3a5b"),
    "shared": ("#e2ddf8", "#37306b"),
    "plain": ("#ffffff", "#21262d"),
    "first": ("#d9822b", "#d9822b"),
    "second": ("#2f9e63", "#2f9e63"),
    "third": ("#c9418a", "#c9418a"),
    "own": ("#2f6fd0", "#58a6ff"),
    "other": ("#afb8c1", "#57606a"),
    "stop": ("#fbe3e1", "#4a1f1d"),
}
_EDGES = {
    "frame": ("#d0d7de", "#30363d"),
    "line": ("#6e7781", "#9198a1"),
    "grid": ("#e4e8ec", "#262c34"),
    "curve-first": ("#2f6fd0", "#58a6ff"),
    "curve-second": ("#c8661a", "#f0883e"),
    "curve-third": ("#6e7781", "#9198a1"),
}
_INKS = {
    "ink": ("#1f2328", "#e6edf3"),
    "quiet": ("#57606a", "#9da7b1"),
    "curve-first": _EDGES["curve-first"],
    "curve-second": _EDGES["curve-second"],
    "curve-third": _EDGES["curve-third"],
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"


class Canvas:
    """A page with a frame; shapes lie in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self._size = (width, height)
        self._head = [_element("title", title), _element("desc", description)]
        self._shapes: list[str] = []
        self.box(0.5, 0.5, width - 1, height - 1, "page", edge="frame", radius=10)

    def box(
        self, x: float, y: float, width: float, height: float, surface: str, edge: str | None = None, radius: float = 4
    ) -> None:
        classes = f"s-{surface} e-{edge}" if edge else f"s-{surface}"
        self._draw("rect", x=x, y=y, width=width, height=height, rx=radius, **{"class": classes})

    def text(
        self,
        x: float,
        y: float,
        content: str,
        size: int = 14,
        ink: str = "ink",
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Write one line; `anchor` is start, middle or end."""
        classes = " ".join([f"i-{ink}", *(["bold"] if bold else []), *(["mono"] if mono else [])])
        attributes: dict[str, str | float] = {"font-size": size, "text-anchor": anchor, "class": classes}
        self._draw("text", content, x=x, y=y, **attributes)

    def lines(
        self, x: float, y: float, contents: Sequence[str], size: int = 13, ink: str = "quiet", anchor: str = "start"
    ) -> None:
        for number, content in enumerate(contents):
            self.text(x, y + number * size * 1.4, content, size=size, ink=ink, anchor=anchor)

    def path(self, points: Sequence[Point], edge: str = "line", width: float = 1.5, dashes: str = "") -> None:
        self._line(points, width, {"class": f"e-{edge}", **_dashed(dashes)})

    def arrow(self, points: Sequence[Point], dashes: str = "") -> None:
        self._line(points, 1.5, {"class": "e-line", "marker-end": "url(#tip)", **_dashed(dashes)})

    def dot(self, x: float, y: float, ink: str) -> None:
        self._draw("circle", cx=x, cy=y, r=4.5, **{"class": f"i-{ink}"})

    def svg(self) -> str:
        width, height = self._size
        content = "\n".join(["", *self._head, _STYLE, _TIP, *self._shapes, ""])
        attributes = {"viewBox": f"0 0 {width} {height}", "font-family": _FONT, "role": "img"}
        svg = _element("svg", xmlns="http://www.w3.org/2000/svg", width=width, height=height, **attributes)
        return svg.replace("/>", f">{content}</svg>\n")

    def _line(self, points: Sequence[Point], width: float, attributes: Mapping[str, str]) -> None:
        drawn = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._draw("polyline", points=drawn, fill="none", **{"stroke-width": f"{width:g}", **attributes})

    def _draw(self, tag: str, content: str = "", **attributes: str | float) -> None:
        self._shapes.append(_element(tag, content, **attributes))


def _dashed(dashes: str) -> Mapping[str, str]:
    return {"stroke-dasharray": dashes} if dashes else {}


def _element(tag: str, content: str = "", **attributes: str | float) -> str:
    written = (f'{name}="{value if isinstance(value, str) else f"{value:g}"}"' for name, value in attributes.items())
    head = " ".join([tag, *written])
    return f"<{head}>{escape(content)}</{tag}>" if content else f"<{head}/>"


def _style(scheme: int) -> str:
    """Return the rules of the light (0) or the dark (1) scheme."""
    rules = [f".s-{name} {{ fill: {colours[scheme]} }}" for name, colours in _SURFACES.items()]
    rules += [f".e-{name} {{ stroke: {colours[scheme]} }}" for name, colours in _EDGES.items()]
    rules += [f".i-{name} {{ fill: {colours[scheme]} }}" for name, colours in _INKS.items()]
    rules.append(f".i-line {{ fill: {_EDGES['line'][scheme]} }}")
    return "\n".join(rules)


_STYLE = "\n".join(
    [
        "<style>",
        _style(0),
        "@media (prefers-color-scheme: dark) {",
        _style(1),
        "}",
        ".bold { font-weight: 600 }",
        ".mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }",
        "</style>",
    ]
)
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0.5 L8,4 L0,7.5 Z" class="i-line"/></marker></defs>'
)
