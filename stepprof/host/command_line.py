"""Return the command line of this process, without secrets, for the description of the job."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce

from stepprof.redaction.messages import quoted
from stepprof.redaction.secret_places import MASK, is_secret, is_secret_variable, without_keys

MOST_ARGUMENTS = 300
LONGEST = 400
"""Characters of one argument that are kept."""
MOST_CHARACTERS = 8000
"""The limit for all arguments."""
SHORTEST_SECRET = 8
"""Shorter values of environment variables are not searched for."""

_FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
_PAIR = re.compile(r"([+~]{0,2}-{0,2}[\w./@-]{1,200}?)=(.*)", re.DOTALL)
_INSIDE = re.compile(
    r"([\w.-]{1,200})([\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:(?:bearer|basic|token)\s{1,3})?)([^\s\"',;{}\[\]]+)",
    re.IGNORECASE,
)
_QUOTED = re.compile(
    r"((?<![\w.-])[\w.-]{1,200})(\\{0,8}[\"']?\s{0,3}[:=]\s{0,3}(\\{0,8}[\"']))((?:(?!\3).){0,4096})\3",
    re.DOTALL,
)
"""A name and a string in quotes, as in JSON: it may contain spaces."""
_USER = re.compile(r"(-u|--(?:proxy-)?user=)([^:/\s]{0,200}:)(?!//).+", re.DOTALL)
"""The option of curl and wget for a user and a password."""
_HEADER = re.compile(r"([\w-]{1,100})(:\s{0,9})(.+)", re.DOTALL)
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*|(?:ba|da|z|k)?sh|perl|ruby|node")
_CODE = re.compile(r"-[A-Zabdefhilqsuvx]{0,12}c(.*)", re.DOTALL)
"""The option of code, with flags before it (`-uc`) and the code behind it (`-cprint(1)`)."""


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
        if is_secret_variable(name, value) and len(value) >= SHORTEST_SECRET
    ]
    shown: list[str] = []
    for argument in _masked(arguments):
        text = reduce(lambda shortened, value: shortened.replace(value, MASK), known, argument)
        text = quoted(without_keys(text), LONGEST)
        if len(shown) >= MOST_ARGUMENTS or sum(map(len, shown)) + len(text) > MOST_CHARACTERS:
            return [*shown, MASK]
        shown.append(text)
    return shown


def _masked(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, without the values of secrets by their names."""
    secret_follows = False
    for at, argument in enumerate(arguments):
        if secret_follows and not argument.startswith("--"):
            yield MASK
            secret_follows = False
            continue
        code = _CODE.fullmatch(argument)
        if code is not None and _takes_code(arguments[:at], attached=bool(code[1])):
            yield argument[: code.start(1)] + (MASK if code[1] else "")
            if not code[1] and at + 1 < len(arguments):
                yield MASK
            return
        follows = arguments[at + 1] if at + 1 < len(arguments) else ""
        secret_follows = bool(_FLAG.fullmatch(argument)) and (
            is_secret(argument, follows) or (argument in ("-u", "--user") and ":" in follows)
        )
        yield _without_values(argument)


def _without_values(argument: str) -> str:
    """Return an argument without the secrets in it."""
    header = _HEADER.fullmatch(argument)
    if header is not None and is_secret(header[1], header[3]):
        scheme = re.match(r"(?:bearer|basic|token)\s+", header[3], re.IGNORECASE)
        return f"{header[1]}{header[2]}{scheme[0] if scheme else ''}{MASK}"
    user = _USER.fullmatch(argument)
    if user is not None:
        return f"{user[1]}{user[2]}{MASK}"
    pair = _PAIR.fullmatch(argument)
    if pair is not None and is_secret(pair[1], pair[2]):
        return f"{pair[1]}={MASK}"
    name, value = ("", argument) if pair is None else (f"{pair[1]}=", pair[2])
    return name + _INSIDE.sub(_without_value, _QUOTED.sub(_without_string, value))


def _takes_code(before: Sequence[str], *, attached: bool) -> bool:
    """Return whether an option `-c` has code: it belongs to Python or a shell, and not to a script of it."""
    if not before:
        return False
    at = len(before) - 1
    while at and (before[at].startswith("-") or before[at - 1] in ("-X", "-W", "-o")):
        at -= 1
    if _INTERPRETER.fullmatch(before[at].replace("\\", "/").rpartition("/")[2]):
        return True
    # a program with an unknown name, such as the embedded Python of a tool
    return not attached and not any(each == "-m" or each.endswith(".py") for each in before[1:])


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{MASK}" if is_secret(found[1], found[3]) else found[0]


def _without_string(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{MASK}{found[3]}" if is_secret(found[1], found[4]) else found[0]
