"""Instructions: options, dtypes, engines and what hardware does otherwise."""

from .page import Page

MATMUL = "nisa.nc_matmul(nl.ndarray((128, 512), nl.float32, buffer=nl.psum), {})"

PAGES: dict[str, Page] = {
    "argument": Page(
        "An argument has the wrong kind, is missing, unknown or given twice; the notes list what is "
        "accepted.",
        "nisa.tensor_tensor(tile, tile, tile, operation=nl.add)",
        "nisa.tensor_tensor(tile, tile, tile, op=nl.add)",
    ),
    "enum": Page(
        "The option takes a member of an enumeration.",
        'nisa.dma_copy(tile, x, dge_mode="fast")',
        "nisa.dma_copy(tile, x, dge_mode=nisa.dge_mode.hwdge)",
    ),
    "op": Page(
        "The instruction does not have this operator.",
        "nisa.tensor_tensor(tile, tile, tile, nl.exp)",
        "nisa.tensor_tensor(tile, tile, tile, nl.add)",
    ),
    "operator": Page(
        "Python's operator is used on a tile where values are not known, or a collective has an operator "
        "other than add, minimum and maximum.",
        "tile @ tile",
        "nl.matmul(tile[:, 0:128], tile[:, 0:128], transpose_x=True)",
    ),
    "dtype": Page(
        "The instruction does not accept this dtype, or the dtype does not exist.",
        "nisa.range_select(nl.ndarray((128, 512), nl.int32), tile, nl.less, nl.less, "
        "nl.zeros((128, 1), nl.float32), nl.zeros((128, 1), nl.float32))",
        "nisa.range_select(tile, tile, nl.less, nl.less, nl.zeros((128, 1), nl.float32), "
        "nl.zeros((128, 1), nl.float32))",
    ),
    "operand-dtype": Page(
        "The engine reads another dtype here, so the operand is converted.",
        "nisa.activation(tile, nl.copy, tile, scale=nl.zeros((128, 1), nl.bfloat16))",
        "nisa.activation(tile, nl.copy, tile, scale=nl.zeros((128, 1), nl.float32))",
    ),
    "dtype-differs": Page(
        "The manual requires two operands of the same dtype, and they differ; the values are cast.",
        "nisa.tensor_copy_predicated(tile, nl.zeros((128, 512), nl.bfloat16), nl.zeros((128, 512), nl.uint8))",
        "nisa.tensor_copy_predicated(tile, nl.zeros((128, 512), nl.float32), nl.zeros((128, 512), nl.uint8))",
    ),
    "dtype-ignored": Page(
        "The old `dtype=` of an instruction names another dtype than that of `dst`; the dtype of `dst` is "
        "used.",
        "nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), tile, dtype=nl.bfloat16)",
        "nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), tile)",
    ),
    "engine": Page(
        "The instruction cannot run on this engine.",
        "nisa.tensor_tensor(tile, tile, tile, nl.add, engine=nisa.engine.tensor)",
        "nisa.tensor_tensor(tile, tile, tile, nl.add, engine=nisa.engine.vector)",
    ),
    "generation": Page(
        "The instruction, or one of its options, exists only on a later generation.",
        "nisa.dma_copy(tile, x, dge_mode=nisa.dge_mode.hwdge)",
        "nisa.dma_copy(tile, x)",
        target="trn1",
    ),
    "legacy": Page(
        "An old spelling that still works.",
        "nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), tile, dtype=nl.float32)",
        "nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), tile)",
    ),
    "memset-type": Page(
        "`nisa.memset` of an integer tile needs an integer that fits its dtype.",
        "nisa.memset(nl.ndarray((128, 8), nl.uint8), 300)",
        "nisa.memset(nl.ndarray((128, 8), nl.uint8), 30)",
    ),
    "reduce-cmd": Page(
        "`reduce_cmd` and `reduce_res` do not match.",
        "nisa.range_select(tile, tile, nl.less, nl.less, nl.zeros((128, 1), nl.float32), "
        "nl.zeros((128, 1), nl.float32), nisa.reduce_cmd.idle, nl.ndarray((128, 1), nl.float32))",
        "nisa.range_select(tile, tile, nl.less, nl.less, nl.zeros((128, 1), nl.float32), "
        "nl.zeros((128, 1), nl.float32), nisa.reduce_cmd.reset_reduce, nl.ndarray((128, 1), nl.float32))",
    ),
    "acc-undefined": Page(
        "A reduction continues with accumulator registers that hold no value yet.",
        "nisa.activation(tile, nl.copy, tile, reduce_op=nl.add, reduce_res=nl.ndarray((128, 1), nl.float32), "
        "reduce_cmd=nisa.reduce_cmd.reduce)",
        "nisa.activation(tile, nl.copy, tile, reduce_op=nl.add, reduce_res=nl.ndarray((128, 1), nl.float32), "
        "reduce_cmd=nisa.reduce_cmd.reset_reduce)",
    ),
    "acc-shared": Page(
        "Instructions of one engine share its accumulator registers, and another instruction continues "
        "the reduction.",
        """
        res, mask = nl.ndarray((128, 1), nl.float32), nl.ndarray((128, 512), nl.uint8)
        nisa.memset(mask, 1)
        nisa.tensor_scalar_reduce(tile, tile, nl.add, 0.0, nl.maximum)
        nisa.select_reduce(tile, mask, tile, -1.0, res, reduce_cmd=nisa.reduce_cmd.reduce)
        """,
        """
        res, mask = nl.ndarray((128, 1), nl.float32), nl.ndarray((128, 512), nl.uint8)
        nisa.memset(mask, 1)
        nisa.tensor_scalar_reduce(tile, tile, nl.add, 0.0, nl.maximum)
        nisa.select_reduce(tile, mask, tile, -1.0, res, reduce_cmd=nisa.reduce_cmd.reset_reduce)
        """,
    ),
    "act-range": Page(
        "Inputs are outside the range in which the device's activation function is accurate.",
        """
        nisa.memset(tile, 4.0)
        nisa.activation(tile, nl.sin, tile)
        """,
        """
        nisa.memset(tile, 3.0)
        nisa.activation(tile, nl.sin, tile)
        """,
    ),
    "activation-range": Page(
        "`nl.arctan` outside [-pi/2, pi/2], where the device's table is not accurate.",
        """
        nisa.memset(tile, 2.0)
        nl.arctan(tile)
        """,
        """
        nisa.memset(tile, 1.0)
        nl.arctan(tile)
        """,
    ),
    "bias-constant": Page(
        "On trn1 the bias of an activation must be a tile.",
        "nisa.activation(tile, nl.exp, tile, bias=1.0)",
        """
        bias = nl.ndarray((128, 1), nl.float32)
        nisa.memset(bias, 1.0)
        nisa.activation(tile, nl.exp, tile, bias=bias)
        """,
        target="trn1",
    ),
    "scalar-copy": Page(
        "The scalar engine of trn1 copies through float32, which rounds large integers.",
        "nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), tile, engine=nisa.engine.scalar)",
        "nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), tile, engine=nisa.engine.vector)",
        target="trn1",
    ),
    "dge-mode": Page(
        "The requested way of generating descriptors does not support this transfer.",
        """
        places = nl.zeros((128, 1), nl.int32)
        nisa.dma_copy(tile, x.vector_select(0, places), dge_mode=nisa.dge_mode.hwdge)
        """,
        """
        places = nl.zeros((128, 1), nl.int32)
        nisa.dma_copy(tile, x.vector_select(0, places), dge_mode=nisa.dge_mode.swdge)
        """,
    ),
    "dma-engine": Page(
        "The engine that starts a transfer matters only with `dge_mode.hwdge`.",
        "nisa.dma_copy(tile, x, engine=nisa.engine.scalar)",
        "nisa.dma_copy(tile, x, engine=nisa.engine.scalar, dge_mode=nisa.dge_mode.hwdge)",
    ),
    "dma-shape": Page(
        "Source and destination have the same number of elements but different shapes; elements are "
        "paired in row-major order.",
        "nisa.dma_copy(tile, x.reshape((64, 1024)))",
        "nisa.dma_copy(tile, x)",
    ),
    "dma-compute-single": Page(
        "`nisa.dma_compute` with one source copies it and adds nothing to dst.",
        "nisa.dma_compute(tile, [x], nl.add)",
        "nisa.dma_compute(tile, [tile, x], nl.add)",
    ),
    "static-dma-offset": Page(
        "A run-time offset cannot be part of descriptors that are generated before the run "
        "(`dge_mode.none`).",
        """
        places = nl.zeros((1, 1), nl.int32)
        nisa.dma_copy(tile[0:1], x.ap([[512, 1], [1, 512]], scalar_offset=places), dge_mode=nisa.dge_mode.none)
        """,
        """
        places = nl.zeros((1, 1), nl.int32)
        nisa.dma_copy(tile[0:1], x.ap([[512, 1], [1, 512]], scalar_offset=places))
        """,
    ),
    "priority": Page(
        "DMA priorities are 0 to 3.",
        "nisa.dma_copy(tile, x, priority=7)",
        "nisa.dma_copy(tile, x, priority=1)",
        target="trn3",
    ),
    "transpose-hbm": Page(
        "`nisa.dma_transpose` is documented with a destination in SBUF.",
        "nisa.dma_transpose(nl.ndarray((512, 128), x.dtype, buffer=nl.private_hbm), x)",
        "nisa.dma_transpose(nl.ndarray((128, 128), x.dtype), x[:, 0:128])",
    ),
    "transpose-identity": Page(
        "`nc_matmul(is_transpose=True)` transposes by a product with an identity matrix, and `moving` is "
        "not one.",
        """
        turned = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(turned, tile[:, 0:128], tile[:, 0:128], is_transpose=True)
        """,
        """
        turned = nl.ndarray((128, 128), nl.float32, buffer=nl.psum)
        identity = nl.ndarray((128, 128), nl.float32)
        nisa.dma_copy(identity, nl.shared_identity_matrix(128, nl.float32))
        nisa.nc_matmul(turned, tile[:, 0:128], identity, is_transpose=True)
        """,
    ),
    "nan-transpose": Page(
        "trn1 transposes by a product: one NaN or infinity spreads over a whole row.",
        """
        nisa.memset(tile, float("inf"))
        nisa.nc_transpose(nl.ndarray((128, 128), nl.float32, buffer=nl.psum), tile[:, 0:128])
        """,
        "nisa.nc_transpose(nl.ndarray((128, 128), nl.float32, buffer=nl.psum), tile[:, 0:128])",
        target="trn1",
    ),
    "matmul-transpose": Page(
        "`nl.matmul` without `transpose_x` transposes x first, which some compilers refuse.",
        "nl.matmul(tile[:, 0:128], tile)",
        "nl.matmul(tile[:, 0:128], tile, transpose_x=True)",
    ),
    "onezero": Page(
        "`is_moving_onezero` promises ones and zeros, and the operand holds other values.",
        """
        nisa.memset(tile, 3.0)
        """
        + MATMUL.format("tile[:, 0:128], tile, is_moving_onezero=True"),
        MATMUL.format("tile[:, 0:128], tile, is_moving_onezero=True"),
    ),
    "pe-tile": Page(
        "A matmul on a part of the PE array must read its operands from the same partitions.",
        "sums = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)\n"
        "nisa.nc_matmul(sums, tile[32:64, 0:32], tile[32:64, 0:32], tile_position=(0, 0), tile_size=(32, 32))",
        "sums = nl.ndarray((32, 32), nl.float32, buffer=nl.psum)\n"
        "nisa.nc_matmul(sums, tile[32:64, 0:32], tile[32:64, 0:32], tile_position=(32, 0), tile_size=(32, 32))",
    ),
    "perf-mode": Page(
        "The operands do not allow this matmul mode: double_row takes fp8 operands of shape [K, 2, ...].",
        MATMUL.format("tile[:, 0:128], tile, perf_mode=nisa.matmul_perf_mode.double_row"),
        MATMUL.format("tile[:, 0:128], tile"),
    ),
    "fp32-min": Page(
        "`nisa.range_select` can fill only with the smallest float32.",
        "nisa.range_select(tile, tile, nl.less, nl.less, nl.zeros((128, 1), nl.float32), "
        "nl.zeros((128, 1), nl.float32), on_false_value=0.0)",
        "nisa.range_select(tile, tile, nl.less, nl.less, nl.zeros((128, 1), nl.float32), "
        "nl.zeros((128, 1), nl.float32))",
    ),
    "range-index": Page(
        "Indices are compared in float32, which is exact below 2**24.",
        "nisa.range_select(tile, tile, nl.less, nl.less, nl.zeros((128, 1), nl.float32), "
        "nl.zeros((128, 1), nl.float32), range_start=2**24)",
        "nisa.range_select(tile, tile, nl.less, nl.less, nl.zeros((128, 1), nl.float32), "
        "nl.zeros((128, 1), nl.float32), range_start=0)",
    ),
    "extra-partitions": Page(
        "`nisa.nc_find_index8` searches only as many partitions as the data has.",
        "nisa.nc_find_index8(nl.ndarray((64, 8), nl.uint32), tile[0:64], nl.zeros((128, 8), nl.float32))",
        "nisa.nc_find_index8(nl.ndarray((128, 8), nl.uint32), tile, nl.zeros((128, 8), nl.float32))",
    ),
    "shuffle-source": Page(
        "A shuffle moves partitions within groups of 32, and the source partition must exist.",
        "nisa.nc_stream_shuffle(nl.ndarray((128, 512), nl.float32), tile, list(range(1, 33)))",
        "nisa.nc_stream_shuffle(nl.ndarray((128, 512), nl.float32), tile, list(range(31, -1, -1)))",
    ),
    "mx-scale": Page(
        "The scales of an MX operand must start at partition 0, 4, 8 or 12 of a group of 32.",
    ),
    "rand-range": Page(
        "`min` must be below `max`.",
        "nisa.rand2(tile, 1.0, 1.0)",
        "nisa.rand2(tile, 0.0, 1.0)",
        target="trn3",
    ),
    "rng-dead": Page(
        "A random state whose words are all zero gives no random numbers.",
        "nisa.rand_set_state(nl.zeros((128, 6), nl.uint32))",
        """
        seeds = nl.ndarray((128, 6), nl.uint32)
        nisa.memset(seeds, 77)
        nisa.rand_set_state(seeds)
        """,
    ),
    "seed-engine": Page(
        "On this generation the seed may not reach the engine that `nl.rand` uses.",
        "nl.random_seed(nl.zeros((1, 1), nl.int32))",
        "",
    ),
    "probability": Page(
        "A probability must be between 0 and 1.",
        "nisa.dropout(tile, tile, 1.5)",
        "nisa.dropout(tile, tile, 0.5)",
    ),
    "int-precision": Page(
        "Integers above 2**24 lose bits, because the engine computes in float32.",
        """
        large = nl.ndarray((128, 4), nl.int32)
        nisa.memset(large, 2**24 + 1)
        nl.copy(large)
        """,
        """
        small = nl.ndarray((128, 4), nl.int32)
        nisa.memset(small, 2**20)
        nl.copy(small)
        """,
    ),
    "weak-scalar": Page(
        "A fraction is combined with an integer tile, and the result is rounded to the tile's dtype.",
        "nl.add(nl.zeros((128, 4), nl.int32), 0.5)",
        "nl.add(nl.zeros((128, 4), nl.int32), 0.5, dtype=nl.float32)",
    ),
    "not-on-hardware": Page(
        "No engine has this operation.",
        "nl.power(tile, 2.0)",
        "nl.multiply(tile, tile)",
    ),
    "device-print-psum": Page(
        "Hardware cannot print the contents of PSUM.",
        'nl.device_print("sums", nl.zeros((1, 2), nl.float32, buffer=nl.psum))',
        'nl.device_print("sums", nl.zeros((1, 2), nl.float32))',
    ),
    "depends-on": Page(
        "`depends_on` takes the return value of an earlier instruction's call.",
        "nisa.memset(tile, 0.0).depends_on(tile)",
        """
        first = nisa.memset(tile, 0.0)
        nisa.tensor_scalar(tile, tile, nl.add, 1.0).depends_on(first)
        """,
    ),
    "schedule": Page(
        "An edge of `with_schedule` is (later, earlier), by the names of instructions.",
        """
        @nki.jit
        def kernel(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(out, x, name="store")
            return out

        kernel.with_schedule([("store", "load")])(np.ones((128, 512), np.float32))
        """,
        """
        @nki.jit
        def kernel(x):
            out, tile = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm), nl.ndarray(x.shape, x.dtype)
            nisa.dma_copy(tile, x, name="load")
            nisa.dma_copy(out, tile, name="store")
            return out

        kernel.with_schedule([("store", "load")])(np.ones((128, 512), np.float32))
        """,
    ),
}
