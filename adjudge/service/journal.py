"""Log lines: one for each exchange and event, as text or JSON, never with text of a request."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from adjudge.config import ServiceConfig
    from adjudge.service.exchange import Exchange

log = logging.getLogger("adjudge.request")


class JsonLine(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _stamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class TextLine(logging.Formatter):
    """Time, level, message, then facts as name=value."""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        words = [_stamp(record.created), record.levelname.lower(), record.getMessage()]
        line = " ".join([*words, *(f"{name}={value}" for name, value in facts.items())])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def set_up(config: ServiceConfig) -> None:
    """Send all lines of the process to stderr in the configured form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLine() if config.log_format == "json" else TextLine())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("adjudge").setLevel(config.log_level.upper())
    # One line for each damaged body, with bytes of it; the exchange's own line says enough.
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)


def exchange_line(exchange: Exchange, status: int, seconds: float, reason: str | None) -> None:
    """The one line of an exchange. reason: the error's class, where there was one."""
    if not log.isEnabledFor(logging.INFO):
        return
    facts: dict[str, Any] = {
        "request_id": exchange.request_id,
        "status": status,
        "ms": round(seconds * 1000, 3),
    }
    for name, part in exchange.timings.items():
        facts[f"{name}_ms"] = round(part * 1000, 3)
    facts |= exchange.facts
    if exchange.traceparent is not None:
        facts["trace_id"] = exchange.traceparent[3:35]
    if reason is not None:
        facts["reason"] = reason
    log.info("%s %s", exchange.method, exchange.route, extra={"facts": facts})


def _stamp(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created % 1 * 1000):03d}Z"
