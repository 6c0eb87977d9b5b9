"""How often the interval of `nki profile --uncertainty` holds the time of a device."""

from .case import Case


def coverage(wanted: list[Case], report=lambda what: None) -> str:
    """Return a line for every published time of a kernel, and how many lie within the interval."""
    lines, inside = [], 0
    for case in wanted:
        figure = next((f for f in case.figures if f[0].startswith("total")), None)
        if figure is None or case.only:
            continue
        report(case.name)
        profile = case.profile(uncertainty=True)
        _, unit, published, read = figure
        found, ours = profile.uncertainty, read(profile)
        scale = ours / profile.total_us  # a launch, a second kernel, the unit
        low, high = found.low_us * scale, found.high_us * scale
        holds = low <= published <= high
        inside += holds
        lines.append(f"{case.name:50} {published:>9,g} {unit} in {low:9,.4g} to {high:9,.4g}: {holds}")
    return "\n".join([*lines, f"{inside} of {len(lines)} published times lie within their interval"])
