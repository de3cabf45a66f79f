"""Makes text from outside fit for a message: secrets masked, control characters visible, length bounded.

Text from outside is what a server, a file or an exception of another library says. It passes here on its way into a message, and every message passes here again on its way into
the log, the manifest or a failure: so a key that a server repeats is masked wherever the server puts it, and no escape sequence reaches a terminal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["MASK", "MOST", "hide", "masked", "quoted", "redacted"]

MASK = "…"
MOST = 2000
"""Characters of one quotation at most."""
MOST_SECRETS = 1024
"""Secrets that are remembered; the oldest is forgotten first."""
SHORT = 8
"""A shorter secret is masked only in text from outside, and only as a word: `EMPTY` or `key` are what servers without keys are given."""

_AGAIN = re.compile(r"\\+[/\"']?|[/\"'%&]")
"""What encoding a text once more puts something before or behind; backslashes that stand there already belong to it."""
_QUOTES = {'"': '(?:"|&(?:amp;){0,8}(?:quot|#34);)', "'": "(?:'|&(?:amp;){0,8}#(?:x27|39);)"}
_LOOKED_AT = 1 << 16
_secrets: dict[str, None] = {}

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
# where secrets stand; each is anchored on a character that is rare, and bounded, so that no text makes it slow
_PLACES = (
    (re.compile(r"(://)[^/\s@\"']{1,256}@"), rf"\1{MASK}@"),
    (
        re.compile(
            r"([?&;][\w-]{0,40}(?:key|token|secret|passw(?:or)?d|signature|credential)[\w-]{0,40}=)[^&\s\"'#…]{1,4096}",
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
)


def hide(*secrets: str | None) -> None:
    """Never show these strings from now on, in any form in which a server or a library may repeat them.

    Args:
        secrets: keys and passwords; None and empty ones are left out.
    """
    for secret in secrets:
        if secret and secret not in _secrets:
            _secrets[secret] = None
            while len(_secrets) > MOST_SECRETS:
                _secrets.pop(next(iter(_secrets)), None)


def masked(text: str) -> str:
    """Return text from outside with "…" in the place of every secret that `hide` was given, however it is encoded."""
    return _without(text, _patterns(tuple(_secrets)))


def quoted(text: object, most: int = MOST) -> str:
    r"""Return text from outside as one line that may stand in a message; colors are left out.

    Args:
        text: a string, or an object such as an exception, of which its string is taken.
        most: characters that are kept.

    >>> quoted("a\nb\x1b[2J"), quoted("http://me:secret@node/a"), quoted("abcdef", most=3)
    ('a\\nb\\x1b[2J', 'http://…@node/a', 'abc…')
    """
    return _shown(
        masked(_string(text)), most
    )  # masked before anything is cut: half a secret is not recognised


def redacted(value: Any) -> Any:
    """Return a value of our own log line, failure or manifest fit to be shown: its strings as by `quoted`, also those inside of lists and mappings.

    Short secrets are left to `quoted`: they may be words of ours.
    """
    if isinstance(value, str):
        return _shown(_without(value, _patterns(tuple(_secrets))[:1]), MOST)
    if isinstance(value, Mapping):
        return {key: redacted(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(each) for each in value]
    return value


@functools.lru_cache(maxsize=64)  # mostly sentences of ours, which each version of a manifest repeats
def _shown(text: str, most: int) -> str:
    shown = text[:_LOOKED_AT]
    for pattern, replacement in _PLACES:
        shown = pattern.sub(replacement, shown)
    if not shown.isprintable():
        shown = "".join(c if c.isprintable() else _visible(c) for c in shown[: most + 1])
    return shown if len(shown) <= most else f"{shown[:most]}{MASK}"


def _without(text: str, patterns: tuple[re.Pattern[str] | None, ...]) -> str:
    text = _COLOR.sub("", text)  # first: one inside of a secret would hide it
    for pattern in patterns:
        text = text if pattern is None else pattern.sub(MASK, text)
    return text


def _string(text: object) -> str:
    try:
        return str(text)
    except Exception:  # noqa: BLE001 - an exception of another library whose own text cannot be made
        return type(text).__name__


def _visible(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


@functools.lru_cache(maxsize=1)
def _patterns(secrets: tuple[str, ...]) -> tuple[re.Pattern[str] | None, ...]:
    """What finds the secrets in all their forms: the long ones anywhere, the short ones as words."""
    forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)
    long = "|".join(_pattern(form) for form in forms if len(form) >= SHORT)
    short = "|".join(_pattern(form) for form in forms if len(form) < SHORT)
    return (
        re.compile(long, re.IGNORECASE) if long else None,
        re.compile(rf"(?<![A-Za-z0-9])(?:{short})(?![A-Za-z0-9])") if short else None,
    )


def _pattern(form: str) -> str:
    """What finds a form of a secret, however often it was encoded again on its way: JSON within JSON, a URL within a URL."""
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
    """A secret as it is, and as URLs, HTTP's Basic, JSON, Python and HTML write it."""
    import base64  # here, so that `import stepprof` stays light
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
