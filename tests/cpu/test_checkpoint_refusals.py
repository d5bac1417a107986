"""One damage at a time: each ends in a CheckpointError that names the file and the key."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adjudge.checkpoint import Checkpoint, open_checkpoint
from adjudge.checkpoint.make import Layout, write_checkpoint
from adjudge.checkpoint.safetensors_file import SafetensorsFile
from adjudge.errors import CheckpointError

INSIDE = Path("package") / "checkpoint"
ADAPTER = INSIDE / "adapter"
LORA = "base_model.model.layers.3.self_attn.q_proj.lora_A.weight"
BASE = "model.language_model.layers.0."


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[Layout, Path]:
    place = tmp_path_factory.mktemp("originals")
    layouts: tuple[Layout, ...] = ("package", "merged", "adjudge")
    return {layout: write_checkpoint(place / layout, layout=layout) for layout in layouts}


@pytest.fixture
def copy(originals: dict[Layout, Path], tmp_path: Path) -> Callable[[Layout], Path]:
    def copied(layout: Layout) -> Path:
        return Path(shutil.copytree(originals[layout], tmp_path / "copy"))

    return copied


def read_all(checkpoint: Checkpoint) -> None:
    for name in checkpoint.weights.names():
        checkpoint.weights.read(name, device="cpu", dtype=torch.bfloat16)
    checkpoint.weights.finish(checkpoint.weights.names(), {})


def refused(folder: Path, *fragments: str, **options: Any) -> None:
    """Opening or reading fails; the message holds the fragments in their order."""
    with pytest.raises(CheckpointError) as caught:
        read_all(open_checkpoint(folder, **options))
    pattern = ".*".join(map(re.escape, fragments))
    assert re.search(pattern, caught.value.message, re.DOTALL), caught.value.message


Tensors = dict[str, torch.Tensor]


def edit_tensors(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def edit_json(path: Path, **changes: Any) -> None:
    """Changed fields; one that is changed to `...` is removed."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))


def test_the_originals_open(originals: dict[Layout, Path]) -> None:
    for folder in originals.values():
        read_all(open_checkpoint(folder))


WEIGHTS: list[tuple[Callable[[Tensors], object], str]] = [
    (lambda t: t.pop(BASE + "mlp.up_proj.weight"), "layers.0.mlp.up_proj.weight is missing"),
    (lambda t: t.pop("model.language_model.embed_tokens.weight"), "embed_tokens.weight is missing"),
    (lambda t: t.update({BASE + "mlp.bias": torch.ones(1)}), BASE + "mlp.bias: not a tensor"),
    (lambda t: t.update({"rotary.inv_freq": torch.ones(1)}), "rotary.inv_freq: not a tensor"),
    (
        lambda t: t.update({BASE + "mlp.up_proj.weight": torch.ones(128, 256)}),
        BASE + "mlp.up_proj.weight: shape [128, 256]; expected [256, 128]",
    ),
    (
        lambda t: t.update({"layers.0.mlp.up_proj.weight": torch.ones(256, 128)}),
        "layers.0.mlp.up_proj.weight is also",
    ),
    (
        lambda t: t.update({BASE + "linear_attn.dt_bias": torch.ones(4, dtype=torch.float16)}),
        BASE + "linear_attn.dt_bias: dtype F16; needs BF16 or F32",
    ),
    (
        lambda t: t[BASE + "linear_attn.conv1d.weight"][3, 0].fill_(torch.nan),
        BASE + "linear_attn.conv1d.weight: holds a value that is not finite",
    ),
    (
        lambda t: t[BASE + "linear_attn.in_proj_qkv.weight"][-1, -1:].fill_(torch.inf),
        BASE + "linear_attn.in_proj_qkv.weight: holds a value that is not finite",
    ),
    (
        lambda t: t["model.language_model.embed_tokens.weight"][9, :1].fill_(-torch.inf),
        "embed_tokens.weight: holds a value that is not finite",
    ),
]


@pytest.mark.parametrize("change, message", WEIGHTS, ids=[message for _, message in WEIGHTS])
def test_base_weights(
    copy: Callable[[Layout], Path], change: Callable[[Tensors], object], message: str
) -> None:
    folder = copy("package")
    edit_tensors(folder / "model.safetensors", change)
    refused(folder, "model.safetensors: ", message)


def test_vision_and_draft_tensors_may_be_absent_or_strange(
    copy: Callable[[Layout], Path],
) -> None:
    folder = copy("package")

    def change(tensors: Tensors) -> None:
        del tensors["mtp.norm.weight"]
        tensors["model.visual.anything"] = torch.full((3,), torch.nan, dtype=torch.float16)
        tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"].clone()

    edit_tensors(folder / "model.safetensors", change)
    read_all(open_checkpoint(folder))


DELTAS: list[tuple[Callable[[Tensors], object], str]] = [
    (lambda t: t.pop(LORA), "lora_A of layers.3.self_attn.q_proj.weight is missing"),
    (
        lambda t: [t.pop(key) for key in list(t) if "q_proj" in key],
        "the LoRA pair of layers.3.self_attn.q_proj.weight is missing",
    ),
    (
        lambda t: t.update({LORA: torch.ones(4, 128)}),
        f"{LORA}: shape [4, 128]; expected [8, 128]",
    ),
    (
        lambda t: t.update({LORA: torch.ones(8, 128, dtype=torch.int32)}),
        f"{LORA}: dtype I32; needs F32 or BF16",
    ),
    (lambda t: t[LORA][0, :1].fill_(torch.nan), f"{LORA}: holds a value that is not finite"),
    (lambda t: t.update({"extra": torch.ones(1)}), "extra: not lora_A or lora_B"),
    (
        lambda t: t.update({"layers.9.mlp.up_proj.lora_A.weight": torch.ones(8, 128)}),
        "layers.9.mlp.up_proj.lora_A.weight: the model has no matrix layers.9.mlp.up_proj.weight",
    ),
    (
        lambda t: t.update({"layers.3.self_attn.q_proj.lora_A.weight": torch.ones(8, 128)}),
        "lora_A of layers.3.self_attn.q_proj.weight is there twice",
    ),
    (
        lambda t: t.update(
            {
                "layers.3.mlp.up_proj.lora_A.weight": torch.ones(8, 128),
                "layers.3.mlp.up_proj.lora_B.weight": torch.ones(256, 8),
            }
        ),
        "layers.3.mlp.up_proj.lora_A.weight: not among target_modules",
    ),
]


def test_the_file_at_fault_is_named_where_a_delta_overflows(
    copy: Callable[[Layout], Path],
) -> None:
    folder, name = copy("package"), "linear_attn.in_proj_qkv"
    keys = [f"base_model.model.layers.0.{name}.lora_{side}.weight" for side in "AB"]
    adapter, base = folder / ADAPTER / "adapter_model.safetensors", folder / "model.safetensors"
    edit_tensors(adapter, lambda tensors: [tensors[key].fill_(1e20) for key in keys])
    said = f"the LoRA makes {BASE}{name}.weight of {base} a value that is not finite"
    refused(folder, f"{adapter}: base_model.model.layers.0.{name}.lora_", said)
    weights = open_checkpoint(folder).weights
    with pytest.raises(CheckpointError, match="the LoRA makes"):
        weights.rows(f"layers.0.{name}.weight", range(8), device="cpu")
    edit_tensors(base, lambda tensors: tensors[f"{BASE}{name}.weight"][0, :1].fill_(torch.inf))
    refused(folder, f"{base}: {BASE}{name}.weight: holds a value that is not finite")


@pytest.mark.parametrize("change, message", DELTAS, ids=[message for _, message in DELTAS])
def test_adapter_tensors(
    copy: Callable[[Layout], Path], change: Callable[[Tensors], object], message: str
) -> None:
    folder = copy("package")
    edit_tensors(folder / ADAPTER / "adapter_model.safetensors", change)
    refused(folder, "adapter_model.safetensors: ", message)


@pytest.mark.parametrize(
    "key, value",
    [
        ("peft_type", "LOHA"),
        ("r", 0),
        ("r", ...),
        ("lora_alpha", -1),
        ("use_dora", True),
        ("use_rslora", True),
        ("bias", "all"),
        ("modules_to_save", ["lm_head"]),
        ("rank_pattern", {"q_proj": 4}),
        ("target_modules", ["nothing"]),
        ("target_modules", 7),
        ("target_modules", "("),
    ],
)
def test_adapter_options(copy: Callable[[Layout], Path], key: str, value: Any) -> None:
    folder = copy("package")
    edit_json(folder / ADAPTER / "adapter_config.json", **{key: value})
    refused(folder, "adapter_config.json: ", f"{key} is ", "; expected ")


def test_target_pattern_is_accepted(copy: Callable[[Layout], Path]) -> None:
    folder = copy("package")
    pattern = r"model\.language_model\..*\.([qkvo]_proj|in_proj_qkv|out_proj)"
    edit_json(folder / ADAPTER / "adapter_config.json", target_modules=pattern)
    read_all(open_checkpoint(folder))


@pytest.mark.parametrize(
    "file, key, value",
    [
        ("model.json", "method", "mean_of_candidates"),
        ("model.json", "method", ...),
        ("model.json", "lora_rank", 16),
        ("model.json", "max_length", 16_385),
        ("model.json", "max_length", True),
        ("model.json", "model_id", ""),
        ("model.json", "revision", None),
        ("temperature.json", "temperature", 0),
        ("temperature.json", "temperature", 10**400),
        ("temperature.json", "temperature", "1.5"),
        ("temperature.json", "temperature", ...),
    ],
)
def test_package_fields(copy: Callable[[Layout], Path], file: str, key: str, value: Any) -> None:
    folder = copy("package")
    edit_json(folder / INSIDE / file, **{key: value})
    refused(folder, f"{file}: {key} is ", "; expected ")


class Command:
    """What a hostile pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


HEADS: list[tuple[Any, str]] = [
    ({"weight": torch.ones(1, 128), "bias": Command()}, "unsafe or broken pickle"),
    (torch.nn.Linear(128, 1), "unsafe or broken pickle"),
    ([torch.ones(1, 128)], "holds a list, not a state dict"),
    ({"weight": torch.ones(1, 128)}, "bias is missing"),
    ({"weight": torch.ones(1, 64), "bias": torch.ones(1)}, "weight: shape [1, 64]; expected"),
    (
        {"weight": torch.ones(1, 128), "bias": torch.ones(1), "scale": torch.ones(1)},
        "scale: not a tensor of a scoring head",
    ),
    ({"weight": torch.ones(1, 128), "bias": 1.0}, "bias is a float, not a tensor"),
    ({"weight": torch.ones(1, 128).half(), "bias": torch.ones(1)}, "weight: dtype torch.float16"),
    ({"weight": torch.ones(1, 128) / 0, "bias": torch.ones(1)}, "weight: holds a value that"),
]


@pytest.mark.parametrize("content, message", HEADS, ids=[message for _, message in HEADS])
def test_head_file(
    copy: Callable[[Layout], Path],
    content: Any,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = copy("package")
    torch.save(content, folder / INSIDE / "head.pt")
    monkeypatch.chdir(tmp_path)
    refused(folder, "head.pt: ", message)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"junk", b"not a torch file", b"PK\x03\x04 cut short"])
def test_broken_head_file(copy: Callable[[Layout], Path], content: bytes) -> None:
    folder = copy("package")
    (folder / INSIDE / "head.pt").write_bytes(content)
    refused(folder, "head.pt: ")


@pytest.mark.parametrize(
    "key, value",
    [
        ("format", "open-jev-text-merged/2"),
        ("chat_prefix", "<|im_start|>user"),
        ("chat_suffix", ""),
        ("temperature", -1.0),
        ("max_length", 0),
        ("model_id", ...),
        ("base_revision", ...),
        ("checkpoint_revision", 3),
        ("head_bias", "0"),
        ("head_weight", [0.0] * 127),
        ("head_weight", [0.0] * 127 + ["x"]),
        ("head_weight", [0.0] * 127 + [1e39]),
        ("head_weight", ...),
    ],
)
def test_merged_export_fields(copy: Callable[[Layout], Path], key: str, value: Any) -> None:
    folder = copy("merged")
    edit_json(folder / "open_jev_export.json", **{key: value})
    refused(folder, f"open_jev_export.json: {key}")


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"temperature": NaN}', "NaN is not a JSON number"),
        ('{"temperature": 1, "temperature": 2}', "key 'temperature' appears twice"),
        ("[1]", "holds a JSON list"),
        ("{", "not valid JSON"),
        ("[" * 99_999, "not valid JSON"),
        ("\ud800", "not valid JSON"),
    ],
)
def test_json_is_strict(copy: Callable[[Layout], Path], text: str, message: str) -> None:
    folder = copy("package")
    content = text.encode("utf-8", "surrogatepass")
    (folder / INSIDE / "temperature.json").write_bytes(content)
    refused(folder, "temperature.json: ", message)


def test_our_export(copy: Callable[[Layout], Path]) -> None:
    folder = copy("adjudge")
    card = json.loads((folder / "adjudge.json").read_text())["card"]
    for changes, message in [
        ({"format": "adjudge-checkpoint/2"}, "adjudge.json: format is"),
        ({"card": card | {"family": "tarot"}}, "adjudge.json: card: family is 'tarot'"),
        ({"card": card | {"colour": "red"}}, "adjudge.json: card: colour is 'red'"),
        ({"card": {"name": "x"}}, "adjudge.json: card: aliases is missing"),
        ({"adapter": {"rank": 8, "scale": 2.0}}, "adapter.safetensors: cannot be read"),
    ]:
        original = (folder / "adjudge.json").read_text()
        edit_json(folder / "adjudge.json", **changes)
        refused(folder, message)
        (folder / "adjudge.json").write_text(original)
    edit_tensors(folder / "head.safetensors", lambda t: t.update({"bias": torch.ones(2)}))
    refused(folder, "head.safetensors: bias: shape [2]; expected [1]")


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda text: b"", "cannot be read"),
        (lambda text: text[:4], "not a safetensors file"),
        (lambda text: text[:100], "not a safetensors file"),
        (lambda text: text[:-2], "cut short"),
        (lambda text: text + b"\0\0", "was not written whole"),
        (lambda text: text.replace(b'"BF16"', b'"BF17"', 1), "malformed header"),
        (lambda text: text.replace(b'"shape":[', b'"shape":[2,', 1), ""),
        (lambda text: text[:8] + b"[" + text[9:], "not valid JSON"),
    ],
)
def test_damaged_weight_file(
    copy: Callable[[Layout], Path], damage: Callable[[bytes], bytes], message: str
) -> None:
    folder = copy("adjudge")
    path = folder / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    refused(folder, "model.safetensors", message)


@pytest.mark.parametrize(
    "one, two, message",
    [
        ({"shape": [2], "data_offsets": [0, 4]}, {"shape": [2], "data_offsets": [4, 8]}, None),
        (
            {"shape": [2], "data_offsets": [0, 4]},
            {"shape": [3], "data_offsets": [2, 8]},
            "overlaps",
        ),
        ({"shape": [1], "data_offsets": [0, 2]}, {"shape": [2], "data_offsets": [4, 8]}, "a hole"),
        (
            {"shape": [3], "data_offsets": [0, 4]},
            {"shape": [2], "data_offsets": [4, 8]},
            "disagree",
        ),
        (
            {"shape": [-2], "data_offsets": [4, 0]},
            {"shape": [4], "data_offsets": [0, 8]},
            "disagree",
        ),
        ({"shape": [2]}, {"shape": [4], "data_offsets": [0, 8]}, "malformed header"),
    ],
)
def test_headers_of_a_weight_file(
    tmp_path: Path, one: dict[str, Any], two: dict[str, Any], message: str | None
) -> None:
    """Eight bytes of data, described by two BF16 tensors."""
    header = json.dumps({"one": {"dtype": "BF16"} | one, "two": {"dtype": "BF16"} | two}).encode()
    path = tmp_path / "made.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    if message is None:
        assert set(SafetensorsFile(path).entries) == {"one", "two"}
        return
    with pytest.raises(CheckpointError, match=rf"made\.safetensors: (one|two): .*{message}"):
        SafetensorsFile(path)


def test_shards_and_index_agree(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "sharded", layout="merged", shard_bytes=300_000)
    index = folder / "model.safetensors.index.json"
    original = json.loads(index.read_text())
    weight_map: dict[str, str] = original["weight_map"]
    key, shard = list(weight_map.items())[-1]
    other = next(name for name in weight_map.values() if name != shard)
    for changed, message in [
        ({k: v for k, v in weight_map.items() if k != key}, f"{shard}: {key}: in the shard only"),
        (weight_map | {key: other}, f"{key}: in"),
        (weight_map | {"ghost": shard}, f"{shard}: ghost: in the index but not in the shard"),
        (weight_map | {key: "../elsewhere.safetensors"}, f"{key}: '../elsewhere.safetensors' is"),
        (weight_map | {key: "absent.safetensors"}, "absent.safetensors: cannot be read"),
        ({}, "weight_map is missing or empty"),
    ]:
        index.write_text(json.dumps({"weight_map": changed}))
        refused(folder, message)
    index.write_text(json.dumps(original))
    read_all(open_checkpoint(folder))
    shutil.copy(folder / shard, folder / "model.safetensors")
    refused(folder, "holds both model.safetensors and model.safetensors.index.json")


def test_missing_files(originals: dict[Layout, Path], copy: Callable[[Layout], Path]) -> None:
    folder = copy("package")
    for file in (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        INSIDE / "head.pt",
        INSIDE / "temperature.json",
        ADAPTER / "adapter_config.json",
        ADAPTER / "adapter_model.safetensors",
    ):
        kept = (folder / file).read_bytes()
        (folder / file).unlink()
        refused(folder, Path(file).name if file != "config.json" else "without its base model")
        (folder / file).write_bytes(kept)
    read_all(open_checkpoint(folder))


def test_layout_is_told_by_files(copy: Callable[[Layout], Path], tmp_path: Path) -> None:
    refused(tmp_path / "absent", "there is no such model folder")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "no known layout; known layouts: ")
    folder = copy("package")
    shutil.move(folder / INSIDE, tmp_path / "moved")
    refused(folder, "a plain model without a decision head")
    refused(tmp_path / "moved", "without its base model", "adjudge/random-base")
    (folder / "adjudge.json").write_text("{}")
    (folder / "open_jev_export.json").write_text("{}")
    refused(folder, "ambiguous: it holds adjudge.json and open_jev_export.json")


@pytest.mark.parametrize("layout", ["merged", "adjudge"])
def test_what_is_merged_stays_merged(
    originals: dict[Layout, Path], layout: Layout, tmp_path: Path
) -> None:
    refused(originals[layout], "it cannot be kept unmerged", adapter="unmerged")
    refused(originals[layout], "brings all its weights", base=tmp_path)


def test_base_of_another_revision(copy: Callable[[Layout], Path], tmp_path: Path) -> None:
    """A download cache names the revision in the path; a base that is another one is refused."""
    folder = copy("package")
    base = tmp_path / "snapshots" / ("1" * 40)
    shutil.copytree(folder, base, ignore=shutil.ignore_patterns("package"))
    refused(folder / INSIDE, f"needs revision {'0' * 40}", "1" * 40, base=base)
    right = base.with_name("0" * 40)
    base.rename(right)
    read_all(open_checkpoint(folder / INSIDE, base=right))


def test_base_of_another_width(copy: Callable[[Layout], Path]) -> None:
    folder = copy("package")
    values = json.loads((folder / "config.json").read_text())
    values["text_config"]["hidden_size"] = 256
    (folder / "config.json").write_text(json.dumps(values))
    refused(folder, "adapter_model.safetensors: ", "expected [8, 256]")
