"""What was measured or proven, for the evidence: a geometry, or the checkpoint's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adjudge.config import EngineConfig
from adjudge.proof.evidence import folder_hashes


def model_facts(config: EngineConfig) -> dict[str, Any]:
    """What became of the adapter; geometry of random weights, or SHA-256 of each file of the
    folders that are loaded. Raises CheckpointError."""
    facts: dict[str, Any] = {"adapter": "none"}
    if config.random is not None:
        facts |= {"geometry": config.random, "weights": "random"}
    if config.model is not None:
        from adjudge.engine import open_model

        facts["adapter"] = open_model(config).weights.adapter_use
        facts["files"] = folder_hashes(Path(config.model))
    if config.base is not None:
        facts["base_files"] = folder_hashes(Path(config.base))
    return facts
