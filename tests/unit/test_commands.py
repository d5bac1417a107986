from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import pytest

from adjudge.cli import COMMANDS, main
from adjudge.commands.request import add_request_flags, read_request
from adjudge.commands.serve import named_configs
from adjudge.commands.table import table
from adjudge.config import EngineConfig
from adjudge.errors import ConfigError, InvalidRequest, UsageError
from adjudge.progress import Reporter


def request(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    parser.add_argument("request", nargs="?")
    add_request_flags(parser)
    return read_request(parser.parse_args(arguments))


def test_flags_make_a_request() -> None:
    made = request(
        *("--state", "late", "--noul", "Urgent?", "--noul", "Lost?"),
        *("--choice", "Team?", "billing", "shipping=parcels = boxes"),
        *("--score", "Upset?", "calm", "furious"),
    )
    assert made == {
        "state": "late",
        "questions": {
            "noul": {"type": "noul", "instructions": "Urgent?"},
            "noul_2": {"type": "noul", "instructions": "Lost?"},
            "choice": {
                "type": "choice",
                "instructions": "Team?",
                "criteria": {"billing": None, "shipping": "parcels = boxes"},
            },
            "score": {"type": "score", "instructions": "Upset?", "criteria": ["calm", "furious"]},
        },
    }


def test_a_flag_names_the_model() -> None:
    assert request("--state", "s", "--noul", "q", "--to", "fast")["model"] == "fast"
    with pytest.raises(ConfigError, match=r"a request file and .*--to"):
        request("request.json", "--to", "fast")


def test_file_is_read_as_a_request(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text('{"state": "é", "questions": {}}', encoding="utf-8")
    assert request(str(file)) == {"state": "é", "questions": {}}


def test_standard_input_is_read_as_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"state": 1}')))
    assert request("-") == {"state": 1}


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--state", "s"], "a state without questions"),
        (["--noul", "q"], "questions without a state"),
        (["r.json", "--state", "s", "--noul", "q"], "give one"),
        (["--state", "s", "--choice", "q"], "has no options"),
        (["--state", "s", "--choice", "q", "a", "a=b"], "an option twice"),
        (["--state", "s", "--score", "q"], "has no levels"),
        (["/no/such.json"], "/no/such.json: cannot be read"),
    ],
)
def test_flags_that_make_no_request_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        request(*arguments)


@pytest.mark.parametrize("body", [b"", b" \r\n"])
def test_nothing_on_standard_input_is_no_request(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body)))
    with pytest.raises(ConfigError, match="no request; give a file"):
        request()
    with pytest.raises(ConfigError, match="standard input: empty"):
        request("-")


def test_an_empty_request_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.touch()
    with pytest.raises(ConfigError, match=r"request\.json: empty"):
        request(str(file))


@pytest.mark.parametrize("command", ["ask", "plan"])
def test_a_folder_that_is_not_there_is_the_first_mistake(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
    flag = [] if command == "ask" else ["--model"]
    assert main([command, *flag, "/no/such"]) == 2
    assert capsys.readouterr().err == (
        f"adjudge {command}: /no/such: there is no such model folder\n"
    )


def test_a_folder_and_a_url_exclude_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "request.json"
    file.write_text("{}")
    url, flags = ["--url", "ftp://nowhere"], ["--state", "a", "--noul", "b"]
    for words in ([str(tmp_path), *flags], [str(tmp_path)], ["/no/such", *flags], ["a", str(file)]):
        assert main(["ask", *words, *url]) == 2
        assert f"{words[0]} and --url were both given" in capsys.readouterr().err
    for flag in (["--device", "cpu"], ["--no-graphs"], ["--random", "2b"]):
        assert main(["ask", str(file), *flag, *url]) == 2
        assert f"{flag[0]} and --url were both given" in capsys.readouterr().err
    assert main(["ask", str(file), *flags, *url]) == 2
    assert "a request file and --state" in capsys.readouterr().err
    for alone in (flags, [str(file)]):
        assert main(["ask", *alone, *url]) == 2
        assert "it takes an http:// or https:// address" in capsys.readouterr().err


def test_request_file_must_hold_an_object(tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    file.write_text("[]")
    with pytest.raises(UsageError, match="a request is a JSON object"):
        request(str(file))
    file.write_text('{"state": 1, "state": 2}')
    with pytest.raises(InvalidRequest):
        request(str(file))


def test_table_aligns_words_left_and_numbers_right() -> None:
    rows = [("ab", 12_000, 0.5), ("c", 3, None)]
    assert table(["name", "count", "p"], rows) == (
        "name   count       p\nab    12,000  0.5000\nc          3       -"
    )


def test_table_writes_out_what_a_terminal_would_obey() -> None:
    rows = [("a\nb\r\x1b[31m\u202e\x9b", 1), ("é猫👩‍👧", 2)]
    _, first, second = table(["name", "n"], rows).split("\n")
    assert first == "a\\nb\\r\\x1b[31m\\u202e\\x9b  1"
    assert second.split() == ["é猫👩‍👧", "2"]


def test_table_without_rows_is_its_headers() -> None:
    assert table(["name", "count"], []) == "name  count"


def test_progress_off_a_terminal_writes_few_whole_lines() -> None:
    stream = io.StringIO()
    reporter = Reporter(stream, every_s=1e9)
    for done in range(101):
        reporter("loading", done, 100)
    reporter("checking", 0, 1)
    reporter("checking", 1, 1)
    assert stream.getvalue() == (
        "loading: 0 of 100\nloading: 100 of 100\nchecking …\nchecking: done\n"
    )


def test_progress_on_a_terminal_rewrites_its_line() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    reporter = Reporter(stream, every_s=0)
    reporter("loading", 1_000, 2_000)
    reporter("loading", 2_000, 2_000)
    assert stream.getvalue() == "\rloading: 1,000 of 2,000\rloading: 2,000 of 2,000\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: adjudge {name}" in capsys.readouterr().out


def test_top_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown and text in shown for name, (_, text) in COMMANDS.items())


def test_unknown_command_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serv"])
    assert caught.value.code == 2
    assert "serv" in capsys.readouterr().err


def test_errors_are_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_PORT", "tcp://10.0.0.1:8000")
    assert main(["config", "show"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("adjudge config: environment ADJUDGE_PORT")


@pytest.mark.parametrize("buffered", [False, True])
def test_output_that_cannot_be_written_is_one_line_and_exit_2(
    buffered: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = open("/dev/full", "wb", buffering=-1 if buffered else 0)  # noqa: SIM115
    with io.TextIOWrapper(raw, write_through=not buffered) as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["config", "show", "--json"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "adjudge config: standard output cannot be written (No space left on device)\n"
    )


def test_other_faults_of_the_system_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: argparse.Namespace) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("adjudge.commands.config.run", fail)
    with pytest.raises(OSError, match="No space"):
        main(["config", "show"])


def test_config_show_gives_origins_and_hides_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADJUDGE_MAX_QUEUE_JOBS", "7")
    assert main(["config", "show", "--api-key", "hush", "--json"]) == 0
    shown = capsys.readouterr().out
    service = json.loads(shown)["service"]
    assert service["max_queue_jobs"] == {
        "value": 7,
        "origin": "environment ADJUDGE_MAX_QUEUE_JOBS",
    }
    assert service["api_key"]["origin"] == "flag --api-key"
    assert "hush" not in shown


def test_models_are_named_or_alone() -> None:
    config = EngineConfig(device="cpu", gpu_memory_fraction=0.8)
    assert named_configs([], config) == {"": config}
    assert named_configs(["./a=b"], config)[""].model == "./a=b"
    assert named_configs(["a=b=c"], config)["a"].model == "b=c"
    two = named_configs(["fast=x", "deep=y"], config)
    assert [(name, one.model) for name, one in two.items()] == [("fast", "x"), ("deep", "y")]
    assert two["deep"].gpu_memory_fraction == 0.8


@pytest.mark.parametrize(
    "models, message",
    [(["a=x", "y"], "y has no name"), (["a=x", "a=y"], "two models are called a")],
)
def test_models_that_cannot_be_told_apart_are_refused(models: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        named_configs(models, EngineConfig())


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
@pytest.mark.parametrize("models", [["first=x", "jev-latest=y"], ["jev-preview=x"]])
def test_serve_refuses_a_name_that_means_the_first_model(
    models: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *models, *words]) == 2
    told = capsys.readouterr().err
    assert "jev-latest and jev-preview are answered by the first model" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "serve --max-batch-tokns 3",
            "no flag --max-batch-tokns; did you mean --max-batch-tokens?",
        ),
        ("ask F --devcie=cpu", "no flag --devcie; did you mean --device?"),
        ("bench engine F --layots 64x1", "no flag --layots; did you mean --layout?"),
        ("check --zzz", "no flag --zzz; --help lists them"),
    ],
)
def test_an_unknown_flag_is_told_which_one_was_meant(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words.split())
    assert caught.value.code == 2
    assert told in capsys.readouterr().err
