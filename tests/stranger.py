"""A second user of the machine, without any rights: for the tests in which another user attacks a job or a reader."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="only root can run the attack of another user",
)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user of the machine can write, as the scratch folder of a cluster is."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def as_stranger(script: str, *arguments: object) -> str:
    """Run a shell script as another user, and return what it prints."""
    command = ["sh", "-euc", f"umask 022; {script}", "sh", *map(str, arguments)]
    ran = subprocess.run(
        command,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        check=True,
        timeout=20,
        text=True,
        stdout=subprocess.PIPE,
    )
    return ran.stdout


def python_of_stranger(modules: str, script: str, *arguments: object) -> str:
    """Run a script of Python as another user, after these modules were imported, and return what it prints."""
    become = f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})"
    command = [sys.executable, "-c", f"import os, {modules}\n{become}\n{script}", *map(str, arguments)]
    return subprocess.run(command, check=True, timeout=60, text=True, stdout=subprocess.PIPE).stdout


def plant(path: Path, content: str) -> None:
    """Write a file as another user, and the folders that it lies in, open to everybody."""
    as_stranger('umask 000; mkdir -p "$(dirname "$1")"; printf %s "$2" > "$1"; chmod 644 "$1"', path, content)
