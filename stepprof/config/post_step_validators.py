"""Check the keys of post-step work: a command, and an upload target.

The configuration is written into the run directory. So a URL with a secret is refused, and not
repeated in the message.
"""

from __future__ import annotations

import importlib.util
import re

from stepprof.config.validators import nearest
from stepprof.errors import ConfigError
from stepprof.redaction.secret_places import without_keys, without_secrets

# of fsspec 2026.9; an installed fsspec is asked directly
_PROTOCOLS = (
    "s3", "gs", "file", "s3a", "gcs", "abfs", "az", "adl", "hdfs", "webhdfs", "oci", "oss", "tos", "hf", "lakefs", "sftp", "ssh", "smb", "ftp", "webdav", "dbfs", "memory",
)  # fmt: skip
_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "az", "adl", "oci", "oss", "tos")
_USUAL = ("s3", "gs", "file", "abfs", "hdfs", "sftp")
_NOT_WRITABLE = frozenset({"http", "https", "data", "zip", "tar", "libarchive", "github", "gist", "git", "reference", "blockcache", "cached", "filecache", "simplecache", "generic", "dir", "dask", "jlab", "jupyter", "pyscript", "async_wrapper", "asyncwrapper", "asynclocal", "root", "wandb"})  # fmt: skip
_SHELL = re.compile(r"[|;<>]|&&?|\|\||[0-9]?>>?|<<?")
_VARIABLE = re.compile(r"\$[A-Za-z_{(]|`")


def command(value: object, key: str) -> tuple[str, ...]:
    """Accept a program with its arguments: a list of strings, or one string that is split like in a
    shell. No shell runs it.

    >>> command("notify --run 'my run'", "on_complete")
    ('notify', '--run', 'my run')
    """
    if not isinstance(value, str):
        parts = tuple(value) if isinstance(value, list | tuple) else ()
        if not parts or not all(isinstance(part, str) for part in parts) or not parts[0].strip():
            problem = 'expected a command, such as ["./notify.sh", "profiled"], or "./notify.sh profiled"'
            raise ConfigError.at(key, value, problem)
        return _without_nul(parts, value, key)
    import shlex  # imported only for a string

    try:
        parts = tuple(shlex.split(value))
    except ValueError as error:
        raise ConfigError.at(key, value, f"cannot be split into arguments: {error}") from None
    if not parts:
        raise ConfigError.at(key, value, 'expected a command, such as "./notify.sh profiled"')
    for part in parts:
        if _SHELL.fullmatch(part) or _VARIABLE.search(part):
            problem = (
                f'"{part}" is shell syntax, but no shell runs the command; did you mean ["sh", "-c", …]?'
            )
            raise ConfigError.at(key, value, problem)
    return _without_nul(parts, value, key)


def upload_url(value: object, key: str) -> str:
    """Accept the URL of an upload target: a file system that fsspec can write, without a secret.

    >>> upload_url("s3://bucket/profiles/", "upload")
    's3://bucket/profiles'
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError.at(key, value, 'expected a URL, such as "s3://bucket/prefix"')
    scheme, found, rest = value.partition("://")
    if not found:
        meant = f'; did you mean "file://{value}"?' if value.startswith("/") else ""
        raise ConfigError.at(key, value, f'expected a URL, such as "s3://bucket/prefix"{meant}')
    place = re.split(r"[/?#]", rest, maxsplit=1)[0]
    has_secret = without_keys(without_secrets(rest)) != rest
    if ":" in place.rpartition("@")[0] or "?" in rest or "#" in rest or has_secret:
        shown = f"{scheme}://…"
        problem = "has a password or a query in it, and the configuration is written into the run; use the store's own variables and files"
        raise ConfigError.at(key, shown, problem)
    if "::" in scheme or "::" in rest:
        raise ConfigError.at(
            key, value, 'expected one URL, not a chain of them; such as "s3://bucket/prefix"'
        )
    _check_scheme(scheme, value, key)
    path = rest.strip("/")
    if scheme in ("file", "local"):
        if not rest.startswith("/") or not path:
            meant = f'; did you mean "file:///{path or "data/profiles"}"?'
            raise ConfigError.at(key, value, f"expected an absolute path{meant}")
    elif not path or (scheme in _STORES and not place):
        raise ConfigError.at(key, value, f'names no place; such as "{scheme}://bucket/prefix"')
    if ".." in path.split("/"):
        raise ConfigError.at(key, value, "leads out of its folder; name the folder itself")
    return value.rstrip("/")


def _check_scheme(scheme: str, value: str, key: str) -> None:
    protocols = _protocols()
    if scheme in _NOT_WRITABLE:
        problem = f"cannot be written to; must be a writable scheme (one of: {', '.join(_USUAL)}, …)"
        raise ConfigError.at(key, value, problem)
    if scheme not in protocols:
        writable = [name for name in protocols if name not in _NOT_WRITABLE]
        import difflib  # imported only for a mistake

        # "s4" is close to many names; the usual ones are more likely
        close = difflib.get_close_matches(scheme.lower(), _USUAL, n=1, cutoff=0.5)
        raise ConfigError.at(key, value, f"unknown scheme{nearest(close[0] if close else scheme, writable)}")


def _protocols() -> tuple[str, ...]:
    if importlib.util.find_spec("fsspec") is None:
        return _PROTOCOLS
    import fsspec

    return tuple(fsspec.available_protocols())


def _without_nul(parts: tuple[str, ...], value: object, key: str) -> tuple[str, ...]:
    if any("\0" in part for part in parts):
        raise ConfigError.at(key, value, "has a NUL character in it, which no argument may have")
    return parts
