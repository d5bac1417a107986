from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest

from adjudge.checkpoint.make import write_checkpoint
from adjudge.cli import main
from adjudge.tokenizer import Tokenizer


def test_a_family_and_a_geometry_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert "open_jev" in {row["family"] for row in listed["families"]}
    assert {row["geometry"] for row in listed["geometries"]} >= {"2b", "9b", "27b"}


def test_a_folder_is_described(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", str(demo)]) == 0
    shown = capsys.readouterr().out
    assert "open_jev" in shown
    assert "num_hidden_layers" in shown


def test_convert_writes_a_folder_that_loads(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "merged"
    assert main(["convert", str(demo), str(target)]) == 0
    assert main(["models", str(demo), "--json"]) == 0
    before = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert main(["models", str(target), "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert (before.pop("adapter"), after.pop("adapter")) == ("merged", "none")
    assert before == after
    assert after["card"]["random_weights"]


@pytest.mark.parametrize(
    "family, adapter, said",
    [
        ("open_jev", "auto", "; its adapter is merged into the weights"),
        ("open_jev", "unmerged", "merged when served unless --adapter is unmerged"),
        ("jemm", "auto", "served so unless --adapter is merged"),
        ("decider", "auto", ""),
    ],
)
def test_convert_says_how_the_folder_will_be_served(
    family: str, adapter: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(write_checkpoint(tmp_path / "made", family=family))
    target = str(tmp_path / "target")
    assert main(["convert", folder, target, "--adapter", adapter]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(said or target)
    assert main(["models", target, "--json"]) == 0
    served = json.loads(capsys.readouterr().out)["adapter"]
    assert served == {"": "none"}.get(said, "unmerged" if family == "jemm" else served)
    assert (served == "merged") == ("when served" in said)


def test_convert_refuses_an_existing_folder(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(demo), str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_convert_needs_two_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tmp_path)]) == 2
    assert "adjudge convert FOLDER TARGET" in capsys.readouterr().err


def test_an_unknown_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_dry_run_prints_what_serve_would_run_with(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", f"one={demo}", f"two={demo}", "--dry-run", "--port", "0", "--device", "cpu"]
    assert main([*words, "--max-prompt-tokens", "512", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in found["models"]] == ["one", "two"]
    assert all(model["max_prompt_tokens"] == 512 for model in found["models"])
    assert all(model["memory_gib"]["weights"] > 0 for model in found["models"])
    assert all(model["random_weights"] for model in found["models"])
    assert all(model["memory_gib"]["kept_states"] == 0 for model in found["models"])
    assert main([*words, "--prefix-cache-mib", "512", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert all(model["memory_gib"]["kept_states"] > 0.5 for model in found["models"])
    assert main([*words, "--prefix-cache-mib", str(1 << 40)]) == 2
    assert "prefix_cache_mib" in capsys.readouterr().err
    assert main(words) == 0
    assert "memory_budget_gib" in capsys.readouterr().out


def test_dry_run_refuses_what_serve_would(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), "--dry-run", "--port", "0"]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert main(["serve", str(demo), "--dry-run", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "key" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(demo), "--dry-run", "--port", port]) == 2
        assert port in capsys.readouterr().err
        assert main(["serve", str(tmp_path), "--dry-run", "--port", port]) == 2
        assert str(tmp_path) in capsys.readouterr().err


def dry(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str] | str:
    """What became of each model's adapter, or the message of the refusal."""
    code = main(["serve", *words, "--dry-run", "--json", "--port", "0", "--device", "cpu"])
    shown = capsys.readouterr()
    if code:
        return shown.err
    return {model["name"]: model["adapter"] for model in json.loads(shown.out)["models"]}


def test_a_shared_setting_applies_to_the_models_that_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter without its base beside a Decider, and beside an adapter of another base."""
    whole = {
        family: write_checkpoint(tmp_path / family, family=family)
        for family in ("cua_s1", "jemm", "decider")
    }
    cua, jemm = tmp_path / "cua", tmp_path / "just-jemm"
    shutil.copytree(whole["cua_s1"] / "text", cua / "text")
    jemm.mkdir()
    for file in ("decision_config.json", "adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(whole["jemm"] / file, jemm)
    two = [f"a={cua}", f"b={whole['decider']}"]
    base = ["--base", str(whole["cua_s1"])]
    assert "base" in dry(capsys, *two)
    assert dry(capsys, *two, *base) == {"a": "merged", "b": "none"}
    assert dry(capsys, *two, *base, "--adapter", "unmerged") == {"a": "unmerged", "b": "none"}
    own = ["--base-of", f"a={whole['cua_s1']}", "--base-of", f"c={whole['jemm']}"]
    three = [*two, f"c={jemm}"]
    assert dry(capsys, *three, *own) == {"a": "merged", "b": "none", "c": "unmerged"}
    assert dry(capsys, *three, *base, *own[2:]) == {"a": "merged", "b": "none", "c": "unmerged"}
    deciders = [f"a={whole['decider']}", f"b={whole['decider']}"]
    assert "no model here takes the base" in dry(capsys, *deciders, *base)
    assert "no model here has an adapter" in dry(capsys, *deciders, "--adapter", "unmerged")
    assert "no base belongs to it" in dry(capsys, *two, *base, "--base-of", f"b={cua}")
    assert "no model is called that; the names are a, b" in dry(capsys, *two, "--base-of", "x=y")
    assert "takes NAME=FOLDER" in dry(capsys, *two, "--base-of", "x")


def test_plan_counts_shared_tokens_once(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", str(demo), "--state", "late", "--choice", "Who?", "a", "b", "c"]
    assert main([*words, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    lengths = [len(one["token_ids"]) for one in planned["sequences"]]
    assert planned["prompt_tokens"] == sum(lengths)
    assert planned["saved_tokens"] == planned["prompt_tokens"] - planned["unique_tokens"] > 0
    assert main(words) == 0
    assert f"unique tokens: {planned['unique_tokens']}" in capsys.readouterr().out


def test_ask_answers_from_flags_and_from_a_file(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "request.json"
    question = {"type": "noul", "instructions": "Urgent?"}
    file.write_text(json.dumps({"state": "late", "questions": {"noul": question}}))
    assert main(["ask", str(demo), str(file), "--json", "--device", "cpu"]) == 0
    by_file = json.loads(capsys.readouterr().out)["answers"]
    assert main(["ask", str(demo), "--json", "--device", "cpu", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["answers"] == by_file
    words = ["ask", str(demo), "--state", "late", "--noul", "Urgent?", "--device", "cpu"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answers"] == by_file
    assert main(words) == 0
    assert f"{by_file['noul']['noul']:.4f}" in capsys.readouterr().out


def test_ask_reads_the_tokenizer_once(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, read = Tokenizer.load, []
    monkeypatch.setattr(Tokenizer, "load", lambda path: read.append(path) or load(path))
    assert main(["ask", str(demo), "--state", "s", "--noul", "Late?", "--device", "cpu"]) == 0
    assert len(read) == 1


def test_ask_refuses_a_bad_request_in_one_line_before_it_loads_weights(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("adjudge.executor.Executor.load")
    words = ["ask", str(demo), "--state", "s", "--choice", "Who?", *map(str, range(256))]
    assert main([*words, "--device", "cpu"]) == 2
    assert "256 options" in capsys.readouterr().err.splitlines()[-1]
