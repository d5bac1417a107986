"""q/k RMSNorm and multi-axis rotary embedding of one attention layer.

Legend: R rows, X projected width, N query heads, K key heads, D head dimension, P positions,
F frequencies (half of the rotated dimensions).
"""

from __future__ import annotations

import torch
from torch import Tensor


def qk_norm_rope(
    x_RX: Tensor,
    q_norm_D: Tensor,
    k_norm_D: Tensor,
    cos_PF: Tensor,
    sin_PF: Tensor,
    positions_3R: Tensor,
    axis_F: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """(q_RND, k_RKD), normalised and rotated.

    x_RX: [R, num_heads · (query D | gate D) | num_kv_heads · key D | …]; what follows is not
    read, and either number of heads may be 0. cos_PF, sin_PF: in the storage dtype;
    positions_3R int32: T, H, W of a row; axis_F int32: which of them frequency f uses.
    RMSNorm(1 + w) over D, rounded. The first 2F dimensions turn in pairs (i, i + F): each product
    and the sum is rounded.
    """
    if x_RX.is_cuda:
        from adjudge.ops import triton_rows

        return triton_rows.qk_norm_rope(
            x_RX, q_norm_D, k_norm_D, cos_PF, sin_PF, positions_3R, axis_F,
            num_heads=num_heads, num_kv_heads=num_kv_heads, eps=eps,
        )  # fmt: skip
    R, D, F = x_RX.shape[0], q_norm_D.shape[0], axis_F.shape[0]
    place_RF = positions_3R.long()[axis_F.long()].T
    frequency_F = torch.arange(F)
    cos_R1F = cos_PF[place_RF, frequency_F].unsqueeze(1)
    sin_R1F = sin_PF[place_RF, frequency_F].unsqueeze(1)
    width = num_heads * 2 * D
    q_RND = x_RX[:, :width].unflatten(1, (num_heads, 2 * D))[..., :D]
    k_RKD = x_RX[:, width : width + num_kv_heads * D].unflatten(1, (num_kv_heads, D))
    turned = []
    for x_RAD, weight_D in ((q_RND, q_norm_D), (k_RKD, k_norm_D)):
        x = x_RAD.float()
        unit = x * torch.rsqrt(x.square().mean(-1, keepdim=True).add_(eps))
        normed = unit.mul_(weight_D.float() + 1.0).to(x_RX.dtype)
        left, right = normed[..., :F].clone(), normed[..., F : 2 * F].clone()
        torch.sub(left * cos_R1F, right * sin_R1F, out=normed[..., :F])
        torch.add(right * cos_R1F, left * sin_R1F, out=normed[..., F : 2 * F])
        turned.append(normed)
    return turned[0].view(R, num_heads, D), turned[1].view(R, num_kv_heads, D)
