"""Who may ask: keys, and the rules about addresses that need one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from adjudge.config import ServiceConfig, is_key
from adjudge.errors import AuthenticationError, ConfigError
from adjudge.service.exchange import Exchange


class Keys:
    """The accepted keys, kept as digests so that every comparison takes the same time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in dict.fromkeys(keys)]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, exchange: Exchange) -> None:
        """Raise AuthenticationError (401) unless a good key came as a bearer token or X-API-Key."""
        if not self._digests or exchange.own:
            return
        given = _given(exchange)
        if given is None:
            raise AuthenticationError(
                "this server needs a key; send Authorization: Bearer KEY or X-API-Key: KEY"
            )
        digest = _digest(given)
        matches = [compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise AuthenticationError("the key is not accepted here; check it, or ask for another")

    def caller(self, exchange: Exchange) -> Hashable:
        """Who asks: the key that was checked, or where no key is set, the address."""
        if self._digests:
            return _digest(_given(exchange) or "")
        client = exchange.scope.get("client")
        return client[0] if client else None

    def accepts(self, exchange: Exchange) -> bool:
        """Whether `check` would pass."""
        try:
            self.check(exchange)
        except AuthenticationError:
            return False
        return True


def load_keys(config: ServiceConfig) -> Keys:
    """Keys of the configuration and its key file. Raises ConfigError for a file or a key that
    cannot be used, and for an address that others can reach without any key."""
    keys = [*config.api_key]
    if config.api_key_file is not None:
        try:
            text = Path(config.api_key_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"api_key_file {config.api_key_file} cannot be read: {error}"
            ) from None
        found = [line.strip() for line in text.splitlines()]
        found = [line for line in found if line and not line.startswith("#")]
        if not found:
            raise ConfigError(f"api_key_file {config.api_key_file} holds no key; write one a line")
        keys += found
    for key in keys:
        if not is_key(key):
            raise ConfigError("a key may hold printable ASCII characters without spaces only")
    if not keys and not config.insecure and not _is_loopback(config.host):
        raise ConfigError(
            f"host is {config.host}, which others can reach, and there is no key; set api_key or "
            "api_key_file, listen on 127.0.0.1, or allow it with insecure"
        )
    return Keys(keys)


def check_origin(exchange: Exchange, allowed: tuple[str, ...]) -> None:
    """Raise AuthenticationError (403) for a post from a web page of another site.

    A page may send multipart bodies to localhost without asking first; browsers then name the
    page's origin.
    """
    origin = exchange.headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    if urlsplit(origin).netloc.lower() != exchange.headers.get("host", "").lower():
        raise AuthenticationError(
            "this web origin may not call the service; allow it with cors_origin", status=403
        )


def _given(exchange: Exchange) -> str | None:
    scheme, _, token = exchange.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return exchange.headers.get("x-api-key")


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
