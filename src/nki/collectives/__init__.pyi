"""nki.collectives (ncc): what ranks exchange. A plain call is a world of one rank (spec/collectives.md 4).

Written by `make docs` (`python tools/signatures.py`). Do not edit.
"""

from collections.abc import Sequence
from nki.collectives.groups import GroupLike
from nki.collectives.groups import ReplicaGroup as ReplicaGroup
from nki.ir.layout import Int
from nki.ir.tensor import NkiTensor
from nki.isa.virtual_register import VirtualRegister
from nki.typing import OperatorLike

def all_gather(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor], replica_group: GroupLike, collective_dim: Int, priority: Int | None = None, name: str | None = None) -> None:
    """dst = the ranks' src, one after the other along collective_dim.

    Parameters:

    - `srcs`: list of tensors to send, all in HBM or one tile in SBUF.
    - `dsts`: list of as many tensors for the results, of the dtypes of srcs.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `collective_dim`: 0; for tiles in SBUF 0 (at most 128 partitions in all) or 1.
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    dst = concatenate(src[g[0]], src[g[1]], ..., axis=collective_dim)
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray((2, 2), x.dtype, buffer=nl.shared_hbm, name="dst")
        nisa.dma_copy(src, x)
        ncc.all_gather([src], [dst], [[0, 1]], 0)
        return dst

    print(*run_ranks(example, 2, lambda rank: (np.full((1, 2), rank + 1, np.float32),)), sep="\n")
    ```

    ```output
    [[1. 1.]
     [2. 2.]]
    [[1. 1.]
     [2. 2.]]
    ```

    See also: `all_gather_v`, `reduce_scatter`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `axis`, `buffer`, `collective-io-tensor`, `collective-mismatch`, `collective-unnamed`, `dtype`, `indirect-view`, `lnc-one-sided`, `not-a-member`, `partition-limit`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `shape`, and those of every instruction.
    """

def all_gather_v(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor], replica_group: GroupLike, metadata_tensor: NkiTensor, recv_counts_known: bool = False, has_rdispls: bool = False, priority: Int | None = None, name: str | None = None) -> None:
    """Slot j of dst = what rank j sends; the metadata has counts and displacements, at run time.

    Parameters:

    - `srcs`: list of one tensor in HBM, read as a flat row of elements.
    - `dsts`: list of one tensor in HBM.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `metadata_tensor`: uint32 tensor (3, n) in HBM, or (1, 3, n) in SBUF: rows with counts to send, where they start in src, and counts received; column j belongs to rank g[j].
    - `recv_counts_known`: True leaves the row of received counts alone.
    - `has_rdispls`: False alone.
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    slot = dst.size // n
    for j: dst[j*slot : j*slot + count[g[j]]] = src[g[j]][start : start + count]
    ```

    Example:

    ```python
    @nki.jit
    def example(x, counts):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.zeros((1, 4), x.dtype, buffer=nl.shared_hbm, name="dst")
        table = nl.ndarray(counts.shape, counts.dtype, buffer=nl.shared_hbm, name="table")
        nisa.dma_copy(src, x)
        nisa.dma_copy(table, counts)
        ncc.all_gather_v([src], [dst], [[0, 1]], table)  # nki: ignore[hardware-limit]
        return dst

    values, counts = np.array([[1, 2]], np.float32), np.array([[1, 1], [1, 1], [0, 0]], np.uint32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hardware takes four ranks or more, of two cores each
        print(*run_ranks(example, 2, lambda rank: (10 * rank + values, counts)), sep="\n")
    ```

    ```output
    [[ 2.  0. 12.  0.]]
    [[ 2.  0. 12.  0.]]
    ```

    See also: `all_gather`, `all_to_all_v`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `buffer`, `collective-io-tensor`, `collective-mismatch`, `collective-overlap`, `collective-unnamed`, `dtype`, `hardware-limit`, `index`, `indirect-view`, `lnc-one-sided`, `not-a-member`, `not-supported`, `partition-limit`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `shape`, and those of every instruction.
    """

def all_reduce(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor], replica_group: GroupLike, op: OperatorLike, priority: Int | None = None, name: str | None = None) -> None:
    """dst = op over the ranks of src.

    Parameters:

    - `srcs`: list of tensors to send, all in HBM or one tile in SBUF.
    - `dsts`: list of as many tensors for the results, of the dtypes of srcs.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `op`: `nl.add`, `nl.maximum` or `nl.minimum`.
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    dst = src[g[0]] <op> src[g[1]] <op> ...       # in float32, on every rank of the group g
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="dst")
        nisa.dma_copy(src, x)
        ncc.all_reduce([src], [dst], [[0, 1]], nl.add)
        return dst

    print(*run_ranks(example, 2, lambda rank: (np.full((1, 2), rank + 1, np.float32),)), sep="\n")
    ```

    ```output
    [[3. 3.]]
    [[3. 3.]]
    ```

    See also: `reduce_scatter`, `all_gather`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `buffer`, `collective-io-tensor`, `collective-mismatch`, `collective-unnamed`, `dtype`, `indirect-view`, `int-precision`, `lnc-one-sided`, `not-a-member`, `op`, `operator`, `partition-limit`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `shape`, and those of every instruction.
    """

def all_to_all(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor], replica_group: GroupLike, collective_dim: Int, priority: Int | None = None, name: str | None = None) -> None:
    """Part j of dst = this rank's part of rank j's src, along collective_dim.

    Parameters:

    - `srcs`: list of tensors to send, all in HBM or one tile in SBUF.
    - `dsts`: list of as many tensors for the results, of the dtypes of srcs.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `collective_dim`: 0 alone; it is divided by the ranks of the group.
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for j: part j of dst = part k of src[g[j]]       # k is the index of this rank in g
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="dst")
        nisa.dma_copy(src, x)
        ncc.all_to_all([src], [dst], [[0, 1]], 0)
        return dst

    print(*run_ranks(example, 2, lambda rank: (10 * rank + np.arange(2, dtype=np.float32).reshape(2, 1),)), sep="\n")
    ```

    ```output
    [[ 0.]
     [10.]]
    [[ 1.]
     [11.]]
    ```

    See also: `all_to_all_v`, `collective_permute`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `axis`, `buffer`, `collective-io-tensor`, `collective-mismatch`, `collective-unnamed`, `dtype`, `indirect-view`, `lnc-one-sided`, `not-a-member`, `partition-limit`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `shape`, and those of every instruction.
    """

def all_to_all_v(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor], replica_group: GroupLike, metadata_tensor: NkiTensor, recv_counts_known: bool = False, has_rdispls: bool = False, priority: Int | None = None, name: str | None = None) -> None:
    """dst = what each rank sends to this one; the metadata has counts and displacements, at run time.

    Parameters:

    - `srcs`: list of one tensor in HBM, read as a flat row of elements.
    - `dsts`: list of one tensor in HBM.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `metadata_tensor`: uint32 tensor (3, n) in HBM, or (1, 3, n) in SBUF: rows with counts to send, where they start in src, and counts received; column j belongs to rank g[j].
    - `recv_counts_known`: True leaves the row of received counts alone.
    - `has_rdispls`: True adds a fourth row: where received elements go in dst (trn3).
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for j, s = g[j]:
        dst[start_j : start_j + count[s][k]] = src[s][displacement[s][k] : ... + count[s][k]]
    ```

    Example:

    ```python
    @nki.jit
    def example(x, counts):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.zeros((1, 4), x.dtype, buffer=nl.shared_hbm, name="dst")
        table = nl.ndarray(counts.shape, counts.dtype, buffer=nl.shared_hbm, name="table")
        nisa.dma_copy(src, x)
        nisa.dma_copy(table, counts)
        ncc.all_to_all_v([src], [dst], [[0, 1]], table)  # nki: ignore[hardware-limit]
        return dst

    values, counts = np.array([[1, 2]], np.float32), np.array([[1, 1], [0, 1], [0, 0]], np.uint32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hardware takes four ranks or more, of two cores each
        print(*run_ranks(example, 2, lambda rank: (10 * rank + values, counts)), sep="\n")
    ```

    ```output
    [[ 1.  0. 11.  0.]]
    [[ 2.  0. 12.  0.]]
    ```

    See also: `all_to_all`, `all_gather_v`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `buffer`, `collective-io-tensor`, `collective-mismatch`, `collective-overlap`, `collective-unnamed`, `dtype`, `generation`, `hardware-limit`, `index`, `indirect-view`, `lnc-one-sided`, `not-a-member`, `partition-limit`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `shape`, and those of every instruction.
    """

def collective_permute(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor], source_target_pairs: Sequence[Sequence[Int]], priority: Int | None = None, name: str | None = None) -> None:
    """dst of rank t = src of rank s, for each pair (s, t).

    A rank that is no target keeps its dst.

    Parameters:

    - `srcs`: list of one tensor in HBM.
    - `dsts`: list of one tensor in HBM.
    - `source_target_pairs`: pairs of ranks (source, target); each rank at most once as either. Hardware has circles alone.
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    for s, t in source_target_pairs: dst[t] = src[s]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="dst")
        nisa.dma_copy(src, x)
        ncc.collective_permute([src], [dst], [[0, 1], [1, 0]])
        return dst

    print(*run_ranks(example, 2, lambda rank: (np.full((1, 2), rank + 1, np.float32),)), sep="\n")
    ```

    ```output
    [[2. 2.]]
    [[1. 1.]]
    ```

    See also: `collective_permute_implicit`, `all_to_all`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `buffer`, `collective-io-tensor`, `collective-mismatch`, `collective-unnamed`, `dtype`, `indirect-view`, `lnc-one-sided`, `partition-limit`, `permute-not-circular`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `replica-group`, `shape`, and those of every instruction.
    """

def collective_permute_implicit(srcs_by_channel: Sequence[Sequence[NkiTensor]], dsts_by_channel: Sequence[Sequence[NkiTensor]], replica_group: GroupLike, channel_ids: Sequence[int] = ..., priority: Int | None = None, name: str | None = None) -> None:
    """dst = src of the rank before this one in the ring of its group, for every channel.

    A step around the ring: after n - 1 of them every rank has seen the data of all others.

    Parameters:

    - `srcs_by_channel`: for each channel a list of one tensor.
    - `dsts_by_channel`: for each channel a list of one tensor.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `channel_ids`: 0, 1, ...: one for each channel; at most 4.
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    dst = src[g[(k - 1) % n]]        # k is the index of this rank in g, n the length of g
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="dst")
        nisa.dma_copy(src, x)
        ncc.collective_permute_implicit([[src]], [[dst]], [[0, 1]])
        return dst

    print(*run_ranks(example, 2, lambda rank: (np.full((1, 2), rank + 1, np.float32),)), sep="\n")
    ```

    ```output
    [[2. 2.]]
    [[1. 1.]]
    ```

    See also: `collective_permute_implicit_reduce`, `collective_permute_implicit_current_processing_rank_id`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `buffer`, `channel`, `channel-limit`, `collective-io-tensor`, `collective-mismatch`, `collective-unnamed`, `dtype`, `indirect-view`, `lnc-one-sided`, `not-a-member`, `partition-limit`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `shape`, and those of every instruction.
    """

def collective_permute_implicit_current_processing_rank_id(iteration_id: Int | VirtualRegister, replica_group: GroupLike, channel_id: Int = 0, name: str | None = None) -> VirtualRegister:
    """A register with the rank whose data this one holds after `iteration_id` steps round the ring.

    Parameters:

    - `iteration_id`: steps round the ring: an int of at least 0, or a register.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `channel_id`: number of the channel.
    - `name`: a label for schedules and reports.

    Returns: a register, for example for `scalar_offset`.

    Operation:

    ```text
    return g[(k - iteration_id) % n]        # iteration 0 is this rank itself
    ```

    Example:

    ```python
    @nki.jit
    def example():
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        rank = ncc.collective_permute_implicit_current_processing_rank_id(1, [[0, 1]])
        nisa.register_store(out, rank)
        return out

    print(*run_ranks(example, 2, lambda rank: ()))
    ```

    ```output
    [[1]] [[0]]
    ```

    See also: `collective_permute_implicit`, `rank_id`.

    Facts:

    - Engines: sequencer. Generations: trn1, trn2, trn3.
    - Cost: register_ns. Source: spec/machine.md 10.
    - Errors and warnings: `argument`, `not-a-member`, `rank-out-of-world`, and those of every instruction.
    """

def collective_permute_implicit_reduce(srcs0_by_channel: Sequence[Sequence[NkiTensor]], srcs1_by_channel: Sequence[Sequence[NkiTensor]], dsts_by_channel: Sequence[Sequence[NkiTensor]], replica_group: GroupLike, op: OperatorLike, channel_ids: Sequence[int] = ..., priority: Int | None = None, name: str | None = None) -> None:
    """dst = op(src0, src1) of the rank before this one in the ring of its group, for every channel.

    Parameters:

    - `srcs0_by_channel`, `srcs1_by_channel`: for each channel a list of one tensor.
    - `dsts_by_channel`: for each channel a list of one tensor.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `op`: `nl.add`, `nl.maximum` or `nl.minimum`.
    - `channel_ids`: 0, 1, ...: one for each channel; at most 4.
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    v = src0 <op> src1               # of every rank, in float32
    dst = v[g[(k - 1) % n]]
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="dst")
        nisa.dma_copy(src, x)
        ncc.collective_permute_implicit_reduce([[src]], [[src]], [[dst]], [[0, 1]], nl.add)
        return dst

    print(*run_ranks(example, 2, lambda rank: (np.full((1, 2), rank + 1, np.float32),)), sep="\n")
    ```

    ```output
    [[4. 4.]]
    [[2. 2.]]
    ```

    See also: `collective_permute_implicit`, `reduce_scatter`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `buffer`, `channel`, `channel-limit`, `collective-io-tensor`, `collective-mismatch`, `collective-unnamed`, `dtype`, `indirect-view`, `int-precision`, `lnc-one-sided`, `not-a-member`, `op`, `operator`, `partition-limit`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `shape`, and those of every instruction.
    """

def rank_id(name: str | None = None) -> VirtualRegister:
    """A register with the number of this rank in the world.

    Parameters:

    - `name`: a label for schedules and reports.

    Returns: a register: both cores of a rank see the same number.

    Operation:

    ```text
    return number of this rank in the world
    ```

    Example:

    ```python
    @nki.jit
    def example():
        out = nl.ndarray((1, 1), nl.int32, buffer=nl.shared_hbm)
        nisa.register_store(out, ncc.rank_id())
        return out

    print(*run_ranks(example, 2, lambda rank: ()))
    ```

    ```output
    [[0]] [[1]]
    ```

    See also: `collective_permute_implicit_current_processing_rank_id`, `nl.program_id`.

    Facts:

    - Engines: sequencer. Generations: trn1, trn2, trn3.
    - Cost: register_ns. Source: spec/machine.md 10.
    - Errors and warnings: those of every instruction.
    """

def reduce_scatter(srcs: Sequence[NkiTensor], dsts: Sequence[NkiTensor], replica_group: GroupLike, collective_dim: Int, op: OperatorLike, priority: Int | None = None, name: str | None = None) -> None:
    """dst = this rank's part, along collective_dim, of op over the ranks of src.

    Parameters:

    - `srcs`: list of tensors to send, all in HBM or one tile in SBUF.
    - `dsts`: list of as many tensors for the results, of the dtypes of srcs.
    - `replica_group`: `ncc.ReplicaGroup`, or a list of lists of ranks; each list is a group of its own.
    - `collective_dim`: 0 alone; it is divided by the ranks of the group.
    - `op`: `nl.add`, `nl.maximum` or `nl.minimum`.
    - `priority`: 0 to 3, lower is more urgent (trn3); None by default. It changes times alone.
    - `name`: a label for schedules and reports.

    Operation:

    ```text
    dst = part k of (src[g[0]] <op> src[g[1]] <op> ...)      # k is the index of this rank in g
    ```

    Example:

    ```python
    @nki.jit
    def example(x):
        src = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm, name="src")
        dst = nl.ndarray((1, 2), x.dtype, buffer=nl.shared_hbm, name="dst")
        nisa.dma_copy(src, x)
        ncc.reduce_scatter([src], [dst], [[0, 1]], 0, nl.add)
        return dst

    print(*run_ranks(example, 2, lambda rank: (rank + np.arange(4, dtype=np.float32).reshape(2, 2),)), sep="\n")
    ```

    ```output
    [[1. 3.]]
    [[5. 7.]]
    ```

    See also: `all_reduce`, `all_gather`.

    Facts:

    - Engines: DMA. Generations: trn1, trn2, trn3.
    - Cost: hops x collective_hop_ns + bytes / collective_link_gbs, + the DMA of its operands. Source: spec/machine.md 11.
    - Limit `dma_priorities`: 1 on trn1; 1 on trn2; 4 on trn3.
    - Limit `partitions`: 128.
    - Errors and warnings: `argument`, `axis`, `buffer`, `collective-io-tensor`, `collective-mismatch`, `collective-unnamed`, `dtype`, `indirect-view`, `int-precision`, `lnc-one-sided`, `not-a-member`, `op`, `operator`, `partition-limit`, `priority`, `priority-ignored`, `rank-lost`, `rank-out-of-world`, `shape`, and those of every instruction.
    """
