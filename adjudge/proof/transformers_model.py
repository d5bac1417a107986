"""The same checkpoint in the transformers library: an independent model to compare with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from adjudge.checkpoint import Checkpoint, TextConfig, WeightSource
from adjudge.engine_door import TokenIds
from adjudge.errors import ConfigError

HEAD = "lm_head.weight"


class TransformersModel:
    """Qwen3_5TextModel with a checkpoint's weights; deltas kept apart go through PEFT."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        """Reads the checkpoint's weights once. Raises ConfigError where a library is missing."""
        self._device = device
        weights = checkpoint.weights
        names = weights.names() - {HEAD}
        state = {name: weights.read(name, device=device, dtype=dtype) for name in names}
        model = _empty(checkpoint.text_config, device)
        model.load_state_dict(state, assign=True)
        if weights.deltas():
            model = _with_deltas(model, weights, device)
        self.model = model.eval().requires_grad_(False)

    @torch.inference_mode()
    def hidden(self, token_ids: TokenIds) -> Tensor:
        """[H]: the final norm's output at the prompt's last token."""
        ids = torch.from_numpy(token_ids).long().to(self._device)[None]
        output: Tensor = self.model(input_ids=ids, use_cache=False).last_hidden_state
        return output[0, -1]


def _empty(config: TextConfig, device: torch.device) -> Any:
    """The model without memory for its parameters."""
    try:
        from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs
    except ImportError as error:
        raise ConfigError(
            f"the comparison needs transformers with Qwen3.5 ({error}); install adjudge[bench]"
        ) from None
    described = theirs.Qwen3_5TextConfig(**config.to_json())
    with torch.device("meta"):
        model = theirs.Qwen3_5TextModel(described)
    # Its frequencies are no parameters: they were computed on "meta", and have no values there.
    model.rotary_emb = theirs.Qwen3_5TextRotaryEmbedding(described).to(device)
    return model


def _with_deltas(model: Any, weights: WeightSource, device: torch.device) -> Any:
    """The model with a LoRA layer on each weight that has a delta, in FP32."""
    try:
        import peft
    except ImportError as error:
        raise ConfigError(
            f"an unmerged adapter needs peft ({error}); install adjudge[bench], or compare merged"
        ) from None
    loras = {
        name.removesuffix(".weight"): lora
        for name in sorted(weights.deltas())
        if (lora := weights.lora(name)) is not None
    }
    first = next(iter(loras.values()))
    rank = first.a.shape[0]
    config = peft.LoraConfig(
        r=rank, lora_alpha=round(first.scale * rank), target_modules=list(loras), lora_dropout=0.0
    )
    adapted = peft.get_peft_model(model, config)
    for module, lora in loras.items():
        layer = adapted.get_submodule(f"base_model.model.{module}")
        layer.lora_A["default"].weight.data = lora.a.to(device)
        layer.lora_B["default"].weight.data = lora.b.to(device)
        layer.scaling["default"] = lora.scale
    return adapted
