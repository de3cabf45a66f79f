"""The command `stepprof status` on a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

import stepprof

CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture
def ended(tmp_path):
    """Return the directory of a run of one process that has ended."""
    session = stepprof.init({"backend": "null", "output_dir": tmp_path}, rank=0, world_size=1, run_id="a-run")
    with stepprof.profile_step(41, role="actor"):
        pass
    stepprof.shutdown()
    return session.path


def on_terminal(columns, *arguments):
    """Return the output of the command on a terminal of this width, and its exit status."""
    master, terminal = os.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "stepprof", *map(str, arguments)],
            env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "24"},
            stdin=terminal, stdout=terminal, stderr=terminal,
        ) as process:  # fmt: skip
            os.close(terminal)
            written = b""
            try:
                while part := os.read(master, 65536):
                    written += part
            except OSError:  # EIO: the last process with the terminal has ended
                pass
        return written.decode(), process.returncode
    finally:
        os.close(master)


@pytest.mark.parametrize("watch", [[], ["--watch", "0.1"]])
def test_no_column_is_cut_on_a_narrow_terminal(ended, watch):
    """The terminal wraps the line, which has the same content as through a pipe."""
    written, status = on_terminal(40, "status", ended, *watch)
    assert status == 0
    assert "\x1b[" in written
    plain = CONTROL.sub("", written)
    assert "…" not in plain
    piped = subprocess.run(
        [sys.executable, "-m", "stepprof", "status", str(ended)], capture_output=True, text=True, check=True
    ).stdout
    row = next(line for line in piped.splitlines() if "ended" in line and " 41 " in line).split()
    shown = [line.split() for line in plain.splitlines()]
    without_age = [word for word in row if word not in row[row.index("idle") + 1 : row.index("41")]]
    assert any(set(without_age) <= set(line) for line in shown)
