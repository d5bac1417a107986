"""States of prefixes on the device: kept after a pass, read by later ones, dropped under a budget.

A state is what the mixers would know of a prefix of 64·n tokens: of an attention layer its rotated
keys and its values, of a gated delta layer the FP32 state and the convolution's last three inputs.
They are the bits that a pass over the whole prompt would compute again, so a pass that reads them
gives the same answer. Each entry holds all of its prefix: a state weighs as much as the keys of
some 1,500 tokens, so entries that share keys would save little and could not be dropped alone.

Legend: L tokens of a prefix, R rows, X projected width, C convolution channels, K key heads,
D head dimension, V value heads, S state slots.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from adjudge.checkpoint import TextConfig
from adjudge.checkpoint.text_config import FULL
from adjudge.graft import BEFORE
from adjudge.prefixes import Kept, Prefixes
from adjudge.reuse import Keep, Reuse

LOG = logging.getLogger("adjudge.state")

ALIGNED_BYTES = 16
"""Parts of a state start at multiples of this."""

MIB = 1 << 20

Part = tuple[tuple[int, ...], torch.dtype]
State = tuple[tuple[Tensor, Tensor], ...]
"""For each layer keys_LKD and values_LKD, or state_VKD (FP32, in the op's own layout) and
inputs_3C."""


@dataclass(frozen=True, slots=True)
class LayerCarry:
    """What one layer of a pass reads and keeps.

    trunks: the layer's part of each state that is read; keeps: rows int64 [L], state slot and the
    layer's part of each state that is filled.
    """

    trunks: Sequence[tuple[Tensor, Tensor]]
    first_slot: int
    keeps: Sequence[tuple[Tensor, int, tuple[Tensor, Tensor]]]

    def join_keys(self, k_RKD: Tensor, v_RKD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values with the trunks' behind them; keeps those that are wanted."""
        if self.trunks:
            k_RKD = torch.cat([k_RKD, *(keys for keys, _ in self.trunks)])
            v_RKD = torch.cat([v_RKD, *(values for _, values in self.trunks)])
        for rows_L, _, (keys_LKD, values_LKD) in self.keeps:
            torch.index_select(k_RKD, 0, rows_L, out=keys_LKD)
            torch.index_select(v_RKD, 0, rows_L, out=values_LKD)
        return k_RKD, v_RKD

    def join_inputs(self, x_RX: Tensor, num_states: int) -> tuple[Tensor, Tensor | None]:
        """The projected rows with the trunks' convolution inputs behind them, and the state slots
        with the trunks' states in them; None if the layer reads and keeps none."""
        parts = [*self.trunks, *(part for _, _, part in self.keeps)]
        if not parts:
            return x_RX, None
        slots_SVKD = parts[0][0].new_empty(num_states, *parts[0][0].shape)
        for place, (state_VKD, _) in enumerate(self.trunks):
            slots_SVKD[self.first_slot + place] = state_VKD
        if not self.trunks:
            return x_RX, slots_SVKD
        more_RX = x_RX.new_zeros(BEFORE * len(self.trunks), x_RX.shape[1])
        inputs_RC = torch.cat([inputs for _, inputs in self.trunks])
        more_RX[:, : inputs_RC.shape[1]] = inputs_RC
        return torch.cat([x_RX, more_RX]), slots_SVKD

    def keep_states(self, x_RX: Tensor, slots_SVKD: Tensor) -> None:
        """Keeps the states and convolution inputs that are wanted."""
        for rows_L, slot, (state_VKD, inputs_3C) in self.keeps:
            state_VKD.copy_(slots_SVKD[slot])
            inputs_3C.copy_(x_RX[rows_L[-BEFORE:], : inputs_3C.shape[1]])


Carry = tuple[LayerCarry, ...]
"""For each layer, what a pass takes from states and leaves in them."""


class States:
    """The pool. Only the thread that runs passes may call `carried` and `clear`."""

    def __init__(
        self, config: TextConfig, budget_bytes: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.prefixes = Prefixes(budget_bytes)
        self.hit_tokens = 0
        self.num_kept = 0
        self.num_left_out = 0
        self._config = config
        self._dtype = dtype
        self._device = device

    @contextmanager
    def carried(self, reuse: Reuse) -> Iterator[Carry]:
        """What a current plan's pass carries. Its new states join the pool once the block has
        ended, and not at all if it raises. What finds no room is left out."""
        for trunk in reuse.trunks:
            self.prefixes.use(trunk)
        wanted = [keep for keep in reuse.keeps if not self.prefixes.holds(keep.salt, keep.path)]
        made = [(keep, state) for keep in wanted if (state := self._room(keep, reuse))]
        try:
            yield self._carry(reuse, made)
        except BaseException:
            for keep, _ in made:
                self.prefixes.release(self.num_bytes(len(keep.cutting.rows)))
            raise
        for keep, state in made:
            num_bytes = self.num_bytes(len(keep.cutting.rows))
            self.prefixes.add(Kept(keep.salt, keep.path, num_bytes, state))
        self.hit_tokens += reuse.reused_rows
        self.num_kept += len(made)
        self.num_left_out += len(wanted) - len(made)

    def _carry(self, reuse: Reuse, made: Sequence[tuple[Keep, State]]) -> Carry:
        rows = [torch.from_numpy(keep.cutting.rows).to(self._device).long() for keep, _ in made]
        return tuple(
            LayerCarry(
                [trunk.state[layer] for trunk in reuse.trunks],
                reuse.first_slot,
                [
                    (rows_L, keep.cutting.slot, state[layer])
                    for rows_L, (keep, state) in zip(rows, made, strict=True)
                ],
            )
            for layer in range(self._config.num_hidden_layers)
        )

    def _room(self, keep: Keep, reuse: Reuse) -> State | None:
        """Memory for a state, others evicted for it; None if there is no room."""
        num_tokens = len(keep.cutting.rows)
        num_bytes = self.num_bytes(num_tokens)
        if not self.prefixes.reserve(num_bytes, reuse.trunks):
            return None
        try:
            return self._empty(num_tokens)
        except torch.OutOfMemoryError:
            self.prefixes.release(num_bytes)
            LOG.warning("no memory for the state of %d tokens", num_tokens)
            return None

    def num_bytes(self, num_tokens: int) -> int:
        """What the state of so many tokens takes, its place in the index included."""
        parts = (part for pair in self._parts(num_tokens) for part in pair)
        return sum(map(_part_bytes, parts)) + 4 * num_tokens

    def _parts(self, num_tokens: int) -> list[tuple[Part, Part]]:
        config = self._config
        keys = (num_tokens, config.num_key_value_heads, config.head_dim)
        state = (
            config.linear_num_value_heads,
            config.linear_key_head_dim,
            config.linear_value_head_dim,
        )
        attention = (keys, self._dtype), (keys, self._dtype)
        delta = (state, torch.float32), ((BEFORE, config.conv_channels), self._dtype)
        return [attention if kind == FULL else delta for kind in config.layer_types]

    def _empty(self, num_tokens: int) -> State:
        """Views of one piece of memory, so that an evicted state leaves one hole."""
        pairs = self._parts(num_tokens)
        total = sum(_part_bytes(part) for pair in pairs for part in pair)
        memory = torch.empty(total, dtype=torch.uint8, device=self._device)
        views, start = [], 0
        for shape, dtype in (part for pair in pairs for part in pair):
            size = prod(shape) * dtype.itemsize
            views.append(memory[start : start + size].view(dtype).view(shape))
            start += _part_bytes((shape, dtype))
        return tuple(zip(views[::2], views[1::2], strict=True))

    def facts(self) -> dict[str, Any]:
        """What health shows of the pool."""
        return {
            "states": len(self.prefixes),
            "mib": round(self.prefixes.num_bytes / MIB, 3),
            "budget_mib": self.prefixes.budget_bytes // MIB,
            "hit_tokens": self.hit_tokens,
            "kept": self.num_kept,
            "evicted": self.prefixes.num_evicted,
            "left_out": self.num_left_out,
        }

    def clear(self) -> None:
        """Drop every state, and what was counted."""
        self.prefixes.clear()
        self.hit_tokens = self.num_kept = self.num_left_out = 0


def _part_bytes(part: Part) -> int:
    shape, dtype = part
    size = prod(shape) * dtype.itemsize
    return size + -size % ALIGNED_BYTES
