"""The fused backend: a Program as a few large matrix products (docs/performance.md).

storages    which storages are tracked, and which stay memory that is written in place
values      SSA values: what each instruction writes, and where its elements lie
tiles       which values a tile's memory holds
tracking    makes the dataflow nodes of a core's instructions
fusion      removes copies, sums of products and stores that need no instruction of their own
products    merges the tile products of one stage into large ones
stages      the order of all nodes, and the address of every value in the arena
emission    turns nodes into `steps`, which are numbers alone
planner     all of this together: `plan_of`; `cache`: equal programs share a plan
describing  a plan as data and as text: `nki plan`
runner      runs a plan on numpy arrays, with `threads` and a pool of `arrays`
backend     the backend itself
"""
