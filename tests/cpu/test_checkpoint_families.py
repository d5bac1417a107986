"""The layouts of Cua-S1, Decider, JEMM and JEV-VL: opened, exported, refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from adjudge import Engine, EngineConfig
from adjudge.checkpoint import Checkpoint, open_checkpoint, random_checkpoint, write_export
from adjudge.checkpoint.adapter import merge, merge_rows
from adjudge.checkpoint.base_folder import RANDOM_KEY
from adjudge.checkpoint.contents import Lora
from adjudge.checkpoint.label_rows import SLOTS
from adjudge.checkpoint.made_calibration import made_calibration
from adjudge.checkpoint.make import write_checkpoint
from adjudge.checkpoint.text_config import GEOMETRIES
from adjudge.errors import CheckpointError
from adjudge.families import FAMILIES, family_class, family_for
from adjudge.tokenizer import Tokenizer

ADAPTED = {"cua_s1": 4 + 3 * 4, "jemm": 4 + 5 * 3 + 3 * 4, "jev_vl": 4 + 3 * 3 + 3 * 4 + 1}
"""Family -> weights with a LoRA in a model of three gated delta layers and one of attention."""

ASKED: dict[str, dict[str, Any]] = {
    "which": {"type": "choice", "instructions": "?", "criteria": {"a": None, "b": "bee", "c": ""}},
    "is": {"type": "noul", "instructions": "Does it?"},
    "how": {"type": "score", "instructions": "How?", "criteria": [*"uvwxyz"]},
}
LABEL_ROWS = [name for name in FAMILIES if name != "open_jev"]
LM_HEAD = "lm_head.weight"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("families")
    return {family: write_checkpoint(place / family, family=family) for family in LABEL_ROWS}


def copied(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def read(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    return checkpoint.weights.read(name, device="cpu", dtype=torch.bfloat16)


def read_all(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    weights = checkpoint.weights
    found = {name: read(checkpoint, name) for name in weights.names()}
    for name in weights.deltas():
        assert weights.lora(name) is not None
    weights.finish(set(found), {})
    return found


@pytest.mark.parametrize("family", LABEL_ROWS)
def test_opens_for_its_family(originals: dict[str, Path], family: str) -> None:
    checkpoint = open_checkpoint(originals[family])
    assert checkpoint.head is None
    assert checkpoint.tokenizer_path is not None
    assert checkpoint.card.family == family
    assert checkpoint.card.name == family.replace("_", "-")
    assert checkpoint.card.calibration == made_calibration(family, checkpoint.tokenizer_path)
    tokenizer = Tokenizer.load(checkpoint.tokenizer_path)
    assert family_for(checkpoint.card, tokenizer).card is checkpoint.card
    found = read_all(checkpoint)
    assert (LM_HEAD in found) != checkpoint.text_config.tie_word_embeddings


@pytest.mark.parametrize("family", LABEL_ROWS)
def test_made_weights_say_that_they_are_random(
    originals: dict[str, Path], family: str, tmp_path: Path
) -> None:
    """In the base's config.json, whatever it is the base of, and in an export of it."""
    assert open_checkpoint(originals[family]).card.random_weights
    folder = copied(originals[family], tmp_path)
    path = folder / "config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in values.items() if k != RANDOM_KEY}))
    assert not open_checkpoint(folder).card.random_weights
    if family in ("cua_s1", "jemm"):
        assert open_checkpoint(folder, base=originals[family]).card.random_weights
    export = write_export(open_checkpoint(originals[family]), tmp_path / "export")
    assert open_checkpoint(export).card.random_weights


@pytest.mark.parametrize("family", ADAPTED)
def test_adapter_merged_or_apart(originals: dict[str, Path], family: str) -> None:
    auto, merged, apart = (
        open_checkpoint(originals[family], adapter=mode) for mode in ("auto", "merged", "unmerged")
    )
    uses = [one.weights.adapter_use for one in (auto, merged, apart)]
    assert uses == ["unmerged" if family == "jemm" else "merged", "merged", "unmerged"]
    assert merged.weights.delta_bytes == 0
    assert merged.weights.deltas() == set()
    names = apart.weights.deltas()
    assert len(names) == ADAPTED[family]
    assert auto.weights.deltas() == (names if family == "jemm" else set())
    assert (LM_HEAD in names) == (family == "jev_vl")
    for name in names:
        delta = apart.weights.lora(name)
        assert delta is not None
        whole = read(apart, name).float() + delta.scale * (delta.b @ delta.a)
        assert torch.equal(read(merged, name), whole.bfloat16()), name
    kept = [delta for name in names if (delta := apart.weights.lora(name)) is not None]
    assert apart.weights.delta_bytes == sum(delta.a.nbytes + delta.b.nbytes for delta in kept)


def test_decider_has_no_adapter(originals: dict[str, Path]) -> None:
    with pytest.raises(CheckpointError, match=r"a Decider model .*cannot be kept unmerged"):
        open_checkpoint(originals["decider"], adapter="unmerged")


@pytest.mark.parametrize("family", ["jemm", "jev_vl"])
def test_base_without_an_lm_head_is_refused(
    originals: dict[str, Path], family: str, tmp_path: Path
) -> None:
    """These families are read at rows of the LM head, which an untied base must bring."""
    folder = copied(originals[family], tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors[LM_HEAD]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("mode", ["auto", "merged", "unmerged"])
@pytest.mark.parametrize("family", LABEL_ROWS)
def test_export(originals: dict[str, Path], family: str, mode: Any, tmp_path: Path) -> None:
    """An export holds equal weights, deltas and numbers, and keeps the family's habit."""
    if family_class(family).about.adapter == "none" and mode == "unmerged":
        return
    here = open_checkpoint(originals[family], adapter=mode)
    there = open_checkpoint(write_export(here, tmp_path / "export"), adapter=mode)
    assert there.card == here.card
    assert there.head is None
    assert there.weights.deltas() == here.weights.deltas()
    again = open_checkpoint(originals[family], adapter=mode)
    for name in again.weights.deltas():
        ours, theirs = again.weights.lora(name), there.weights.lora(name)
        assert ours and theirs and ours.scale == theirs.scale
        assert torch.equal(ours.a, theirs.a) and torch.equal(ours.b, theirs.b)
    for name in again.weights.names():
        assert torch.equal(read(again, name), read(there, name)), name
    matrix = LM_HEAD if LM_HEAD in again.weights.names() else "embed_tokens.weight"
    for ids in ([300, 32, 33, 15, 32], range(64), range(64, 70)):
        ours, theirs = (one.weights.rows(matrix, ids, device="cpu") for one in (again, there))
        assert torch.equal(ours, theirs), "label rows are exact to FP32 in an export too"


@pytest.mark.parametrize("mode", ["auto", "merged", "unmerged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_answers_as_its_package_does(family: str, mode: Any, tmp_path: Path) -> None:
    """To the last digit, label mass included: the reference's rows are in it, not rounded ones."""
    if family_class(family).about.adapter == "none" and mode == "unmerged":
        return
    package = write_checkpoint(tmp_path / "package", family=family)
    export = write_export(open_checkpoint(package, adapter=mode), tmp_path / "export")
    config = EngineConfig(device="cpu", dtype="bfloat16", adapter=mode, self_check=False)
    found = []
    for folder in (package, export):
        engine = Engine.load(str(folder), config)
        asked = {q: ASKED[q] for q in ASKED if ASKED[q]["type"] in engine.family.limits.answers}
        request = {"state": "It rains.", "questions": asked, "x_diagnostics": True}
        found.append(engine.decide(request)["answers"])
        engine.close()
    assert found[0] == found[1]


def test_single_rows_are_those_of_the_merged_matrix() -> None:
    """To the bit, whichever are asked for, and with a last block that is not full."""
    drawn = torch.Generator().manual_seed(0)
    stored = torch.randn(200, 48, generator=drawn).bfloat16()
    a, b = torch.randn(16, 48, generator=drawn), torch.randn(200, 16, generator=drawn)
    delta = Lora(a, b, 2.0)
    whole = merge(stored, delta, torch.float32)
    torch.testing.assert_close(whole, stored + 2.0 * (b @ a), rtol=1e-5, atol=1e-5)
    for ids in ([199], [3, 190, 3, 64], range(200)):
        assert torch.equal(merge_rows(stored, delta, ids), whole[list(ids)])


def test_damaged_export(originals: dict[str, Path], tmp_path: Path) -> None:
    """An export must bring its LM head, and nothing that its card does not speak of."""
    export = write_export(open_checkpoint(originals["jemm"], adapter="merged"), tmp_path / "out")
    for stray in ("adapter.safetensors", "head.safetensors"):
        shutil.copy(export / "model.safetensors", export / stray)
        with pytest.raises(CheckpointError, match=rf"{stray}: there, but .*adjudge\.json says"):
            open_checkpoint(export)
        (export / stray).unlink()
    tensors = load_file(export / "model.safetensors")
    del tensors[LM_HEAD]
    save_file(tensors, export / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        open_checkpoint(export)


def test_label_rows_are_float32_and_take_the_delta(originals: dict[str, Path]) -> None:
    apart = open_checkpoint(originals["jev_vl"], adapter="unmerged").weights
    merged = open_checkpoint(originals["jev_vl"]).weights
    delta = apart.lora(LM_HEAD)
    assert delta is not None
    base = apart.read(LM_HEAD, device="cpu", dtype=torch.float32)
    expected = (base + delta.scale * (delta.b @ delta.a))[[32, 33, 15]]
    for weights in (merged, apart):
        rows = weights.rows(LM_HEAD, [32, 33, 15], device="cpu")
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-7)


def test_rows_read_no_more_of_a_delta_than_they_take(
    originals: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Label mass reads an LM head by 64 rows: all of B each time would cost the head's square."""
    weights = open_checkpoint(originals["jev_vl"]).weights
    first = weights.rows(LM_HEAD, range(64), device="cpu")
    read: list[int] = []

    def counting(convert: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def counted(*args: Any, **options: Any) -> torch.Tensor:
            made = convert(*args, **options)
            read.append(made.numel())
            return made

        return counted

    for method in ("to", "float"):
        monkeypatch.setattr(torch.Tensor, method, counting(getattr(torch.Tensor, method)))
    again = weights.rows(LM_HEAD, range(64), device="cpu")
    monkeypatch.undo()
    assert torch.equal(again, first)
    assert max(read) <= first.numel()


@pytest.mark.parametrize("family", ["cua_s1", "jemm"])
def test_adapter_apart_from_its_base(
    originals: dict[str, Path], family: str, tmp_path: Path
) -> None:
    folder = copied(originals[family], tmp_path)
    base = tmp_path / "base"
    base.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).rename(base / name)
    with pytest.raises(CheckpointError, match=r"without its base model; give .* Qwen/Qwen3\.\d"):
        open_checkpoint(folder)
    with pytest.raises(CheckpointError, match="absent: not a folder"):
        open_checkpoint(folder, base=tmp_path / "absent")
    expected = read_all(open_checkpoint(originals[family]))
    for name, tensor in read_all(open_checkpoint(folder, base=base)).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("family", ["decider", "jev_vl"])
def test_whole_models_take_no_base(originals: dict[str, Path], family: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="brings all its weights; no base"):
        open_checkpoint(originals[family], base=tmp_path)


REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("decider", "decider_config.json", {"isolated_levels": False}, "isolated_levels is False"),
    ("decider", "decider_config.json", {"isolated_levels": ...}, "isolated_levels is missing"),
    ("decider", "decider_config.json", {"layout": "chat"}, "layout is 'chat'"),
    ("decider", "decider_config.json", {"schema_first": True}, "schema_first is True"),
    ("decider", "decider_config.json", {"neutralize_none": True}, "neutralize_none is True"),
    ("decider", "decider_config.json", {"max_options": 26}, "max_options is 26"),
    (
        "decider",
        "decider_config.json",
        {"temperature_by_type": {"choice": 0}},
        "temperature_by_type: choice is 0",
    ),
    (
        "decider",
        "decider_config.json",
        {"temperature_by_type": ..., "temperature": ...},
        "temperature is missing",
    ),
    ("jemm", "decision_config.json", {"temperature": ...}, "temperature is missing"),
    ("jemm", "decision_config.json", {"temperature": -1}, "temperature is -1"),
    ("jemm", "adapter_config.json", {"r": 8}, "lora_A.weight: shape [16, "),
    ("cua_s1", "text/adapter_config.json", {"peft_type": "IA3"}, "peft_type is 'IA3'"),
    ("cua_s1", "text/adapter_config.json", {"init_lora_weights": "pissa"}, "init_lora_weights is"),
    ("jev_vl", "calibration.json", {"per_kind": {"noul": 1, "score": 1}}, "choice is missing"),
    ("jev_vl", "calibration.json", {"per_kind": ...}, "per_kind is missing"),
    (
        "jev_vl",
        "adapter_vllm/decision_head.json",
        {"bias": [0.0] * 23},
        "bias has 23 numbers; expected 24",
    ),
    (
        "jev_vl",
        "adapter_vllm/decision_head.json",
        {"verbalizer_ids": [1.5] * 24},
        "verbalizer_ids is",
    ),
    (
        "jev_vl",
        "adapter_vllm/decision_head.json",
        {"verbalizer_ids": list(range(25))},
        "verbalizer_ids has 25 numbers; expected 24",
    ),
    (
        "jev_vl",
        "adapter_vllm/decision_head.json",
        {"slots": {"ranges": {"noul": [0, 2], "score": [2, 7], "choice": [7, 24]}}},
        "slots: ranges is",
    ),
    (
        "jev_vl",
        "adapter_vllm/decision_head.json",
        {"slots": {"num_slots": 30, "ranges": SLOTS}},
        "slots: num_slots is 30; expected None or 24",
    ),
]


@pytest.mark.parametrize(
    "family, file, changes, message", REFUSED, ids=[message for *_, message in REFUSED]
)
def test_refusals(
    originals: dict[str, Path],
    family: str,
    file: str,
    changes: dict[str, Any],
    message: str,
    tmp_path: Path,
) -> None:
    folder = copied(originals[family], tmp_path)
    values = json.loads((folder / file).read_text()) | changes
    (folder / file).write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    assert message in caught.value.message


def test_temperature_of_a_kind_without_its_own(originals: dict[str, Path], tmp_path: Path) -> None:
    folder = copied(originals["decider"], tmp_path)
    path = folder / "decider_config.json"
    values = json.loads(path.read_text()) | {"temperature_by_type": {"noul": 2}}
    path.write_text(json.dumps(values | {"temperature": 1.145}))
    found = open_checkpoint(folder).card.calibration["temperature_by_type"]
    assert found == {"choice": 1.145, "noul": 2.0, "score": 1.145}


DESCRIBED = {
    "cua_s1": "text/adapter_config.json",
    "decider": "decider_config.json",
    "jemm": "decision_config.json",
    "jev_vl": "calibration.json",
}
"""Family -> the file of its release whose download tells the revision."""


@pytest.mark.parametrize("place", ["only", "second"])
@pytest.mark.parametrize("family", LABEL_ROWS)
def test_release_and_revision(
    originals: dict[str, Path],
    family: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A released geometry answers to the released name; a download tells its revision. It may be
    one of several releases."""
    folder = copied(originals[family], tmp_path)
    config = open_checkpoint(folder).text_config
    about = family_class(family).about
    release = about.releases[-1]
    if place == "second":
        larger = replace(release, name="house/larger", geometry="9b", base_revision="c" * 40)
        about = replace(about, releases=(larger, *about.releases))
        monkeypatch.setattr(family_class(family), "about", about)
    monkeypatch.setitem(GEOMETRIES, release.geometry, config)
    record = folder / ".cache/huggingface/download" / f"{DESCRIBED[family]}.metadata"
    record.parent.mkdir(parents=True)
    record.write_text(f"{'ab' * 20}\netag\n")
    card = open_checkpoint(folder).card
    assert (card.name, card.base) == (release.name, release.base)
    assert card.base_revision == release.base_revision
    assert card.revision == "ab" * 20
    assert card.aliases == (card.name.rpartition("/")[2],)
    record.write_text("not a commit\n")
    assert open_checkpoint(folder).card.revision is None


def test_made_checkpoints_have_the_layouts_they_say(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no layout 'merged' of a family 'jemm'"):
        write_checkpoint(tmp_path / "x", family="jemm", layout="merged")
    with pytest.raises(CheckpointError, match="of a family 'tarot'"):
        write_checkpoint(tmp_path / "x", family="tarot")
    folder = write_checkpoint(tmp_path / "y", family="jemm", layout="adjudge")
    assert (folder / "adapter.safetensors").is_file()
    assert open_checkpoint(folder).card.random_weights


@pytest.mark.parametrize("family", FAMILIES)
def test_random_checkpoint_of_a_family(originals: dict[str, Path], family: str) -> None:
    tokenizer = originals["decider"] / "tokenizer.json"
    made = random_checkpoint("0.8b", family=family, num_layers=4, tokenizer=tokenizer)
    assert (made.head is None) == (family != "open_jev")
    assert family_for(made.card, Tokenizer.load(tokenizer)).card == made.card
    name = "layers.0.mlp.down_proj.weight"
    rows = made.weights.rows(name, [3, 1], device="cpu")
    whole = made.weights.read(name, device="cpu", dtype=torch.float32)
    assert torch.equal(rows, whole[[3, 1]])


def test_random_checkpoint_of_no_family() -> None:
    with pytest.raises(CheckpointError, match="no family 'tarot'; known: open_jev, "):
        random_checkpoint("0.8b", family="tarot")
