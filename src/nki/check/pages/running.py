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
        "Two cores touch the same bytes of HBM, one of them writes, and no meeting (`core_barrier`, `sendrecv`, a "
        "collective) stands between them: which one comes first is chance; here such cores take turns, one "
        "instruction each. A warning, an error in strict mode and in `nki check`.",
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
        "No core can go on: each waits for a meeting to which the other does not come.",
        two_cores("if me == 0:\n        nisa.core_barrier(out, (0, 1))"),
        two_cores("nisa.core_barrier(out, (0, 1))"),
    ),
    "not-a-member": Page(
        "A collective names groups of ranks, and this rank is in none of them: nothing happens there."
    ),
    "rank-lost": Page(
        "Another rank has ended or its connection is gone, so that nobody can meet it. Its own error, if it had "
        "one, stands above."
    ),
    "rank-timeout": Page(
        "Ranks have waited for each other longer than run_ranks(timeout=) or attach(timeout=) allows. The table says "
        "what each of them waits for."
    ),
    "lnc": Page(
        "A meeting of two cores in a launch on one, or with a core that does not exist.",
        "nisa.core_barrier(out, (0, 1))",
        two_cores("nisa.core_barrier(out, (0, 1))"),
    ),
    "barrier-buffer": Page(
        "A barrier names the shared HBM tensor that is handed over.",
        two_cores("nisa.core_barrier(nl.zeros((1, 1), nl.float32), (0, 1))"),
        two_cores("nisa.core_barrier(out, (0, 1))"),
    ),
    "shared-mismatch": Page(
        "Both cores must make the same shared_hbm tensors in the same order.",
        two_cores('nl.ndarray((128, 8 + me), x.dtype, buffer=nl.shared_hbm, name="s")'),
        two_cores('nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="s")'),
    ),
    "shared-one-sided": Page(
        "One core alone makes a tensor that both should share.",
        two_cores('if me == 0:\n        nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="s")'),
        two_cores('nl.ndarray((128, 8), x.dtype, buffer=nl.shared_hbm, name="s")'),
    ),
    "lnc-outputs": Page(
        "Every core must return the same tensors.",
        two_cores("if me == 1:\n        return x"),
        two_cores("pass"),
    ),
    "lnc-divergence": Page(
        "The cores pass different data to `nl.shared_constant`, or a dynamic loop runs differently often on them.",
        two_cores("nl.shared_constant(np.full((128, 8), me, np.float32))"),
        two_cores("nl.shared_constant(np.ones((128, 8), np.float32))"),
    ),
    "lnc-config": Page(
        "`NEURON_LOGICAL_NC_CONFIG` says another number of cores than the kernel is launched on.",
    ),
    "launch-grid": Page(
        "`kernel[n]` takes the number of cores, and the platform must have as many.",
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
        "A group lists each rank once.",
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
        "Source and destination of a collective may not share bytes.",
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
        "The runtime permutes in rings: every rank that sends also receives.",
    ),
    "priority-ignored": Page(
        "This generation has no DMA priorities.",
        collective("ncc.all_reduce([sent], [out], ncc.ReplicaGroup([[0]]), nl.add, priority=1)"),
        collective(ALL_REDUCE),
    ),
    "lnc-one-sided": Page("A collective on tensors that both cores share is called by one core alone."),
    "collective-mismatch": Page("The ranks of a group call different collectives, or with other shapes."),
    "rank-out-of-world": Page("A rank that the world does not have."),
    "rank-arguments": Page("The ranks of a launch were given different numbers of arguments."),
    "hardware-limit": Page("Hardware runs this collective with two cores and four ranks or more alone."),
    "not-supported": Page("An option that no device has yet, or that this operating system has not."),
    # ---- Python in kernels
    "tensor-value": Page(
        "Values are not known while a kernel is traced, so Python cannot branch on them.",
        "if tile > 0:\n    pass",
        "nl.greater(tile, 0)",
    ),
    "abstract-value": Page(
        "The kernel is traced from shapes alone, and its Python asks for values.",
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
        "`nl` and `nisa` work inside a kernel alone.",
        """
        nl.zeros((128, 512), nl.float32)  # in no kernel
        """,
        "nl.zeros((128, 512), nl.float32)",
    ),
    "not-implemented-yet": Page("A part of NKI that Open NKI does not have yet."),
    "removed": Page(
        "A name that NKI had once; the help says what took its place.",
        "nisa.tensor_copy_dynamic_src(tile, tile)",
        "nisa.tensor_copy(nl.ndarray((128, 512), nl.float32), tile)",
    ),
    "platform": Page(
        "There is no such platform.",
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
        "A register has its value at run time: Python cannot compute with it.",
        "nisa.register_alloc(3) + 1",
        "nisa.memset(tile[:, nl.ds(nisa.register_alloc(3), 4)], 0.0)",
    ),
    "register-range": Page(
        "A register has 32 bits.",
        "nisa.register_alloc(1 << 40)",
        "nisa.register_alloc(1 << 20)",
    ),
    "register-float": Page(
        "A float in a register can be tested and stored, not used as an index.",
        "nisa.register_alloc(nl.zeros((1, 1), nl.float32))",
        "nisa.register_alloc(nl.zeros((1, 1), nl.int32))",
    ),
    "uninitialized": Page(
        "A register is read before anything was written to it.",
        "nisa.memset(tile[:, nl.ds(nisa.register_alloc(), 4)], 0.0)",
        "nisa.memset(tile[:, nl.ds(nisa.register_alloc(0), 4)], 0.0)",
    ),
    "frozen-register": Page(
        "The counter of a loop belongs to the loop.",
        "for i in nl.dynamic_range(2):\n    nisa.register_move(i, 5)",
        "counter = nisa.register_alloc(0)\nnisa.register_move(counter, 5)",
    ),
    "loop-step": Page(
        "The step of a dynamic loop is an int of at least 1.",
        "for i in nl.dynamic_range(0, 8, 0):\n    pass",
        "for i in nl.dynamic_range(0, 8, 2):\n    pass",
    ),
    "loop-body": Page(
        "The body of a dynamic loop returns nothing, or of a while loop the next condition.",
        "nl.fori_loop(0, 2, lambda i: tile)",
        "nl.fori_loop(0, 2, lambda i: nisa.memset(tile, 0.0) and None)",
    ),
    "loop-divergence": Page(
        "The body of a dynamic loop is one piece of code: it must issue the same instructions each time.",
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
        "A dynamic loop cannot stand inside `nl.no_reorder()`.",
        "with nl.no_reorder():\n    nl.fori_loop(0, 2, lambda i: None)",
        "with nl.no_reorder():\n    nisa.memset(tile, 0.0)",
    ),
    "loop-local-tensor": Page(
        "A tensor made in the body of a dynamic loop ends with the iteration.",
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
        "A while loop whose condition never becomes 0; `OPEN_NKI_MAX_ITERATIONS` is the limit.",
    ),
    "deprecated": Page(
        "`while register:` steers Python by a run-time value; `nl.while_loop` works in every front end.",
    ),
    "loop-trips": Page(
        "A profile from shapes alone cannot know how often this loop runs: it is priced as if it ran once.",
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
    "lost-write": Page("The kernel wrote an argument whose framework cannot change arrays (JAX)."),
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
    "framework": Page("A framework's tensor of a kind that a kernel cannot run on: traced, sparse, nested."),
    "framework-mix": Page("Tensors of PyTorch and arrays of NumPy or JAX in one call."),
    "device": Page("Arguments on different devices, or on one that kernels do not run on."),
    "device-copy": Page("Kernels run on the processor: tensors elsewhere are copied there and back."),
    "plan-cache": Page(
        "A file of the folder that OPEN_NKI_PLAN_CACHE names is damaged, or the folder cannot be written to. The call "
        "goes on with a plan of its own (docs/performance.md)."
    ),
    "no-backward": Page(
        "A kernel has no gradient by itself: `differentiable(forward, backward)` gives it one (docs/torch.md)."
    ),
    "gradient": Page(
        "A backward returned too few gradients, too many, or one of another shape than its argument."
    ),
    "missing-package": Page("A package that is not installed; the help says which command installs it."),
    "no-compiler": Page("A function that drives the vendor's compiler, which Open NKI does not have."),
    "baseline-file": Page(
        "The file is no baseline: write it with `nki check --baseline FILE --update-baseline`."
    ),
    "costs-file": Page("The file holds no costs of kernels: write it again with `pytest --nki-update`."),
    "tune-space": Page(
        "A space of configurations is empty, or its condition is no arithmetic over its names."
    ),
    "python-error": Page(
        "Python itself failed in a kernel that `nki check` traced; the message is Python's."
    ),
    "profile-file": Page(
        "The file is no saved profile, or it was changed: write it again with `nki profile --save`."
    ),
    "program-file": Page(
        "The file is no saved program, or it is damaged: write it again with `nki trace --save`."
    ),
}
