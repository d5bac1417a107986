"""The project's own results: docs/results/*.json, one file per machine, and what is made of them.

  scripts/results add docs/results/h200.json serve.json engine.json check.json
  scripts/results write

`add` takes result files into a machine's file, without single times and answers (their digest
stays), each in the place of an older one of the same kind, model and work. `write` makes
docs/results.md and the table in README.md from all of them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from adjudge.errors import ConfigError
from adjudge.proof.evidence import COMMITS, Machine, commit_of
from adjudge.proof.recorded import read_result, result_from
from adjudge.proof.result import AnyResult, ServeResult
from adjudge.proof.results_page import page, readme_table

BEGIN, END = "<!-- results: begin -->\n", "<!-- results: end -->\n"


@dataclass(frozen=True, slots=True)
class MachineFile:
    """Results of one machine, all of whose gates were passed."""

    machine: Machine
    results: tuple[AnyResult, ...]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True)
    adding = parts.add_parser("add", help="take results into a machine's file")
    adding.add_argument("file", type=Path, metavar="MACHINE.json")
    adding.add_argument("results", type=Path, nargs="+", metavar="RESULT.json")
    parts.add_parser("write", help="write docs/results.md and the table in README.md")
    arguments = parser.parse_args(argv)
    root = Path(__file__).parents[2]
    try:
        if arguments.part == "add":
            add(arguments.file, [read_result(path) for path in arguments.results])
        else:
            for path, text in written(root).items():
                path.write_text(text, encoding="utf-8")
    except ConfigError as error:
        print(f"scripts/results: {error.message}", file=sys.stderr)
        return 2
    return 0


def add(path: Path, results: Sequence[AnyResult]) -> None:
    """Takes results into a machine's file, which is made if it is not there.

    Raises ConfigError: another machine's result, a failed gate, or a build with changes.
    """
    kept = list(read_machine(path).results) if path.is_file() else []
    for result in map(_with_commit, results):
        check(result, kept[0] if kept else results[0])
        slim = _slim(result)
        kept = [*(one for one in kept if _work(one) != _work(slim)), slim]
    kept.sort(key=_work)
    body = msgspec.json.encode(MachineFile(kept[0].evidence.machine, tuple(kept)))
    path.write_bytes(msgspec.json.format(body, indent=1) + b"\n")


def check(result: AnyResult, first: AnyResult) -> None:
    """Raises ConfigError if a result must not stand beside `first` among our own."""
    evidence, what = result.evidence, f"{result.kind} of {result.model}"
    failed = [gate.name for gate in evidence.gates if not gate.passed]
    if failed:
        raise ConfigError(f"{what}: a gate did not pass: {', '.join(failed)}")
    if evidence.build.dirty:
        raise ConfigError(f"{what}: the build had uncommitted changes; commit, and measure again")
    if evidence.machine.name != first.evidence.machine.name:
        raise ConfigError(
            f"{what}: measured on {evidence.machine.name}, and the file is of "
            f"{first.evidence.machine.name}; every machine has a file of its own"
        )


def read_machine(path: Path) -> MachineFile:
    """A machine's file. Raises ConfigError."""
    try:
        whole = msgspec.json.decode(path.read_bytes())
        machine = msgspec.convert(whole["machine"], Machine)
        return MachineFile(machine, tuple(result_from(path, one) for one in whole["results"]))
    except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a file of results: {error}") from None


def written(root: Path) -> dict[Path, str]:
    """Path -> text of everything that is made from the results. Raises ConfigError."""
    files = [read_machine(path) for path in sorted((root / "docs" / "results").glob("*.json"))]
    results = [(one.machine, one.results) for one in files]
    readme = root / "README.md"
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"{readme}: the lines {BEGIN.strip()} and {END.strip()} are missing")
    return {
        root / "docs" / "results.md": page(results),
        readme: f"{before}{begin}{readme_table(results)}{end}{after}",
    }


def _slim(result: AnyResult) -> AnyResult:
    """The result without single times and answers."""
    if not isinstance(result, ServeResult):
        return result
    passes = tuple(replace(one, times_ms={}) for one in result.passes)
    return replace(result, answers={}, passes=passes)


def _with_commit(result: AnyResult) -> AnyResult:
    """The result with its build's commit, found by the build's digest where there was no
    repository when it ran. Raises ConfigError if no commit is that build."""
    measured = result.evidence.build
    if measured.commit is not None:
        return result
    commit = commit_of(measured.source_sha256)
    if commit is None:
        raise ConfigError(
            f"{result.kind} of {result.model}: none of the last {COMMITS} commits has the measured "
            f"build's source ({measured.source_sha256[:12]}); commit it, and measure again"
        )
    build = replace(measured, commit=commit, dirty=False)
    return replace(result, evidence=replace(result.evidence, build=build))


def _work(result: AnyResult) -> tuple[str, ...]:
    """What a result is about: a newer one of the same work takes its place."""
    model = result.evidence.model
    adapter = str(model.get("adapter", ""))
    about = result.workload if isinstance(result, ServeResult) else getattr(result, "dtype", "")
    return (result.kind, result.model, adapter, str(about))


if __name__ == "__main__":
    sys.exit(main())
