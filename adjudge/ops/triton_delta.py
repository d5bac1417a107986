"""The chunked gated delta rule in Triton, over the forest's chunks.

triton_chunks makes everything of a chunk that does not need the state, all chunks in parallel;
triton_scan carries the state through the chunks of each run, level by level. With c = cumsum(g),
D_ij = exp(c_i − c_j), K and Q normalised, s = key_dim^-½:

    A  = strictly lower (β_i k_i·k_j D_ij)     T = (I + A)⁻¹ = I + N
    V' = T (β ∘ (V − exp(c) ∘ K S))            O = s · exp(c) ∘ Q S + (s · QKᵀ ∘ D) V'
    S  ← exp(c_last) S + Kᵀ (exp(c_last − c) ∘ V')

which is the spec's U − W S with the common factor T taken out, so that neither U nor W is rounded
or stored. Nothing depends on which chunks share a launch: every reduction has one fixed shape.
"""

from __future__ import annotations

from torch import Tensor

from adjudge.ops.refusal import check_groups, check_sizes
from adjudge.ops.triton_chunks import prepare_chunks
from adjudge.ops.triton_scan import scan_chunks


def gated_delta(
    x_RX: Tensor, conv_weight_C4: Tensor, A_log_V: Tensor, dt_bias_V: Tensor,
    ancestors_R3: Tensor, chunk_rows_CT: Tensor, chunk_first_C: Tensor, chunk_len_C: Tensor,
    chunk_state_out_C: Tensor, run_first_N: Tensor, run_count_N: Tensor, run_state_in_N: Tensor,
    level_start_L: Tensor, state_SVKD: Tensor, *, level_runs: tuple[int, ...],
    num_key_heads: int, num_value_heads: int, key_dim: int, value_dim: int,
) -> Tensor:  # fmt: skip
    """See delta.gated_delta. x_RX: [R, q | k | v | b | a | …], last axis contiguous; the other
    tensors contiguous, but for conv_weight_C4, best with each tap's channels side by side.
    Dimensions are powers of two of at least 16; raises Refused for others.
    """
    check_sizes(key_dim=key_dim, value_dim=value_dim)
    check_groups(num_value_heads=num_value_heads, num_key_heads=num_key_heads)
    chunks = prepare_chunks(
        x_RX, conv_weight_C4, A_log_V, dt_bias_V, ancestors_R3, chunk_rows_CT, chunk_len_C,
        num_key_heads=num_key_heads, num_value_heads=num_value_heads, key_dim=key_dim,
        value_dim=value_dim,
    )  # fmt: skip
    out_RVD = x_RX.new_empty(x_RX.shape[0], num_value_heads, value_dim)
    scan_chunks(
        chunks, state_SVKD, out_RVD, chunk_rows_CT, chunk_first_C, chunk_state_out_C,
        run_first_N, run_count_N, run_state_in_N, level_start_L, level_runs=level_runs,
    )  # fmt: skip
    return out_RVD
