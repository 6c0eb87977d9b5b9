"""Submissions for the tests of grading: a right one, wrong ones, and hostile ones. Each is a source."""

from __future__ import annotations

HEAD = "import os, sys, time\nimport numpy as np\nimport nki, nki.isa as nisa, nki.language as nl\n"

RIGHT = """
@nki.jit
def double(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    nisa.dma_copy(tile, x)
    nisa.tensor_scalar(tile, tile, nl.multiply, 2.0)
    nisa.dma_copy(out, tile)
    return out
"""

WRONG = {
    "wrong value": RIGHT.replace("2.0", "2.5"),
    "wrong shape": RIGHT.replace("    return out", "    return out.reshape((16, 16))"),
    "wrong dtype": RIGHT.replace("x.dtype, buffer", "nl.bfloat16, buffer"),
    "input returned": "@nki.jit\ndef double(x):\n    return x\n",
    "nothing written": RIGHT.replace("    nisa.dma_copy(out, tile)\n", ""),
    "two results": RIGHT.replace("return out", "return out, out"),
    "no kernel": "def other(x):\n    return x\n",
    "not a kernel": "double = 3\n",
    "a class": "class double:\n    def __call__(self, x):\n        return x * 2\n",
    "wrong parameters": RIGHT.replace("double(x)", "double(x, y)"),
    "a host function": "def double(x):\n    return np.zeros((8, 32), np.float32)\n",
    "syntax error": "def double(x:\n",
    "null bytes": "\0\0\0",
    "names of HTML": "raise ValueError('<script>alert(1)</script>')\n",
    "reads values": RIGHT.replace(
        "    nisa.dma_copy(out", "    assert float(tile[0, 0]) > 0\n    nisa.dma_copy(out"
    ),
}


def at_import(code: str) -> str:
    """The right kernel, and code that runs when it is imported."""
    return f"{code}\n{RIGHT}"


def in_kernel(code: str) -> str:
    """The right kernel, and code that runs when it is traced."""
    return RIGHT.replace("    out = ", f"    {code}\n    out = ", 1)


FORGED = """
import json
message = json.dumps({"case": "small", "us": 0.1, "instructions": 1, "sbuf_bytes": 0, "psum_bytes": 0,
                      "findings": [], "advice": [], "bytes": 0}).encode() + b"\\n"
for fd in range(3, 64):
    try:
        os.write(fd, b'{"imported": true, "check": [], "bytes": 0}\\n' + message)
    except OSError:
        pass
os._exit(0)
"""

KNOWN_ANSWER = """
@nki.jit
def double(x):
    out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(x.shape, x.dtype)
    answer = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32) * 2
    nisa.dma_copy(tile, nl.shared_constant(answer))
    nisa.dma_copy(out, tile)
    return out
"""

UNMOUNT = """
import ctypes
libc = ctypes.CDLL(None)
seen = os.listdir({task!r}) if os.path.isdir({task!r}) else []
print([libc.umount2({task!r}.encode(), 2), libc.unshare(0x10000000)], seen)
"""

STOPPED = {  # these end by a limit, which costs its time
    "endless import": at_import("while True: pass"),
    "endless trace": in_kernel("while True: pass"),
    "sleeps": at_import("time.sleep(1000)"),
    "fork bomb": at_import("while True:\n    try:\n        os.fork()\n    except OSError:\n        pass"),
    "ignores signals": at_import(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: pass"
    ),
}

HOSTILE = {
    "exits at import": at_import("os._exit(0)"),
    "exits in the kernel": in_kernel("os._exit(0)"),
    "SystemExit": at_import("sys.exit(0)"),
    "SystemExit in the kernel": in_kernel("sys.exit(0)"),
    "KeyboardInterrupt": at_import("raise KeyboardInterrupt"),
    "recursion": at_import("def f(): f()\nf()"),
    "crash": at_import("import ctypes\nctypes.string_at(0)"),
    "kills itself": at_import("os.kill(os.getpid(), 9)").replace("2.0", "3.0"),
    "kills its parent": at_import("os.kill(os.getppid(), 9)").replace("2.0", "3.0"),
    "kills all": at_import("os.kill(-1, 9)").replace("2.0", "3.0"),
    "much memory": at_import("np.ones(100 << 30, np.uint8)"),
    "much memory in lists": at_import("held = [bytearray(1 << 28) for _ in range(400)]"),
    "many files": at_import("held = [open('/dev/null') for _ in range(100_000)]"),
    "many threads": at_import(
        "import threading\nfor _ in range(10_000): threading.Thread(target=time.sleep, args=(1,)).start()"
    ),
    "fills the disk": at_import("with open('f', 'wb') as f:\n    while True: f.write(bytes(1 << 24))"),
    "prints much": at_import("for _ in range(2000): print('x' * 10_000)\nraise SystemExit"),
    "forges an answer": FORGED,
    "damages its answer": at_import(
        "for fd in range(3, 64):\n    try: os.write(fd, b'}{' * 999)\n    except OSError: pass"
    ),
    "answers too much": at_import(
        "for fd in range(3, 64):\n try:\n  while True: os.write(fd, bytes(1 << 20))\n except OSError: pass"
    ),
    "knows the answer": KNOWN_ANSWER,
    "patches save": at_import(
        "from nki.ir.program import Program\nProgram.save = lambda self, path: path.write_text('damage')"
    ),
    "patches trace": at_import(
        "from nki.kernel.kernel import Kernel\nKernel.trace = lambda self, *a, **k: print('nothing')"
    ),
    "patches the machine": at_import(
        "from nki.ir import validation\nvalidation.validate = lambda instruction, machine: None"
    ).replace("2.0", "3.0"),
    "raises in __del__": at_import(
        "class D:\n    def __del__(self): raise ValueError\nd = D()\ndel d"
    ).replace("2.0", "3"),
    "lies about its shape": RIGHT.replace("x.shape, x.dtype, buffer", "(8, 16), x.dtype, buffer"),
}

HARMLESS = {  # these try something in vain, and then define the right kernel
    "never exits": at_import("import atexit\natexit.register(lambda: time.sleep(1000))"),
    "patches jit": at_import("nki.jit = lambda f: f"),
    "patches numpy and the clock": at_import(
        "np.allclose = np.array_equal = lambda *a: True\ntime.monotonic = lambda: 0"
    ),
    "patches the grader": at_import(
        "import nki_grading.grade as g\ng.grade = g.compare = lambda *a, **k: True"
    ),
    "looks for the reference": at_import(
        "import gc, inspect\nfor o in gc.get_objects(): 'reference' in str(type(o))\ninspect.stack()"
    ),
    "prints": at_import("print('<b>hello</b>')"),
}
