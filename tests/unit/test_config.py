from __future__ import annotations

import argparse
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from adjudge.config import SECTIONS, EngineConfig, ServiceConfig
from adjudge.errors import ConfigError
from adjudge.origins import Settings, add_flags, resolve


def parse(*arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return vars(parser.parse_args(arguments))


def origin(settings: Settings, name: str) -> str:
    return next(value.origin for value in settings.values if value.name == name)


def write(folder: Path, text: str) -> dict[str, str]:
    file = folder / "settings.toml"
    file.write_text(text)
    return {"ADJUDGE_CONFIG": str(file)}


def test_setting_names_are_unique_over_sections() -> None:
    names = [item.name for config in SECTIONS.values() for item in fields(config)]
    assert len(names) == len(set(names))
    assert "config" not in names


def test_every_setting_has_help() -> None:
    for config in SECTIONS.values():
        for item in fields(config):
            assert item.metadata["help"], item.name


def test_configs_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        EngineConfig().graphs = False  # type: ignore[misc]


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    environ = write(tmp_path, "[service]\nport = 1\nmax_questions = 2\ndrain_ms = 3\n")
    environ |= {"ADJUDGE_PORT": "10", "ADJUDGE_MAX_QUESTIONS": "20"}
    settings = resolve(parse("--port", "100"), environ)
    service = settings.service
    assert (service.port, service.max_questions, service.drain_ms) == (100, 20, 3)
    assert service.host == "127.0.0.1"
    assert origin(settings, "port") == "flag --port"
    assert origin(settings, "max_questions") == "environment ADJUDGE_MAX_QUESTIONS"
    assert origin(settings, "drain_ms").endswith("settings.toml, service.drain_ms")
    assert origin(settings, "host") == "default"


def test_each_origin_reads_every_kind_of_value(tmp_path: Path) -> None:
    by_flag = resolve(
        parse("--no-graphs", "--api-key", "a", "--api-key", "b", "--gpu-memory-fraction", "0.5"), {}
    )
    by_environment = resolve(
        {},
        {
            "ADJUDGE_GRAPHS": "off",
            "ADJUDGE_API_KEY": "a, b",
            "ADJUDGE_GPU_MEMORY_FRACTION": "0.5",
        },
    )
    text = '[engine]\ngraphs = false\ngpu_memory_fraction = 0.5\n[service]\napi_key = ["a", "b"]\n'
    by_file = resolve({}, write(tmp_path, text))
    for settings in (by_flag, by_environment, by_file):
        assert settings.engine == EngineConfig(graphs=False, gpu_memory_fraction=0.5)
        assert settings.service == ServiceConfig(api_key=("a", "b"))


@pytest.mark.parametrize(
    "environ, words",
    [
        ({"ADJUDGE_PROT": "1"}, ["ADJUDGE_PROT", "did you mean ADJUDGE_PORT?"]),
        ({"ADJUDGE_PORT": "many"}, ["ADJUDGE_PORT", "'many'", "number"]),
        ({"ADJUDGE_PORT": "70000"}, ["ADJUDGE_PORT", "70000", "65535 or less"]),
        ({"ADJUDGE_GPU_MEMORY_FRACTION": "nan"}, ["FRACTION", "nan", "finite"]),
        ({"ADJUDGE_MAX_REQUESTS_PER_S": "inf"}, ["PER_S", "inf", "finite"]),
        ({"ADJUDGE_GRAPHS": "maybe"}, ["ADJUDGE_GRAPHS", "'maybe'", "true"]),
        ({"ADJUDGE_DEVICE": "tpu"}, ["ADJUDGE_DEVICE", "'tpu'", "auto, cpu, cuda"]),
        ({"ADJUDGE_CONFIG": "/no/such.toml"}, ["/no/such.toml", "cannot be read"]),
    ],
)
def test_bad_environment_is_named(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, environ)
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize(
    "text, words",
    [
        ("[service]\nprot = 1", ["settings.toml", "service.prot", "did you mean port?"]),
        ("[server]\nport = 1", ["settings.toml", "[server]", "did you mean service?"]),
        ("port = 1", ["settings.toml", "port"]),
        ("[service]\nport = '1'", ["service.port", "'1'", "int"]),
        ("[service]\nport = true", ["service.port", "True", "int"]),
        ("[service]\napi_key = 'a'", ["service.api_key", "list"]),
        ("[engine]\ngpu_memory_fraction = nan", ["engine.gpu_memory_fraction", "nan", "finite"]),
        ("[engine]\ndevice = 'tpu'", ["engine.device", "'tpu'", "auto, cpu, cuda"]),
        ("[engine", ["settings.toml", "not TOML"]),
    ],
)
def test_bad_file_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, write(tmp_path, text))
    assert all(word in caught.value.message for word in words), caught.value.message


def test_api_checks_values_too() -> None:
    with pytest.raises(ConfigError, match=r"max_batch_tokens is 0; it takes 64 or more"):
        EngineConfig(max_batch_tokens=0)
    with pytest.raises(ConfigError, match=r"'melted'; it takes one of auto, merged, unmerged"):
        EngineConfig(adapter="melted")  # type: ignore[arg-type]


def test_bad_flag_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--port", "many")
    assert caught.value.code == 2
    assert "'many' is not a number" in capsys.readouterr().err


def test_secrets_are_not_shown() -> None:
    settings = resolve(parse("--api-key", "hush"), {})
    shown = [value.shown for value in settings.values]
    assert "hush" not in repr(shown)
    assert "(1 hidden)" in shown


@pytest.mark.parametrize("name", ["", "model", "answers", "usage"])
def test_metadata_never_takes_an_answers_place(name: str) -> None:
    with pytest.raises(ConfigError, match="metadata_key is"):
        ServiceConfig(metadata_key=name)


@pytest.mark.parametrize("value", ["s3cret", (b"s3cret",)])
def test_a_wrong_secret_is_not_printed(value: object) -> None:
    with pytest.raises(ConfigError) as raised:
        ServiceConfig(api_key=value)  # type: ignore[arg-type]
    assert "s3cret" not in raised.value.message
    assert "api_key" in raised.value.message
