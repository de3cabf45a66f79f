"""Find secrets that were not registered, by their names, places and forms: `password=`, headers,
parameters of URLs, and the keys of well-known services.

Each pattern has a bounded length, so that no text makes the search slow.
"""

from __future__ import annotations

import re

MASK = "…"

_ALWAYS = re.compile(
    r"secret|passw|passphrase|passcode|credential|authorization|cookie|(?<![a-z])(?:pwd|jwt)(?![a-z])",
    re.IGNORECASE,
)
_OFTEN = re.compile(r"(?<![a-z])(?:api|access|private|auth|account)?key(?![a-z])|token(?!s(?![a-z])|iz)|(?<![a-z])(?:auth|pass|sig|signature|dsn|webhook)(?![a-z])", re.IGNORECASE)  # fmt: skip
"""Parts of names of secrets that other names have too: `max_token_len=16384`, `shuffle_key=true`."""
_FILE = re.compile(r"[_.-](?:sock|socket|file|dir)$", re.IGNORECASE)
"""The end of the name of a path, such as `SSH_AUTH_SOCK`."""
_FOLDERS = ("PWD", "OLDPWD")
"""Environment variables that look like passwords by their names, but hold folders."""
_PLAIN = re.compile(r"[+-]?\d{0,7}(?:\.\d*)?(?:e[+-]?\d+)?|true|false|none|null", re.IGNORECASE)
_SHAPES = re.compile(
    r"(?<![\w-])(?:sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|AKIA\w{12,}"
    r"|xox\w-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]+\.?[\w-]*|[0-9a-f]{40})(?![\w-])"
    r"|(?<=hooks\.slack\.com/services/)[\w/-]{8,200}|(?<=/api/webhooks/)[\w/-]{8,200}"
    r"|(?<=api\.telegram\.org/bot)[\w:-]{8,200}"
)
"""Patterns of the keys of well-known services, recognised without a name."""
_AFTER = re.compile(
    r"(BEGIN [A-Z ]{0,30}PRIVATE KEY-----|(?<![A-Za-z])bearer\s{1,9}(?=[\w.~+/-]{0,200}\d))(?!…)(?:(?<=-)[^-…]{1,16384}|(?<=\s)[\w.~+/=-]{8,4096})",
    re.IGNORECASE,
)
"""What follows the begin of a private key, or the word "Bearer", wherever it is."""

_WORD = r"key|token|secret|passw(?:or)?d|passphrase|signature|credential|cookie"
_VALUE = r"(?!…)[^\s\"'&,;{}\[\]…]{1,4096}"
_PLACES = (
    (re.compile(r"(://)[^/\s@\"']{1,256}@"), rf"\1{MASK}@"),
    # a parameter of a URL, or of a form
    (
        re.compile(
            rf"([?&;](?:[\w.-]{{0,40}}(?:{_WORD})[\w.-]{{0,40}}|sig|pwd|pass|auth|jwt)=)[^&\s\"'#…]{{1,4096}}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # a header that is a secret as a whole, up to its quote or the end of the line
    (
        re.compile(
            r"((?<![\w-])(?:set-)?cookie[\"']?\s{0,9}[:=]\s{0,9}[\"']?|x-[\w-]{0,40}(?:key|token|secret|signature|auth)[\"']?\s{0,9}[:=]\s{0,9}[\"']?)"
            r"(?![\s…])[^\r\n\"'…]{1,4096}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(authorization[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?:(?:bearer|basic|token)\s{1,9})?)[^\s\"',;…]{1,4096}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # an assignment: password = abc, hf_token=abc, AccountKey=abc
    (
        re.compile(
            rf"((?<![A-Za-z])(?:[\w.-]{{0,40}}[_.-])?(?:token|secret|passw(?:or)?d|passphrase|pwd|(?:api|(?:shared_?)?access|private|account)_?key) ?=(?!=) ?[\"']?)(?!\d{{1,7}}(?!\w)|true|false|none){_VALUE}",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    # a string of JSON or Python, also inside another string; it may contain spaces
    (
        re.compile(
            rf"((\\{{0,8}}[\"'])[\w.-]{{0,40}}(?:{_WORD})[\w.-]{{0,40}}\2\s{{0,9}}[:=]\s{{0,9}}(\\{{0,8}}[\"']))(?!…)(?:(?!\3).){{1,4096}}\3",
            re.IGNORECASE,
        ),
        rf"\1{MASK}\3",
    ),
    (_AFTER, rf"\1{MASK}"),
)


def without_secrets(text: str) -> str:
    """Return a text with "…" in the places where secrets usually are.

    >>> without_secrets("GET http://me:secret@node/a?sig=abc&n=2")
    'GET http://…@node/a?sig=…&n=2'
    """
    for pattern, replacement in _PLACES:
        text = pattern.sub(replacement, text)
    return text


def without_keys(text: str) -> str:
    """Return a text with "…" for private keys and the keys of well-known services, wherever they are."""
    return _AFTER.sub(rf"\1{MASK}", _SHAPES.sub(MASK, text))


def is_secret(name: str, value: str) -> bool:
    """Return whether a value is a secret by the name of its option, key or variable.

    >>> is_secret("--pass", "abc"), is_secret("max_token_len", "4096")
    (True, False)
    """
    if _FILE.search(name):
        return False
    if _ALWAYS.search(name):
        return True
    return bool(_OFTEN.search(name)) and not _PLAIN.fullmatch(value)


def is_secret_variable(name: str, value: str) -> bool:
    """Return whether the value of an environment variable is a secret by its name.

    >>> is_secret_variable("DB_PASS", "abc"), is_secret_variable("PWD", "/root")
    (True, False)
    """
    return name not in _FOLDERS and is_secret(name, value)
