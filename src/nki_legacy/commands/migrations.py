"""The knowledge of `nki migrate`: names of older APIs and releases, their replacements, and safe rewrites."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Edit(NamedTuple):
    """A replacement text for a node."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


class Migration(NamedTuple):
    line: int
    old: str
    new: str
    edit: Edit | None  # None: a person must do it


MODULES = {
    "neuronxcc.nki.language": "nki.language",
    "neuronxcc.nki.isa": "nki.isa",
    "neuronxcc.nki.typing": "nki.typing",
    "neuronxcc.nki": "nki",
    "neuronxcc": "",
}

NAMES = {
    "nl.arange": "slices, nl.ds(start, size), or t.ap(pattern)",
    "nl.mgrid": "slices, nl.ds(start, size), or t.ap(pattern)",
    "nl.par_dim": "the first dimension of a tile is the partition dimension; blocks are a list of tiles",
    "nl.loop_reduce": "nl.add into a tile, or nisa.nc_matmul into one PSUM tile",
    "nl.atomic_rmw": "nisa.dma_compute(dst, [dst, src], reduce_op=nl.add)",
    "nl.all_reduce": "no successor: combine the programs' results in HBM",
    "nl.nc": "kernel[2]",
    "nl.spmd_dim": "kernel[2]",
    "nl.static_cast": "nl.copy(tile, dtype=...) in a kernel, x.astype(...) on arrays",
    "nl.cast": "nl.copy(tile, dtype=...)",
    "nl.dynamic_range": "nl.fori_loop(lower, upper, body) (NKI 0.6)",
    "nki.baremetal": "call the kernel",
    "nki.simulate_kernel": "nki.simulate(kernel)(...)",
    "nki.trace": "nki.jit",
    "nki.benchmark": "nki.profile(kernel)(...).total_us, modelled",
    "nisa.tensor_copy_dynamic_src": "nisa.tensor_copy with t.ap(pattern, scalar_offset=register) (NKI 0.4)",
    "nisa.tensor_copy_dynamic_dst": "nisa.tensor_copy with t.ap(pattern, scalar_offset=register) (NKI 0.4)",
    "ncc.sbuf": "nl.ndarray(..., buffer=nl.sbuf, address=(partition, byte))",
    "ncc.psum": "nl.ndarray(..., buffer=nl.psum, address=(partition, byte))",
}

RENAMED = {
    "nl.tile_size.psum_fmax": "nl.tile_size.psum_bank_fmax",
    "nl.tile_size.total_available_sbuf_size": "nl.tile_size.sbuf_fmax_bytes",
    "nl.affine_range": "range",
    "nl.sequential_range": "range",
    "nl.static_range": "range",
    "nki.trace": "nki.jit",
    "np.amax": "nl.maximum",
}

KEYWORDS = {
    "mask": "bound the slice: t[0:min(n, 128)]",
    "dst_rmw_op": "nisa.dma_compute(dst, [dst, src], reduce_op=nl.add) (NKI 0.3)",
    "use_gpsimd_dma": "dma_engine= (NKI 0.3)",
    "platform_target": "the environment variable NEURON_PLATFORM_TARGET_OVERRIDE (NKI 0.3)",
    "mode": "leave it out (NKI 0.3)",
}

RETURNING = (  # old instructions that returned their result; today dst comes first
    *("nc_matmul", "nc_transpose", "activation", "activation_reduce", "tensor_reduce", "tensor_tensor"),
    *("tensor_scalar", "tensor_scalar_reduce", "scalar_tensor_tensor", "tensor_tensor_scan", "range_select"),
    *("tensor_copy", "reciprocal", "dropout", "iota", "affine_select", "memset", "bn_stats", "bn_aggr"),
    *("local_gather", "max8", "nc_find_index8", "nc_match_replace8", "tensor_partition_reduce"),
    *("sequence_bounds", "dma_transpose"),
)


def findings(tree: ast.Module) -> list[Migration]:
    """Everything old in a file, by line."""
    aliases = {**dict(_aliases(tree)), "__old__": "yes" if is_old(tree) else ""}
    found = list(_imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found += _names(node, aliases)
        elif isinstance(node, ast.Call):
            found += _calls(node, aliases)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                found += _decorators(decorator, aliases)
    unique = {(f.line, f.old): f for f in found}
    return [unique[key] for key in sorted(unique)]


# ---- names ---------------------------------------------------------------------------------------

_SHORT = {
    "neuronxcc.nki.language": "nl",
    "neuronxcc.nki.isa": "nisa",
    "neuronxcc.nki.compiler": "ncc",
    "neuronxcc.nki": "nki",
    "nki.language": "nl",
    "nki.isa": "nisa",
    "nki": "nki",
    "numpy": "np",
}


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What the file calls a module -> what this table calls it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in _SHORT and (alias.asname or "." not in alias.name):
                    yield alias.asname or alias.name, _SHORT[alias.name]
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in _SHORT:
                    yield alias.asname or alias.name, _SHORT[full]


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """`nl.tile_size.pmax` of an expression, in this table's words; empty for anything else."""
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value, aliases)
        return f"{head}.{node.attr}" if head else ""
    return aliases.get(node.id, "") if isinstance(node, ast.Name) else ""


def _edit(node: ast.AST, text: str) -> Edit:
    return Edit(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, text)  # type: ignore[attr-defined]


def _imports(tree: ast.Module) -> Iterator[Migration]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("neuronxcc"):
                    yield _import(node, alias.name, alias.asname, len(node.names) == 1)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("neuronxcc"):
            names = [alias.name for alias in node.names]
            whole = node.module == "neuronxcc" and names == ["nki"]
            own = node.names[0].asname
            text = f"import nki as {own}" if own else "import nki"
            yield Migration(
                node.lineno,
                f"from {node.module} import {', '.join(names)}",
                "import nki" if whole else f"from {_successor(node.module or '')} import ...",
                _edit(node, text) if whole else None,
            )


def _import(node: ast.AST, name: str, alias: str | None, alone: bool) -> Migration:
    new = _successor(name)
    same = new == (alias or new)
    text = f"import {new}" if same else f"import {new} as {alias}"
    safe = alone and name in MODULES and bool(new) and (alias is not None)
    return Migration(node.lineno, f"import {name}", text, _edit(node, text) if safe else None)  # type: ignore[attr-defined]


def _successor(name: str) -> str:
    for old, new in MODULES.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :] if new else name
    return name


def _names(node: ast.Attribute, aliases: dict[str, str]) -> Iterator[Migration]:
    name = _dotted(node, aliases)
    if name in RENAMED:
        yield Migration(node.lineno, name, RENAMED[name], _edit(node, RENAMED[name]))
    elif name in NAMES:
        yield Migration(node.lineno, name, NAMES[name], None)


def _calls(node: ast.Call, aliases: dict[str, str]) -> Iterator[Migration]:
    name = _dotted(node.func, aliases)
    if not name.startswith(("nl.", "nisa.", "nki.")):
        return
    for keyword in node.keywords:
        if keyword.arg in KEYWORDS and name != "nki.jit":
            yield Migration(keyword.value.lineno, f"{name}({keyword.arg}=)", KEYWORDS[keyword.arg], None)
    function = name.rpartition(".")[2]
    has_dst = any(keyword.arg == "dst" for keyword in node.keywords)
    if name.startswith("nisa.") and function in RETURNING and not has_dst and _is_old(aliases):
        yield Migration(node.lineno, f"r = {name}(...)", f"{name}(dst, ...), dst made by nl.ndarray", None)


def _is_old(aliases: dict[str, str]) -> bool:
    return aliases.get("__old__") == "yes"


def _decorators(node: ast.AST, aliases: dict[str, str]) -> Iterator[Migration]:
    if not isinstance(node, ast.Call) or _dotted(node.func, aliases) != "nki.jit":
        return
    known = [k.arg for k in node.keywords]
    if node.args or any(name not in ("mode", "platform_target", "debug_kernel") for name in known):
        return
    jit = ast.unparse(node.func)
    yield Migration(node.lineno, f"@{ast.unparse(node)}", f"@{jit}", _edit(node, jit))


def is_old(tree: ast.Module) -> bool:
    """Whether a file imports the old namespace."""
    return any(
        (isinstance(n, ast.Import) and any(a.name.startswith("neuronxcc") for a in n.names))
        or (isinstance(n, ast.ImportFrom) and (n.module or "").startswith("neuronxcc"))
        for n in ast.walk(tree)
    )


def rewritten(source: str, found: list[Migration]) -> str:
    """The file with every edit done; whatever no edit touches, comments too, stays as it is."""
    lines = source.encode().splitlines(keepends=True)  # as Python counts lines: a form feed ends none
    edits = sorted({f.edit for f in found if f.edit is not None}, reverse=True)
    for edit in edits:
        first, last = lines[edit.line - 1], lines[edit.end_line - 1]
        changed = first[: edit.column] + edit.text.encode() + last[edit.end_column :]
        lines[edit.line - 1 : edit.end_line] = [changed]
    return b"".join(lines).decode()
