"""The content of a run is printed as plain text: it can neither move the cursor nor forge a line.
No character makes a command fail.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from runs import make_run, record, record_engine, region, tell_engines, write_spans

from stepprof.cli.main import main
from stepprof.cli.output import any_encoding, console, print_json, print_lines, print_text

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\r\nforged: ok\x00\x7f\u2028\u202e"
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]")
ASCII = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
# the commands interpret these values, so they cannot be arbitrary
FIXED = {"path", "status", "kind", "schema_version", "writer", "health", "state"}


def with_evil(content, key=None):
    """Return the content with hostile strings, except for file names and states."""
    if key in FIXED:
        return content
    if isinstance(content, dict):
        return {name: with_evil(each, name) for name, each in content.items()}
    if isinstance(content, list):
        return [with_evil(each, key) for each in content]
    return content + EVIL if isinstance(content, str) else content


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a run in which every string that another program could write is hostile."""
    run = make_run(tmp_path / "runs")
    trace = {
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [
            {"name": f"op{EVIL}", "ph": "X", "ts": 1, "dur": 2, "pid": f"pid{EVIL}", "tid": f"tid{EVIL}"},
            {"name": "process_name", "ph": "M", "pid": f"pid{EVIL}", "args": {"name": f"process{EVIL}"}},
        ],
    }
    claims = [record(run, rank=rank, data=gzip.compress(json.dumps(trace).encode())) for rank in range(2)]
    claims.append(tell_engines(run, record_engine(run, error="why", status="partial")))
    files = [*run.path.glob("step-*/manifest/*.json"), run.path / "run.json"]
    for path in files:
        path.write_text(json.dumps(with_evil(json.loads(path.read_bytes()))))
    for rank in range(2):
        write_spans(run, rank, region(f"update{EVIL}", 1, attrs={EVIL: EVIL}), {"kind": EVIL, "name": EVIL})
    run.status_path(0).parent.mkdir(exist_ok=True)
    status = {"schema_version": 1, "rank": EVIL, "role": EVIL, "state": EVIL, "host": EVIL, "error": EVIL}
    run.status_path(0).write_text(json.dumps(status))
    (run.path / "step-000002" / "manifest" / "damaged\x1b[2J.json").write_text("{")
    return run.path


def commands(path: Path) -> list[list[str]]:
    run, evil = str(path), EVIL.replace("\0", "")  # an argument of a process cannot contain NUL
    return [
        ["ls", "--output-dir", str(path.parent)],
        ["ls", run],
        ["show", run],
        ["show", run, "--all"],
        ["spans", run],
        ["check", run],
        ["merge", run],
        ["report", run],
        ["status", run],
        ["trigger", run, "--withdraw", evil],
        ["show", f"{run}{evil}"],
        ["report", run, "--assume-offset", f"{evil}=1"],
        *(
            [command, run, "--json"]
            for command in ("ls", "show", "spans", "check", "merge", "report", "status")
        ),
    ]


class TestHostileRun:
    def test_no_command_prints_a_control_character(self, hostile, capsys) -> None:
        """Escape sequences and line breaks in names do not reach stdout or stderr, as text or JSON."""
        for command in commands(hostile):
            assert main(command) in (0, 1, 2), command
            said = capsys.readouterr()
            for text in (said.out, said.err):
                assert not CONTROLS.search(text), (command, CONTROLS.search(text))
                assert not re.search("^forged", text, re.MULTILINE), command

    @pytest.mark.parametrize("command", ["report", "status"])
    def test_a_terminal_gets_only_colour_sequences(self, hostile, command) -> None:
        """On a terminal with colours, the output has no control sequences except those of colours
        and of the cursor's visibility.
        """
        shown = on_terminal("-m", "stepprof", command, str(hostile))
        assert "\x1b[" in shown
        left = re.sub(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]", "", shown.replace("\r\n", "\n"))
        assert not CONTROLS.search(left)
        assert not re.search("^forged", left, re.MULTILINE)

    @pytest.mark.parametrize(
        "environ", [{"LC_ALL": "C"}, ASCII, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin1"}]
    )
    def test_an_encoding_that_lacks_characters(self, tmp_path, environ) -> None:
        """Characters that the encoding lacks are shown as escapes, and no command fails because of them."""
        run = make_run(tmp_path / "runs")
        record(run)
        write_spans(run, 0, region("模型 ü 🔥", 1), region("half \ud800", 1))
        for command in ("ls", "show", "spans", "report", "check"):
            done = subprocess.run(
                [sys.executable, "-m", "stepprof", command, str(run.path)],
                env={**os.environ, **environ},
                capture_output=True,
                timeout=200,
                check=False,
            )
            assert done.returncode in (0, 1)
            assert b"Traceback" not in done.stderr


@pytest.mark.torch
def test_doctor_where_every_argument_is_ascii() -> None:
    """doctor passes programs to other processes as arguments, which must be ASCII there."""
    done = subprocess.run(
        [sys.executable, "-m", "stepprof", "doctor"],
        env={**os.environ, **ASCII},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert b"Traceback" not in done.stderr
    assert b"torch" in done.stdout


def on_terminal(*arguments: str) -> str:
    """Return the output of Python on a terminal with these arguments."""
    mine, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "150", "LINES": "50"}
    with subprocess.Popen(
        [sys.executable, *arguments], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environ
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while block := os.read(mine, 1 << 16):
                shown += block
        except OSError:  # the other end is closed
            pass
        assert process.wait(60) in (0, 1)
    os.close(mine)
    return shown.decode()


class TestSay:
    def test_lines(self, capsys) -> None:
        """Each argument is printed as one line, whatever its content."""
        print_lines("a\nb", Path("c\x1b[2J"), "")
        print_lines()
        assert capsys.readouterr().out == "a?b\nc?[2J\n\n\n"

    def test_text_keeps_its_lines(self, capsys) -> None:
        """`print_text` keeps the line breaks of its text."""
        print_text("a\n\x1b[2Jb")
        assert capsys.readouterr().out == "a\n?[2Jb\n"

    def test_json_keeps_its_meaning(self, capsys) -> None:
        """Characters that a terminal interprets are escaped, and the JSON keeps its meaning."""
        content = {"name": EVIL + "\U0001f525é", "list": [1]}
        print_json(json.dumps(content, ensure_ascii=False, indent=1))
        said = capsys.readouterr().out
        assert not CONTROLS.search(said)
        assert "🔥é" in said
        assert json.loads(said) == content

    def test_console(self) -> None:
        """The output of rich is plain too, in titles, headers and cells of a table."""
        from rich.table import Table

        stream = io.StringIO()
        shown = Table(title=EVIL)
        shown.add_column(EVIL)
        shown.add_row(EVIL)
        console(file=stream, width=80).print(shown, EVIL)
        assert not CONTROLS.search(stream.getvalue())


class TestAnyEncoding:
    def test_the_streams_are_restored(self, monkeypatch) -> None:
        """A program that calls `main` gets its streams back unchanged."""
        stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="strict")
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", SimpleNamespace())
        with any_encoding():
            print_lines("ü")
        assert stream.errors == "strict"
        assert stream.buffer.getvalue() == b"\\xfc\n"  # type: ignore[attr-defined]
