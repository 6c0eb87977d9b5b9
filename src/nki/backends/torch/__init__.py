"""Programs on torch tensors: on a GPU, or on the processor by the same code (docs/performance.md).

lanes      an array for the operands of many equal instructions, which numpy's functions accept
forms      the table of numpy's functions on tensors: what instructions mean is written once, for both
grids      where an operand of each of them lies, as one strided or gathered part of memory
schedule   which instructions are done together, and in what order
steps      all of a program: its steps, and the memory of their values
runner     runs the steps on tensors
"""
