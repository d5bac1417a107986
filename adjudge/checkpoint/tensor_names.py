"""Which tensors a Qwen3.5 text model has, their shapes, and what checkpoints call them."""

from __future__ import annotations

from adjudge.checkpoint.text_config import FULL, TextConfig

PREFIXES = ("model.language_model.", "model.")
"""Spellings before a canonical name, longest first; none is accepted too."""

IGNORED = {
    "mtp.": "the multi-token-prediction block drafts text; nothing is generated here",
    "visual.": "the vision tower; a text model reads no images",
}
"""Canonical prefix -> why a text model does not need the tensors under it."""

TIED_HEAD = "tie_word_embeddings says that it is embed_tokens.weight"


def canonical(key: str) -> str:
    """The canonical name of a checkpoint's key: the key without the prefix before the model."""
    for prefix in PREFIXES:
        if key.startswith(prefix):
            return key[len(prefix) :]
    return key


def why_ignored(name: str, config: TextConfig) -> str | None:
    """The reason why this canonical name is not read, or None."""
    if name == "lm_head.weight" and config.tie_word_embeddings:
        return TIED_HEAD
    return next((why for prefix, why in IGNORED.items() if name.startswith(prefix)), None)


def text_tensors(config: TextConfig) -> dict[str, tuple[int, ...]]:
    """Canonical name -> shape of every tensor of the text model, in the order of the pass.

    `lm_head.weight` is last and only there when untied.
    """
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (config.vocab_size, hidden)}
    for layer, kind in enumerate(config.layer_types):
        parts = _attention(config) if kind == FULL else _gated_delta(config)
        parts["input_layernorm.weight"] = (hidden,)
        parts["post_attention_layernorm.weight"] = (hidden,)
        parts["mlp.gate_proj.weight"] = (config.intermediate_size, hidden)
        parts["mlp.up_proj.weight"] = (config.intermediate_size, hidden)
        parts["mlp.down_proj.weight"] = (hidden, config.intermediate_size)
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    shapes["norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _attention(config: TextConfig) -> dict[str, tuple[int, ...]]:
    hidden, head = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    return {
        "self_attn.q_proj.weight": (2 * queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
    }


def _gated_delta(config: TextConfig) -> dict[str, tuple[int, ...]]:
    hidden, values = config.hidden_size, config.linear_num_value_heads
    return {
        "linear_attn.in_proj_qkv.weight": (config.conv_channels, hidden),
        "linear_attn.in_proj_z.weight": (config.value_width, hidden),
        "linear_attn.in_proj_b.weight": (values, hidden),
        "linear_attn.in_proj_a.weight": (values, hidden),
        "linear_attn.conv1d.weight": (config.conv_channels, 1, config.linear_conv_kernel_dim),
        "linear_attn.A_log": (values,),
        "linear_attn.dt_bias": (values,),
        "linear_attn.norm.weight": (config.linear_value_head_dim,),
        "linear_attn.out_proj.weight": (hidden, config.value_width),
    }
