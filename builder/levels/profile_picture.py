"""A selection's profile as a picture: what is lost over the share of texts that leave, and what is chosen."""

from __future__ import annotations

from collections.abc import Sequence

from builder.canvas import Canvas, Point
from builder.levels.profile import CandidateProfile, Profile

_WIDTH, _HEIGHT = 720, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 24, 96, 60
_CURVES = ("curve-first", "curve-second")
_TICKS = 5
_SHOWN_TOLERANCES = 2.0
"""The picture ends at so many times what may be lost."""
_LONGEST_ID = 50


class _Axes:
    """Where shares lie on the canvas; across it goes from no text to all of them."""

    def __init__(self, most_lost: float) -> None:
        self.most_lost = most_lost

    def point(self, early: float, lost: float) -> Point:
        x = _LEFT + early * (_WIDTH - _LEFT - _RIGHT)
        y = _HEIGHT - _BOTTOM - min(max(lost, 0) / self.most_lost, 1) * (_HEIGHT - _TOP - _BOTTOM)
        return x, y


def draw_profile(profile: Profile) -> str:
    """Draw what each candidate loses, solid as measured and dashed as bounded; returns SVG."""
    candidates = _shown(profile)
    axes = _Axes(_SHOWN_TOLERANCES * profile.tolerance)
    canvas = Canvas(_WIDTH, _HEIGHT, f"Levels of {profile.id}", "; ".join(map(_described, candidates)))
    canvas.text(28, 38, "What early answers lose", size=18, bold=True)
    canvas.text(_WIDTH - _RIGHT, 38, _shortened(profile.id), size=12, ink="quiet", anchor="end")
    _draw_axes(canvas, axes, profile)
    for number, (each, curve) in enumerate(zip(candidates, _CURVES, strict=False)):
        _draw_curve(canvas, axes, each, curve)
        canvas.dot(34, 56 + 18 * number, curve)
        canvas.text(44, 60 + 18 * number, _described(each), size=12, bold=profile.is_chosen(each))
    return canvas.svg()


def _shown(profile: Profile) -> list[CandidateProfile]:
    """Return one candidate of each layer: one that mixes answers or prunes words only where it serves."""
    return [
        each
        for each in profile.candidates
        if each.after < profile.layers and (profile.is_chosen(each) or _is_shown_alone(profile, each))
    ]


def _is_shown_alone(profile: Profile, candidate: CandidateProfile) -> bool:
    is_plain = candidate.full_weight is None and candidate.alpha is None
    return is_plain and (candidate.after != profile.chosen or (profile.full_weight, profile.alpha) == (None, None))


def _draw_axes(canvas: Canvas, axes: _Axes, profile: Profile) -> None:
    for tick in range(_TICKS + 1):
        early, lost = tick / _TICKS, tick / _TICKS * axes.most_lost
        (x, bottom), (left, y) = axes.point(early, 0), axes.point(0, lost)
        canvas.path([(left, y), axes.point(1, lost)], "grid", width=1)
        canvas.text(left - 8, y + 4, f"{100 * lost:.3g} %", size=12, ink="quiet", anchor="end")
        canvas.text(x, bottom + 18, f"{100 * early:.0f} %", size=12, ink="quiet", anchor="middle")
    canvas.text(_WIDTH / 2, _HEIGHT - 14, "texts answered early", size=12, ink="quiet", anchor="middle")
    allowed = [axes.point(0, profile.tolerance), axes.point(1, profile.tolerance)]
    canvas.path(allowed, "line", width=1.5)
    canvas.text(allowed[1][0], allowed[1][1] - 6, profile.target, size=12, anchor="end")


def _draw_curve(canvas: Canvas, axes: _Axes, candidate: CandidateProfile, curve: str) -> None:
    shown = [point for point in candidate.curve if point.lost <= axes.most_lost]
    measured: Sequence[Point] = [axes.point(point.answered_early, point.lost) for point in shown]
    bounded = [axes.point(point.answered_early, point.bound) for point in shown if point.bound <= axes.most_lost]
    canvas.path(measured, curve, width=2)
    canvas.path(bounded, curve, width=1.5, dashes="5 4")
    if candidate.lost is not None:
        canvas.dot(*axes.point(candidate.answered_early, candidate.lost), curve)


def _described(candidate: CandidateProfile) -> str:
    mixed = "" if candidate.full_weight is None else ", mixed"
    kept = "" if candidate.kept_tokens is None else f", then {100 * candidate.kept_tokens:.0f} % of tokens"
    said = f"after {candidate.after}{mixed}{kept}: "
    if candidate.lost is None:
        return f"{said}no threshold is certified"
    lost = "lost" if candidate.lost >= 0 else "gained"
    said += f"{100 * candidate.answered_early:.3g} % early, {100 * abs(candidate.lost):.3g} % {lost}"
    said += f", at most {100 * candidate.bound:.3g} %"
    return said if candidate.full_batch_ms is None else f"{said}, {candidate.full_batch_ms:.3g} ms a full batch"


def _shortened(id: str) -> str:
    return id if len(id) <= _LONGEST_ID else f"{id[: _LONGEST_ID - 1]}…"
