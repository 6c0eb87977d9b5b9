"""Two profiles on one page: what changed, their engines on one scale, and each page below it."""

from __future__ import annotations

from ..markup import escape, fill, frame, policy
from .figures import Figures, Profiled, figures
from .html import asset, compose, engine_name, script, time
from .text import compared, which_is_faster


def both(a: Profiled, b: Profiled) -> str:
    """One page that needs nothing else. A click on a heading collapses a profile."""
    profiles = {"a": (a, figures(a)), "b": (b, figures(b))}
    of_a, of_b = (f for _, f in profiles.values())
    frames = "".join(
        f"<details open><summary>{letter}: {escape(described(f))}</summary>"
        f"{frame(p.kernel, compose(f, p.timeline))}</details>"
        for letter, (p, f) in profiles.items()
    )
    return fill(
        asset("compare.html"),
        policy=policy(asset("compare.js"), script()),
        script=asset("compare.js"),
        title=escape(f"{a.kernel} and {b.kernel}"),
        style=asset("page.css"),
        faster=escape(which_is_faster(of_a, of_b)),
        table=table(of_a, of_b),
        engines=engines(of_a, of_b),
        findings=findings("a", of_a) + findings("b", of_b),
        frames=frames,
    )


def described(f: Figures) -> str:
    cores = f", {f['cores']} cores" if f["cores"] > 1 else ""
    return f"{f['kernel']} on {f['target']}{cores}, {time(f['total_us'])}"


def table(a: Figures, b: Figures) -> str:
    """Return a table with a row per figure."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in compared(a, b)
    )
    head = "".join(f"<th>{name}</th>" for name in ("figure", "a", "b", "change"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def engines(a: Figures, b: Figures) -> str:
    """Return bars of the total time and of each engine's active time, a above b on one scale."""
    longest = max(a["total_us"], b["total_us"]) or 1.0
    rows = [_pair("total", "total", a["total_us"], b["total_us"], longest)]
    for name in a["engines"]:
        active = [f["engines"][name]["active_us"] for f in (a, b)]
        if any(active):
            rows.append(_pair(engine_name(name), name, active[0], active[1], longest))
    return "".join(rows)


def findings(letter: str, f: Figures) -> str:
    """List the titles of the advisor's findings for one of the two."""
    rows = "".join(
        f"<li><span>{escape(one['title'])}</span>"
        + (f"<b>saves {time(one['gain_us'])}</b>" if one["gain_us"] > 0 else "")
        + "</li>"
        for one in f["findings"]
    )
    return f"<h2>Findings of {letter}</h2><ul>{rows or '<li>Nothing to advise.</li>'}</ul>"


def _pair(title: str, name: str, first: float, second: float, longest: float) -> str:
    bars = "".join(
        f'<div><i style="width:calc((100% - 100px) * {us / longest:.4f})"></i>'
        f"<small>{letter} {time(us)}</small></div>"
        for letter, us in (("a", first), ("b", second))
    )
    return f'<div class="pair {name}"><span>{title}</span><div>{bars}</div></div>'
