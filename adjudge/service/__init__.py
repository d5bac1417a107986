"""HTTP in front of an engine: the contract of POST /v1/systemone and what belongs to it.

exchange → keys → media (compression, parts) → decide → scheduler → decide → bytes
"""

from __future__ import annotations

from adjudge.service.lifecycle import serve

__all__ = ["serve"]
