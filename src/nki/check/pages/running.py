"""Running: Python in kernels, loops and registers, two cores, collectives, arguments, frameworks."""

from .page import Page

TWO_CORES = """
@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    me = nl.program_id(0)
    mine = slice(me * 64, me * 64 + 64)
    {lines}
    nisa.dma_copy(out[mine], x[mine])
    return out

kernel[2](np.ones((128, 512), np.float32))
"""


def two_cores(lines: str) -> str:
    return TWO_CORES.replace("{lines}", lines)


COLLECTIVE = """
import nki.collectives as ncc

@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
    sent = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="sent")
    nisa.dma_copy(sent, x)
    {lines}
    return out

kernel(np.ones((128, 512), np.float32))
"""


def collective(lines: str) -> str:
    return COLLECTIVE.replace("{lines}", lines)


ALL_REDUCE = "ncc.all_reduce([sent], [out], ncc.ReplicaGroup([[0]]), nl.add)"

PAGES: dict[str, Page] = {
    # ---- two cores
    "race": Page(
        "Two cores access the same bytes of HBM, at least one of them writes, and no synchronisation "
        "point (`core_barrier`, `sendrecv`, a collective) separates the accesses, so their order is "
        "undefined. Here such cores take turns, one instruction each. A warning; an error in strict mode "
        "and in `nki check`.",
        """
        @nki.jit
        def kernel(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="out")
            nisa.dma_copy(out, x)  # both cores
            return out

        kernel[2](np.ones((128, 512), np.float32))
        """,
        two_cores("pass"),
    ),
    "deadlock": Page(
        "No core can continue: each waits at a synchronisation point that the other does not reach.",
        two_cores("if me == 0:\n        nisa.core_barrier(out, (0, 1))"),
        two_cores("nisa.core_barrier(out, (0, 1))"),
    ),
    "not-a-member": Page(
        "A collective names groups of ranks, and this rank is in none of them, so it does nothing on this "
        "rank."
    ),
    "rank-lost": Page(
        "Another rank has ended or its connection is lost, so this rank cannot exchange data with it. Its "
        "own error, if it had one, is shown above."
    ),
    "rank-timeout": Page(
        "Ranks have waited for each other longer than run_ranks(timeout=) or attach(timeout=) allows. The "
        "table shows what each of them waits for."
    ),
    "lnc": Page(
        "A barrier or `sendrecv` of two cores is used in a launch on one core, or names a core that does "
        "not exist.",
        "nisa.core_barrier(out, (0, 1))",
        two_cores("nisa.core_barrier(out, (0, 1))"),
    ),
    "barrier-buffer": Page(
        "A barrier must name the shared HBM tensor that one core passes to the other.",
        two_cores("nisa.core_barrier(nl.zeros((1, 1), nl.float32), (0, 1))"),
        two_cores("nisa.core_barrier(out, (0, 1))"),
    ),
    "shared-mismatch": Page(
        "Both cores must allocate the same shared_hbm tensors in the same order.",
        two_cores('nl.ndarray((128, 8 + me), x.dtype, buffer=nl.shared_hbm, name="s")'),
        two_cores('nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="s")'),
    ),
    "shared-one-sided": Page(
        "Only one core allocates a tensor that both should share.",
        two_cores('if me == 0:\n        nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="s")'),
        two_cores('nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="s")'),
    ),
    "lnc-outputs": Page(
        "Every core must return the same tensors.",
        two_cores("if me == 1:\n        return x"),
        two_cores("pass"),
    ),
    "lnc-divergence": Page(
        "The cores pass different data to `nl.shared_constant`, or a dynamic loop has different numbers "
        "of iterations on them.",
        two_cores("nl.shared_constant(np.full((128, 8), me, np.float32))"),
        two_cores("nl.shared_constant(np.ones((128, 8), np.float32))"),
    ),
    "lnc-config": Page(
        "`NEURON_LOGICAL_NC_CONFIG` differs from the number of cores of the launch.",
    ),
    "launch-grid": Page(
        "`kernel[n]` takes the number of cores, which the platform must have.",
        """
        @nki.jit
        def kernel(x):
            return x

        kernel[3](np.ones((128, 512), np.float32))
        """,
        two_cores("pass"),
    ),
    # ---- collectives
    "replica-group": Page(
        "A group must list each rank once.",
        collective("ncc.all_reduce([sent], [out], ncc.ReplicaGroup([[0, 0]]), nl.add)"),
        collective(ALL_REDUCE),
    ),
    "channel": Page(
        "Channels are numbered 0, 1, 2, ..., with a list of tensors for each.",
        collective(
            "ncc.collective_permute_implicit([[sent]], [[out]], ncc.ReplicaGroup([[0]]), channel_ids=[1])"
        ),
        collective(
            "ncc.collective_permute_implicit([[sent]], [[out]], ncc.ReplicaGroup([[0]]), channel_ids=[0])"
        ),
    ),
    "channel-limit": Page(
        "Hardware has four channels.",
    ),
    "collective-overlap": Page(
        "Source and destination of a collective must not share bytes.",
        collective(
            "nisa.dma_copy(out, x)\n    ncc.all_reduce([out], [out], ncc.ReplicaGroup([[0]]), nl.add)"
        ),
        collective(ALL_REDUCE),
    ),
    "collective-io-tensor": Page(
        "Hardware refuses arguments of the kernel as operands of a collective.",
        collective("ncc.all_reduce([x], [out], ncc.ReplicaGroup([[0]]), nl.add)"),
        collective(ALL_REDUCE),
    ),
    "collective-unnamed": Page(
        "Operands of collectives in HBM need a name.",
        collective(
            "other = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)\n    nisa.dma_copy(other, x)\n"
            "    ncc.all_reduce([other], [out], ncc.ReplicaGroup([[0]]), nl.add)"
        ),
        collective(ALL_REDUCE),
    ),
    "permute-not-circular": Page(
        "The runtime permutes in rings: every rank that sends must also receive.",
    ),
    "priority-ignored": Page(
        "This generation has no DMA priorities.",
        collective("ncc.all_reduce([sent], [out], ncc.ReplicaGroup([[0]]), nl.add, priority=1)"),
        collective(ALL_REDUCE),
    ),
    "lnc-one-sided": Page("Only one core calls a collective on tensors that both cores share."),
    "collective-mismatch": Page(
        "The ranks of a group call different collectives, or call them with different shapes."
    ),
    "rank-out-of-world": Page("The world does not have this rank."),
    "rank-arguments": Page("The ranks of a launch got different numbers of arguments."),
    "hardware-limit": Page("Hardware runs this collective only with two cores and at least four ranks."),
    "not-supported": Page(
        "An option that no device supports yet, or that this operating system does not support."
    ),
    # ---- Python in kernels
    "tensor-value": Page(
        "Values are not known while a kernel is traced, so Python cannot branch on them.",
        "if tile > 0:\n    pass",
        "nl.greater(tile, 0)",
    ),
    "abstract-value": Page(
        "The kernel is traced from shapes alone, and its Python reads a value.",
        """
        @nki.jit
        def kernel(x):
            np.asarray(x)
            return x

        kernel.trace(nki.TensorSpec((128, 512), "float32"))
        """,
        """
        @nki.jit
        def kernel(x):
            return x

        kernel.trace(nki.TensorSpec((128, 512), "float32"))
        """,
    ),
    "no-kernel": Page(
        "`nl` and `nisa` work only inside a kernel.",
        """
        nl.zeros((128, 512), nl.float32)  # in no kernel
        """,
        "nl.zeros((128, 512), nl.float32)",
    ),
    "not-implemented-yet": Page("A part of NKI that Open NKI does not have yet."),
    "removed": Page(
        "A name of an older NKI; the help names its replacement.",
        "nisa.tensor_copy_dynamic_src(tile, tile)",
        "nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), tile)",
    ),
    "platform": Page(
        "This platform does not exist.",
        """
        import os

        @nki.jit
        def kernel(x):
            return x

        os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn9"
        kernel(np.ones((128, 512), np.float32))
        """,
        """
        import os

        @nki.jit
        def kernel(x):
            return x

        os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn3"
        kernel(np.ones((128, 512), np.float32))
        """,
    ),
    "inner-target": Page("A kernel called by a kernel runs on the caller's platform."),
    # ---- loops and registers
    "register-value": Page(
        "A register has a value only at run time, so Python cannot compute with it.",
        "nisa.register_alloc(3) + 1",
        "nisa.memset(tile[:, nl.ds(nisa.register_alloc(3), 4)], 0.0)",
    ),
    "register-range": Page(
        "A register has 32 bits.",
        "nisa.register_alloc(1 << 40)",
        "nisa.register_alloc(1 << 20)",
    ),
    "register-float": Page(
        "A float in a register can be tested and stored, but not used as an index.",
        "nisa.register_alloc(nl.zeros((1, 1), nl.float32))",
        "nisa.register_alloc(nl.zeros((1, 1), nl.int32))",
    ),
    "uninitialized": Page(
        "A register is read before it was written.",
        "nisa.memset(tile[:, nl.ds(nisa.register_alloc(), 4)], 0.0)",
        "nisa.memset(tile[:, nl.ds(nisa.register_alloc(0), 4)], 0.0)",
    ),
    "frozen-register": Page(
        "The kernel writes the counter of a loop, which only the loop may change.",
        "for i in nl.dynamic_range(2):\n    nisa.register_move(i, 5)",
        "counter = nisa.register_alloc(0)\nnisa.register_move(counter, 5)",
    ),
    "loop-step": Page(
        "The step of a dynamic loop must be an int of at least 1.",
        "for i in nl.dynamic_range(0, 8, 0):\n    pass",
        "for i in nl.dynamic_range(0, 8, 2):\n    pass",
    ),
    "loop-body": Page(
        "The body of a dynamic loop must return nothing; that of a while loop returns the next condition.",
        "nl.fori_loop(0, 2, lambda i: tile)",
        "nl.fori_loop(0, 2, lambda i: nisa.memset(tile, 0.0) and None)",
    ),
    "loop-divergence": Page(
        "The body of a dynamic loop is one piece of code: it must issue the same instructions in each "
        "iteration.",
        """
        seen = []

        def body(i):
            seen.append(i)
            if len(seen) == 2:
                nisa.memset(tile, 0.0)

        nl.fori_loop(0, 3, body)
        """,
        """
        def body(i):
            nisa.memset(tile, 0.0)

        nl.fori_loop(0, 3, body)
        """,
    ),
    "loop-in-no-reorder": Page(
        "A dynamic loop cannot be inside `nl.no_reorder()`.",
        "with nl.no_reorder():\n    nl.fori_loop(0, 2, lambda i: None)",
        "with nl.no_reorder():\n    nisa.memset(tile, 0.0)",
    ),
    "loop-local-tensor": Page(
        "A tensor made in the body of a dynamic loop exists only in that iteration.",
        """
        @nki.jit
        def kernel(x):
            for i in nl.dynamic_range(2):
                out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
                nisa.dma_copy(out, x)
            return out

        kernel(np.ones((128, 512), np.float32))
        """,
        """
        @nki.jit
        def kernel(x):
            out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            for i in nl.dynamic_range(2):
                nisa.dma_copy(out, x)
            return out

        kernel(np.ones((128, 512), np.float32))
        """,
    ),
    "endless-loop": Page(
        "The condition of a while loop never becomes 0; `OPEN_NKI_MAX_ITERATIONS` is the limit.",
    ),
    "deprecated": Page(
        "`while register:` controls Python by a run-time value; `nl.while_loop` works in every front end.",
    ),
    "loop-trips": Page(
        "A profile from shapes alone cannot know how often this loop runs: it is timed with one iteration.",
    ),
    # ---- arguments and results
    "scalar-argument": Page(
        "A 0-d array is neither a number nor a tensor.",
        """
        @nki.jit
        def kernel(x, scale):
            return x

        kernel(np.ones((128, 512), np.float32), np.array(2.0))
        """,
        """
        @nki.jit
        def kernel(x, scale):
            return x

        kernel(np.ones((128, 512), np.float32), 2.0)
        """,
    ),
    "read-only-input": Page(
        "The kernel writes an argument that cannot be written, or that shares memory with another one.",
        """
        @nki.jit
        def kernel(x, y):
            nisa.dma_copy(x, y)

        x = np.ones((128, 512), np.float32)
        kernel(x, x)
        """,
        """
        @nki.jit
        def kernel(x, y):
            nisa.dma_copy(x, y)

        x = np.ones((128, 512), np.float32)
        kernel(x, x.copy())
        """,
    ),
    "lost-write": Page("The kernel wrote an argument of a framework whose arrays cannot change (JAX)."),
    "fp8-range": Page(
        "float8_e4m3fn values beyond 240 do not fit the e4m3 of trn1 and trn2.",
        """
        import ml_dtypes

        @nki.jit
        def kernel(x):
            return x

        kernel(np.full((128, 512), 448, ml_dtypes.float8_e4m3fn))
        """,
        """
        import ml_dtypes

        @nki.jit
        def kernel(x):
            return x

        kernel(np.full((128, 512), 240, ml_dtypes.float8_e4m3fn))
        """,
    ),
    "framework": Page("A kernel cannot run on this kind of framework tensor: traced, sparse or nested."),
    "framework-mix": Page("One call has tensors of PyTorch and arrays of NumPy or JAX."),
    "device": Page("Arguments are on different devices, or on one that kernels do not run on."),
    "device-copy": Page("Kernels run on the CPU: tensors on other devices are copied there and back."),
    "no-backward": Page(
        "A kernel has no gradient of its own: `differentiable(forward, backward)` defines one "
        "(docs/torch.md)."
    ),
    "gradient": Page(
        "A backward returned too few gradients, too many, or one whose shape differs from its argument's."
    ),
    "missing-package": Page("A package is not installed; the help shows the command that installs it."),
    "no-compiler": Page("The function calls the vendor's compiler, which Open NKI does not have."),
    "baseline-file": Page(
        "The file is not a baseline: write it with `nki check --baseline FILE --update-baseline`."
    ),
    "costs-file": Page("The file does not hold costs of kernels: write it again with `pytest --nki-update`."),
    "tune-space": Page(
        "A space of configurations is empty, or its condition is not arithmetic on its names."
    ),
    "python-error": Page(
        "Python itself failed in a kernel that `nki check` traced; the message is Python's."
    ),
    "profile-file": Page(
        "The file is not a saved profile, or it was changed: write it again with `nki profile --save`."
    ),
    "program-file": Page(
        "The file is not a saved program, or it is damaged: write it again with `nki trace --save`."
    ),
}
