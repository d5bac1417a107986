"""Token ids of many prompts -> one forest: each distinct prefix becomes rows exactly once.

Integers only. The prompts are sorted; each sorted prompt then adds one *branch*: the tokens past
its longest common prefix with the prompt before it. A branch is a contiguous range of rows, hangs
from a row of an earlier branch, and is the whole rest of its path, so three tables describe
everything that a mixer has to know:

    ancestors     the three rows before a row on its path          (causal convolution)
    chunks        windows of 64 path positions, each with a parent (delta rule; key blocks)
    runs          a branch's chunks, scanned one after the other   (delta rule's state)

A branch that starts inside a window lists the rows of the window's earlier positions again
(*replayed*: `chunk_first` of them); their outputs belong to the chunk that has them as new rows.

Legend: R unique rows, C chunks, W windows of the longest path, N runs, Q readout rows, P prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK = 64
"""Positions a chunk covers. The grid starts at position 0 of every path."""

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Forest:
    """A planned batch. All arrays are int32; −1 means "none" or padding.

    token_ids [R]; positions [3, R] (the three mrope axes, equal for text);
    ancestors [R, 3]: the row 1, 2, 3 tokens before on the path;
    chunk_rows [C, 64]: rows at path positions 64·w … 64·w+63 (w = chunk_window);
    chunk_first [C]: replayed positions at the chunk's start; chunk_len [C]: positions in use;
    the new rows chunk_rows[c, chunk_first[c]:chunk_len[c]] are contiguous, and every row is new
    in exactly one chunk;
    chunk_parent [C]: chunk of the window before; path_chunks [C, W]: the path's chunks, ascending;
    chunk_state_out [C]: slot that the state after this chunk is kept in;
    run_first, run_count [N]: runs of consecutive chunks, ordered by run_level [N];
    run_state_in [N]: slot that a run starts from (slot 0 is the zero state);
    readout_rows [Q] ascending; readout_chunks [Q]: where each is new; prompt_readout [P].
    """

    token_ids: Ints
    positions: Ints
    ancestors: Ints
    chunk_rows: Ints
    chunk_first: Ints
    chunk_len: Ints
    chunk_window: Ints
    chunk_parent: Ints
    path_chunks: Ints
    chunk_state_out: Ints
    run_first: Ints
    run_count: Ints
    run_level: Ints
    run_state_in: Ints
    readout_rows: Ints
    readout_chunks: Ints
    prompt_readout: Ints
    num_states: int
    num_prompt_tokens: int

    @property
    def num_rows(self) -> int:
        """Unique tokens: the rows that every matrix product runs over."""
        return len(self.token_ids)

    @property
    def num_chunks(self) -> int:
        return len(self.chunk_len)

    @property
    def is_new(self) -> NDArray[np.bool_]:
        """[C, 64]: where chunk_rows lists a row for its own sake, row after row."""
        column = np.arange(CHUNK)
        return (column >= self.chunk_first[:, None]) & (column < self.chunk_len[:, None])

    @property
    def num_levels(self) -> int:
        """Generations of runs: a run starts after the run that its start state comes from."""
        return int(self.run_level[-1]) + 1


@dataclass(frozen=True, slots=True)
class Branches:
    """The sorted prompts as branches: start and stop depth, first row, parent branch."""

    order: list[int]
    start: list[int]
    stop: list[int]
    row: list[int]
    parent: list[int]
    num_rows: int


def plan(prompts: Sequence[NDArray[np.integer]], *, scopes: Sequence[int] | None = None) -> Forest:
    """The forest of these prompts.

    prompts: non-empty 1-D integer arrays of token ids ≥ 0, in any order, repeats allowed.
    scopes: one number ≥ 0 for each prompt; only prompts of equal scope share rows.
    Raises ValueError for an empty list or an empty prompt.
    """
    branches = branch(prompts, scopes)
    kept = [b for b in range(len(prompts)) if branches.stop[b] > branches.start[b]]
    index = {b: i for i, b in enumerate(kept)}

    start = np.array([branches.start[b] for b in kept])
    stop = np.array([branches.stop[b] for b in kept])
    row = np.array([branches.row[b] for b in kept])
    parent = [index[branches.parent[b]] if branches.parent[b] >= 0 else -1 for b in kept]

    length = stop - start
    all_rows = np.arange(branches.num_rows)
    positions = (all_rows - np.repeat(row - start, length)).astype(np.int32)
    token_ids = np.concatenate(
        [prompts[branches.order[b]][branches.start[b] :] for b in kept], dtype=np.int32
    )
    before = all_rows - 1
    before[row] = [
        int(row[p] + start[i] - 1 - start[p]) if p >= 0 else -1 for i, p in enumerate(parent)
    ]
    ancestors = np.empty((branches.num_rows, 3), np.int32)
    ancestors[:, 0] = before
    for step in (1, 2):
        previous = ancestors[:, step - 1]
        ancestors[:, step] = np.where(previous >= 0, before[previous], -1)

    first_window = start // CHUNK
    count = (stop - 1) // CHUNK - first_window + 1
    first_chunk = np.cumsum(count) - count
    num_chunks = int(count.sum())
    of = np.repeat(np.arange(len(kept)), count)
    window = np.arange(num_chunks) - first_chunk[of] + first_window[of]
    chunk_len = np.minimum(CHUNK, stop[of] - window * CHUNK)
    chunk_first = np.maximum(0, start[of] - window * CHUNK)

    column = np.arange(CHUNK)
    chunk_rows = (row[of] + window * CHUNK - start[of])[:, None] + column
    chunk_rows[column >= chunk_len[:, None]] = -1
    chunk_parent = np.arange(num_chunks) - 1
    num_windows = int(window.max()) + 1
    all_windows = np.arange(num_windows)
    path_chunks = (np.arange(num_chunks) - window)[:, None] + all_windows
    path_chunks[all_windows > window[:, None]] = -1

    starts, first_windows = start.tolist(), first_window.tolist()
    first_chunks, counts = first_chunk.tolist(), count.tolist()
    level = [0] * len(kept)
    for i, p in enumerate(parent):
        chunk, w = first_chunks[i], first_windows[i]
        replayed = starts[i] - w * CHUNK
        if replayed:
            sibling = first_chunks[p] + w - first_windows[p]
            chunk_rows[chunk, :replayed] = chunk_rows[sibling, :replayed]
        if w == 0:
            chunk_parent[chunk] = -1
            continue
        while starts[p] >= w * CHUNK:
            p = parent[p]
        source = first_chunks[p] + w - 1 - first_windows[p]
        chunk_parent[chunk] = source
        path_chunks[chunk : chunk + counts[i], :w] = path_chunks[source, :w]
        level[i] = level[p] + 1

    run_source = chunk_parent[first_chunk]
    kept_chunks, slot = np.unique(run_source[run_source >= 0], return_inverse=True)
    chunk_state_out = np.full(num_chunks, -1)
    chunk_state_out[kept_chunks] = np.arange(1, len(kept_chunks) + 1)
    run_state_in = np.zeros(len(kept), np.int64)
    run_state_in[run_source >= 0] = slot + 1
    by_level = np.argsort(level, kind="stable")

    last_row = row + length - 1
    readout_of_sorted = np.cumsum(
        [branches.stop[b] > branches.start[b] for b in range(len(prompts))]
    )
    prompt_readout = np.empty(len(prompts), np.int32)
    prompt_readout[branches.order] = readout_of_sorted - 1

    def ints(array: NDArray[np.integer]) -> Ints:
        return np.ascontiguousarray(array, dtype=np.int32)

    return Forest(
        token_ids=token_ids,
        positions=np.broadcast_to(positions, (3, len(positions))),
        ancestors=ancestors,
        chunk_rows=ints(chunk_rows),
        chunk_first=ints(chunk_first),
        chunk_len=ints(chunk_len),
        chunk_window=ints(window),
        chunk_parent=ints(chunk_parent),
        path_chunks=ints(path_chunks),
        chunk_state_out=ints(chunk_state_out),
        run_first=ints(first_chunk[by_level]),
        run_count=ints(count[by_level]),
        run_level=ints(np.array(level)[by_level]),
        run_state_in=ints(run_state_in[by_level]),
        readout_rows=ints(last_row),
        readout_chunks=ints(first_chunk + count - 1),
        prompt_readout=prompt_readout,
        num_states=len(kept_chunks) + 1,
        num_prompt_tokens=sum(map(len, prompts)),
    )


def count_rows(prompts: Sequence[NDArray[np.integer]]) -> int:
    """Unique tokens of these prompts together: what `plan` would make rows of."""
    return branch(prompts).num_rows if len(prompts) else 0


def branch(prompts: Sequence[NDArray[np.integer]], scopes: Sequence[int] | None = None) -> Branches:
    """Sort the prompts and cut each at its longest common prefix with the one before it.

    In lexicographic order that is the longest common prefix with *any* earlier prompt, so what is
    left of a prompt is exactly its new rows. A repeat leaves nothing: start = stop.
    """
    if not len(prompts) or not all(map(len, prompts)):
        raise ValueError("a forest needs at least one prompt, and every prompt at least one token")
    scope = [0] * len(prompts) if scopes is None else scopes
    keys = [(scope[i], np.asarray(p).astype(">u4").tobytes()) for i, p in enumerate(prompts)]
    order = sorted(range(len(prompts)), key=keys.__getitem__)
    one_scope = scope[order[0]] == scope[order[-1]]
    shared = common_prefix(prompts[order[0]], prompts[order[-1]], 0) if one_scope else 0

    start, stop, row, parent = [0], [len(prompts[order[0]])], [0], [-1]
    num_rows = stop[0]
    open_branches = [0]
    for i in range(1, len(order)):
        before, ids = prompts[order[i - 1]], prompts[order[i]]
        apart = scope[order[i - 1]] != scope[order[i]]
        depth = 0 if apart else common_prefix(before, ids, shared)
        while open_branches and start[open_branches[-1]] >= depth:
            open_branches.pop()
        start.append(depth)
        stop.append(len(ids))
        row.append(num_rows)
        parent.append(open_branches[-1] if open_branches else -1)
        num_rows += len(ids) - depth
        if len(ids) > depth:
            open_branches.append(i)
    return Branches(order, start, stop, row, parent, num_rows)


def common_prefix(a: NDArray[np.integer], b: NDArray[np.integer], known: int) -> int:
    """Length of the longest common prefix of two arrays that agree on the first `known`."""
    limit = min(len(a), len(b))
    differs = a[known:limit] != b[known:limit]
    first = int(differs.argmax()) if len(differs) else 0
    return known + first if len(differs) and differs[first] else limit
