"""Which requests a command sends: a made workload, or a file of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path

from adjudge.errors import ConfigError
from adjudge.proof.request_file import read_workload
from adjudge.proof.workloads import WORKLOADS, Workload, make_workload


def add_workload_flags(parser: argparse.ArgumentParser, *, flag: str) -> None:
    """`flag` names the workload; --vocabulary, --seed, --sample say more of a made one."""
    group = parser.add_argument_group("requests")
    group.add_argument(
        flag,
        dest="workload",
        default="public-231",
        metavar="NAME|FILE",
        help=f"{', '.join(WORKLOADS)}, or a JSONL file of requests (default: %(default)s)",
    )
    group.add_argument(
        "--vocabulary",
        choices=["qwen", "bytes"],
        default="qwen",
        help="whose tokens the lengths are in: the released models', or bytes, for small "
        "checkpoints (default: %(default)s)",
    )
    group.add_argument("--seed", type=int, default=0, help="of the made texts (default: 0)")
    group.add_argument("--sample", type=int, metavar="N", help="only N requests, evenly spread")


def workload_from(arguments: argparse.Namespace) -> Workload:
    """The workload that the flags name. Raises ConfigError."""
    if arguments.sample is not None and arguments.sample < 1:
        raise ConfigError(f"--sample is {arguments.sample}; it takes 1 or more")
    name = arguments.workload
    if name in WORKLOADS:
        workload = make_workload(name, arguments.vocabulary, arguments.seed)
    elif (path := Path(name)).is_file():
        workload = read_workload(path)
    else:
        known = ", ".join(WORKLOADS)
        raise ConfigError(f"the workload is {name!r}; it takes {known}, or a JSONL file")
    return workload if arguments.sample is None else workload.sample(arguments.sample)
