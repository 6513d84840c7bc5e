"""Settings from the environment, for what a program leaves open."""

from __future__ import annotations

import os
import re

from hplm_client.certificates import Certificates
from hplm_client.errors import InvalidRequestError

URL_VARIABLE = "HPLM_URL"
TOKEN_VARIABLE = "HPLM_TOKEN"
TOKEN_FILE_VARIABLE = "HPLM_TOKEN_FILE"
CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE = "HPLM_CA", "HPLM_CERT", "HPLM_KEY"
TIMEOUT_VARIABLE = "HPLM_TIMEOUT"
DEADLINE_VARIABLE = "HPLM_DEADLINE"
DEFAULT_URL = "localhost:8001"
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+)(ms|s|m)?")


def url() -> str:
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def token() -> str | None:
    """Read HPLM_TOKEN, or the file that HPLM_TOKEN_FILE names."""
    text, path = os.environ.get(TOKEN_VARIABLE), os.environ.get(TOKEN_FILE_VARIABLE)
    if text or not path:
        return text or None
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise InvalidRequestError(f"{TOKEN_FILE_VARIABLE}: {path} cannot be read: {why}") from error
    if not text:
        raise InvalidRequestError(f"{TOKEN_FILE_VARIABLE}: {path} is empty")
    return text


def ssl() -> Certificates | None:
    """Read the files that HPLM_CA, HPLM_CERT and HPLM_KEY name; None where none of them is set."""
    ca, certificate, key = (os.environ.get(name) or None for name in (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE))
    return None if (ca, certificate, key) == (None, None, None) else Certificates(ca, certificate, key)


def timeout_s() -> float | None:
    """Read HPLM_TIMEOUT: 500ms, 30s, 5m, or a number of seconds."""
    return _duration_s(TIMEOUT_VARIABLE, bare_unit="s")


def deadline_ms() -> int | None:
    """Read HPLM_DEADLINE: 500ms, 2s, or a number of milliseconds."""
    duration_s = _duration_s(DEADLINE_VARIABLE, bare_unit="ms")
    return None if duration_s is None else max(1, round(1000 * duration_s))


def _duration_s(name: str, bare_unit: str) -> float | None:
    text = os.environ.get(name)
    if not text:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None or float(match[1]) <= 0:
        raise InvalidRequestError(f"{name} must be a time such as 500ms, 30s or 5m, not {text!r}")
    return float(match[1]) * _SECONDS[match[2] or bare_unit]
