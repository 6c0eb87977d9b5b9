"""Code written for older NKI releases and for Trainium machines, running on `nki`.

- `old_api`: `neuronxcc.nki` of Neuron SDK 2.20 to 2.27, each call as instructions of `nki.isa`;
- `stubs`: packages that device scripts import (`torch_xla`, `torch_neuronx`, ...), on the CPU;
- `modules`: `nki.compiler`, `nki.framework`, `nki.runtime`, ... of other releases;
- `older_names`: attributes of `nki` that were renamed or removed;
- `commands`: `nki run`, `nki migrate`, `nki neuron-profile`.

`nki` does not import this package: it finds it by the entry points in pyproject.toml (`nki.plugins`).
"""

from nki.errors import add_own_package

add_own_package(__name__)
