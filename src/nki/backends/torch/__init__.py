"""The torch backend: Programs on torch tensors, on a GPU or on the CPU alike (docs/performance.md).

device        a torch device during a run, and which of its dtypes hold numpy's
lanes         an array for the operands of many equal instructions, which numpy's functions accept
functions     the table of numpy's functions on tensors, so that instructions are defined once for both
grids         the operands of many equal instructions as one strided or gathered part of memory
schedule      which instructions run together, and in what order
indirect      moves by run-time indices as instructions that read these
batches       equal instructions as one step, with their operands
gemms         equal products as one step, with their factors
placement     the order of the members of all steps, and the memory of their values
steps         all of this together: the steps of a program
instructions  runs the instructions of a step on tensors
runner        runs the steps on the memory of a run
kernels       compiles the functions of large steps, each step to one kernel
graphs        captures what a run asks of a GPU as a CUDA graph, and replays it
memory        the reference's memory with its bytes on a device
in_order      runs programs that have no plan, one instruction after the other
backend       the backend itself
"""
