"""Check configured values: type, range, spelling.

Each check takes the user's value and its key. It returns the value in its one internal form, or
raises a ConfigError with a suggestion. This module knows no keys.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from stepprof.errors import ConfigError, shown

Check = Callable[[object, str], Any]
_Table = TypeVar("_Table")

NO_LIMIT = "none"
_UNITS = {"b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_FLAGS = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)\s*%", re.ASCII)
_ROLE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class MemoryFloor:
    """The host memory that must stay free: a number of bytes, or a share of the host's memory.

    >>> MemoryFloor(fraction=0.1).bytes_of(total=64_000_000_000)
    6400000000
    """

    bytes: int = 0
    fraction: float = 0.0

    def bytes_of(self, total: int) -> int:
        """Return the floor in bytes on a host with `total` bytes of memory."""
        return self.bytes + int(total * self.fraction)

    def __str__(self) -> str:
        """Return the text that reads as this floor."""
        if self.fraction:
            return f"{self.fraction * 100:.12g}%"
        return f"{self.bytes}B" if self.bytes else NO_LIMIT


def nearest(value: object, valid: Collection[str], aliases: Mapping[str, str] | None = None) -> str:
    """Return the end of a message: the closest valid name, if one is close, and all valid names,
    unless they are many.
    """
    import difflib  # imported only for a mistake

    folded = {name.lower(): name for name in valid} | dict(aliases or {})
    close = difflib.get_close_matches(str(value).strip().lower(), folded, n=1, cutoff=0.5)
    meant = f'; did you mean "{folded[close[0]]}"?' if close else ""
    return meant if close and len(valid) > 12 else f"{meant} (one of: {', '.join(valid)})"


def flag(value: object, key: str) -> bool:
    """Accept true or false."""
    if isinstance(value, bool):
        return value
    guess = _FLAGS.get(str(value).strip().lower())
    hint = "" if guess is None else f"; did you mean {shown(guess)}?"
    raise ConfigError.at(key, value, f"expected true or false{hint}")


def whole(minimum: int) -> Check:
    """Accept an integer that is not below `minimum`."""

    def check(value: object, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            hint = (
                f"; did you mean {int(str(value))}?"
                if re.fullmatch(r"\d{1,18}", str(value).strip(), re.ASCII)
                else ""
            )
            raise ConfigError.at(key, value, f"expected an integer{hint}")
        if value < minimum:
            raise ConfigError.at(key, value, f"too small; did you mean {minimum}?")
        return value

    return check


def whole_numbers(value: object, key: str) -> tuple[int, ...]:
    """Accept integers from 0 on, or one."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        value = [value]
    return tuple(whole(0)(each, key) for each in value)


def more_than(minimum: float, example: float) -> Check:
    """Accept a finite number above `minimum`."""

    def check(value: object, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError.at(key, value, f"expected a number, such as {example:g}")
        if not (value > minimum and math.isfinite(value)):
            raise ConfigError.at(
                key, value, f"expected a finite number above {minimum:g}, such as {example:g}"
            )
        return float(value)

    return check


def seconds(value: object, key: str) -> float:
    """Accept a positive number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        matched = re.fullmatch(
            r"(\d{1,18}(?:\.\d{1,9})?)\s*(?:s|sec|secs|seconds?)?", str(value).strip(), re.ASCII
        )
        hint = f"; did you mean {matched[1]}?" if matched else ""
        raise ConfigError.at(key, value, f"expected a number of seconds{hint}")
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError.at(key, value, "expected a finite number of seconds above 0, such as 5")
    return float(value)


def byte_size(value: object, key: str) -> int:
    """Accept a number of bytes, or text such as "2GiB" (1024s) or "500 MB" (1000s)."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ConfigError.at(key, value, "too small; did you mean 1?")
        return value
    if not isinstance(value, str):
        raise ConfigError.at(key, value, 'expected a number of bytes or a size such as "2GiB"')
    matched = _SIZE.fullmatch(value.strip().lower())
    if matched is None:
        raise ConfigError.at(key, value, 'cannot read the size; expected something like "2GiB" or "500MB"')
    number, unit = matched.groups()
    if unit and unit not in _UNITS:
        raise ConfigError.at(key, value, f'unknown unit "{unit}"; did you mean "{number}{_near_unit(unit)}"?')
    size = int(Decimal(number) * _UNITS.get(unit, 1))
    if size < 1:
        raise ConfigError.at(key, value, 'too small; did you mean "1B"?')
    return size


def memory_floor(value: object, key: str) -> MemoryFloor:
    """Accept a share of the host's memory such as "10%", a size such as "2GiB", or "none" (or 0) for no floor."""
    if isinstance(value, MemoryFloor):
        return value
    if value in (NO_LIMIT, "0") or (value == 0 and type(value) is int):
        return MemoryFloor()
    if isinstance(value, float):
        hint = f'; did you mean "{value * 100:.6g}%"?' if 0 < value < 1 else ""
        raise ConfigError.at(key, value, f'expected a share such as "10%" or a size such as "2GiB"{hint}')
    if isinstance(value, str) and (matched := _PERCENT.fullmatch(value.strip())) is not None:
        percent = float(matched[1])
        if percent >= 100:
            raise ConfigError.at(key, value, 'no capture could ever begin; did you mean "10%"?')
        return MemoryFloor(fraction=percent / 100)
    if isinstance(value, str) and re.fullmatch(r"\d\d?", value.strip(), re.ASCII):
        raise ConfigError.at(
            key, value, f'a floor of {value} bytes has no effect; did you mean "{value.strip()}%"?'
        )
    return MemoryFloor(bytes=byte_size(value, key))


def limit(check: Check) -> Check:
    """Accept what `check` accepts, or "none" for no limit."""

    def check_limit(value: object, key: str) -> object:
        if value is None:
            raise ConfigError.at(key, value, 'did you mean "none", for no limit?')
        return NO_LIMIT if value == NO_LIMIT else check(value, key)

    return check_limit


def choice(*valid: str) -> Check:
    """Accept one of the names `valid`."""

    def check(value: object, key: str) -> str:
        if isinstance(value, str) and value in valid:
            return value
        raise ConfigError.at(key, value, f"not known{nearest(value, valid)}")

    return check


def names(valid: Collection[str], aliases: Mapping[str, str] | None = None, *, empty: bool = False) -> Check:
    """Accept a list of names from `valid`, each once; an empty one only if `empty`."""

    def check(value: object, key: str) -> tuple[str, ...]:
        if empty and value in ([], ()):
            return ()
        found = texts(value, key)
        for name in found:
            if name not in valid:
                raise ConfigError.at(key, value, f'"{name}" is not known{nearest(name, valid, aliases)}')
        return found

    return check


def texts(value: object, key: str) -> tuple[str, ...]:
    """Accept a string or a non-empty list of strings, each once."""
    found = (value,) if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(item, str) for item in found):
        raise ConfigError.at(key, value, 'expected a list of names, such as ["a", "b"]')
    if not found or not all(item.strip() for item in found):
        raise ConfigError.at(
            key,
            value,
            "expected at least one name, and no empty ones; remove the key for the default",
        )
    for item in found:
        if found.count(item) > 1:
            raise ConfigError.at(key, value, f'"{item}" is named twice; once is enough')
    return tuple(found)


def folder(value: object, key: str) -> Path:
    """Accept the path of a folder. Whether it can be written is checked when a run is opened."""
    if not isinstance(value, str | os.PathLike):
        raise ConfigError.at(key, value, 'expected a path, such as "stepprof-runs"')
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ConfigError.at(key, value, 'not a path; did you mean "stepprof-runs"?')
    return Path(text).expanduser()


def role_name(value: object, key: str = "role") -> str:
    """Accept the name of a role, which becomes part of file names: letters, digits, `.`, `_` and `-`,
    at most 64, not beginning with a dot.

    >>> role_name("actor")
    'actor'
    >>> role_name("../x")
    Traceback (most recent call last):
      ...
    stepprof.errors.ConfigError: role = "../x": not fit for a file name (letters, digits, ".", "_" and "-", at most 64, no dot at the start); did you mean "x"?
    """
    if not isinstance(value, str):
        raise ConfigError.at(key, value, 'expected the name of a role, such as "actor"')
    if not _is_role_name(value):
        if value == "step":
            raise ConfigError.at(
                key, value, 'reserved for windows without a role; leave the role out, or name it "whole_step"'
            )
        meant = re.sub(r"[^A-Za-z0-9._-]+", "_", value).lstrip("._-")[:64].rstrip("_") or "actor"
        raise ConfigError.at(
            key,
            value,
            'not fit for a file name (letters, digits, ".", "_" and "-", at most 64, no dot at the start); '
            f'did you mean "{meant}"?',
        )
    return value


@functools.lru_cache(maxsize=512)
def _is_role_name(value: str) -> bool:
    return value != "step" and _ROLE.fullmatch(value) is not None


def _near_unit(unit: str) -> str:
    """Return the spelling of the nearest unit."""
    import difflib  # imported only for a mistake

    written = (
        {"b": "B"} | {f"{c}ib": f"{c.upper()}iB" for c in "kmgt"} | {f"{c}b": f"{c.upper()}B" for c in "kmgt"}
    )
    return written[(difflib.get_close_matches(unit, written, n=1, cutoff=0.5) or ["gib"])[0]]


def checked(default: Any, check: Check) -> Any:
    """Return a dataclass field with the check of its value; `settle` applies it."""
    return field(default=default, metadata={"check": check})


def settle(table: Any, *, like: type[Any] | None = None) -> None:
    """Replace each field of the frozen dataclass `table` by its checked form.

    None stays None where that is the field's default.

    Args:
        table: the dataclass. Its fields state their checks with `checked`; fields of type bool need none.
        like: another dataclass. A field of `table` without a check has the check of its field of
            the same name.
    """
    mistakes = Mistakes()
    shared = {} if like is None else {item.name: item.metadata.get("check") for item in fields(like)}
    for item in fields(table):
        check = item.metadata.get("check") or shared.get(item.name)
        if check is None and str(item.type).startswith("bool"):
            check = flag
        if check is None or ((value := getattr(table, item.name)) is None and item.default is None):
            continue
        with mistakes.collected():
            object.__setattr__(table, item.name, check(value, item.name))
    mistakes.report()


def keys_of(table: type[Any]) -> tuple[str, ...]:
    """Return the keys of a table of this dataclass."""
    return tuple(item.name for item in fields(table) if item.init)


def read_table(table: type[_Table], mapping: object, key: str) -> _Table:
    """Make the dataclass `table` of the mapping at `key`."""
    with under(key):
        made: _Table = made_of(table, *split_keys(table, mapping))
        return made


def made_of(table: type[Any], present: Mapping[str, Any], wrong: Sequence[ConfigError]) -> Any:
    """Make the dataclass of the result of `split_keys`. One error names the wrong keys and the wrong values."""
    mistakes = Mistakes(wrong)
    with mistakes.collected():
        if all(item.name in present for item in fields(table) if _is_required(item)):
            made = table(**present)
    mistakes.report()
    return made


def split_keys(table: type[Any], mapping: object) -> tuple[dict[str, Any], list[ConfigError]]:
    """Return the valid keys of a mapping, without None values, and an error for each unknown and each missing key. Refuse a value that is not a mapping."""
    valid = keys_of(table)
    if not isinstance(mapping, Mapping):
        raise ConfigError.at("", mapping, f"expected a table of: {', '.join(valid)}")
    wrong = [
        ConfigError.at(str(name), value, f"unknown key{nearest(name, valid)}")
        for name, value in mapping.items()
        if name not in valid
    ]
    present = {name: value for name, value in mapping.items() if value is not None and name in valid}
    wrong += [
        ConfigError.at(item.name, None, f'missing; write {item.name} = "…" in this table')
        for item in fields(table)
        if item.name not in present and _is_required(item)
    ]
    return present, wrong


def _is_required(item: Field[Any]) -> bool:
    return item.init and item.default is MISSING and item.default_factory is MISSING


class Mistakes:
    """Collects the errors of a configuration, so that one error reports them all."""

    def __init__(self, found: Sequence[ConfigError] = ()) -> None:
        self.found = [*found]

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Keep an error of the block for `report`."""
        try:
            yield
        except ConfigError as error:
            self.found += error.parts or (error,)

    def report(self) -> None:
        """Raise the collected errors as one; without any, return."""
        if self.found:
            raise ConfigError.of_all(self.found) from self.found[0].__cause__


@contextmanager
def under(table: str) -> Iterator[None]:
    """Put the keys of inner errors under `table`."""
    try:
        yield
    except ConfigError as error:
        raise error.under(table) from error.__cause__
