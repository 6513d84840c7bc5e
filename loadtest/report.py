"""One HTML page with numbers, pictures and the summary as JSON; it loads nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from loadtest import figures
from loadtest.pictures import Shown, pictures
from loadtest.run_folder import State

if TYPE_CHECKING:
    from loadtest.results import Results

_CSS = """
:root { color-scheme: light; }
body { margin: 0; background: #f3f4f6; color: #111827; font: 15px/1.5 system-ui, "DejaVu Sans", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px; }
h1 { font-size: 24px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 28px 0 8px; }
p { margin: 4px 0; }
.quiet { color: #4b5563; }
.notice { background: #fff; border-left: 5px solid #D55E00; padding: 10px 14px; margin: 14px 0; font-weight: 600; }
.good { border-color: #009E73; font-weight: 400; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 18px 0; }
.tile, figure, table { background: #fff; border: 1px solid #e5e7eb; border-radius: 6px; }
.tile { padding: 10px 14px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span { color: #4b5563; font-size: 13px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 14px; }
figure { margin: 0; padding: 10px; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { color: #4b5563; font-size: 13px; padding: 4px 6px 0; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 14px; align-items: start; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
td, th { padding: 5px 12px; border-top: 1px solid #e5e7eb; text-align: right; font-weight: 400; }
tr:first-child > * { border-top: 0; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
thead th { font-weight: 600; }
"""

_CAPTIONS = {
    "latency": "Counted from the time at which a request was to be sent, so waiting behind a slow server is in it.",
    "throughput": "Offered by scheduled time; answers and rejections by when they came.",
    "attainment": "Of the requests planned for each moment, those answered before their deadline.",
    "levels": "Below full: answers of ladders that left early. Right: of the answers whose labels are known.",
    "fairness": "A flat line is even treatment.",
    "reasons": "Numbers and names in the server's messages are left out, so that equal reasons count together.",
    "batches": "From Triton's statistics before and after the run; of these rows the engine forms its own batches.",
    "sending": "What the load generator itself was late by. A run beyond the limit says little about the server.",
}

LEVELS_HEAD = ("answered by", "answers", "share", "doubtful", "known labels", "right", "p50", "p99")
BREAKDOWN_HEAD = ("", "planned", "in time", "rejected", "failed", "p50", "p99")
_SHOWN_LINES = 50
_SAME_LENGTH = 0.05
"""Runs whose lengths differ by less are of equal length."""

Row = tuple[str, Callable[[Mapping[str, Any]], float | int | None], Callable[[float], str]]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.1f} /s"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _ms(value: float) -> str:
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.2f} ms"


def _plain(value: float) -> str:
    return f"{value:,.3f}"


def _at(*keys: str) -> Callable[[Mapping[str, Any]], Any]:
    """Make a getter of a number deep in a summary; it gives None if a key is missing."""

    def find(content: Any) -> Any:
        for key in keys:
            content = None if content is None else content.get(key)
        return content

    return find


_ROWS: tuple[Row, ...] = (
    ("planned", _at("planned"), _count),
    ("answered", _at("answered"), _count),
    ("answered in time", _at("in_time"), _count),
    ("answered late", _at("late"), _count),
    ("rejected", _at("rejected"), _count),
    ("failed", _at("failed"), _count),
    ("not sent: deadline passed before", _at("unsent"), _count),
    ("unfinished", _at("unfinished"), _count),
    ("offered", _at("offered_per_s"), _rate),
    ("answered per second", _at("answered_per_s"), _rate),
    ("answered in time per second", _at("in_time_per_s"), _rate),
    ("attainment: in time, of all planned", _at("attainment"), _percent),
    ("in time, of those answered", _at("answered_in_time"), _percent),
    ("utility: sum of 1 / tokens, in time", _at("utility"), _plain),
    ("right, of answers with a known label", _at("accuracy"), _percent),
    ("answered below full, of ladders' answers", _at("below_full"), _percent),
    ("doubtful answers", _at("doubtful"), _count),
    ("latency, mean", _at("latency_ms", "mean"), _ms),
    ("latency, p50", _at("latency_ms", "p50"), _ms),
    ("latency, p90", _at("latency_ms", "p90"), _ms),
    ("latency, p95", _at("latency_ms", "p95"), _ms),
    ("latency, p99", _at("latency_ms", "p99"), _ms),
    ("latency, p99.9", _at("latency_ms", "p99.9"), _ms),
    ("latency, longest", _at("latency_ms", "max"), _ms),
    ("latency from when it was sent, p99", _at("latency_from_sending_ms", "p99"), _ms),
    ("time to a rejection, p99", _at("rejection_latency_ms", "p99"), _ms),
    ("tenants", _at("fairness", "tenants"), _count),
    ("Jain's index of their attainments", _at("fairness", "jain"), _plain),
    ("attainment of the worst tenant", _at("fairness", "lowest"), _percent),
    ("most requests under way at once", _at("sending", "most_in_flight"), _count),
    ("sent behind schedule, p50", _at("sending", "lateness_ms", "p50"), _ms),
    ("sent behind schedule, p99", _at("sending", "lateness_ms", "p99"), _ms),
    ("sent behind schedule, most", _at("sending", "lateness_ms", "max"), _ms),
    ("cores that the load generator used", _at("sending", "client_cores"), _plain),
)
_TILES: tuple[Row, ...] = (
    ("answered in time, of all planned", _at("attainment"), _percent),
    ("answered in time per second", _at("in_time_per_s"), _rate),
    ("offered", _at("offered_per_s"), _rate),
    ("latency of answers, p50", _at("latency_ms", "p50"), _ms),
    ("latency of answers, p99", _at("latency_ms", "p99"), _ms),
    ("rejected", _at("rejected"), _count),
    ("failed", _at("failed"), _count),
)


def run_report(results: Results) -> str:
    """Write the page of one run."""
    name = _name(results)
    tiles = "".join(
        f'<div class="tile"><b>{escape(_cell(show, find(results.summary)))}</b><span>{label}</span></div>'
        for label, find, show in _TILES
    )
    body = [
        f"<h1>Load test: {escape(name)}</h1>",
        f'<p class="quiet">{escape(_circumstances(results))}</p>',
        *(f'<p class="notice">{escape(notice)}</p>' for notice in notices(results)),
        f'<div class="tiles">{tiles}</div>',
        _figures([_shown(results, name)]),
        '<div class="columns"><section><h2>Numbers</h2>',
        _table(("", ""), printed_rows(results.summary)),
        "</section><section><h2>Rejected and failed</h2>",
        _table(("reason", "requests"), [(why, _count(n)) for why, n in results.summary["reasons"].items()]),
        "<h2>Settings</h2>",
        _table(("", ""), [(key, _setting(value)) for key, value in results.run["settings"].items()]),
        "<h2>Server</h2>",
        _table(("", ""), [(key, _setting(value)) for key, value in results.run.get("server", {}).items()]),
        "<h2>Machine that sent</h2>",
        _table(("", ""), [(key, _setting(value)) for key, value in results.run.get("machine", {}).items()]),
        "</section></div>",
        "<h2>By level</h2>",
        _table(LEVELS_HEAD, level_rows(results.summary["by_level"])),
        "<h2>By tenant</h2>",
        *_breakdown(results.summary["by_tenant"]),
        "<h2>By hPLM</h2>",
        *_breakdown(results.summary["by_hplm"]),
    ]
    return _page(f"Load test: {name}", body, {"run": results.run, **results.summary})


def comparison(first: Results, second: Results, names: tuple[str, str]) -> str:
    """Write the page of two runs, side by side and over each other; ratios are of the second to the first."""
    rows = compared_rows(first, second)
    all_notices = [
        f"{name}: {notice}" for name, one in zip(names, (first, second), strict=True) for notice in notices(one)
    ]
    body = [
        f"<h1>{escape(names[0])} and {escape(names[1])}</h1>",
        *(
            f'<p class="quiet">{escape(name)}: {escape(_name(one))}, {escape(_circumstances(one))}</p>'
            for name, one in zip(names, (first, second), strict=True)
        ),
        *(f'<p class="notice">{escape(notice)}</p>' for notice in all_notices),
        "<h2>Side by side</h2>",
        _table(("", *names, "ratio"), rows),
        "<h2>Over each other</h2>",
        _figures([_shown(first, names[0]), _shown(second, names[1])]),
    ]
    summaries = [{"name": name, **one.summary} for name, one in zip(names, (first, second), strict=True)]
    return _page(f"{names[0]} and {names[1]}", body, {"runs": summaries})


def notices(results: Results) -> list[str]:
    """List what a reader must know before any number."""
    summary, run = results.summary, results.run
    by_state = {
        State.INTERRUPTED: "This run was interrupted; the numbers are about the part before.",
        State.RUNNING: "This run was killed or is still running; the numbers are about the requests that have ended.",
        State.FAILED: f"This run failed: {'; '.join(run.get('trouble', ()))}.",
    }
    lines = [by_state[run["state"]]] if run["state"] in by_state else []
    sending = summary["sending"]
    if sending["lateness_ms"] is None:
        lines.append("No request came to an end, so there is nothing to judge.")
    elif summary["unsent"] > figures.MOST_UNSENT * (due := summary["planned"] - summary["unfinished"]):
        lines.append(
            f"Not valid: {summary['unsent']:,} of {due:,} requests met their deadlines before they could be sent. "
            "Give longer deadlines, more workers or a machine of its own, or lower the rate."
        )
    elif not sending["valid"]:
        lines.append(
            f"Not valid: the load generator fell behind. One request in a hundred was sent "
            f"{_ms(sending['lateness_ms']['p99'])} late or more; the limit is {_ms(sending['limit_ms'])}. "
            "Give it more workers or a machine of its own, keep other work off this one, or lower the rate."
        )
    if summary["unfinished"]:
        lines.append(f"{summary['unfinished']:,} requests that were due did not come to an end.")
    if errors := figures.errors(summary):
        lines.append(f"{sum(errors.values()):,} requests ended with an error, most often: {next(iter(errors))}")
    return lines


def printed_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the numbers as in the page's table."""
    return [(label, _cell(show, find(summary))) for label, find, show in _ROWS]


def breakdown_rows(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """List the lines of hPLMs or tenants as in the page's table; `BREAKDOWN_HEAD` names the columns."""
    return [
        (
            line["name"],
            _count(line["planned"]),
            _percent(line["attainment"]),
            _count(line["rejected"]),
            _count(line["failed"]),
            _cell(_ms, line["p50_ms"]),
            _cell(_ms, line["p99_ms"]),
        )
        for line in lines
    ]


def level_rows(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """List the lines of levels as in the page's table; `LEVELS_HEAD` names the columns."""
    return [
        (
            line["level"],
            _count(line["answers"]),
            _percent(line["share"]),
            _count(line["doubtful"]),
            _count(line["judged"]),
            _cell(_percent, line["accuracy"]),
            _ms(line["p50_ms"]),
            _ms(line["p99_ms"]),
        )
        for line in lines
    ]


def compared_rows(first: Results, second: Results) -> list[tuple[str, ...]]:
    """List the numbers of two runs, and the ratio of the second to the first; then the settings that differ.

    Counts of runs of different length have no ratio.
    """
    same_length = abs(_ratio_of(first.summary["duration_s"], second.summary["duration_s"]) - 1) < _SAME_LENGTH
    rows: list[tuple[str, ...]] = []
    for label, find, show in _ROWS:
        values = find(first.summary), find(second.summary)
        comparable = same_length or show is not _count
        rows.append((label, *(_cell(show, value) for value in values), _ratio(*values) if comparable else "–"))
    for place in ("settings", "server", "machine"):
        mine, theirs = first.run.get(place, {}), second.run.get(place, {})
        for key in dict.fromkeys((*mine, *theirs)):
            if mine.get(key) != theirs.get(key):
                rows.append((f"{place}: {key}", _setting(mine.get(key)), _setting(theirs.get(key)), "–"))
    return rows


def _page(title: str, body: Sequence[str], data: Mapping[str, Any]) -> str:
    embedded = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{_CSS}</style>\n</head>\n<body>\n<main>\n'
        + "\n".join(body)
        + f'\n</main>\n<script type="application/json" id="data">{embedded}</script>\n</body>\n</html>\n'
    )


def _figures(runs: Sequence[Shown]) -> str:
    drawn = pictures(runs)
    each = (f"<figure>{svg}<figcaption>{_CAPTIONS[name]}</figcaption></figure>" for name, svg in drawn.items())
    return f'<div class="pictures">{"".join(each)}</div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return '<p class="quiet">none</p>'
    top = f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr></thead>" if any(head) else ""
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table>{top}<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"


def _breakdown(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    more = len(lines) - _SHOWN_LINES
    note = f'<p class="quiet">and {more:,} more, better served ones; summary.json has all</p>' if more > 0 else ""
    return [_table(BREAKDOWN_HEAD, breakdown_rows(lines[:_SHOWN_LINES])), note]


def _shown(results: Results, name: str) -> Shown:
    limit_ms = float(results.run["lateness_limit_ms"])
    return Shown(name, results.requests, results.planned, figures.batch_shares(results.run), limit_ms)


def _name(results: Results) -> str:
    settings = results.run["settings"]
    if settings.get("scenario") == "overload" and str(settings.get("load", "")).endswith("/s"):
        return f"{settings['load']}, {settings.get('arrivals', '')}".rstrip(", ")
    return str(settings.get("scenario", "a load"))


def _circumstances(results: Results) -> str:
    run = results.run
    target, workers = run["target"], run["workers"]
    senders = f"{workers} load workers" if workers > 1 else "one load worker"
    return (
        f"{run['began_at']}, {target['url']}, {senders}, {results.summary['planned']:,} requests in "
        f"{results.summary['duration_s']:.1f} s, {run['state']}"
    )


def _cell(show: Callable[[float], str], value: float | int | None) -> str:
    return "–" if value is None else show(value)


def _ratio_of(first: float, second: float) -> float:
    return second / first if first else 0.0


def _ratio(first: float | None, second: float | None) -> str:
    return f"{second / first:.3f}" if first and second is not None else "–"


def _setting(value: object) -> str:
    return "–" if value is None else str(value)
