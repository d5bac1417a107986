"""The recorded results, and that the documents are made from them and from nothing else."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adjudge.errors import ConfigError
from adjudge.proof import evidence, record
from adjudge.proof.evidence import Build, Device, Gate, commit_of
from adjudge.proof.result import AnyResult, ServeResult, write_result
from adjudge.proof.results_page import page, readme_table
from tests.made_results import engine_result, serve_result

ROOT = Path(__file__).parents[2]
COMMITTED = Build("0.1.0", "c" * 40, False, "d" * 64)


def committed(result: Any, **changes: Any) -> Any:
    return replace(result, evidence=replace(result.evidence, build=COMMITTED, **changes))


@pytest.fixture
def served() -> ServeResult:
    result = replace(serve_result({"r1": (10.0, 12.0), "r2": (20.0, 22.0)}), workload="public-231")
    made: ServeResult = committed(result)
    return made


def test_documents_are_written_from_the_recorded_results() -> None:
    for path, text in record.written(ROOT).items():
        assert path.read_text(encoding="utf-8") == text, "run scripts/results write"


def test_recorded_results_passed_their_gates_on_one_committed_build() -> None:
    for path in (ROOT / "docs" / "results").glob("*.json"):
        found = record.read_machine(path).results
        for result in found:
            record.check(result, found[0])
            assert result.evidence.build.commit


def test_results_are_taken_in_without_bulk(served: ServeResult, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    record.add(path, [served, committed(engine_result(4.0))])
    record.add(path, [committed(engine_result(3.0))])
    one, other = record.read_machine(path).results
    assert [one.kind, other.kind] == ["engine", "serve"]
    assert one.layouts[0].pass_ms == 3.0
    assert other.answers == {}
    assert other.answers_sha256 == served.answers_sha256
    assert other.passes[0].times_ms == {}
    assert other.passes[0].latency_ms == served.passes[0].latency_ms


def test_figures_and_evidence_are_shown(served: ServeResult) -> None:
    machine = served.evidence.machine
    results: list[tuple[Any, list[AnyResult]]] = [
        (machine, [served, committed(engine_result(4.25))])
    ]
    text = page(results)
    for part in (
        machine.name,
        "| closed loop, 1 | 16.00 | 16.00 |",
        "4.25",
        "c" * 12,
        "g ()",
        "| 7.50 | 0.50 |",
    ):
        assert part in text
    short = readme_table(results)
    assert "| m | 16.00 | 16.00 |" in short
    assert "| m | 4.25 | – | – | – | – |" in short


def test_what_must_not_be_recorded_is_refused(served: ServeResult, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    seen = served.evidence
    failed = committed(served, gates=(Gate("g", True), Gate("sum", False)))
    with pytest.raises(ConfigError, match="a gate did not pass: sum"):
        record.add(path, [failed])
    dirty = replace(served, evidence=replace(seen, build=replace(COMMITTED, dirty=True)))
    with pytest.raises(ConfigError, match="uncommitted changes"):
        record.add(path, [dirty])
    unknown = Build("0.1.0", None, None, "e" * 64)
    with pytest.raises(ConfigError, match="none of the last"):
        record.add(path, [replace(served, evidence=replace(seen, build=unknown))])
    device = Device("NVIDIA H200", 143_771, "1.2", "9.0")
    elsewhere = committed(served, machine=replace(seen.machine, devices=(device,)))
    with pytest.raises(ConfigError, match="every machine has a file of its own"):
        record.add(path, [served, elsewhere])
    assert not path.exists()


def test_a_copied_build_is_found_among_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build is measured where there is no repository; its source tells its commit."""
    package = tmp_path / "adjudge"
    package.mkdir()
    monkeypatch.setattr("adjudge.__file__", str(package / "__init__.py"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    sources = []
    for text in ("first", "second"):
        (package / "__init__.py").write_text(f"# {text}\n")
        (package / "other.txt").write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
        sources.append(evidence.build.__wrapped__())
    assert [source.dirty for source in sources] == [False, False]
    assert [commit_of(source.source_sha256) for source in sources] == [
        source.commit for source in sources
    ]
    assert commit_of("0" * 64) is None
    (package / "__init__.py").write_text("# third\n")
    changed = evidence.build.__wrapped__()
    assert changed.dirty
    assert commit_of(changed.source_sha256) is None


def test_the_program_adds_and_refuses(
    served: ServeResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, result = tmp_path / "machine.json", tmp_path / "serve.json"
    write_result(result, served)
    assert record.main(["add", str(file), str(result)]) == 0
    assert msgspec.json.decode(file.read_bytes())["machine"]["num_cpus"] >= 1
    result.write_text("{}")
    assert record.main(["add", str(file), str(result)]) == 2
    assert "a result of kind None" in capsys.readouterr().err
