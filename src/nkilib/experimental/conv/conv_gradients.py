"""The gradients of conv1d and conv3d_transpose, by those of conv3d.

A 1-D convolution is a 3-D one of a single row. The transposed convolution y = T(x) is the adjoint of a
convolution C: <T(x), dy> = <x, C(dy)>. So dx = C(dy), and the gradient of the filters is that of C for dy as
its input and x as the gradient of its result.
"""

from __future__ import annotations

import nki
import nki.isa as nisa
import nki.language as nl
from nkilib.core.utils.kernel_assert import assert_shape, assert_tensors, kernel_assert
from nkilib.core.utils.kernel_helpers import get_verified_program_sharding_info
from nkilib.core.utils.types import Tensor
from nkilib.experimental.conv.conv3d import conv3d
from nkilib.experimental.conv.conv3d_bwd import bias_gradients, conv3d_bwd, flipped

ONE = (1, 1, 1)


@nki.jit
def conv1d_bwd(
    dy: Tensor,
    x_in: Tensor,
    filters: Tensor,
    stride: int = 1,
    padding: tuple[int, int] = (0, 0),
    dilation: int = 1,
    compute_dx: bool = True,
    compute_dw: bool = True,
    compute_db: bool = True,
) -> tuple[Tensor, ...]:
    """Return those of (dx, dw, db) that are asked for: the gradients of conv1d for x_in, filters and bias.

    dy is [B, C_out, L_out], x_in [B, C_in, L], filters [K, C_in, C_out], all in one dtype: bfloat16, float16
    or float32; stride, padding (left, right) and dilation are those of the forward call. Sums are float32;
    the results have the dtype and shape of what they are the gradients of. Two cores share all three. The
    documented library has no such kernel.

    >>> import numpy as np
    >>> dy, x, f = (np.ones(shape, np.float32) for shape in ((1, 1, 2), (1, 1, 3), (2, 1, 1)))
    >>> [gradient.ravel().tolist() for gradient in conv1d_bwd(dy, x, f)]
    [[1.0, 2.0, 1.0], [2.0, 2.0], [2.0]]
    """
    assert_tensors((("dy", dy), ("x_in", x_in), ("filters", filters)))
    for pair in (("dy", dy), ("x_in", x_in), ("filters", filters)):
        kernel_assert(
            len(pair[1].shape) == 3, f"{pair[0]}: got shape {tuple(pair[1].shape)}, expected 3 axes"
        )
    found = conv3d_bwd(
        dy.expand_dim(2).expand_dim(2),
        x_in.expand_dim(2).expand_dim(2),
        filters.expand_dim(0).expand_dim(0),
        (1, 1, stride),
        (0, 0, 0, 0, padding[0], padding[1]),
        (1, 1, dilation),
        compute_dx,
        compute_dw,
        compute_db,
    )
    shapes = [x_in.shape] if compute_dx else []
    if compute_dw:
        shapes.append(filters.shape)
    if compute_db:
        shapes.append((filters.shape[2],))
    results = []
    for i in range(len(shapes)):
        results.append(found[i].reshape(shapes[i]))
    return tuple(results)


@nki.jit
def conv3d_transpose_bwd(
    dy: Tensor,
    x_in: Tensor,
    filters: Tensor,
    stride: tuple[int, int, int] = ONE,
    padding: tuple[int, int, int] = (0, 0, 0),
    dilation: tuple[int, int, int] = ONE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dx, dw, db): the gradients of conv3d_transpose for x_in, filters and bias.

    dy is [B, C_out, D_out, H_out, W_out], x_in [B, C_in, D, H, W], filters [K_d, K_h, K_w, C_in, C_out], all
    in one dtype: bfloat16, float16 or float32; stride, padding and dilation are those of the forward call.
    Sums are float32; the results have the dtype and shape of what they are the gradients of. Two cores share
    the work. The documented library has no such kernel.

    >>> import numpy as np
    >>> dy, x = np.ones((1, 1, 1, 1, 3), np.float32), np.ones((1, 1, 1, 1, 2), np.float32)
    >>> [g.ravel().tolist() for g in conv3d_transpose_bwd(dy, x, np.ones((1, 1, 2, 1, 1), np.float32))]
    [[2.0, 2.0], [2.0, 2.0], [3.0]]
    """
    cores = get_verified_program_sharding_info("conv3d_transpose_bwd", (0, 1), 2)[1]
    check_transposed(dy, x_in, filters, stride, padding, dilation)
    ends = (padding[0], padding[0], padding[1], padding[1], padding[2], padding[2])
    adjoint = flipped(filters)
    dx = conv3d(dy, adjoint, None, stride, ends, dilation, None, cores > 1)
    of_adjoint = conv3d_bwd(x_in, dy, adjoint, stride, ends, dilation, False, True, False)[0]
    if cores > 1:
        nisa.core_barrier(of_adjoint, (0, 1))
    dw = nl.ndarray(filters.shape, filters.dtype, buffer=nl.shared_hbm)
    if nl.program_id(0) == 0:
        nisa.dma_copy(dw, flipped(of_adjoint))
    db = nl.ndarray((filters.shape[4],), filters.dtype, buffer=nl.shared_hbm)
    bias_gradients(db, dy)
    return dx, dw, db


def check_transposed(
    dy: Tensor, x: Tensor, filters: Tensor, stride: tuple, padding: tuple, dilation: tuple
) -> None:
    given = (("dy", dy), ("x_in", x), ("filters", filters))
    assert_tensors(given)
    for pair in given:
        kernel_assert(
            len(pair[1].shape) == 5, f"{pair[0]}: got shape {tuple(pair[1].shape)}, expected 5 axes"
        )
        kernel_assert(
            pair[1].dtype == x.dtype, f"{pair[0]}: got {pair[1].dtype}, expected {x.dtype} like x_in"
        )
    for pair in (("stride", stride), ("padding", padding), ("dilation", dilation)):
        kernel_assert(len(pair[1]) == 3, f"{pair[0]}: got {pair[1]}, expected three numbers")
    assert_shape(filters, filters.shape[0:3] + (x.shape[1], filters.shape[4]), "filters")
    sizes = [x.shape[0], filters.shape[4]]
    for i in range(3):
        ends = dilation[i] * (filters.shape[i] - 1) - 2 * padding[i] + 1
        sizes.append((x.shape[i + 2] - 1) * stride[i] + ends)
    assert_shape(dy, tuple(sizes), "dy")
