"""Pages: one for a verdict, and a leaderboard for many. They have no script, and every text is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from nki.markup import escape

from .verdict import CaseVerdict, Verdict

STYLE = """
:root { color-scheme: light dark; --line: #8884; --good: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff7b72; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid var(--line); border-radius: 4px; }
.good { color: var(--good); } .bad { color: var(--bad); }
"""


def page(verdict: Verdict) -> str:
    """Return the page of one verdict."""
    state = _state(verdict.passed)
    parts = [
        f"<h1>{escape(verdict.submission)}</h1>",
        f"<p>{state}: {verdict.earned:g} of {verdict.points:g} points for {escape(verdict.task)}, "
        f"{escape(verdict.target)}, all times modelled.</p>",
    ]
    if verdict.problem:
        parts.append(f"<p class='bad'>{escape(verdict.problem)}</p>{_pre(verdict.detail)}")
    parts += [_pre(text) for text in verdict.check]
    heads = ["case", "result", "#points", "#time", "#limit", "#baseline"]
    parts.append(_table(heads, [_row(case) for case in verdict.cases]))
    parts += [_details(case) for case in verdict.cases]
    parts.append(f"<p>Enforced: {escape(', '.join(verdict.enforced) or 'nothing')}.</p>")
    return _document(f"{verdict.task}: {verdict.submission}", parts)


def leaderboard_page(task: str, verdicts: Sequence[Verdict]) -> str:
    """Return the page of many verdicts, in their order."""
    rows = []
    for rank, verdict in enumerate(verdicts, 1):
        total = sum(case.us or 0.0 for case in verdict.cases)
        us = _us(total) if verdict.passed else ""
        cells = [str(rank), escape(verdict.submission), _state(verdict.passed), f"{verdict.earned:g}", us]
        rows.append([*cells, escape(verdict.problem)])
    heads = ["#rank", "submission", "result", "#points", "#time of all cases", "problem"]
    return _document(f"Leaderboard of {task}", [f"<h1>{escape(task)}</h1>", _table(heads, rows)])


def _row(case: CaseVerdict) -> list[str]:
    times = [_us(us) for us in (case.us, case.limit_us, case.baseline_us)]
    return [escape(case.name), _state(case.correct), f"{case.earned:g} / {case.points:g}", *times]


def _details(case: CaseVerdict) -> str:
    """Return what is wrong with a case, and the advice for it."""
    lines = [case.problem, *case.findings]
    if case.mismatch is not None:
        lines.append(case.mismatch.message)
    advice = "".join(
        f"<li>{escape(a['title'])}, {_us(a['gain_us'])} to gain. {escape(a['detail'])}</li>"
        for a in case.advice
    )
    shown = "".join(f"<p class='bad'>{escape(line)}</p>" for line in lines if line)
    listed = f"<ol>{advice}</ol>" if advice else ""
    body = shown + _pre(case.detail) + listed
    return f"<h2>{escape(case.name)}</h2>{body}" if body else ""


def _us(us: float | None) -> str:
    return "" if us is None else f"{us:,.1f} us"


def _state(good: bool) -> str:
    return "<span class='good'>passed</span>" if good else "<span class='bad'>failed</span>"


def _pre(text: str) -> str:
    return f"<pre>{escape(text)}</pre>" if text else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of cells that are HTML already; a head that begins with # is of numbers."""
    kinds = [" class='number'" if head.startswith("#") else "" for head in heads]
    top = "".join(f"<th{kind}>{head.lstrip('#')}</th>" for kind, head in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<div class='wide'><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _document(title: str, parts: Sequence[str]) -> str:
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
