"""The mixers' kernels against their references: that a device computes the right thing at all.

Comparing bits of one kernel with its own cannot see a compiler that makes it wrong everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from adjudge.device_tables import to_device
from adjudge.forest import plan
from adjudge.layout import layout
from adjudge.models.qwen3_5 import GatedDelta
from adjudge.ops.attention import SLOTS, tree_attention
from adjudge.ops.delta import gated_delta
from adjudge.ops.tables import Tables
from adjudge.self_check.check_row import CheckRow

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
    return 2 if _delta_mixer(executor) is None else 5


def ops(executor: Executor) -> Iterator[CheckRow]:
    """The gated delta rule in all its launches, and attention of all rows and of those that are
    read out, on random rows. GPU only; a model may have no delta rule.

    "as captured" is what graphs hold, though they are captured after the check at load; it is also
    how an eager pass launches many short runs.
    """
    if not executor.device.is_cuda:
        return
    alone, shared = _both(executor, _prompts()[:1]), _both(executor, _prompts())
    unknown = (0,) * len(shared[0].level_runs)
    captured = (replace(shared[0], level_runs=unknown), shared[1])
    launches = {"one prompt": alone, "together": shared, "as captured": captured}
    if (mixer := _delta_mixer(executor)) is not None:
        delta = partial(_delta, mixer)
        for name, forests in launches.items():
            yield _compared(f"delta rule, {name}", *_of_both(delta, executor, forests))
    yield _compared("attention", *_of_both(_attention, executor, shared))
    yield _compared("attention, read out", *_of_both(_readout_attention, executor, shared))


def _of_both(
    op: Callable[[Executor, Tables, torch.dtype], Tensor],
    executor: Executor,
    forests: tuple[Tables, Tables],
) -> tuple[Tensor, Tensor]:
    """The op's kernels in the executor's dtype, and its reference in FP32."""
    tables, reference = forests
    return op(executor, tables, executor.device.dtype), op(executor, reference, torch.float32)


def _prompts() -> list[np.ndarray]:
    """One long prompt, forks inside and at the end of a chunk, and roots of their own."""
    rng = np.random.default_rng(0)

    def ids(count: int) -> np.ndarray:
        return rng.integers(0, 1000, count).astype(np.int32)

    state = ids(150)
    tails = [np.concatenate([state, ids(count)]) for count in (5, 3, 70)]
    return [state, *tails, np.concatenate([state[:128], ids(20)]), ids(40), ids(1)]


def _both(executor: Executor, prompts: Sequence[np.ndarray]) -> tuple[Tables, Tables]:
    """The tables of one forest on the device, and for the reference."""
    forest = plan(prompts)
    device = executor.device.torch_device
    return (
        to_device(layout(forest, height=executor.height), device),
        to_device(layout(forest, height=SLOTS), CPU),
    )


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


def _attention(executor: Executor, tables: Tables, dtype: torch.dtype) -> Tensor:
    q_RND, gate_RND, k_RKD, v_RKD = _attended(executor, tables, dtype)
    scale = q_RND.shape[2] ** -0.5
    return tree_attention(q_RND, k_RKD, v_RKD, gate_RND, tables, tables.tiles, scale=scale)


def _readout_attention(executor: Executor, tables: Tables, dtype: torch.dtype) -> Tensor:
    """As the last layer has it: its tiles of one query are a kernel of their own."""
    q_RND, gate_RND, k_RKD, v_RKD = _attended(executor, tables, dtype)
    q_QND, gate_QND = (x[tables.readout_rows_Q.long()] for x in (q_RND, gate_RND))
    scale = q_RND.shape[2] ** -0.5
    return tree_attention(q_QND, k_RKD, v_RKD, gate_QND, tables, tables.readout_tiles, scale=scale)


def _attended(
    executor: Executor, tables: Tables, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, their gates, keys, values."""
    config = executor.model.config
    N, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    rows_RX = _normal(executor, tables, (2 * N + 2 * K) * D).to(dtype)
    q_RND, gate_RND, k_RKD, v_RKD = (
        part.unflatten(1, (-1, D)).contiguous()
        for part in rows_RX.split([N * D, N * D, K * D, K * D], dim=1)
    )
    return q_RND, gate_RND, k_RKD, v_RKD


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
