"""Operations on the weights and gradients of language models, tensor by tensor."""

from __future__ import annotations

from math import prod

from nki import TensorSpec
from nkilib.experimental.foreach import foreach_elementwise as elementwise
from nkilib.experimental.foreach import foreach_norm as norm

from . import Case

BYTES = {"float32": 4, "bfloat16": 2}
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
SIZES = [((4096, 4096), "bfloat16"), ((4096, 11008), "float32")]  # of an attention block, of an MLP

# tensors, scalars, and the cycles per element of an engine that may take longer than memory
ELEMENTWISE = {
    "add_scalar_kernel": (1, 1, None),
    "sub_scalar_kernel": (1, 1, None),
    "mul_scalar_kernel": (1, 1, None),
    "div_scalar_kernel": (1, 1, None),
    "add_tensor_kernel": (2, 1, None),
    "sub_tensor_kernel": (2, 1, None),
    "mul_tensor_kernel": (2, 0, None),
    "div_tensor_kernel": (2, 0, ("Vector", 6 / 0.96)),  # reciprocals
    "lerp_kernel": (2, 1, None),
    "addcdiv_kernel": (3, 1, ("Vector", 6 / 0.96)),
    "addcmul_kernel": (3, 1, None),
    "sqrt_kernel": (1, 0, ("GpSimd", 2 / 1.2)),  # powers
}
NORMS = ["l2_norm_kernel", "l1_norm_kernel", "linf_norm_kernel"]


def elementwise_case(name: str, shape: tuple[int, ...], dtype: str) -> Case:
    tensors, scalars, engine = ELEMENTWISE[name]
    size = prod(shape)
    arguments = [TensorSpec(shape, dtype)] * tensors + [TensorSpec((128, 1), "float32")] * scalars
    return Case(
        name,
        f"{' x '.join(map(str, shape))} {SHORT[dtype]}",
        getattr(elementwise, name),
        (*arguments, size),
        hbm_bytes=(tensors + 1) * size * BYTES[dtype],
        other=engine and (engine[0], engine[1] * size / 128 / 1e3),
    )


def norm_case(name: str, shape: tuple[int, ...], dtype: str) -> Case:
    size = prod(shape)
    return Case(
        name,
        f"{' x '.join(map(str, shape))} {SHORT[dtype]}",
        getattr(norm, name),
        (TensorSpec(shape, dtype), size),
        hbm_bytes=size * BYTES[dtype],
    )


CASES = [elementwise_case(name, *size) for name in ELEMENTWISE for size in SIZES]
CASES += [norm_case(name, *size) for name in NORMS for size in SIZES]
