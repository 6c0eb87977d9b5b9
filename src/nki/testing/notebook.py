"""`%load_ext nki`: the magics %%nki_profile and %%nki_show."""

from __future__ import annotations

import ast
import shlex
from typing import Any

from ..errors import error
from ..kernel.jit import profile
from ..kernel.kernel import Kernel
from ..options import choose_machine
from .show import show


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext nki` calls."""
    for name, what in (("nki_profile", profile), ("nki_show", show)):
        shell.register_magic_function(_magic(shell, name, what), "line_cell", name)


def _magic(shell: object, name: str, what: Any) -> Any:
    def magic(line: str, cell: str | None = None) -> Any:
        code, options = (line, "") if cell is None else (cell, line)
        kernel, args, kwargs = _last_call(shell, f"%{name}" if cell is None else f"%%{name}", code)
        for word in shlex.split(options):
            kernel = kernel._with(target=choose_machine(word).name)
        return what(kernel)(*args, **kwargs)

    magic.__doc__ = f"""%{name} kernel(x, y), or %%{name} [platform] before a cell that ends with such a call.

    The statements before the call run; the call itself is {"profiled" if what is profile else "shown"}."""
    return magic


def _last_call(shell: Any, magic: str, code: str) -> tuple[Kernel, list[Any], dict[str, Any]]:
    """Runs all but the last expression, and gives the kernel and the arguments of that."""
    tree = ast.parse(shell.transform_cell(code))
    last = tree.body.pop() if tree.body else None
    if not isinstance(last, ast.Expr) or not isinstance(last.value, ast.Call):
        raise error("argument", f"{magic}: the last line is no call", help="end with a call: kernel(x, y)")
    names = shell.user_ns
    exec(compile(tree, "<cell>", "exec"), names)
    names = {**names, "__nki_call__": lambda kernel, *args, **kwargs: (kernel, list(args), kwargs)}
    last.value.args.insert(0, last.value.func)
    last.value.func = ast.copy_location(ast.Name("__nki_call__", ast.Load()), last.value)
    kernel, args, kwargs = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if not isinstance(kernel, Kernel):
        raise error("argument", f"{magic}: {kernel!r} is no kernel", help="decorate it with @nki.jit")
    return kernel, args, kwargs
