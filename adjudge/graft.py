"""A forest whose prompts begin with kept prefixes: only what follows them becomes rows.

A kept prefix is a multiple of 64 tokens long, so the rest of a prompt has the same grid of chunks
as the whole: it is planned as a prompt of its own, and then set on its *trunk*. Prompts of one
scope that begin with different trunks share no token past them, if each has the longest trunk that
there is for it. Trunks take ids behind those of the forest:

    attention     key rows R + …, in chunks C + … that no run scans     (chunk_rows, path_chunks)
    delta rule    a state slot for each trunk                           (run_state_in)
    convolution   three input rows for each trunk, R + 3·trunk + 0 … 2  (ancestors)

Legend: R rows, C chunks and W windows of the forest without trunks, L tokens of a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from adjudge.engine_door import TokenIds
from adjudge.forest import CHUNK, Forest, Ints, plan

BEFORE = 3
"""Inputs that the convolution reads before a row."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """A prefix of a planned prompt whose state is wanted.

    rows [L]: its keys' rows, trunks' ids included; the last three are rows of the pass;
    slot: where the delta rule leaves its state.
    """

    rows: Ints
    slot: int


def graft(
    prompts: Sequence[TokenIds],
    *,
    scopes: Sequence[int],
    trunks: Sequence[int],
    trunk_tokens: Sequence[int],
) -> Forest:
    """The forest of these prompts on their trunks; see forest.plan.

    trunks: for each prompt the number of its trunk, or −1; trunk_tokens: length of each trunk, a
    multiple of 64 shorter than every prompt on it. In the forest, chunk_rows has the trunks'
    chunks after those of the other tables; trunk t's state is expected in slot
    num_states − len(trunk_tokens) + t.
    """
    groups = {pair: n for n, pair in enumerate(dict.fromkeys(zip(scopes, trunks, strict=True)))}
    rest = [
        ids[trunk_tokens[trunk] if trunk >= 0 else 0 :]
        for ids, trunk in zip(prompts, trunks, strict=True)
    ]
    forest = plan(rest, scopes=[groups[pair] for pair in zip(scopes, trunks, strict=True)])
    R, C, W = forest.num_rows, forest.num_chunks, forest.path_chunks.shape[1]
    lengths = np.array([*trunk_tokens, 0])
    first = np.cumsum(lengths) - lengths

    trunk_C = np.full(C, -1)
    paths = forest.path_chunks[forest.readout_chunks[forest.prompt_readout]]
    trunk_C[paths[paths >= 0]] = np.broadcast_to(np.array(trunks)[:, None], paths.shape)[paths >= 0]
    fresh = forest.is_new
    trunk_R = np.empty(R, np.int64)
    trunk_R[forest.chunk_rows[fresh]] = np.broadcast_to(trunk_C[:, None], fresh.shape)[fresh]

    depth_R = forest.positions[0]
    back = np.arange(BEFORE)
    missing = (forest.ancestors < 0) & (trunk_R >= 0)[:, None]
    ancestors = np.where(
        missing,
        R + BEFORE * trunk_R[:, None] + BEFORE - 1 + depth_R[:, None] - back,
        forest.ancestors,
    )

    shift_C = lengths[trunk_C] // CHUNK
    window = forest.chunk_window + shift_C
    path_chunks = np.full((C, int(window.max()) + 1), -1)
    chunk_parent = forest.chunk_parent.copy()
    for trunk in sorted(set(trunk_C.tolist())):
        of = np.flatnonzero(trunk_C == trunk)
        shift = int(lengths[trunk]) // CHUNK
        kept = C + first[trunk] // CHUNK + np.arange(shift)
        path_chunks[of, :shift] = kept
        width = min(W, path_chunks.shape[1] - shift)
        path_chunks[of, shift : shift + width] = forest.path_chunks[of, :width]
        if shift:
            chunk_parent[of[forest.chunk_window[of] == 0]] = kept[-1]

    trunk_N = trunk_C[forest.run_first]
    run_state_in = np.where(
        (trunk_N >= 0) & (forest.run_state_in == 0),
        forest.num_states + trunk_N,
        forest.run_state_in,
    )
    level = forest.run_level + (trunk_N >= 0)
    by_level = np.argsort(level, kind="stable")
    kept_rows = R + np.arange(lengths.sum()).reshape(-1, CHUNK)

    def ints(array: np.ndarray) -> Ints:
        return np.ascontiguousarray(array, dtype=np.int32)

    return replace(
        forest,
        positions=ints(forest.positions + lengths[trunk_R]),
        ancestors=ints(ancestors),
        chunk_rows=ints(np.concatenate([forest.chunk_rows, kept_rows])),
        chunk_window=ints(window),
        chunk_parent=chunk_parent,
        path_chunks=ints(path_chunks),
        run_first=forest.run_first[by_level],
        run_count=forest.run_count[by_level],
        run_level=ints(level[by_level]),
        run_state_in=ints(run_state_in[by_level]),
        num_states=forest.num_states + len(trunk_tokens),
        num_prompt_tokens=sum(map(len, prompts)),
    )


def cut(forest: Forest, wanted: Sequence[tuple[int, int]]) -> tuple[Forest, list[Cutting]]:
    """The forest with a slot for the state of each wanted prefix: (prompt, tokens), tokens being a
    multiple of 64 beyond the prompt's trunk."""
    chunk_state_out = forest.chunk_state_out.copy()
    num_states = forest.num_states
    cuttings = []
    for prompt, num_tokens in wanted:
        end = forest.readout_chunks[forest.prompt_readout[prompt]]
        path = forest.path_chunks[end, : num_tokens // CHUNK]
        if chunk_state_out[path[-1]] < 0:
            chunk_state_out[path[-1]] = num_states
            num_states += 1
        cuttings.append(Cutting(forest.chunk_rows[path].ravel(), int(chunk_state_out[path[-1]])))
    return replace(forest, chunk_state_out=chunk_state_out, num_states=num_states), cuttings
