"""The mixers' kernels against their references: that a device computes the right thing at all.

Comparing bits of one kernel with its own cannot see a compiler that makes it wrong everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from adjudge.buckets import Bucket
from adjudge.device_tables import to_device
from adjudge.forest import Forest, plan
from adjudge.layout import layout
from adjudge.models.qwen3_5 import GatedDelta
from adjudge.ops.attention import SLOTS, tree_attention
from adjudge.ops.delta import gated_delta
from adjudge.ops.tables import Tables
from adjudge.self_check.check_row import CheckRow
from adjudge.self_check.pass_check import company, roomy

if TYPE_CHECKING:
    from adjudge.executor import Executor

MOST_DISTANCE = 0.02
"""Relative L2 to the FP32 reference. Roundings to BF16 make 0.004; a wrong product makes 0.1 and
more."""
MOST_OF_ONE = 0.1
"""The same of one head of one row, relative to its own norm or the usual one, whichever is larger.
Roundings to BF16, emulated on a CPU with weights of six kinds, make 0.017 at most; most heads that
are wrong make 0.3 and more."""
OP = "op"
CPU = torch.device("cpu")


def num_ops(executor: Executor) -> int:
    """How many rows `ops` gives."""
    if not executor.device.is_cuda:
        return 0
    return 4 if _delta_mixer(executor) is None else 7


def ops(executor: Executor) -> Iterator[CheckRow]:
    """The gated delta rule and attention in all their launches, on random rows. GPU only; a model
    may have no delta rule.

    "as captured" is what graphs hold, though they are captured after the check at load; it is also
    how an eager pass launches many short runs. "in a large pass": attention as launched there.
    """
    if not executor.device.is_cuda:
        return
    dtype, prompts = executor.device.dtype, company(0, 1000)
    forest, of_one = plan(prompts), plan(prompts[:1])
    shared, reference = _on_device(executor, forest), _for_reference(forest)
    alone, alone_reference = _on_device(executor, of_one), _for_reference(of_one)
    if (mixer := _delta_mixer(executor)) is not None:
        delta = partial(_delta, mixer, executor)
        expected = delta(alone_reference, torch.float32)
        yield _compared("delta rule, one prompt", delta(alone, dtype), expected)
        expected = delta(reference, torch.float32)
        yield _compared("delta rule, together", delta(shared, dtype), expected)
        captured = replace(shared, level_runs=(0,) * len(shared.level_runs))
        yield _compared("delta rule, as captured", delta(captured, dtype), expected)
    attention = partial(_attention, executor, read_out=False)
    expected = attention(alone_reference, torch.float32)
    yield _compared("attention, one prompt", attention(alone, dtype), expected)
    expected = attention(reference, torch.float32)
    yield _compared("attention, together", attention(shared, dtype), expected)
    large = _on_device(executor, forest, roomy(forest, unused_rows=0))
    yield _compared("attention, in a large pass", attention(large, dtype), expected)
    attention = partial(_attention, executor, read_out=True)
    expected = attention(reference, torch.float32)
    yield _compared("attention, read out", attention(shared, dtype), expected)


def _on_device(executor: Executor, forest: Forest, bucket: Bucket | None = None) -> Tables:
    laid = layout(forest, height=executor.height, bucket=bucket)
    return to_device(laid, executor.device.torch_device)


def _for_reference(forest: Forest) -> Tables:
    return to_device(layout(forest, height=SLOTS), CPU)


def _delta_mixer(executor: Executor) -> GatedDelta | None:
    mixers = (layer.mixer for layer in executor.model.layers)
    return next((mixer for mixer in mixers if isinstance(mixer, GatedDelta)), None)


def _delta(mixer: GatedDelta, executor: Executor, tables: Tables, dtype: torch.dtype) -> Tensor:
    config = executor.model.config
    width = config.conv_channels + 2 * config.linear_num_value_heads
    x_RX = _normal(executor, tables, width).to(dtype)
    return gated_delta(
        x_RX,
        mixer.conv_C4.to(x_RX),
        mixer.A_log_V.to(x_RX),
        mixer.dt_bias_V.to(x_RX),
        tables,
        num_key_heads=config.linear_num_key_heads,
        num_value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
    )


def _attention(executor: Executor, tables: Tables, dtype: torch.dtype, *, read_out: bool) -> Tensor:
    """read_out: as the last layer has it, whose tiles of one query are a kernel of their own."""
    config = executor.model.config
    N, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    rows_RX = _normal(executor, tables, (2 * N + 2 * K) * D).to(dtype)
    q, gate, k_RKD, v_RKD = (
        part.unflatten(1, (-1, D)).contiguous()
        for part in rows_RX.split([N * D, N * D, K * D, K * D], dim=1)
    )
    tiles = tables.tiles
    if read_out:
        q, gate = (x.index_select(0, tables.readout_rows_Q) for x in (q, gate))
        tiles = tables.readout_tiles
    return tree_attention(q, k_RKD, v_RKD, gate, tables, tiles, scale=D**-0.5)


def _normal(executor: Executor, tables: Tables, width: int) -> Tensor:
    """The same rows on either device, as the executor's dtype has them."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(len(tables.token_ids_R), width, generator=generator)
    return rows.to(executor.device.dtype).to(tables.token_ids_R.device)


def _compared(name: str, found_RND: Tensor, expected_RND: Tensor) -> CheckRow:
    away_RN = (found_RND.cpu().double() - expected_RND.double()).norm(dim=2)
    norm_RN = expected_RND.double().norm(dim=2)
    whole = float(away_RN.norm() / norm_RN.norm())
    usual = float(norm_RN.square().mean().sqrt())
    of_one = float((away_RN / norm_RN.clamp(min=usual)).max())
    detail = (
        f"relative L2 {whole:.1e} to the reference, at most {MOST_DISTANCE:g}; "
        f"of one head of a row {of_one:.1e}, at most {MOST_OF_ONE:g}"
    )
    return CheckRow(OP, name, detail, whole <= MOST_DISTANCE and of_one <= MOST_OF_ONE)
