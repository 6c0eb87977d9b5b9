"""What replaces Python's operators, which tensors do not have: functions of nki.language and instructions."""

from __future__ import annotations

COMPARISONS = {"__lt__": "less", "__le__": "less_equal", "__gt__": "greater", "__ge__": "greater_equal"}
ARITHMETIC = {
    "add": ("+", "nl.add", "tensor_tensor"),
    "sub": ("-", "nl.subtract", "tensor_tensor"),
    "mul": ("*", "nl.multiply", "tensor_tensor"),
    "truediv": ("/", "nl.divide", "reciprocal"),
    "floordiv": ("//", "nl.divide and nl.floor", "tensor_scalar"),
    "mod": ("%", "nl.mod", "tensor_scalar"),
    "pow": ("**", "nl.power", "tensor_scalar"),
    "matmul": ("@", "nl.matmul", "nc_matmul"),
    "and": ("&", "nl.bitwise_and", "tensor_tensor"),
    "or": ("|", "nl.bitwise_or", "tensor_tensor"),
    "xor": ("^", "nl.bitwise_xor", "tensor_tensor"),
    "lshift": ("<<", "nl.left_shift", "tensor_scalar"),
    "rshift": (">>", "nl.right_shift", "tensor_scalar"),
    "divmod": ("divmod()", "nl.divide and nl.floor", "tensor_scalar"),
    "neg": ("-", "nl.negative", "tensor_scalar"),
    "pos": ("+", "nl.copy", "tensor_copy"),
    "invert": ("~", "nl.invert", "tensor_scalar"),
    "abs": ("abs()", "nl.abs", "tensor_scalar"),
    "round": ("round()", "nl.copy(t, dtype=nl.int32)", "tensor_copy"),
}

OF_NUMPY = {  # the operators that numpy's functions are
    **{name: name for name in ("add", "matmul", "divmod", "invert")},
    **{"subtract": "sub", "multiply": "mul", "divide": "truediv", "true_divide": "truediv", "power": "pow"},
    **{"floor_divide": "floordiv", "remainder": "mod", "negative": "neg", "positive": "pos"},
    **{"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "absolute": "abs"},
    **{"left_shift": "lshift", "right_shift": "rshift"},
    **{"less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"},
}
