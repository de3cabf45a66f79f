"""Return the command line of this process, without secrets, for the description of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from stepprof.redaction import MASK, quoted

MOST_ARGUMENTS = 300
LONGEST = 400
"""Characters of one argument that are kept."""
MOST_CHARACTERS = 8000
"""The limit for all arguments."""
SHORTEST_SECRET = 8
"""Shorter values of environment variables are not searched for."""
FOLDERS = ("PWD", "OLDPWD")
"""Environment variables that look like passwords by their names, but hold folders."""

_ALWAYS = re.compile(
    r"secret|passw|passphrase|credential|authorization|(?<![a-z])pwd(?![a-z])", re.IGNORECASE
)
_OFTEN = re.compile(r"(?<![a-z])(?:api|access|private|auth|account)?key(?![a-z])|token(?!s(?![a-z])|iz)|(?<![a-z])auth(?![a-z])", re.IGNORECASE)  # fmt: skip
"""Parts of names of secrets that other names have too: `max_token_len=16384`, `shuffle_key=true`."""
_PLAIN = re.compile(r"[+-]?\d{0,7}(?:\.\d*)?(?:e[+-]?\d+)?|true|false|none|null", re.IGNORECASE)
_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_PAIR = re.compile(r"([+~]{0,2}-{0,2}[\w./@-]{1,200}?)=(.*)", re.DOTALL)
_INSIDE = re.compile(
    r"([\w.-]{1,200})([\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:(?:bearer|basic)\s{1,3})?)([^\s\"',;{}\[\]]+)",
    re.IGNORECASE,
)
_SHAPES = re.compile(
    r"(?<![\w-])(?:sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|AKIA\w{12,}"
    r"|xox\w-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]+\.?[\w-]*|[0-9a-f]{40})(?![\w-])"
)
"""Patterns of the keys of well-known services, recognised without a name."""


def command_line(arguments: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the arguments with "…" in place of everything that may be a secret.

    Args:
        arguments: the program and its arguments, such as `sys.orig_argv`. The code after ``-c`` is left out.
        environ: the environment: values of variables that hold secrets are masked too.

    >>> command_line(["python", "train.py", "--hf-token", "abc", "wandb.api_key=abc", "lr=1e-5"], {})
    ['python', 'train.py', '--hf-token', '…', 'wandb.api_key=…', 'lr=1e-5']
    """
    known = [
        value
        for name, value in environ.items()
        if name not in FOLDERS and _is_secret(name, value) and len(value) >= SHORTEST_SECRET
    ]
    shown: list[str] = []
    for argument in _masked(arguments):
        text = reduce(lambda shortened, value: shortened.replace(value, MASK), known, argument)
        text = quoted(_SHAPES.sub(MASK, text), LONGEST)
        if len(shown) >= MOST_ARGUMENTS or sum(map(len, shown)) + len(text) > MOST_CHARACTERS:
            return [*shown, MASK]
        shown.append(text)
    return shown


def _masked(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, without the values of secrets by their names."""
    secret_follows = code_follows = False
    for at, argument in enumerate(arguments):
        if code_follows or (secret_follows and not argument.startswith("--")):
            yield MASK
            if code_follows:
                return
            secret_follows = False
            continue
        code_follows = argument == "-c" and not _has_script(arguments[1:at])
        follows = arguments[at + 1] if at + 1 < len(arguments) else ""
        secret_follows = bool(_FLAG.fullmatch(argument)) and _is_secret(argument, follows)
        pair = _PAIR.fullmatch(argument)
        if pair is None:
            yield _INSIDE.sub(_without_value, argument)
        else:
            value = MASK if _is_secret(pair[1], pair[2]) else _INSIDE.sub(_without_value, pair[2])
            yield f"{pair[1]}={value}"


def _has_script(arguments: Sequence[str]) -> bool:
    """Return whether a script comes among the options of Python: the arguments after it are the script's."""
    return any(each == "-m" or each.endswith(".py") for each in arguments)


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{MASK}" if _is_secret(found[1], found[3]) else found[0]


def _is_secret(name: str, value: str) -> bool:
    if _ALWAYS.search(name):
        return True
    return bool(_OFTEN.search(name)) and not _PLAIN.fullmatch(value)
