"""A right and simple submission for the convolution of CS149."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def fused_conv2d_maxpool(X, W, bias, pool_size=1):
    batch, cin, height, width = X.shape
    cout, _, rows, columns = W.shape
    h, w = height - rows + 1, width - columns + 1
    out = nl.ndarray((batch, cout, h // pool_size, w // pool_size), X.dtype, buffer=nl.shared_hbm)
    for o in range(0, cout, 128):
        column = nl.ndarray((128, 1), X.dtype)
        nisa.dma_copy(column, bias[o : o + 128].reshape((128, 1)))
        wide = nl.ndarray((128, 1), nl.float32)
        nisa.tensor_copy(wide, column)
        weights = []
        for c in range(0, cin, 128):
            tile = nl.ndarray((128, 128, rows, columns), W.dtype)
            nisa.dma_copy(tile, W[o : o + 128, c : c + 128])
            turned = nl.ndarray((128, rows, columns, 128), W.dtype)
            for i in range(rows):
                for j in range(columns):
                    psum = nl.ndarray((128, 128), W.dtype, buffer=nl.psum)
                    nisa.nc_transpose(psum, tile[:, :, i, j])
                    nisa.tensor_copy(turned[:, i, j, :], psum)
            weights.append(turned)
        for b in range(batch):
            total = nl.ndarray((128, h, w), nl.float32, buffer=nl.psum)
            for number, c in enumerate(range(0, cin, 128)):
                image = nl.ndarray((128, height, width), X.dtype)
                nisa.dma_copy(image, X[b, c : c + 128])
                for i in range(rows):
                    for j in range(columns):
                        nisa.nc_matmul(total, weights[number][:, i, j, :], image[:, i : i + h, j : j + w])
            result = nl.ndarray((128, h, w), X.dtype)
            nisa.tensor_scalar(result, total, nl.add, wide)
            if pool_size == 1:
                nisa.dma_copy(out[b, o : o + 128], result)
                continue
            pooled = nl.ndarray((128, h // 2, w // 2), X.dtype)
            first = nl.ndarray((128, h, w // 2), X.dtype)
            nisa.tensor_tensor(first, result[:, :, 0::2], result[:, :, 1::2], nl.maximum)
            nisa.tensor_tensor(pooled, first[:, 0::2, :], first[:, 1::2, :], nl.maximum)
            nisa.dma_copy(out[b, o : o + 128], pooled)
    return out
