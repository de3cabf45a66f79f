"""Names of runs and of their files: turn any text of a launcher or a user into a valid folder name."""

from __future__ import annotations

import re

from stepprof.errors import ConfigError

RUN_FILE = "run.json"
STATUS = "status"
"""The folder of the status files of a run's processes."""
LONGEST_NAME = 100
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(text: str) -> str:
    """Return `text` as the name of a folder. If characters had to be removed, a digest keeps
    different texts different.

    >>> safe_name("grpo-7b")
    'grpo-7b'
    >>> safe_name("grpo/7b"), safe_name("grpo:7b")
    ('grpo-7b-a30caa', 'grpo-7b-8187bd')
    """
    name = _UNSAFE.sub("-", text).strip(".-")[:LONGEST_NAME]
    if name == text or not name:
        return name
    import hashlib  # with OpenSSL: 3.4 MB that most commands do not need

    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - 7]}-{digest}"


def rank_name(rank: int | str) -> str:
    """Return a rank, or the name of a process without one, as part of a file name.

    >>> rank_name(3), rank_name("driver"), rank_name("/")
    ('3', 'driver', 'unnamed')
    """
    return str(rank) if isinstance(rank, int) else safe_name(rank) or "unnamed"


def is_plain_name(name: object) -> bool:
    """Return whether this is a name that stays in its folder: letters, digits, ".", "_" and "-", and not too long.

    >>> is_plain_name("grpo-7b"), is_plain_name("../grpo"), is_plain_name("/tmp/grpo"), is_plain_name(7)
    (True, False, False, False)
    """
    return isinstance(name, str) and bool(name) and safe_name(name) == name


def process_name(name: object) -> str:
    """Return the name of a process without a rank: a plain name that is no number. Raises ConfigError with the nearest one.

    >>> process_name("agent-loop")
    'agent-loop'
    """
    if isinstance(name, str) and is_plain_name(name) and not name.isdigit():
        return name
    near = safe_name(str(name)) or "worker"
    near = f"worker-{near}" if near.isdigit() else near
    raise ConfigError.at(
        "name",
        name,
        f'must be letters, digits, ".", "_" and "-", at most {LONGEST_NAME}, and no number; did you mean {near}?',
    )
