"""Causal convolution and gated delta rule over a tree of chunks.

Legend: R rows, C chunks (or convolution channels), T positions of a chunk, H key heads, V value
heads, K key dimension, D value dimension.
"""

from __future__ import annotations

from torch import Tensor

from adjudge.ops.tables import Tables


def gated_delta(
    x_RX: Tensor,
    conv_weight_C4: Tensor,
    A_log_V: Tensor,
    dt_bias_V: Tensor,
    tables: Tables,
    *,
    num_key_heads: int,
    num_value_heads: int,
    key_dim: int,
    value_dim: int,
) -> Tensor:
    """[R, V, D], rounded to the inputs' dtype: what each row reads from its path's state.

    x_RX: rows of [q | k | v | z | b | a], last axis contiguous; z is not read here.
    q, k, v = round(silu(Σ_t weight[c, 3 − t] · x[row t tokens before]));
    β = round(sigmoid(b)); g = −exp(A_log) · softplus(a + dt_bias);
    q and k over rsqrt(Σ² + 1e-6), q times key_dim^-½; key head of value head h: h // (V / H).
    Then, per path from the zero state: S ← S·exp(g); δ = β(v − Sᵀk); S ← S + k δᵀ; o = Sᵀq,
    computed in chunks of the path's 64-position grid, FP32. Rows of no chunk are undefined.
    """
    raise NotImplementedError
