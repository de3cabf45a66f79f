"""Make text from outside fit for a message: mask secrets, show control characters, limit the
length.

Such text comes from a server, a file or an exception of another library. It is cleaned on its way
into a message, and every message again on its way into the log, the manifest or a failure. So a key
that a server repeats is masked anywhere, and no escape sequence reaches a terminal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

from stepprof.interrupts import ours
from stepprof.redaction.secret_places import MASK, without_secrets

MOST = 2000
"""Maximum characters of one quotation."""
MOST_SECRETS = 1024
"""Number of secrets to remember; the oldest is forgotten first."""
SHORT = 8
"""A shorter secret is masked only in text from outside, and only as a word: servers without keys are given `EMPTY` or `key`."""

_AGAIN = re.compile(r"\\+[/\"']?|[/\"'%&]")
"""What another encoding of a text adds before or after a character; existing backslashes belong to it."""
_QUOTES = {'"': '(?:"|&(?:amp;){0,8}(?:quot|#34);)', "'": "(?:'|&(?:amp;){0,8}#(?:x27|39);)"}
_LOOKED_AT = 1 << 16
_secrets: dict[str, None] = {}

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def hide(*secrets: str | None) -> None:
    """Mask these strings from now on, in any form in which a server or a library may repeat them.

    Args:
        secrets: keys and passwords; None and empty ones are left out.
    """
    for secret in secrets:
        if secret and secret not in _secrets:
            _secrets[secret] = None
            while len(_secrets) > MOST_SECRETS:
                _secrets.pop(next(iter(_secrets)), None)


def masked(text: str) -> str:
    """Return text from outside with "…" for every secret that `hide` was given, in any encoding."""
    return _without(text, _patterns(tuple(_secrets)))


def quoted(text: object, most: int = MOST) -> str:
    r"""Return text from outside as one line for a message, without colors.

    Args:
        text: a string, or an object such as an exception, which is converted.
        most: maximum number of characters.

    >>> quoted("a\nb\x1b[2J"), quoted("http://me:secret@node/a"), quoted("abcdef", most=3)
    ('a\\nb\\x1b[2J', 'http://…@node/a', 'abc…')
    """
    return _shown(masked(_string(text)), most)  # masked before the cut: half a secret is not recognised


def redacted(value: Any) -> Any:
    """Return a value of our own log line, failure or manifest with its strings cleaned as by
    `quoted`, also inside lists and mappings. Short secrets are left to `quoted`: they may be words
    of ours.
    """
    if isinstance(value, str):
        return _shown(_without(value, _patterns(tuple(_secrets))[:1]), MOST)
    if isinstance(value, Mapping):
        return {key: redacted(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(each) for each in value]
    return value


@functools.lru_cache(maxsize=64)  # mostly our own sentences, which each version of a manifest repeats
def _shown(text: str, most: int) -> str:
    shown = without_secrets(text[:_LOOKED_AT])
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else _visible(c) for c in shown[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}{MASK}"


def _without(text: str, patterns: tuple[re.Pattern[str] | None, ...]) -> str:
    text = _COLOR.sub("", text)  # first: a control character inside a secret would hide it
    for pattern in patterns:
        text = text if pattern is None else pattern.sub(MASK, text)
    return text


def _string(text: object) -> str:
    try:
        return str(text)
    except ours(Exception):  # an exception of another library whose message cannot be made
        return type(text).__name__


def _visible(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


@functools.lru_cache(maxsize=1)
def _patterns(secrets: tuple[str, ...]) -> tuple[re.Pattern[str] | None, ...]:
    """Return the patterns of the secrets in all their forms: long ones anywhere, short ones as words."""
    forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
    long = "|".join(_pattern(form) for form in forms if len(form) >= SHORT)
    short = "|".join(_pattern(form) for form in forms if len(form) < SHORT)
    return (
        re.compile(long, re.IGNORECASE) if long else None,
        re.compile(rf"(?<![A-Za-z0-9])(?:{short})(?![A-Za-z0-9])") if short else None,
    )


def _pattern(form: str) -> str:
    """Return the pattern of one form of a secret, encoded any number of times: JSON within JSON, a URL within a URL."""
    parts, at = [], 0
    for found in _AGAIN.finditer(form):
        parts += [re.escape(form[at : found.start()]), _again(found[0])]
        at = found.end()
    return "".join((*parts, re.escape(form[at:])))


def _again(text: str) -> str:
    if text in ("%", "&"):
        return "%(?:25){0,8}" if text == "%" else "&(?:amp;){0,8}"
    quote, escapes = text.strip("\\"), text.count("\\")
    return rf"\\{{{0 if quote else escapes},{8 * (escapes + 1)}}}{_QUOTES.get(quote, quote)}"


def _forms(secret: str) -> Iterator[str]:
    """Return a secret in its plain form, and as URLs, HTTP's Basic, JSON, Python and HTML write it."""
    import base64  # imported here, so that `import stepprof` stays light
    import html
    import json
    from urllib.parse import quote, quote_plus

    data = secret.encode("utf-8", "surrogatepass")
    yield secret
    yield from (quote(data, safe=""), quote(data), quote_plus(data))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(data).decode().rstrip("=")
        yield from (encoded, quote(encoded, safe=""))
    yield from (json.dumps(secret)[1:-1], repr(secret)[1:-1])
    yield html.escape(secret, quote=False)
