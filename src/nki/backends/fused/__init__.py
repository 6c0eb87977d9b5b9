"""Plans: a Program as a few large operations (docs/performance.md).

values      what each instruction writes is a value that never changes; who reads it, and where it lies
storages    which storages are followed so, and which stay memory that is written in place
kinds       what all instructions of one signature have in common
tiles       which values a tile's memory holds
tracking    goes through a core's instructions and finds the values each of them reads and makes
folding     copies, sums of products and stores that need no instruction of their own
products    tile products of one stage that make up a large one
stages      the order of everything, and where in one array the values lie
settling    everything in numbers: `steps`, what a finished plan says
content     the key of a program's content; plans are kept under it: `keeping`, `files` (in `writing`'s form)
planner     all of this together: `plan_of(program)`
describing  a plan as data and as text: `nki plan`
running     runs a plan on numpy arrays; what it does not understand goes to the numpy executor
threads     the parts of a step side by side; `arrays`: memory of earlier runs
"""
