"""What `serve` would run with: limits, memory, buckets, address. Nothing is loaded or served."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from adjudge.buckets import ladder
from adjudge.compiler import Compiler
from adjudge.config import EngineConfig, ServiceConfig
from adjudge.device import Device, open_device
from adjudge.engine import check_memory, open_model
from adjudge.errors import ConfigError, DeviceError
from adjudge.memory import PARTS, plan
from adjudge.service.keys import load_keys
from adjudge.service.listener import bind

GIB = 1 << 30


def examine(configs: Mapping[str, EngineConfig], service: ServiceConfig) -> dict[str, Any]:
    """The findings, JSON-ready. Reads headers, cards and tokenizers, and takes the port a moment.

    Raises CheckpointError, ConfigError.
    """
    keys = load_keys(service)
    try:
        check_memory(configs)
    except DeviceError as error:
        raise ConfigError(error.message) from None
    models = [_model(name, config, service) for name, config in configs.items()]
    bind(service.host, service.port).close()
    return {
        "models": models,
        "service": {
            "address": f"{service.host}:{service.port}",
            "needs_a_key": bool(keys),
            "max_questions": service.max_questions,
            "max_candidates": service.max_candidates,
            "max_queue_jobs": service.max_queue_jobs,
            "max_queue_tokens": service.max_queue_tokens,
            "deadline_ms": service.deadline_ms,
        },
    }


def _model(name: str, config: EngineConfig, service: ServiceConfig) -> dict[str, Any]:
    checkpoint = open_model(config)
    device = open_device(config)
    limits = Compiler.of_checkpoint(checkpoint, config).family.limits
    captured = (
        ladder(config.max_batch_tokens, checkpoint.text_config.layer_weights)
        if device.is_cuda and config.graphs
        else ()
    )
    memory = plan(
        checkpoint.text_config,
        config,
        item_bytes=device.dtype.itemsize,
        budget=_budget_bytes(device, config),
        delta_bytes=checkpoint.weights.delta_bytes,
    )
    parts = {part: getattr(memory, part) for part in PARTS}
    if not device.is_cuda:
        del parts["graphs"], parts["libraries"]
    needed = sum(parts.values())
    if needed > memory.budget:
        raise ConfigError(
            f"{checkpoint.card.name} needs {needed / GIB:.1f} GiB and may take "
            f"{memory.budget / GIB:.1f} GiB of {device.name}; "
            + memory.remedies(config, "use a machine with more memory")
        )
    return {
        "name": name or checkpoint.card.name,
        "checkpoint": checkpoint.card.name,
        "family": checkpoint.card.family,
        "random_weights": checkpoint.card.random_weights,
        "adapter": checkpoint.weights.adapter_use,
        **device.facts(),
        "max_prompt_tokens": limits.max_prompt_tokens,
        "family_max_prompt_tokens": checkpoint.card.max_prompt_tokens,
        "max_batch_tokens": config.max_batch_tokens,
        "max_body_bytes": service.max_body_bytes or limits.max_body_bytes,
        "memory_gib": {part: round(size / GIB, 3) for part, size in parts.items()},
        "memory_budget_gib": round(memory.budget / GIB, 3),
        "bucket_rows": sorted({bucket.rows for bucket in captured}),
    }


def _budget_bytes(device: Device, config: EngineConfig) -> int:
    if device.is_cuda:
        total = torch.cuda.mem_get_info(device.torch_device)[1]
        return int(total * config.gpu_memory_fraction)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
