"""Call kernels of a model, or model their time where the tensors have shapes but no data."""

from dataclasses import dataclass, field

import torch

import nki
from nki import TensorSpec


def as_spec(value):
    """Return the shape and dtype of a tensor; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return TensorSpec(tuple(value.shape), str(value.dtype).removeprefix("torch."))


@dataclass
class Calls:
    """Calls kernels on `lnc` cores. On the device "meta" it also adds up their modelled times."""

    lnc: int = 2
    us: dict = field(default_factory=dict)  # the modelled microseconds of each kernel, of all its calls
    counts: dict = field(default_factory=dict)

    def __call__(self, kernel, *arguments, **options):
        values = (*arguments, *options.values())
        if any(isinstance(value, torch.Tensor) and value.is_meta for value in values):
            specs = [as_spec(value) for value in arguments]
            named = {name: as_spec(value) for name, value in options.items()}
            name = kernel.__name__
            self.us[name] = self.us.get(name, 0.0) + nki.profile(kernel[self.lnc])(*specs, **named).total_us
            self.counts[name] = self.counts.get(name, 0) + 1
        return kernel[self.lnc](*arguments, **options)

    def table(self, title):
        """Return the modelled times as text, the longest first."""
        total = sum(self.us.values())
        lines = [f"{title}: {total:,.0f} us"]
        for name, us in sorted(self.us.items(), key=lambda pair: -pair[1]):
            lines.append(f"  {name:<40}{us:>10,.1f} us{us / total:>7.1%}   {self.counts[name]} calls")
        return "\n".join(lines)


def relative_error(found, exact):
    """Return the norm of the difference over the norm of the exact result."""
    found, exact = found.double(), exact.double()
    return ((found - exact).norm() / exact.norm()).item()
