"""Credentials and TLS of servers. Keys are read from the environment or from files and stand in no record."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SECRET = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True)
class Access:
    """How a server is talked to.

    Attributes:
        api_key_env: Environment variable with the API key, sent as `Authorization: Bearer KEY`.
        api_key_file: File with the API key instead.
        headers: Further headers; a value `$NAME` is that of an environment variable.
        ca_file: Certificates (PEM) that are trusted, in place of the system's.
        client_cert: Client certificate (PEM), with its private key unless `client_key` has it.
        client_key: Private key (PEM) of the client certificate.
    """

    api_key_env: str | None = None
    api_key_file: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None

    def __post_init__(self) -> None:
        if self.api_key_env is not None and self.api_key_file is not None:
            raise ValueError("backend.access has api_key_env and api_key_file: name one of them")
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("backend.access.client_key needs backend.access.client_cert")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"backend.access.headers: {name!r} is not the name of an HTTP header")
            if _SECRET.search(name) and not value.startswith("$"):
                raise ValueError(
                    f"backend.access.headers.{name} would be written to the records: put it into an environment "
                    "variable and write $NAME, or use api_key_env"
                )

    def request_headers(self) -> dict[str, str]:
        """Headers of every request.

        Raises:
            ValueError: a variable is not set, a file cannot be read, or a value has a line end.
        """
        found = {name: _value_of(value, f"headers.{name}") for name, value in self.headers.items()}
        if self.api_key_env is not None:
            found["Authorization"] = f"Bearer {_value_of(f'${self.api_key_env}', 'api_key_env')}"
        if self.api_key_file is not None:
            found["Authorization"] = f"Bearer {_one_line(_text_of(self.api_key_file), 'api_key_file')}"
        return found

    def tls(self) -> ssl.SSLContext | None:
        """TLS settings; None: the system's.

        Raises:
            ValueError: a file cannot be read, or is no certificate.
        """
        if self.ca_file is None and self.client_cert is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.client_cert is not None:
                context.load_cert_chain(self.client_cert, self.client_key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca_file, self.client_cert, self.client_key)))
            raise ValueError(f"backend.access: cannot use {files} ({error})") from None
        return context


def access_by_url(urls: Sequence[str], access: Access, access_of: Sequence[Access]) -> dict[str, Access]:
    """The access to each server.

    Args:
        urls: the servers.
        access: of all of them.
        access_of: instead of each, in their order; empty: none has its own.

    Raises:
        ValueError: there are not as many as servers.
    """
    if access_of and len(access_of) != len(urls):
        raise ValueError(
            f"backend.access_of must have an entry for each of {len(urls)} servers, or none; got {len(access_of)}"
        )
    return dict(zip(urls, access_of or [access] * len(urls), strict=True))


def _value_of(value: str, name: str) -> str:
    if not value.startswith("$"):
        return _one_line(value, name)
    variable = value[1:]
    if not os.environ.get(variable):
        raise ValueError(
            f"backend.access.{name} names the environment variable {variable!r}, which is not set"
        )
    return _one_line(os.environ[variable], name)


def _one_line(value: str, name: str) -> str:
    stripped = value.strip()
    if not stripped or not stripped.isprintable():
        raise ValueError(f"backend.access.{name} must be one line of text that can be printed")
    return stripped


def _text_of(file: str) -> str:
    try:
        return Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"backend.access.api_key_file: cannot read {file} ({type(error).__name__})"
        ) from None
