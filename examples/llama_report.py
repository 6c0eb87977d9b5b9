"""The modelled times of examples/llama.py as text, as a page and as data."""

import json
from dataclasses import asdict

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#a463f2")
NAMES = {0: "prefill", 1: "decode"}


def seconds(costs):
    return sum(cost.total() for cost in costs) / 1e6


def place(target, lnc):
    return f"{target}, " + ("one core" if lnc == 1 else f"{lnc} cores")


def headline(target, lnc, passes, context):
    """Return the time to the first token and the tokens per second, as text."""
    first, each = seconds(passes[0]), seconds(passes[1])
    return (
        f"{place(target, lnc)}: first token after {1e3 * first:,.1f} ms ({context} tokens of prompt), "
        f"then {1 / each:,.1f} tokens per second"
    )


def per_layer(costs):
    return sum(cost.us for cost in costs[:-1])  # the last is the head


def table(found, sizes, context):
    """A table for prefill and one for decode on every target and number of cores."""
    lines = []
    for (target, lnc), passes in found.items():
        lines.append(headline(target, lnc, passes, context))
        for i, costs in enumerate(passes):
            lines.append(f"  {NAMES[i]}: {per_layer(costs):,.1f} us a layer, {sizes.layers} layers")
            total = sum(cost.total() for cost in costs)
            for cost in costs:
                lines.append(
                    f"    {cost.name:<22}{cost.us:>10,.1f} us x {cost.times:<3}{cost.total() / total:>7.1%}"
                    f"   {cost.bound_us / cost.us:>4.0%} of its {cost.bound} bound, {cost.bound_us:,.1f} us"
                )
    return "\n".join(lines)


def as_json(found):
    """A list of targets, each with the times of its two passes."""
    rows = []
    for (target, lnc), passes in found.items():
        named = {NAMES[i]: [asdict(cost) for cost in costs] for i, costs in enumerate(passes)}
        first, each = seconds(passes[0]), seconds(passes[1])
        rows.append(
            {"target": target, "lnc": lnc, "first_token_ms": 1e3 * first, "tokens_per_s": 1 / each} | named
        )
    return json.dumps(rows, indent=1)


# ---- the page ------------------------------------------------------------------------------------

STYLE = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882}
body{font:15px/1.45 system-ui,sans-serif;max-width:68em;margin:2em auto;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin:2em 0 .3em}h3{font-size:1em;margin:1.2em 0 .3em}
.bar{display:flex;height:1.5em;margin:.4em 0 .7em;border-radius:3px;overflow:hidden}.bar i{display:block}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.5em;border-radius:2px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid var(--line);font-weight:normal}
th{opacity:.7}td:first-child,th:first-child{text-align:left;padding-left:0}
.part{width:22em;text-align:left}.part b{display:block;height:.9em;border-radius:2px;position:relative}
.part u{position:absolute;inset:0 auto 0 0;background:#0004;border-radius:2px}
.word{text-align:left}td:first-child{white-space:nowrap}
.note{opacity:.75;max-width:46em}
"""
NOTE = (
    "Modelled times, from shapes alone. A layer is timed once and counted as often as it occurs. The length "
    "of a bar is the time of a part in its pass; its dark piece is the bound, what no schedule can beat, "
    "and the light piece what a better kernel could gain at most."
)


def page(found, sizes, context):
    """Return the same numbers as HTML: the dominant kernels, and a bar for every part, with its bound."""
    title = f"Llama, {sizes.layers} layers of {sizes.hidden}, {context} tokens: modelled time by kernel"
    body = [f"<h1>{title}</h1><p class=note>{NOTE}</p>", summary(found)]
    for (target, lnc), passes in found.items():
        body.append(f"<h2>{headline(target, lnc, passes, context)}</h2>")
        body += [section(NAMES[i], costs) for i, costs in enumerate(passes)]
    head = f"<meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang=en>{head}{''.join(body)}</html>\n"


def summary(found):
    """Return a line for every target: the figures, and the dominant kernels."""
    rows = [
        "<tr><th><th>first token<th>tokens per second<th class=word>prefill decided by"
        "<th class=word>decode decided by</tr>"
    ]
    for (target, lnc), passes in found.items():
        first, each = seconds(passes[0]), seconds(passes[1])
        deciding = "".join(f"<td class=word>{dominant_parts(costs)}" for costs in passes)
        rows.append(
            f"<tr><td>{place(target, lnc)}<td>{1e3 * first:,.1f} ms<td>{1 / each:,.1f}{deciding}</tr>"
        )
    return f"<table>{''.join(rows)}</table>"


def dominant_parts(costs):
    """Return the parts that take more than a tenth of a pass, the longest first."""
    total = sum(cost.total() for cost in costs)
    ranked = sorted(costs, key=lambda cost: -cost.total())
    return ", ".join(f"{c.name} {c.total() / total:.0%}" for c in ranked if c.total() > total / 10)


def section(name, costs):
    """One pass: a bar of all parts, and a bar for each."""
    total, longest = sum(cost.total() for cost in costs), max(cost.total() for cost in costs)
    parts, rows = [], []
    for cost, colour in zip(costs, COLOURS, strict=True):
        share, met = cost.total() / total, cost.bound_us / cost.us
        parts.append(f"<i style='width:{share:.2%};background:{colour}' title='{cost.name} {share:.1%}'></i>")
        inside = f"<u style='width:{met:.1%}'></u>"
        rows.append(
            f"<tr><td><i class=key style='background:{colour}'></i>{cost.name}"
            f"<td>{cost.us:,.1f}<td>{cost.times}<td>{share:.1%}"
            f"<td class=part><b style='width:{cost.total() / longest:.1%};background:{colour}'>{inside}</b>"
            f"<td>{cost.bound}, {cost.bound_us:,.1f}<td>{met:.0%}</tr>"
        )
    head = "<tr><th>kernel<th>us<th>times<th>share<th class=part>time and bound<th>bound, us<th>met</tr>"
    return (
        f"<h3>{name}: {total / 1e3:,.1f} ms, decided by {dominant_parts(costs)}</h3>"
        f"<div class=bar>{''.join(parts)}</div><table>{head}{''.join(rows)}</table>"
    )
