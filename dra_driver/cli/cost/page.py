"""The usage report as one self-contained HTML page.

In: a report. Out: text. Names come from tenants and are escaped; the page's Content-Security-Policy forbids it to load
anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from dra_driver.cli.cost.table import amount, headline, idle_sentence, size_sentence, what_if_sentence
from dra_driver.views.usage.report import UsageReport, UsageRow

MAX_BARS = 25
_WIDTH, _BAR, _LABEL = 900, 22, 260
_PARTS = (("busy", "#2b7a4b"), ("idle", "#d98e04"), ("unmeasured", "#9aa5b1"), ("unclaimed", "#b3261e"))
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#1c2733}
table{border-collapse:collapse;width:100%}th,td{padding:.25em .6em;border-bottom:1px solid #dde3ea;text-align:right}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere}svg{width:100%;height:auto}
.total td{font-weight:600}.key i{display:inline-block;width:.9em;height:.9em;margin:0 .3em 0 1em}
@media(prefers-color-scheme:dark){body{background:#12181f;color:#e4e9ee}td,th{border-color:#2c3743}text{fill:#e4e9ee}}"""


def usage_page(report: UsageReport) -> str:
    """Return the page."""
    title = f"GPUs by {report.by}"
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    body = "".join([
        f"<h1>{title}</h1><p>{escape(headline(report))}</p>",
        _notes(report.notes),
        f"<h2>Hours</h2><p class=key>{_key()}</p>{_hours_plot(report.rows)}",
        _money_plot(report),
        f"<h2>All</h2>{_table(report)}",
        _list("Claims that were nearly idle", (idle_sentence(one, report.currency) for one in report.idle)),
        _list("Claims for which a smaller device is enough",
              (size_sentence(one, report.currency) for one in report.sizes if one.profile)),
        f"<p>{escape(what_if_sentence(report.what_if))}</p>" if report.what_if else "",
        _list("Models without a price", report.unpriced),
    ])  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _hours_plot(rows: Sequence[UsageRow]) -> str:
    shown = [(row.name, [(getattr(row, part), colour, part) for part, colour in _PARTS]) for row in rows[:MAX_BARS]]
    return _bars(shown, lambda value: f"{value:,.0f} h", "Hours by name: busy, idle, unmeasured, unclaimed")


def _money_plot(report: UsageReport) -> str:
    parts = (("cost", "#35618e"), ("unclaimed_cost", "#b3261e"))
    shown = [
        (row.name, [(getattr(row, part) or 0.0, colour, part.replace("_", " ")) for part, colour in parts])
        for row in report.rows[:MAX_BARS]
    ]
    if not any(value for _, bar in shown for value, _, _ in bar):
        return ""
    plot = _bars(shown, lambda value: f"{amount(value)} {report.currency}", "Money by name: allocated, unclaimed")
    return f"<h2>Money</h2>{plot}"


def _bars(
    rows: Sequence[tuple[str, Sequence[tuple[float, str, str]]]], text_of: Callable[[float], str], label: str
) -> str:
    """Return stacked bars, one for each name."""
    most = max((sum(value for value, _, _ in bar) for _, bar in rows), default=0.0) or 1.0
    drawn = []
    for at, (name, bar) in enumerate(rows):
        y, x = at * _BAR, float(_LABEL)
        short = name if len(name) <= 36 else f"{name[:35]}\u2026"
        drawn.append(f'<text x="0" y="{y + 15}" font-size="13">{escape(short)}</text>')
        for value, colour, part in bar:
            width = (_WIDTH - _LABEL) * value / most
            tip = escape(f"{name}: {part} {text_of(value)}")
            drawn.append(
                f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{_BAR - 6}" fill="{colour}">'
                f"<title>{tip}</title></rect>"
            )
            x += width
    height = max(1, len(rows)) * _BAR
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(drawn)}</svg>'


def _table(report: UsageReport) -> str:
    heads = (str(report.by), "allocated h", "busy h", "idle h", "unmeasured h", "unclaimed h",
             *(f"{name} {report.currency}" for name in ("cost", "idle", "unclaimed")))  # fmt: skip
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    rows = "".join(f"<tr>{_cells(row)}</tr>" for row in report.rows)
    return f"<table><tr>{head}</tr>{rows}<tr class=total>{_cells(report.total)}</tr></table>"


def _cells(row: UsageRow) -> str:
    hours = (f"{one:,.1f}" for one in (row.allocated, row.busy, row.idle, row.unmeasured, row.unclaimed))
    money = ("-" if one is None else amount(one) for one in (row.cost, row.idle_cost, row.unclaimed_cost))
    return "".join(f"<td>{escape(one)}</td>" for one in (row.name, *hours, *money))


def _key() -> str:
    return "".join(f'<i style="background:{colour}"></i>{part}' for part, colour in _PARTS)


def _list(title: str, sentences: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(one)}</li>" for one in sentences)
    return f"<h2>{escape(title)}</h2><ul>{items}</ul>" if items else ""


def _notes(notes: Sequence[str]) -> str:
    return "".join(f"<p><strong>{escape(one)}</strong></p>" for one in notes)
