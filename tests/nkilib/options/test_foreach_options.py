"""Every foreach kernel, every dtype, sizes beside whole tiles; and the three norms."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from kernel_support import random
from options.common import Option, check, each, on_both, refusals

from nkilib.experimental.foreach import foreach_elementwise as elementwise
from nkilib.experimental.foreach import foreach_norm as norms

STEPS = {"float32": 1e-5, "bfloat16": 2**-8, "float16": 2**-11}


def number(value: float, dtype: str = "float32") -> np.ndarray:
    return np.full((128, 1), value).astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return np.asarray(x, np.float64)


FORMULAS = {  # kernel: (names of its tensors, name of its scalar, what it computes)
    "add_scalar_kernel": (("data",), "scalar_tensor", lambda x, s: x + s),
    "sub_scalar_kernel": (("data",), "scalar_tensor", lambda x, s: x - s),
    "mul_scalar_kernel": (("data",), "scalar_tensor", lambda x, s: x * s),
    "div_scalar_kernel": (("data",), "scalar_tensor", lambda x, s: x / s),
    "add_tensor_kernel": (("data1", "data2"), "alpha_tensor", lambda x, y, s: x + s * y),
    "sub_tensor_kernel": (("data1", "data2"), "alpha_tensor", lambda x, y, s: x - s * y),
    "mul_tensor_kernel": (("data1", "data2"), None, lambda x, y: x * y),
    "div_tensor_kernel": (("data1", "data2"), None, lambda x, y: x / y),
    "lerp_kernel": (("data", "end"), "weight_tensor", lambda x, y, s: x + s * (y - x)),
    "addcdiv_kernel": (("data", "data1", "data2"), "value_tensor", lambda x, y, z, s: x + s * y / z),
    "addcmul_kernel": (("data", "data1", "data2"), "value_tensor", lambda x, y, z, s: x + s * y * z),
    "sqrt_kernel": (("data",), None, np.sqrt),
}
SHAPES = {1: (1,), 127: (127,), 128: (128,), 1000: (10, 100), 4111: (4111,)}


def arguments(name: str, size: int, dtype: str, scalar: float = -0.75) -> dict:
    tensors, scalar_name, _ = FORMULAS[name]
    given = {t: np.abs(random(SHAPES[size], dtype, seed=i)) + 0.5 for i, t in enumerate(tensors)}
    given = {t: x.astype(dtype) for t, x in given.items()}
    if scalar_name is not None:
        given[scalar_name] = number(scalar)
    return given | {"numel": size}


def cases() -> list[Option]:
    made = []
    for name in FORMULAS:
        for size in SHAPES:
            made.append(Option(f"{name}-{size}", {"kernel": name} | arguments(name, size, "float32")))
        for dtype in ("bfloat16", "float16"):
            made.append(
                Option(
                    f"{name}-{dtype}",
                    {"kernel": name} | arguments(name, 1000, dtype),
                    tolerance=STEPS[dtype],
                )
            )
    return made


def result(**given: np.ndarray) -> np.ndarray:
    tensors, scalar, formula = FORMULAS[given["kernel"]]
    values = [wide(given[t]) for t in tensors]
    if scalar is not None:
        values.append(wide(given[scalar])[0, 0])
    return formula(*values)


def call(option: Option, module, reference) -> None:
    name = option.changes["kernel"]
    changes = {key: value for key, value in option.changes.items() if key != "kernel"}
    check(
        option._replace(changes=changes),
        getattr(module, name),
        {},
        lambda **given: reference(kernel=name, **given),
        1e-6,
    )


@each(on_both(cases()))
def test_elementwise(option):
    call(option, elementwise, result)


SCALARS = [
    Option(f"{name}-{kind}", {"kernel": name} | arguments(name, 1000, "float32", value))
    for name in (
        "add_scalar_kernel",
        "mul_scalar_kernel",
        "add_tensor_kernel",
        "lerp_kernel",
        "addcmul_kernel",
    )
    for kind, value in (("zero", 0.0), ("one", 1.0), ("large", 1e5), ("tiny", -1e-5))
]


@each(SCALARS)
def test_scalars_of_unusual_size(option):
    call(option, elementwise, result)


REFUSED = refusals(
    numel=999,
    data2__shape=random((10, 99)),
    data2__dtype=np.ones((10, 100), np.int32),
    alpha_tensor__shape=np.ones((1, 1), np.float32),
    alpha_tensor__dtype=np.ones((128, 1), np.int32),
    data1__none=None,
    data2__none=None,
    alpha_tensor__none=None,
)


@each(REFUSED)
def test_refusals_of_add_tensor(option):
    basic = arguments("add_tensor_kernel", 1000, "float32")
    check(option, elementwise.add_tensor_kernel, basic, result, 1e-6)


NORMS = {
    "l2_norm_kernel": lambda x: np.sqrt(np.square(x).sum()),
    "l1_norm_kernel": lambda x: np.abs(x).sum(),
    "linf_norm_kernel": lambda x: np.abs(x).max(),
}
NORM_CASES = [
    Option(f"{name}-{size}-{dtype}", {"kernel": name, "data": random(SHAPES[size], dtype), "numel": size})
    for name in NORMS
    for size in SHAPES
    for dtype in ("float32", "bfloat16")
]


@each(on_both(NORM_CASES))
def test_norms(option):
    def norm(kernel, data, numel):
        value = np.float64(NORMS[kernel](wide(data)))
        return np.full((1, 1), value.astype(data.dtype).astype(np.float64))

    tolerance = 2**-7 if option.changes["data"].dtype == ml_dtypes.bfloat16 else 1e-5
    call(option._replace(tolerance=tolerance), norms, norm)
