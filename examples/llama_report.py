"""The modelled times of examples/llama.py as text and as a page."""

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#9c6b4e", "#a463f2")
NAMES = {0: "prefill", 1: "decode"}


def seconds(costs):
    return sum(cost.total() for cost in costs) / 1e6


def headline(target, lnc, passes, context):
    """Time to the first token, tokens per second."""
    first, each = seconds(passes[0]), seconds(passes[1])
    cores = "one core" if lnc == 1 else f"{lnc} cores"
    return (
        f"{target}, {cores}: first token after {1e3 * first:,.1f} ms ({context} tokens of prompt), "
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


def page(found, sizes, context):
    """The same numbers in HTML: a bar for every pass, a part for every kernel."""
    body = []
    for (target, lnc), passes in found.items():
        body.append(f"<h2>{headline(target, lnc, passes, context)}</h2>")
        for i, costs in enumerate(passes):
            ranked = sorted(costs, key=lambda cost: -cost.total())
            total = sum(cost.total() for cost in costs)
            body.append(
                f"<h3>{NAMES[i]}: {total / 1e3:,.1f} ms; {ranked[0].name} decides "
                f"({ranked[0].total() / total:.0%})</h3><div class=bar>"
            )
            for cost, colour in zip(costs, COLOURS, strict=True):
                share = 100 * cost.total() / total
                body.append(f"<i style='width:{share:.2f}%;background:{colour}' title='{cost.name}'></i>")
            body.append("</div><table><tr><th>kernel<th>us<th>times<th>share<th>bound, us<th>met</tr>")
            for cost, colour in zip(costs, COLOURS, strict=True):
                body.append(
                    f"<tr><td><i class=key style='background:{colour}'></i>{cost.name}<td>{cost.us:,.1f}"
                    f"<td>{cost.times}<td>{cost.total() / total:.1%}<td>{cost.bound}, {cost.bound_us:,.1f}"
                    f"<td>{cost.bound_us / cost.us:.0%}</tr>"
                )
            body.append("</table>")
    title = f"Llama, {sizes.layers} layers of {sizes.hidden}, {context} tokens: modelled time by kernel"
    style = (
        "body{font:15px system-ui;max-width:60em;margin:2em auto;padding:0 1em}"
        ".bar{display:flex;height:1.6em;margin:.5em 0}.bar i{display:block}"
        ".key{display:inline-block;width:.8em;height:.8em;margin-right:.5em}"
        "table{border-collapse:collapse}"
        "td,th{padding:.2em .9em;text-align:right;border-bottom:1px solid #ddd}"
        "td:first-child,th:first-child{text-align:left}"
    )
    head = f"<meta charset=utf-8><title>{title}</title><style>{style}</style>"
    return f"<!doctype html><html lang=en>{head}<h1>{title}</h1>{''.join(body)}</html>\n"
