"""The table of spec/language.md 16, as data: what AWS's front ends refuse, and what to write instead.

Syntax rules will fade as front ends trace more and parse less, so nothing here is code: a rule is a row,
and a construct that is forbidden wherever it stands is one more entry of `SYNTAX`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["E", "W"]
PARSER = ("parser",)
PROFILES = BOTH = (
    "parser",
    "tracer",
)  # run-time values, tile arithmetic, purity, names: true of every front end


@dataclass(frozen=True)
class Rule:
    """One construct. E: a real front end rejects it. W: accepted with a warning, or version-dependent."""

    code: str
    level: Level
    summary: str
    help: str
    profiles: tuple[str, ...] = PARSER


_IN_ORDER = [
    Rule("py-inner-def", "E", "a function defined inside a function", "define it at module level"),
    Rule("py-lambda", "E", "lambda", "define a function at module level"),
    Rule("py-class-in-function", "E", "a class defined inside a function", "define it at module level"),
    Rule(
        "py-comprehension",
        "E",
        "comprehension or generator expression",
        "fill a list in a `for` loop with `append`",
    ),
    Rule("py-try", "E", "try statement", "test for the case with if/else beforehand"),
    Rule("py-raise", "E", "raise statement", "use `assert condition, message`"),
    Rule("py-import", "E", "import inside a function", "import at module level"),
    Rule("py-global", "E", "global statement", "pass a dict and change its entries"),
    Rule("py-nonlocal", "E", "nonlocal statement", "pass a dict and change its entries"),
    Rule("py-del", "E", "del statement", "let the name go out of use, or bind None"),
    Rule("py-match", "E", "match statement", "use if/elif"),
    Rule("py-type-alias", "E", "type statement inside a function", "declare the alias at module level"),
    Rule("py-async", "E", "async construct", "write an ordinary function or loop"),
    Rule("py-yield", "E", "yield: a generator", "return a list"),
    Rule("py-walrus", "E", "assignment expression `:=`", "assign in a statement of its own"),
    Rule("py-await", "E", "await expression", "call an ordinary function"),
    Rule("py-for-else", "E", "else on a for loop", "set a flag inside the loop and test it afterwards"),
    Rule("py-while-else", "E", "else on a while loop", "set a flag inside the loop and test it afterwards"),
    Rule(
        "py-for-target",
        "E",
        "loop target other than a simple name",
        "loop over a simple name and take the parts by index inside the loop",
    ),
    Rule("py-starred", "E", "starred expression", "write the arguments or items out"),
    Rule("py-varargs", "E", "variable arguments in a signature", "name every parameter, or take one tuple"),
    Rule(
        "kw-only-separator",
        "E",
        "keyword-only parameters: 0.3+ compilers reject the bare `*`",
        "use plain parameters with defaults",
    ),
    Rule("py-is", "W", "`is` is read as `==` by the parser", "use `==` or `!=`"),
    Rule("py-in", "E", "`in` on something other than a tuple, list or str", "use a tuple or a list"),
    Rule("py-matmul-operator", "E", "the `@` operator", "use nisa.nc_matmul or nl.matmul", BOTH),
    Rule(
        "py-tile-arithmetic",
        "E",
        "arithmetic operator on a run-time value",
        "use nl.add, nl.multiply, ... or nisa.tensor_tensor for tiles; compute indices in registers or SBUF",
        BOTH,
    ),
    Rule(
        "py-tile-setitem",
        "E",
        "assignment into a tensor",
        "use nisa.tensor_copy or nisa.dma_copy with dst=tensor[...]",
    ),
    Rule(
        "py-mutating-targets",
        "E",
        "several targets, one of them an item or attribute",
        "write one assignment statement per target",
    ),
    Rule(
        "py-attribute-target",
        "E",
        "assignment to an attribute of something other than an NKIObject",
        "derive the class from nl.NKIObject, or use a dict",
    ),
    Rule("py-with", "E", "with statement other than `with nl.no_reorder():`", "call functions in sequence"),
    Rule("py-decorator", "E", "decorator", "only nki.jit, dataclass and staticmethod are understood"),
    Rule("py-base-class", "E", "base class", "derive from NKIObject, Enum or NamedTuple alone"),
    Rule("py-class-keywords", "E", "keyword in a class header, such as metaclass=", "leave it out"),
    Rule(
        "py-class-statement",
        "E",
        "statement in a class body that is neither a field nor a method",
        "move it into a method or to module level",
    ),
    Rule("py-fstring-spec", "E", "format spec in an f-string", "write `{value}` without `:spec`"),
    Rule(
        "py-string-subscript",
        "E",
        "subscript or method of a string",
        "compare whole strings with `==`, or prepare the parts outside the kernel",
    ),
    Rule("py-dict-key", "E", "dictionary key other than a literal string", "use literal string keys"),
    Rule("py-set", "E", "set literal", "use a tuple or a list"),
    Rule("py-bytes", "E", "bytes literal", "use a str, or a list of ints"),
    Rule("py-complex", "E", "complex literal", "keep real and imaginary parts in two floats"),
    Rule(
        "py-builtin",
        "W",
        "builtin that the parser does not know",
        "write the loop out with range and len, or compute it outside the kernel",
    ),
    Rule(
        "py-list-method",
        "W",
        "list method that the parser does not know",
        "use append, clear, copy, count, extend, index, pop, remove or reverse",
    ),
    Rule(
        "py-dict-method",
        "W",
        "dict method that the parser does not know",
        "use clear, copy, get, items, keys, values, pop or setdefault",
    ),
    Rule(
        "py-slice-negative-step",
        "E",
        "slice with a step below 1",
        "loop with an index that counts down, or reverse a copy of the list",
    ),
    Rule(
        "py-out-of-range-slice",
        "E",
        "slice beyond the ends, which Python clamps and the parser does not",
        "bound it with min(end, len(items))",
    ),
    Rule(
        "py-numpy-call",
        "E",
        "NumPy on a run-time value",
        "use the nl function of that name, or NumPy before the kernel",
        BOTH,
    ),
    Rule(
        "py-runtime-branch",
        "E",
        "Python reads a run-time value",
        "use nl.where, masks, nl.fori_loop or nl.while_loop; Python sees only compile-time values",
        BOTH,
    ),
    Rule(
        "py-closure-mutable",
        "W",
        "variable of an enclosing function that changes: a cached kernel uses the old value",
        "pass it as an argument",
        BOTH,
    ),
    Rule(
        "py-global-read",
        "W",
        "module variable that changes: a cached kernel uses the old value",
        "pass it as an argument",
        BOTH,
    ),
    Rule("py-shadow-nl", "W", "a name of nki is bound again", "choose another name", BOTH),
    Rule(
        "py-big-int",
        "E",
        "an int beyond 32 bits reaches an instruction",
        "split it, or use a float if the instruction takes one",
        BOTH,
    ),
    Rule(
        "legacy-namespace",
        "E",
        "neuronxcc.nki is reached; compilers refuse it since 0.4",
        "import nki, nki.language and nki.isa; `nki migrate` explains the changes",
        BOTH,
    ),
    Rule(
        "py-object-eq",
        "W",
        "`==` between NKIObjects without __eq__: structural in the parser, identity in Python",
        "compare their fields, or make the class a dataclass",
    ),
    # spec/language.md 10.6
    Rule(
        "nested-dynamic-range",
        "W",
        "dynamic_range inside dynamic_range: compilers up to 0.4 fail",
        "use nl.fori_loop, or unroll the inner loop with range",
        BOTH,
    ),
]
RULES: dict[str, Rule] = {rule.code: rule for rule in _IN_ORDER}

# Node type -> code. By name, because some node types are newer than Python 3.10.
SYNTAX: dict[str, str] = {
    "Lambda": "py-lambda",
    **dict.fromkeys(["ListComp", "DictComp", "SetComp", "GeneratorExp"], "py-comprehension"),
    **dict.fromkeys(["Try", "TryStar"], "py-try"),
    "Raise": "py-raise",
    **dict.fromkeys(["Import", "ImportFrom"], "py-import"),
    "Global": "py-global",
    "Nonlocal": "py-nonlocal",
    "Delete": "py-del",
    "Match": "py-match",
    "TypeAlias": "py-type-alias",
    **dict.fromkeys(["AsyncFor", "AsyncWith"], "py-async"),
    **dict.fromkeys(["Yield", "YieldFrom"], "py-yield"),
    "NamedExpr": "py-walrus",
    "Await": "py-await",
    "Starred": "py-starred",
    "Set": "py-set",
}
LITERALS: dict[type, str] = {bytes: "py-bytes", complex: "py-complex"}


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What the parser does know
BUILTINS = words(
    "range len min max abs int float bool str tuple list dict isinstance type print slice divmod"
)
MATH = words("ceil floor gcd log2 log10 pow sqrt pi e inf nan")
METHODS: dict[type, tuple[str, frozenset[str]]] = {
    list: ("py-list-method", words("append clear copy count extend index pop remove reverse")),
    dict: ("py-dict-method", words("clear copy get items keys values pop setdefault")),
}
DECORATORS = frozenset({"jit", "nki.jit", "dataclass", "dataclasses.dataclass", "staticmethod"})
BASE_CLASSES = frozenset({"NKIObject", "Enum", "NamedTuple"})
LOOPS_WITH_BODY = frozenset({"fori_loop", "while_loop"})

# Functions that read the value of their argument in Python
VALUE_READERS = words("int float bool range len abs min max divmod list tuple")
STATIC_RANGES = words("nki.language.affine_range nki.language.sequential_range nki.language.static_range")
# Names that `from nki.language import *` takes away from Python (spec/language.md "Subtleties" 3)
HIDDEN_BY_STAR = words("abs max min sum all")
INT_RANGE = (-(2**31), 2**32 - 1)

# Calls that return a run-time value: spec/language.md 9, 10.2, 13, 14; spec/tensor.md 5;
# spec/collectives.md 2.8, 2.9
TILE_FUNCTIONS = words("""
    ndarray zeros ones full zeros_like empty_like rand shared_constant shared_identity_matrix
    add subtract multiply divide maximum minimum abs_max abs_min power mod fmod
    bitwise_and bitwise_or bitwise_xor invert left_shift right_shift
    abs square exp log sqrt rsqrt reciprocal sin cos tan arctan tanh sigmoid relu gelu gelu_dx
    gelu_apprx_sigmoid gelu_apprx_sigmoid_dx gelu_apprx_tanh silu silu_dx softplus mish erf erf_dx sign
    negative ceil floor trunc copy sum max min mean prod var softmax rms_norm where dropout
    expand_dims broadcast_to transpose matmul load load_transpose2d gather_flattened""")
MASK_FUNCTIONS = words("""
    equal not_equal less less_equal greater greater_equal
    logical_and logical_or logical_xor logical_not all""")
TILE_VIEWS = words("""
    slice select vector_select permute broadcast expand_dim squeeze_dim reshape_dim flatten_dims reshape
    rearrange view reinterpret_cast ap indirect""")
REGISTER_FUNCTIONS = words("""
    nki.isa.register_alloc nki.collectives.rank_id
    nki.collectives.collective_permute_implicit_current_processing_rank_id""")
# Methods that change their object
MUTATORS = words("append extend insert pop remove clear sort reverse update setdefault popitem add discard")
# What these names mean in a file that does not import them
CONVENTION = {"nl": "nki.language", "nisa": "nki.isa", "ncc": "nki.collectives", "np": "numpy"}
