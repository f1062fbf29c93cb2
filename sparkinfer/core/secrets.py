"""Keeps secrets out of what people read: messages, logs, console, reports, tables. Both sides; framework-free.

A secret is the login of a URI (`s3a://KEY:SECRET@bucket`), the value of a parameter whose name says so
(`?sig=...`, `password=...`), and the value of a setting whose name says so (`fs.s3a.secret.key`). When in doubt more is
hidden rather than less. `SparkInferError` hides them when it is made, `JobSpec.describe` when it is asked.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "LOGIN_PATTERN",
    "LOGIN_REPLACEMENT",
    "MASK",
    "SETTING_PATTERN",
    "RedactingFilter",
    "is_secret_name",
    "redact_logs",
    "redacted",
    "redacted_data",
]

MASK = "***"

LOGIN_PATTERN = r"""://[^/\s:@'"<>]*:[^/\s'"<>]*@"""
"""User and password of a URI that Hadoop takes: they end before its first slash. Means the same to Python, Java and
Arrow (RE2)."""
LOGIN_REPLACEMENT = f"://{MASK}@"

_LOGINS = (
    re.compile(LOGIN_PATTERN),
    # A secret with a slash in it that nobody encoded: no URI, but still a secret. `nn:8020/` is a port.
    re.compile(r"""://[^/\s:@'"<>]*:(?!\d+(?:/|$))[^\s'"<>@]{1,500}@"""),
    # A token without a password. (The name before `@` in abfss: and wasbs: is a container, no secret.)
    re.compile(r"""(?:(?<=http)|(?<=https)|(?<=ftp)|(?<=ftps))://[^/\s:@'"<>]+@"""),
)

_WORDS = (
    r"secret|passw(?:or)?d|passphrase|token(?!iz)|credentials?(?![\w.-])|signature"
    r"|(?:access|account|api|encryption|private|session|shared|storage)[._-]?key(?!size)"
)
SETTING_PATTERN = rf"(?i){_WORDS}|keystore\.pass|[._-](?:key|sas)(?:[._-]|$)|^(?:key|pass|pwd|sas|sig)$"
"""Names of settings and options whose values are secret: those of `hadoop.security.sensitive-config-keys`, of Spark's
`spark.redaction.regex`, of Azure's and Google's stores, and of JDBC. Means the same to Java."""
_SETTING = re.compile(SETTING_PATTERN)

# In running text not `key` alone, which is a common partition column.
_NAME = rf"(?=(?:pwd|sig)(?![\w.-])|[\w.-]*?(?:{_WORDS}|\.key(?:\.|(?![\w.-]))))[\w.-]++"
_VALUE = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|"""
_ASSIGNMENT = re.compile(rf"(?i)(?<![\w.-])({_NAME}\ ?=\ ?)(?:{_VALUE}[^\s&;]+)")
_ENTRY = re.compile(rf"""(?i)((?P<quote>['"]){_NAME}(?P=quote)\s*:\s*)(?:{_VALUE}[^\s,}}\]]+)""")
_BEARER = re.compile(r"(?i)(\bbearer |\bauthorization: *basic )[\w.~+/=-]{16,}")


def redacted(text: str) -> str:
    """The text with every secret that it shows replaced by `***`. Text without any comes back as it is."""
    for pattern in _LOGINS if "@" in text else ():
        text = pattern.sub(LOGIN_REPLACEMENT, text)
    if "=" in text:
        text = _ASSIGNMENT.sub(rf"\1{MASK}", text)
    if "':" in text or '":' in text:
        text = _ENTRY.sub(rf"\1{MASK}", text)
    return _BEARER.sub(rf"\1{MASK}", text)


def is_secret_name(name: str) -> bool:
    """Whether a setting, an option or a parameter of this name holds a secret: `fs.s3a.secret.key`, `password`."""
    return _SETTING.search(name) is not None


def redacted_data(value: Any) -> Any:
    """Plain data (dicts, lists, scalars) with the values of secret names, and secrets in texts, replaced by `***`."""
    if isinstance(value, Mapping):
        return {key: _redacted_item(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_data(item) for item in value]
    return redacted(value) if isinstance(value, str) else value


def _redacted_item(name: str, value: Any) -> Any:
    return MASK if is_secret_name(name) and value is not None else redacted_data(value)


class RedactingFilter(logging.Filter):
    """Takes the secrets out of a record: its message, its arguments, its stack trace."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the record in place and lets it pass."""
        record.msg, record.args = redacted(record.getMessage()), None
        if record.exc_info:
            record.exc_text = redacted(logging.Formatter().formatException(record.exc_info))
            record.exc_info = None
        return True


def redact_logs() -> None:
    """Puts a `RedactingFilter` before everything that this process prints through `logging`; again is no harm."""
    for handler in (*logging.getLogger().handlers, logging.lastResort):
        if handler is not None and not any(isinstance(known, RedactingFilter) for known in handler.filters):
            handler.addFilter(RedactingFilter())
