"""The command line: a table of commands, each a module that is imported when it is called.

A command module has add_arguments(parser) and run(arguments) -> exit code.
Exit codes: 0 done; 2 something given cannot be used (one line on stderr says what and what
helps); 130 interrupted. `serve` has more, see docs/operate.md.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

from adjudge import __version__
from adjudge.errors import AdjudgeError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("adjudge.commands.serve", "answer requests over HTTP"),
    "ask": ("adjudge.commands.ask", "answer one request here"),
    "plan": ("adjudge.commands.plan", "show a request's prompts and tokens; run nothing"),
    "bench": ("adjudge.commands.bench", "measure a server or the engine, behind checks"),
    "compare": ("adjudge.commands.compare", "compare two results of the same requests"),
    "check": ("adjudge.commands.check", "prove on this device that batches change no bit"),
    "parity": ("adjudge.commands.parity", "compare the engine with transformers"),
    "convert": ("adjudge.commands.convert", "write a checkpoint as one merged folder"),
    "models": ("adjudge.commands.models", "list what can be loaded, or describe a model folder"),
    "config": ("adjudge.commands.config", "show each setting and where its value comes from"),
}
"""Name -> module, one line of help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code; argparse exits by itself on a wrong flag."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = next((word for word in words if not word.startswith("-")), None)
    top = _top_parser()
    if name not in COMMANDS or words[0] != name:
        top.parse_args(words)
        top.print_help()
        return 0
    module = import_module(COMMANDS[name][0])
    parser = Parser(
        f"adjudge {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    # Positionals and flags in any order, but for a command of several parts: argparse has not both.
    in_parts = hasattr(module, "PARTS")
    parse = parser.parse_args if in_parts else parser.parse_intermixed_args
    arguments = parse(words[1:])
    try:
        code = int(module.run(arguments))
        sys.stdout.flush()
        return code
    except AdjudgeError as error:
        print(f"adjudge {name}: {error.message}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _discard_output()
        return 0
    except OSError as error:
        if not _output_fails():
            raise
        _discard_output()
        reason = error.strerror
        print(f"adjudge {name}: standard output cannot be written ({reason})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _output_fails() -> bool:
    """Whether standard output is what could not be written: it then takes no empty line either."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _discard_output() -> None:
    """So that the interpreter's own flush at the exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Parser(argparse.ArgumentParser):
    """Says of an unknown flag which one was probably meant; so do the parsers of its parts."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, rest = super().parse_known_args(args, namespace)
        for word in rest:
            if word.startswith("--") and word != "--":
                self._refuse(word.partition("=")[0])
        return found, rest

    def _refuse(self, flag: str) -> NoReturn:
        known = re.findall(r"--\w[\w-]*", self.format_help())
        close = get_close_matches(flag, known, n=1, cutoff=0.75)
        meant = f"did you mean {close[0]}?" if close else "--help lists them"
        self.error(f"there is no flag {flag}; {meant}")


def _top_parser() -> argparse.ArgumentParser:
    rows = "\n".join(f"  {name:10}{text}" for name, (_, text) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "adjudge",
        description="Fast, exact serving for decision models.",
        epilog=f"commands:\n{rows}\n\n`adjudge COMMAND --help` tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"adjudge {__version__}")
    parser.add_argument("command", nargs="?", choices=COMMANDS, metavar="COMMAND")
    return parser
