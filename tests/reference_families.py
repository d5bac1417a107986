"""The families once more, straight from their descriptions, on transformers and PEFT.

Written to be compared with: prompts as whole texts, one prompt a forward, the whole vocabulary
where a few rows would do. Nothing here calls the code that is tested.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import load_file
from torch import Tensor

Question = dict[str, Any]
CUA_SYSTEM = (
    "You are a one-pass computer-use decision model. You are shown the current state of a screen "
    "and a fixed, closed list of candidate (element, action) options, each given a single letter. "
    "Choose exactly one option: the single best next action to take. Answer with ONLY that "
    "option's letter -- no words, no punctuation, no explanation."
)
JEMM_SYSTEM = (
    "Choose the best available candidate for the question using only the supplied state. Return "
    "exactly one candidate label."
)
LETTERS = [*string.ascii_uppercase]
PAIRS = ["AA", "AB", "AC"]
"""Enough for what is compared: the released vocabulary lacks some of those that follow."""


class Reference:
    """A made checkpoint in transformers, FP32. merged: the adapter is added to the weights, which
    are then rounded to BF16; otherwise PEFT keeps it apart."""

    def __init__(self, folder: Path, adapter: Path | None, *, merged: bool) -> None:
        import peft
        from transformers import Qwen3_5TextConfig
        from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextModel

        self.folder = folder
        self.tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        stored = {
            key.removeprefix("model.language_model."): tensor.bfloat16().float()
            for key, tensor in load_file(folder / "model.safetensors").items()
            if "visual." not in key and not key.startswith("mtp.")
        }
        self.head = stored.pop("lm_head.weight", stored["embed_tokens.weight"])
        text = json.loads((folder / "config.json").read_text())["text_config"]
        model: Any = Qwen3_5TextModel(Qwen3_5TextConfig(**text))
        model.load_state_dict(stored)
        if adapter is not None:
            described = peft.LoraConfig.from_pretrained(str(adapter))
            described.target_modules = set(described.target_modules) - {"lm_head"}
            model = peft.get_peft_model(model, described)
            deltas = load_file(adapter / "adapter_model.safetensors")
            a, b = (deltas.pop(f"base_model.model.lm_head.lora_{s}.weight", None) for s in "AB")
            if a is not None and b is not None:
                self.head = self.head + described.lora_alpha / described.r * (b @ a)
            state = {
                re.sub(r".*?(layers\..*lora_[AB])\.", r"base_model.model.\1.default.", key): delta
                for key, delta in deltas.items()
            }
            assert not model.load_state_dict(state, strict=False).unexpected_keys
            if merged:
                model = model.merge_and_unload()
                for weight in model.parameters():
                    weight.data = weight.data.bfloat16().float()
        self.model = model.eval()

    def ids(self, *texts: str) -> list[int]:
        """Of each text on its own, one after the other."""
        return [i for text in texts for i in self.tokenizer.encode(text).ids]

    def label(self, text: str) -> int:
        (found,) = self.ids(text)
        return found

    @torch.inference_mode()
    def hidden(self, ids: Sequence[int]) -> Tensor:
        return self.model(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]

    def logits(self, ids: Sequence[int], labels: Sequence[int]) -> list[float]:
        every = self.head @ self.hidden(ids)
        return [float(every[label]) for label in labels]


def softmax(logits: Sequence[float], temperature: float = 1.0) -> list[float]:
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    return [weight / math.fsum(weights) for weight in weights]


def dumped(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def open_jev(ref: Reference, state: Any, question: Question) -> list[float]:
    package = ref.folder / "package" / "checkpoint"
    head = torch.load(package / "head.pt", weights_only=True)
    temperature = json.loads((package / "temperature.json").read_text())["temperature"]
    given = (
        state if isinstance(state, str) else json.dumps(state, sort_keys=True, ensure_ascii=False)
    )
    asked, criteria = question["instructions"], question.get("criteria")
    if question["type"] == "noul":
        for side, word in (("Yes", "true"), ("No", "false")):
            if criteria and criteria.get(word) is not None:
                asked += f"\n{side} means: {criteria[word]}"
        ends = ["Is the answer to this question yes? Answer Yes or No."]
    else:
        options = (
            criteria
            if isinstance(criteria, list)
            else [key if d is None else f"{key}: {dumped(d)}" for key, d in criteria.items()]
        )
        ends = [
            f"Proposed answer: {option}\nIs this proposed answer correct? Answer Yes or No."
            for option in options
        ]
    scores = []
    for end in ends:
        text = f"Context:\n{given}\n\nQuestion: {asked}\n{end}".strip()
        turn = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        score = head["weight"] @ ref.hidden(ref.ids(turn)) + head["bias"]
        scores.append(float(score))
    return softmax([0.0, *scores] if question["type"] == "noul" else scores, temperature)


def cua_s1(ref: Reference, state: Any, question: Question) -> list[float]:
    named = [key if d is None else dumped(d) for key, d in question["criteria"].items()]
    options = "\n".join(
        f"{letter}. Decision {json.dumps(name, ensure_ascii=False)} -> select"
        for letter, name in zip(LETTERS, named, strict=False)
    )
    goal = f"Goal: {question['instructions']}\n\n" if question["instructions"] else ""
    user = (
        f"{goal}App: Cua Driver\nTask family: closed-candidate decision\n\nAccessibility tree:\n"
        f"{dumped(state)}\n\nOptions:\n{options}\n\nAnswer with a single letter."
    )
    turns = (
        f"<|im_start|>system\n{CUA_SYSTEM}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    labels = [ref.label(letter) for letter in LETTERS[: len(question["criteria"])]]
    return softmax(ref.logits(ref.ids(turns), labels))


def jemm(ref: Reference, state: Any, question: Question) -> list[float]:
    config = json.loads((ref.folder / "decision_config.json").read_text())
    criteria = question.get("criteria")
    candidates = {
        "choice": lambda: [key if d is None else d for key, d in criteria.items()],
        "score": lambda: criteria,
        "noul": lambda: [
            (criteria or {}).get(s) or w for s, w in (("true", "yes"), ("false", "no"))
        ],
    }[question["type"]]()
    given = state
    if not isinstance(state, str):
        given = json.dumps(state, separators=(",", ":"), ensure_ascii=False)
    labels = [*LETTERS, *"012345"][: len(candidates)]
    lines = "\n".join(
        f"{label}) {' '.join(str(text).split())}"
        for label, text in zip(labels, candidates, strict=True)
    )
    asked = " ".join(str(question["instructions"]).split())
    user = (
        f"State:\n{given.strip()}\n\nQuestion: {asked}\n\n"
        f"Candidates:\n{lines}\n\nAnswer with exactly one candidate label."
    )
    turns = (
        f"<|im_start|>system\n{JEMM_SYSTEM}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    logits = ref.logits(ref.ids(turns), [ref.label(label) for label in labels])
    return softmax(logits, config["temperature"])


def jev_vl(ref: Reference, state: Any, question: Question) -> list[float]:
    kind, criteria = question["type"], question.get("criteria")
    head = json.loads((ref.folder / "adapter_vllm" / "decision_head.json").read_text())
    temperature = json.loads((ref.folder / "calibration.json").read_text())["per_kind"][kind]
    asked = question["instructions"]
    if kind == "choice":
        names = [*LETTERS, *PAIRS][: len(criteria)]
        described = [key if d is None else f"{key}: {dumped(d)}" for key, d in criteria.items()]
        lines = [f"{name}) {text}" for name, text in zip(names, described, strict=True)]
        first = 8
    elif kind == "score":
        names = lines = [*"012345"]
        if criteria != names:
            asked += "".join(f"\n{i}: {level}" for i, level in enumerate(criteria))
        first = 2
    else:
        names = lines = ["false", "true"]
        for side in ("true", "false"):
            if criteria and criteria.get(side) is not None:
                asked += f"\n{side}: {criteria[side]}"
        first = 0
    text = "\n".join(
        [f"[kind] {kind}", f"[state] {dumped(state)}", f"[question] {asked}", "[options]", *lines]
    )
    logits = ref.logits(ref.ids(f"{text}\n[decision]:"), [ref.label(name) for name in names])
    biases = [*head["bias"][first : 24 if kind == "choice" else first + len(names)], *[0.0] * 300]
    return softmax([a + b for a, b in zip(logits, biases, strict=False)], temperature)


def decider(ref: Reference, state: Any, question: Question) -> list[float]:
    config = json.loads((ref.folder / "decider_config.json").read_text())
    temperature = config["temperature_by_type"][question["type"]]
    context = ref.ids(f"Context:\n{state if isinstance(state, str) else dumped(numbered(state))}")
    names = [*LETTERS, *PAIRS]

    def row(asked: str, options: Sequence[str]) -> list[float]:
        labels = [ref.label(name) for name in names[: len(options)]]
        if len(options) <= 10:
            lines = "".join(f"\n({n}) {o}" for n, o in zip(names, options, strict=False))
            piece = ref.ids(f"\n\nQuestion: {asked}\nOptions:{lines}\nAnswer: (")
        else:
            piece = ref.ids(f"\n\nQuestion: {asked}\nOptions:")
            for label, option in zip(labels, options, strict=True):
                piece += [*ref.ids("\n("), label, *ref.ids(f") {option}")]
            piece += ref.ids("\nAnswer: (")
        return softmax(ref.logits(context[:32768] + piece, labels), temperature)

    asked, criteria = question["instructions"], question.get("criteria")
    if question["type"] == "choice":
        return row(asked, [k if d is None else f"{k}: {dumped(d)}" for k, d in criteria.items()])
    if question["type"] == "noul":
        sides = [(w, (criteria or {}).get(s)) for s, w in (("false", "no"), ("true", "yes"))]
        return row(asked, [word if d is None else f"{word}: {d}" for word, d in sides])
    fits = [
        row(f"{asked}\nProposed answer: {level}\nDoes the proposed answer fit?", ["no", "yes"])[1]
        for level in criteria
    ]
    return [fit / math.fsum(fits) for fit in fits]


def numbered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: numbered(item) for key, item in value.items()}
    if isinstance(value, list):
        items = [numbered(item) for item in value]
        if len(items) < 8:
            return items
        return [
            {"_index": i} | (item if isinstance(item, dict) else {"value": item})
            for i, item in enumerate(items)
        ]
    return value


FAMILIES: dict[str, Callable[[Reference, Any, Question], list[float]]] = {
    "open_jev": open_jev,
    "cua_s1": cua_s1,
    "decider": decider,
    "jemm": jemm,
    "jev_vl": jev_vl,
}
ADAPTERS = {
    "open_jev": "package/checkpoint/adapter",
    "cua_s1": "text",
    "decider": None,
    "jemm": ".",
    "jev_vl": "adapter_vllm",
}
"""Where a made folder has its PEFT adapter."""
