"""The geometry of a Qwen3.5 / Qwen3.8 text model (Hugging Face model type `qwen3_5_text`).

`TextConfig.from_json` takes a checkpoint's config.json (with or without a `text_config` inside)
and refuses whatever the forward pass does not compute, naming the field. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from adjudge.checkpoint.json_file import read_object
from adjudge.errors import CheckpointError

LINEAR = "linear_attention"
FULL = "full_attention"
MODEL_TYPES = ("qwen3_5", "qwen3_5_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """Sizes and constants of one text model; the names are the checkpoint's own.

    layer_types: `linear_attention` (gated delta rule) or `full_attention` for each layer.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    rms_norm_eps: float
    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]
    vocab_size: int
    tie_word_embeddings: bool
    max_position_embeddings: int

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated (even); the rest pass through."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def key_width(self) -> int:
        """Width of q, and of k, in a gated delta layer."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_width(self) -> int:
        """Width of v, and of z, in a gated delta layer."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Width of q | k | v, which the causal convolution runs over."""
        return 2 * self.key_width + self.value_width

    @property
    def product_weights(self) -> int:
        """Weights that a token is multiplied with: all projections, no embedding, no LM head."""
        mlp = 3 * self.intermediate_size
        delta = self.conv_channels + 2 * self.value_width + 2 * self.linear_num_value_heads
        queries, keys = self.num_attention_heads, self.num_key_value_heads
        attention = (3 * queries + 2 * keys) * self.head_dim
        full = sum(kind == FULL for kind in self.layer_types)
        linear = self.num_hidden_layers - full
        return self.hidden_size * (self.num_hidden_layers * mlp + full * attention + linear * delta)

    @property
    def layer_weights(self) -> int:
        """Of them in a layer, on average."""
        return self.product_weights // self.num_hidden_layers

    def with_layers(self, num_hidden_layers: int) -> TextConfig:
        """The same model cut to its first layers. Raises CheckpointError outside 1..all."""
        if not 1 <= num_hidden_layers <= self.num_hidden_layers:
            raise CheckpointError(
                f"num_layers is {num_hidden_layers}; this geometry has 1 to "
                f"{self.num_hidden_layers} layers"
            )
        return replace(
            self,
            num_hidden_layers=num_hidden_layers,
            layer_types=self.layer_types[:num_hidden_layers],
        )

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, where: str = "config.json") -> TextConfig:
        """The text model that a config.json describes.

        values: the parsed file; where: its name for messages. Raises CheckpointError naming the
        field when one is missing, malformed, or asks for arithmetic that the model lacks.
        """
        return _Reader(values, where).config()

    @classmethod
    def of(cls, folder: Path) -> TextConfig:
        """The text model of a checkpoint folder's config.json. Raises CheckpointError."""
        path = folder / "config.json"
        return cls.from_json(read_object(path), where=str(path))

    def to_json(self) -> dict[str, Any]:
        """A config.json for this model, readable by transformers and by `from_json`."""
        values = asdict(self)
        rope = {
            "rope_type": "default",
            "rope_theta": values.pop("rope_theta"),
            "partial_rotary_factor": values.pop("partial_rotary_factor"),
            "mrope_section": list(values.pop("mrope_section")),
            "mrope_interleaved": True,
        }
        values["layer_types"] = list(self.layer_types)
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "model_type": "qwen3_5_text",
            "dtype": "bfloat16",
            "hidden_act": "silu",
            "attention_bias": False,
            "attn_output_gate": True,
            **values,
            "rope_parameters": rope,
        }


class _Reader:
    """Typed access to the fields of one config.json; every refusal names file and field."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.outer = values
        text = values.get("text_config", values)
        if not isinstance(text, Mapping):
            self.refuse("text_config", text, "an object")
        self.text: Mapping[str, Any] = text
        rope = text.get("rope_parameters")
        if rope is None:
            rope = text.get("rope_scaling")
        if rope is not None and not isinstance(rope, Mapping):
            self.refuse("rope_parameters", rope, "an object")
        self.rope: Mapping[str, Any] = rope or {}

    def refuse(self, field: str, value: Any, accepted: str) -> NoReturn:
        raise CheckpointError(f"{self.where}: {field} is {value!r}; supported: {accepted}")

    def value(self, field: str, default: Any = None) -> Any:
        """The field from the rope object, the text part, or the default; None counts as absent."""
        for part in (self.rope, self.text):
            if part.get(field) is not None:
                return part[field]
        if default is None:
            raise CheckpointError(f"{self.where}: {field} is missing")
        return default

    def size(self, field: str, default: int | None = None) -> int:
        value = self.value(field, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(field, value, "an integer of at least 1")
        return value

    def number(self, field: str, default: float | None = None) -> float:
        value = self.value(field, default)
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not math.isfinite(value) or value <= 0:
            self.refuse(field, value, "a finite number above 0")
        return float(value)

    def only(self, field: str, accepted: Any, *others: str) -> None:
        """Refuses the field (or its older spellings) when it is given with another value."""
        for name in (field, *others):
            for part in (self.rope, self.text):
                if part.get(name) is not None and part[name] != accepted:
                    self.refuse(name, part[name], f"{accepted!r}")

    def model_type(self) -> None:
        for part in (self.text, self.outer):
            found = part.get("model_type")
            if found not in MODEL_TYPES:
                self.refuse("model_type", found, " or ".join(MODEL_TYPES))

    def tied(self) -> bool:
        """`tie_word_embeddings`; the outer field speaks for the whole model."""
        for part in (self.outer, self.text):
            found = part.get("tie_word_embeddings")
            if found is not None:
                if not isinstance(found, bool):
                    self.refuse("tie_word_embeddings", found, "true or false")
                return found
        return False

    def layer_types(self, num_layers: int) -> tuple[str, ...]:
        given = self.text.get("layer_types")
        if given is None:
            every = self.size("full_attention_interval", 4)
            return tuple(FULL if (i + 1) % every == 0 else LINEAR for i in range(num_layers))
        if not isinstance(given, list) or len(given) != num_layers:
            self.refuse("layer_types", given, f"a list of num_hidden_layers = {num_layers} names")
        for kind in given:
            if kind not in (LINEAR, FULL):
                self.refuse("layer_types", kind, f"{LINEAR} and {FULL}")
        return tuple(given)

    def mrope_section(self) -> tuple[int, int, int]:
        given = self.value("mrope_section", [11, 11, 10])
        whole = isinstance(given, list | tuple) and all(type(n) is int and n >= 0 for n in given)
        if not whole or len(given) != 3:
            self.refuse("mrope_section", given, "three integers")
        return (given[0], given[1], given[2])

    def check(self, made: TextConfig) -> None:
        """Relations between fields that the arithmetic rests on."""
        if made.num_attention_heads % made.num_key_value_heads:
            self.refuse(
                "num_attention_heads",
                made.num_attention_heads,
                f"a multiple of num_key_value_heads = {made.num_key_value_heads}",
            )
        if made.linear_num_value_heads % made.linear_num_key_heads:
            self.refuse(
                "linear_num_value_heads",
                made.linear_num_value_heads,
                f"a multiple of linear_num_key_heads = {made.linear_num_key_heads}",
            )
        for field in ("head_dim", "linear_key_head_dim", "linear_value_head_dim"):
            size = getattr(made, field)
            if size % 8 or size > 256:
                self.refuse(field, size, "a multiple of 8, at most 256")
        if made.rotary_dim % 2 or not 0 < made.rotary_dim <= made.head_dim:
            self.refuse(
                "partial_rotary_factor",
                made.partial_rotary_factor,
                f"an even number of rotated dimensions among head_dim = {made.head_dim}",
            )
        if made.linear_conv_kernel_dim != 4:
            self.refuse("linear_conv_kernel_dim", made.linear_conv_kernel_dim, "4")

    def config(self) -> TextConfig:
        self.model_type()
        self.only("hidden_act", "silu")
        self.only("attention_bias", False)
        self.only("attn_output_gate", True)
        self.only("rope_type", "default", "type")
        self.only("mrope_interleaved", True)
        num_layers = self.size("num_hidden_layers")
        made = TextConfig(
            hidden_size=self.size("hidden_size"),
            intermediate_size=self.size("intermediate_size"),
            num_hidden_layers=num_layers,
            layer_types=self.layer_types(num_layers),
            num_attention_heads=self.size("num_attention_heads"),
            num_key_value_heads=self.size("num_key_value_heads"),
            head_dim=self.size("head_dim"),
            linear_num_key_heads=self.size("linear_num_key_heads"),
            linear_num_value_heads=self.size("linear_num_value_heads"),
            linear_key_head_dim=self.size("linear_key_head_dim"),
            linear_value_head_dim=self.size("linear_value_head_dim"),
            linear_conv_kernel_dim=self.size("linear_conv_kernel_dim", 4),
            rms_norm_eps=self.number("rms_norm_eps", 1e-6),
            rope_theta=self.number("rope_theta"),
            partial_rotary_factor=self.number("partial_rotary_factor", 0.25),
            mrope_section=self.mrope_section(),
            vocab_size=self.size("vocab_size"),
            tie_word_embeddings=self.tied(),
            max_position_embeddings=self.size("max_position_embeddings", 262_144),
        )
        self.check(made)
        return made


def _released(
    hidden: int, inner: int, layers: int, q_heads: int, kv_heads: int, values: int, tied: bool
) -> TextConfig:
    """A released size; what all sizes share is written here once."""
    return TextConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        layer_types=tuple(FULL if (i + 1) % 4 == 0 else LINEAR for i in range(layers)),
        num_attention_heads=q_heads,
        num_key_value_heads=kv_heads,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=values,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-6,
        rope_theta=1e7,
        partial_rotary_factor=0.25,
        mrope_section=(11, 11, 10),
        vocab_size=248_320,
        tie_word_embeddings=tied,
        max_position_embeddings=262_144,
    )


GEOMETRIES: dict[str, TextConfig] = {
    "0.8b": _released(1024, 3584, 24, 8, 2, 16, tied=True),
    "2b": _released(2048, 6144, 24, 8, 2, 16, tied=True),
    "4b": _released(2560, 9216, 32, 16, 4, 32, tied=True),
    "9b": _released(4096, 12288, 32, 16, 4, 32, tied=False),
    "27b": _released(5120, 17408, 64, 24, 4, 48, tied=False),
}
