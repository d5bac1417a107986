"""Qwen3.5 / Qwen3.8 text model (Hugging Face model type `qwen3_5_text`), read from spec to end.

    x = embed[ids];  each layer: x += mixer(norm(x)), x += mlp(norm(x));  hidden = norm(x)

Three of four mixers are gated delta layers, the fourth is full attention. One row per unique
token; only the mixers look at a row's ancestors, through the forest's tables. After the last
mixer's keys and values nothing is computed but the rows that are read out.

Legend: R rows, Q readout rows, H hidden size, X projected width, N query heads, K key heads,
V value heads, D head dimension, P positions, F rotary frequencies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from adjudge.checkpoint.contents import WeightSource
from adjudge.checkpoint.text_config import FULL, TextConfig
from adjudge.models.projection import (
    Delta,
    Projection,
    of_each_shape,
    read_projection,
    read_tensor,
)
from adjudge.ops.activation import silu_mul
from adjudge.ops.attention import tree_attention
from adjudge.ops.cpu_products import fast_products
from adjudge.ops.delta import gated_delta
from adjudge.ops.host_memory import keep_freed_memory
from adjudge.ops.linear import AS_IT_IS, LinearPlan, agreeing_blocks
from adjudge.ops.norm import gated_rms_norm, rms_norm
from adjudge.ops.rotary import qk_norm_rope
from adjudge.ops.tables import Tables

if TYPE_CHECKING:
    from adjudge.state import Carry, LayerCarry

IGNORED = {
    "lm_head.": "nothing is generated; what reads vocabulary rows asks for them by itself",
}
"""Prefix of canonical names -> why the forward pass does not need them."""


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """in_proj: q | k | v | b | a | z; conv_C4: in memory one tap after the other."""

    in_proj: Projection
    conv_C4: Tensor
    A_log_V: Tensor
    dt_bias_V: Tensor
    norm_D: Tensor
    out_proj: Projection


@dataclass(frozen=True, slots=True)
class Attention:
    """qkv_proj: per query head (query | gate), then keys, then values."""

    qkv_proj: Projection
    q_norm_D: Tensor
    k_norm_D: Tensor
    o_proj: Projection


@dataclass(frozen=True, slots=True)
class Layer:
    """gate_up: the MLP's gate, then its up projection."""

    norm1_H: Tensor
    mixer: GatedDelta | Attention
    norm2_H: Tensor
    gate_up: Projection
    down: Projection

    def projections(self) -> tuple[Projection, ...]:
        mixer = self.mixer
        if isinstance(mixer, Attention):
            return mixer.qkv_proj, mixer.o_proj, self.gate_up, self.down
        return mixer.in_proj, mixer.out_proj, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class Qwen3_5:  # noqa: N801
    """A loaded model. cos_PF, sin_PF: one row per position; axis_F: mrope axis of a frequency.

    linear_plan: how products run on this device.
    """

    config: TextConfig
    embed_VH: Tensor
    layers: tuple[Layer, ...]
    norm_H: Tensor
    cos_PF: Tensor
    sin_PF: Tensor
    axis_F: Tensor
    linear_plan: LinearPlan

    @torch.inference_mode()
    @fast_products()
    def forward(self, tables: Tables, carry: Carry | None = None) -> Tensor:
        """[Q, H]: the final norm's output at the readout rows, in the storage dtype.

        carry: states of prefixes that the pass starts from, and those that it fills.
        """
        eps = self.config.rms_norm_eps
        x_RH = functional.embedding(tables.token_ids_R, self.embed_VH)
        for index, layer in enumerate(self.layers):
            mixer, last = layer.mixer, layer is self.layers[-1]
            part = None if carry is None else carry[index]
            normed_RH = rms_norm(x_RH, layer.norm1_H, eps=eps)
            if last:
                x_RH = x_RH.index_select(0, tables.readout_rows_Q)
            # What a product takes has no name: it would outlive its use.
            if isinstance(mixer, Attention):
                mixer.o_proj.add_to(
                    x_RH,
                    self.attention(mixer, normed_RH, tables, part, only_readout=last),
                    self.linear_plan,
                )
            else:
                mixer.out_proj.add_to(
                    x_RH,
                    self.gated_delta(mixer, normed_RH, tables, part, only_readout=last),
                    self.linear_plan,
                )
            normed_RH = rms_norm(x_RH, layer.norm2_H, eps=eps)
            layer.down.add_to(
                x_RH, silu_mul(layer.gate_up(normed_RH, self.linear_plan)), self.linear_plan
            )
        return rms_norm(x_RH, self.norm_H, eps=eps)

    @property
    def query_width(self) -> int:
        """Columns of qkv_proj that make queries and gates."""
        return 2 * self.config.num_attention_heads * self.config.head_dim

    @property
    def delta_width(self) -> int:
        """Columns of in_proj that the delta rule reads; the output's gate z follows."""
        return self.config.conv_channels + 2 * self.config.linear_num_value_heads

    def products(self) -> list[Tensor]:
        """One weight of each shape that products run with; for deltas' factors see `deltas`."""
        found: dict[torch.Size, Tensor] = {}
        for projection in self.projections():
            found.setdefault(projection.weight_NK.shape, projection.weight_NK)
        return list(found.values())

    def added(self) -> set[tuple[int, ...]]:
        """Shapes of the weights whose products are added to the residual."""
        found: set[tuple[int, ...]] = set()
        for layer in self.layers:
            _, mixed, _, down = layer.projections()
            found |= {tuple(mixed.weight_NK.shape), tuple(down.weight_NK.shape)}
        return found

    def deltas(self) -> list[Delta]:
        """One unmerged delta of each pair of shapes (a, b)."""
        found: dict[tuple[torch.Size, torch.Size], Delta] = {}
        for projection in self.projections():
            for delta in projection.deltas:
                found.setdefault((delta.a_LK.shape, delta.b_NL.shape), delta)
        return list(found.values())

    def projections(self) -> Iterator[Projection]:
        """Every projection; of the last layer's attention also its queries and its keys and values,
        which run apart."""
        for layer in self.layers:
            yield from layer.projections()
        if isinstance(layer.mixer, Attention):
            yield from layer.mixer.qkv_proj.split(self.query_width)

    def of_each_kind(self) -> Qwen3_5:
        """The last layer, and one of each kind before it: all the kernels of a pass, in little
        time."""
        kinds = {
            tuple(factor.shape for part in layer.projections() for factor in part.factors()): layer
            for layer in self.layers[:-1]
        }
        return replace(self, layers=(*kinds.values(), self.layers[-1]))

    def gated_delta(
        self,
        mixer: GatedDelta,
        x_RH: Tensor,
        tables: Tables,
        part: LayerCarry | None,
        *,
        only_readout: bool,
    ) -> Tensor:
        """[R or Q, V·D]: what out_proj takes."""
        config = self.config
        projected_RX = mixer.in_proj(x_RH, self.linear_plan)
        z_RX = projected_RX[:, self.delta_width :]
        inputs_RX, state_SVKD = projected_RX, None
        if part is not None:
            inputs_RX, state_SVKD = part.join_inputs(projected_RX, tables.num_states)
        o_RVD = gated_delta(
            inputs_RX,
            mixer.conv_C4,
            mixer.A_log_V,
            mixer.dt_bias_V,
            tables,
            num_key_heads=config.linear_num_key_heads,
            num_value_heads=config.linear_num_value_heads,
            key_dim=config.linear_key_head_dim,
            value_dim=config.linear_value_head_dim,
            state_SVKD=state_SVKD,
        )
        if part is not None and state_SVKD is not None:
            part.keep_states(projected_RX, state_SVKD)
            o_RVD = o_RVD[: len(projected_RX)]
        if only_readout:
            o_RVD = o_RVD.index_select(0, tables.readout_rows_Q)
            z_RX = z_RX.index_select(0, tables.readout_rows_Q)
        gated_RVD = gated_rms_norm(o_RVD, z_RX, mixer.norm_D, eps=config.rms_norm_eps)
        return gated_RVD.flatten(1)

    def attention(
        self,
        mixer: Attention,
        x_RH: Tensor,
        tables: Tables,
        part: LayerCarry | None,
        *,
        only_readout: bool,
    ) -> Tensor:
        """[R or Q, N·D]: what o_proj takes."""
        config = self.config
        N, K, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        positions_3R = tables.positions_3R
        if only_readout:
            q_proj, kv_proj = mixer.qkv_proj.split(self.query_width)
            read_QH = x_RH.index_select(0, tables.readout_rows_Q)
            positions_3Q = positions_3R.index_select(1, tables.readout_rows_Q)
            queries_QX = q_proj(read_QH, self.linear_plan)
            keys_RX = kv_proj(x_RH, self.linear_plan)
            q_QND, _ = self.rotate(mixer, queries_QX, positions_3Q, N, 0)
            _, k_RKD = self.rotate(mixer, keys_RX, positions_3R, 0, K)
            tiles = tables.readout_tiles
        else:
            queries_QX = mixer.qkv_proj(x_RH, self.linear_plan)
            keys_RX = queries_QX[:, 2 * N * D :]
            q_QND, k_RKD = self.rotate(mixer, queries_QX, positions_3R, N, K)
            tiles = tables.tiles
        v_RKD = keys_RX[:, K * D :].unflatten(1, (K, D))
        if part is not None:
            k_RKD, v_RKD = part.join_keys(k_RKD, v_RKD)
        gate_QND = queries_QX[:, : 2 * N * D].unflatten(1, (N, 2 * D))[..., D:]
        o_QND = tree_attention(q_QND, k_RKD, v_RKD, gate_QND, tables, tiles, scale=D**-0.5)
        return o_QND.flatten(1)

    def rotate(
        self, mixer: Attention, x_RX: Tensor, positions_3R: Tensor, num_heads: int, num_kv: int
    ) -> tuple[Tensor, Tensor]:
        """(q_RND, k_RKD) from rows that start with these heads; either number may be 0."""
        return qk_norm_rope(
            x_RX,
            mixer.q_norm_D,
            mixer.k_norm_D,
            self.cos_PF,
            self.sin_PF,
            positions_3R,
            self.axis_F,
            num_heads=num_heads,
            num_kv_heads=num_kv,
            eps=self.config.rms_norm_eps,
        )

    @classmethod
    def load(
        cls,
        config: TextConfig,
        weights: WeightSource,
        *,
        device: torch.device,
        dtype: torch.dtype,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Qwen3_5:
        """Streams the weights onto the device, tensor by tensor, and accounts for all of them.

        dtype: bfloat16 or float32. Raises CheckpointError.
        """
        loader = Loader(config, weights, device, dtype)
        embed_VH = loader.tensor("embed_tokens.weight", config.vocab_size, config.hidden_size)
        layers = []
        for index, kind in enumerate(config.layer_types):
            last = index + 1 == config.num_hidden_layers
            layers.append(loader.layer(f"layers.{index}.", kind, last=last))
            if progress is not None:
                progress("layers loaded", index + 1, config.num_hidden_layers)
        norm_H = loader.tensor("norm.weight", config.hidden_size)
        weights.finish(loader.consumed, IGNORED)
        cos_PF, sin_PF = rotary_table(config, device=device, dtype=dtype)
        made = cls(
            config, embed_VH, tuple(layers), norm_H, cos_PF, sin_PF,
            mrope_axes(config).to(device), AS_IT_IS,
        )  # fmt: skip
        if device.type != "cpu":
            return made
        keep_freed_memory()
        with fast_products():
            blocks = agreeing_blocks(of_each_shape(made.projections()))
        return replace(made, linear_plan=LinearPlan(blocks))


@dataclass(slots=True)
class Loader:
    """Reads layers by the checkpoint's names; `consumed` collects the names."""

    config: TextConfig
    weights: WeightSource
    device: torch.device
    dtype: torch.dtype
    consumed: set[str] = field(default_factory=set)

    def tensor(self, name: str, *shape: int) -> Tensor:
        self.consumed.add(name)
        return read_tensor(self.weights, name, shape, device=self.device, dtype=self.dtype)

    def projection(
        self, prefix: str, width: int, *, whole: bool = True, **parts: int
    ) -> Projection:
        """Stacked projections prefix + key + ".weight", key -> outputs. whole: not to be split."""
        named = [(f"{prefix}{key}.weight", outputs) for key, outputs in parts.items()]
        self.consumed.update(name for name, _ in named)
        made = read_projection(self.weights, named, width, device=self.device, dtype=self.dtype)
        return made.packed() if whole else made

    def layer(self, prefix: str, kind: str, *, last: bool) -> Layer:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        mlp = f"{prefix}mlp."
        return Layer(
            norm1_H=self.tensor(f"{prefix}input_layernorm.weight", hidden),
            mixer=(
                self.attention(f"{prefix}self_attn.", whole=not last)
                if kind == FULL
                else self.gated_delta(f"{prefix}linear_attn.")
            ),
            norm2_H=self.tensor(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=self.projection(mlp, hidden, gate_proj=inner, up_proj=inner),
            down=self.projection(mlp, inner, down_proj=hidden),
        )

    def gated_delta(self, prefix: str) -> GatedDelta:
        config = self.config
        hidden, values = config.hidden_size, config.linear_num_value_heads
        channels, width = config.conv_channels, config.value_width
        conv = self.tensor(f"{prefix}conv1d.weight", channels, 1, config.linear_conv_kernel_dim)
        return GatedDelta(
            in_proj=self.projection(
                prefix, hidden, in_proj_qkv=channels, in_proj_b=values, in_proj_a=values,
                in_proj_z=width,
            ),
            conv_C4=conv.squeeze(1).t().contiguous().t(),
            A_log_V=self.tensor(f"{prefix}A_log", values),
            dt_bias_V=self.tensor(f"{prefix}dt_bias", values),
            norm_D=self.tensor(f"{prefix}norm.weight", config.linear_value_head_dim),
            out_proj=self.projection(prefix, width, out_proj=hidden),
        )  # fmt: skip

    def attention(self, prefix: str, *, whole: bool) -> Attention:
        config = self.config
        hidden, head = config.hidden_size, config.head_dim
        queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
        return Attention(
            qkv_proj=self.projection(
                prefix, hidden, whole=whole, q_proj=2 * queries, k_proj=keys, v_proj=keys
            ),
            q_norm_D=self.tensor(f"{prefix}q_norm.weight", head),
            k_norm_D=self.tensor(f"{prefix}k_norm.weight", head),
            o_proj=self.projection(prefix, queries, o_proj=hidden),
        )


def rotary_table(
    config: TextConfig, *, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """cos and sin [P, F] of position · theta^(−2f / rotary_dim), FP32, rounded to dtype."""
    exponent_F = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    frequency_F = 1.0 / (config.rope_theta**exponent_F)
    positions_P = torch.arange(config.max_position_embeddings, dtype=torch.float32)
    angle_PF = positions_P[:, None] * frequency_F
    return angle_PF.cos().to(device, dtype), angle_PF.sin().to(device, dtype)


def mrope_axes(config: TextConfig) -> Tensor:
    """int32 [F]: 0, 1, 2 for T, H, W; frequency i is H or W where i % 3 says so and is in range."""
    axes = []
    for i in range(config.rotary_dim // 2):
        axis = i % 3
        axes.append(axis if axis and i < 3 * config.mrope_section[axis] else 0)
    return torch.tensor(axes, dtype=torch.int32)
