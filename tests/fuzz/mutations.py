"""Changes to a file of a run, as by accident, by another version or by an attacker."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import os
import random
import shutil
import socket
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["DESTROYED", "MUTATIONS", "Random", "files_of", "mutate"]

Random = random.Random
LARGE = 200 << 30
"""Size of a sparse file; reading it as a whole would take minutes."""
DEEP = 20_000

RAW = ["NaN", "-Infinity", "1e999", "-1e999", "1" + "0" * 400, "1" * 5000, '"\\ud800"', '"\\udc00x"', "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 70 + "]" * 70]  # fmt: skip
"""JSON values that Python's json would not write."""
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 0.5, -0.5, 1e300, 1e18, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 2**64, 10**18, 10**19,
    "", "x", "a" * 70_000, "\x00", "a\x00b", "\x1b[31m", "../../outside.txt", "/dev/zero", "/etc/passwd", "..", ".", "\n", "0", "0-999999999999", "none",
    "all", "every 0", "driver", "[0, 1]", "complete", "lost", "joined", "partial", "torch-trace", "memory-snapshot", "npu-profile",
    [], {}, [[]], [None], [{}], {"": None}, {"a": []}, [1] * 1000, ["x"] * 100, {"path": "x"}, {"step": 2, "stem": "actor/rank-0"}, {"step": -1, "stem": "../x"},
]  # fmt: skip
RUN_IDS: list[Any] = ["../x", "/tmp/x", "..", ".", "", "a/b", ".claims", "x", "x" * 300, "a\0b", "\ud800", "\x1b[2J", None, 5, ["x"]]  # fmt: skip


def files_of(run: Path) -> list[Path]:
    """Return the files of a run, in a fixed order."""
    return sorted(path for path in run.rglob("*") if path.is_file())


# -- changes of bytes


def truncate(path: Path, chance: Random) -> None:
    """Truncate the file."""
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) + 1)])


def flip(path: Path, chance: Random) -> None:
    """Flip some bits."""
    data = bytearray(path.read_bytes() or b"x")
    for _ in range(chance.choice([1, 1, 2, 20])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def repeat(path: Path, chance: Random) -> None:
    """Repeat a part of the file."""
    data = path.read_bytes()
    begin = chance.randrange(len(data) + 1)
    end = chance.randrange(begin, min(begin + 2000, len(data)) + 1)
    times = chance.choice([2, 10, 200])
    path.write_bytes(data[:begin] + data[begin:end] * times + data[end:])


def splice(path: Path, chance: Random) -> None:
    """Insert other bytes or overwrite a part with them."""
    data = path.read_bytes()
    at = chance.randrange(len(data) + 1)
    put = chance.choice([b"\0" * 99, b"\xff" * 9, b"\n" * 99, b"{" * DEEP, b"[" * DEEP, b'"', b"}", b" " * (1 << 20), b"1" * 5000, chance.randbytes(64)])  # fmt: skip
    path.write_bytes(data[:at] + put + data[at + chance.choice([0, len(put)]) :])


def enlarge(path: Path, chance: Random) -> None:
    """Enlarge the file by 3 MB or more."""
    with path.open("ab") as file:
        file.write(chance.choice([b"\0", b" ", b"[", b"{}\n", b"x"]) * (3 << 20))


def noise(path: Path, chance: Random) -> None:
    """Replace the content with random bytes."""
    path.write_bytes(chance.randbytes(chance.choice([0, 1, 100, 5000])))


# -- changes of content


def said(path: Path, chance: Random) -> None:
    """Change, duplicate or remove a value."""
    name = path.name
    if name.endswith(".db"):
        _in_database(path, chance)
    elif name.endswith(".jsonl"):
        lines = path.read_text(errors="replace").splitlines()
        at = chance.randrange(len(lines) or 1)
        changed = _changed(lines[at] if lines else "{}", chance)
        lines[at : at + 1] = [changed] * (100 if chance.random() < 0.25 and len(changed) < 10_000 else 1)
        path.write_text("\n".join(lines) + "\n")
    elif name.endswith(".gz"):
        with contextlib.suppress(OSError, EOFError, zlib.error):
            text = gzip.decompress(path.read_bytes()).decode(errors="replace")
            path.write_bytes(gzip.compress(_changed(text, chance).encode(), 1))
    elif name.endswith(".json"):
        path.write_text(_changed(path.read_text(errors="replace"), chance))
    else:
        flip(path, chance)


def elsewhere(path: Path, chance: Random) -> None:
    """Replace the run id with that of another run, or with a path."""
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        content = json.loads(path.read_bytes())
        content["run_id"] = chance.choice(RUN_IDS)
        path.write_text(json.dumps(content))


def _changed(text: str, chance: Random) -> str:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return chance.choice(RAW)
    marker = f"raw {chance.random()}"
    for _ in range(chance.choice([1, 1, 2, 5])):
        content = _change(content, chance, marker)
    return json.dumps(content).replace(f'"{marker}"', chance.choice(RAW))


def _value(chance: Random) -> Any:
    return copy.deepcopy(chance.choice(VALUES))  # a later change may change a value inside it


def _change(content: Any, chance: Random, marker: str) -> Any:
    """Change one place of the content."""
    places = list(_places(content))
    if not places:
        return _value(chance)
    holder, key = chance.choice(places)
    action = chance.randrange(10)
    if action < 3:
        holder[key] = marker
    elif action < 7:
        holder[key] = _value(chance)
    elif action == 7:
        del holder[key]
    elif action == 8:
        other, its_key = chance.choice(places)
        with contextlib.suppress(LookupError, TypeError):
            value = holder[key]
            text = json.dumps(other[its_key])
            holder[key] = json.loads(text)
            other[its_key] = value if not isinstance(value, dict | list) else None
    elif isinstance(holder, list):
        # not repeatedly: 300 times 300 copies would fill the memory of the machine
        holder += [holder[key]] * (300 if len(places) < 500 and len(json.dumps(content)) < 20_000 else 1)
    else:
        holder[chance.choice(["x", "", "\x1b[0m", key * 2])] = holder[key]
    return content


def _places(content: Any) -> list[tuple[Any, Any]]:
    found, level = [], [content]
    while level:
        each = level.pop()
        keys: Any = (
            list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        )
        for key in keys:
            found.append((each, key))
            level.append(each[key])
    return found


def _in_database(path: Path, chance: Random) -> None:
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        table = chance.choice(tables)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        action = chance.randrange(4)
        if action == 0:
            connection.execute(f"DROP TABLE {table}")
        elif action == 1:
            endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT "
            few = chance.choice(["", " WHERE x < 0", " LIMIT 100000"])
            connection.execute(f"DROP TABLE {table}")
            connection.execute(f"CREATE VIEW {table} AS {endless}{', '.join(f'x AS {c}' for c in columns)} FROM n{few}")  # fmt: skip
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute("UPDATE sqlite_master SET type = 'table' WHERE name = ?", [table])
        else:
            value = chance.choice([*(v for v in VALUES if not isinstance(v, list | dict) and v not in (2**63, 2**64, 10**19)), b"\xff\x00", b"\xed\xa0\x80"])  # fmt: skip
            connection.execute(f"UPDATE {table} SET {chance.choice(columns)} = ?", [value])
        connection.commit()


# -- changes of the file's type


def _instead(make: Callable[[Path], object]) -> Callable[[Path, Random], None]:
    def put(path: Path, chance: Random) -> None:
        path.unlink()
        make(path)

    return put


def _above(path: Path, name: str) -> Path:
    return next(parent for parent in path.parents if parent.name == name)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def sparse(path: Path, chance: Random) -> None:
    """Make the file sparse with 200 GiB, before or after its content."""
    data = path.read_bytes()
    with path.open("wb") as file:
        if chance.random() < 0.3:
            file.seek(LARGE)
            file.write(data)
        else:
            file.write(data[: chance.choice([len(data), len(data) // 2])])
            file.truncate(LARGE)


def rename(path: Path, chance: Random) -> None:
    """Copy the file to other names."""
    names = ["rank-99999999999999999999999.000001.jsonl", "rank-0.99999999999999999999999.jsonl", "rank-٣.000001.jsonl", ".json", "x.json", "rank-0.2.json", "a\udcff.json", "\x1b[31m.json", "rank-0.trace.json.gz", "x" * 250 + ".json"]  # fmt: skip
    for name in chance.sample(names, 3):
        with contextlib.suppress(OSError):
            shutil.copyfile(path, path.with_name(name))


def refolder(path: Path, chance: Random) -> None:
    """Add folders with names like those of steps."""
    run = _above(path, "r")
    for name in chance.sample(["step-9999999999999999999999999", "step-0000002", "step-٠٠٠٠٠٩", "step-000009", "step-999999999999999999"], 2):  # fmt: skip
        with contextlib.suppress(OSError):
            large = any(file.lstat().st_size >= LARGE for file in (run / "step-000003").rglob("*"))
            if (
                chance.random() < 0.5 and not large
            ):  # a copy of a sparse file, or of a device behind a link, fills the disk
                shutil.copytree(run / "step-000003", run / name, symlinks=True)
            else:
                (run / name).symlink_to(chance.choice(["step-000003", ".", "/proc/self", "nowhere"]))


MUTATIONS: dict[str, Callable[[Path, Random], None]] = {
    "said": said,
    "said too": said,
    "said as well": said,
    "truncate": truncate,
    "flip": flip,
    "repeat": repeat,
    "splice": splice,
    "enlarge": enlarge,
    "noise": noise,
    "sparse": sparse,
    "rename": rename,
    "refolder": refolder,
    "elsewhere": elsewhere,
    "pipe": _instead(os.mkfifo),
    "folder": _instead(Path.mkdir),
    "socket": _instead(_socket),
    "gone": _instead(lambda path: None),
    "link to a device": _instead(lambda path: path.symlink_to("/dev/zero")),
    "link to a file": _instead(lambda path: path.symlink_to(_above(path, "runs") / "outside.txt")),
    "link to nothing": _instead(lambda path: path.symlink_to("nowhere")),
    "link to itself": _instead(lambda path: path.symlink_to(path.name)),
}
DESTROYED = ("pipe", "folder", "socket", "link to a device", "link to a file", "link to nothing", "link to itself")  # fmt: skip
"""Mutations after which no content of a file can be read, so that `check` must report it."""


def mutate(path: Path, kind: str, seed: int) -> None:
    """Apply one of MUTATIONS to a file. Do nothing if an earlier mutation removed or replaced the file."""
    with contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < LARGE:
            MUTATIONS[kind](path, Random(seed))
