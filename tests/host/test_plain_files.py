"""The functions that open and read files of a run, which are the only ones that may do so."""

from __future__ import annotations

import ast
import json
import os
import socket
import threading
from pathlib import Path

import pytest

import stepprof
from stepprof.host.plain_files import data_bytes, data_chunks, open_plain, read_plain, read_table

HOLE = 200 * 2**30


def sparse(path, head=b""):
    """Make a file of 200 GB that takes no room on the disk."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(HOLE)
    return path


class TestOpenPlain:
    def test_a_pipe_is_not_waited_for(self, tmp_path):
        """Opening a pipe without a writer fails at once, without a wait."""
        os.mkfifo(tmp_path / "a")
        with pytest.raises(OSError, match="not a plain file"):
            open_plain(tmp_path / "a")

    def test_neither_devices_nor_sockets(self, tmp_path, monkeypatch):
        """Devices and sockets are refused."""
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("socket")
            for path in ("/dev/zero", "socket"):
                with pytest.raises(OSError, match=r"not a plain file|No such device"):
                    open_plain(path)

    def test_a_folder(self, tmp_path):
        """A folder raises IsADirectoryError."""
        with pytest.raises(IsADirectoryError):
            open_plain(tmp_path)

    @pytest.mark.parametrize("target", ["there", "/dev/zero", "nowhere", "link"])
    def test_a_link_is_not_followed(self, tmp_path, target):
        """A link is refused, whether its target is a file, a device, missing, or the link itself."""
        (tmp_path / "there").write_text("{}")
        (tmp_path / "link").symlink_to(target)
        with pytest.raises(OSError, match="a link, and links in a run are not followed"):
            open_plain(tmp_path / "link")

    def test_folders_may_be_links(self, tmp_path):
        """A folder in the path may be a link, as of a step that was moved to another disk."""
        (tmp_path / "moved").mkdir()
        (tmp_path / "moved" / "a").write_bytes(b"x")
        (tmp_path / "step").symlink_to("moved")
        assert read_plain(tmp_path / "step" / "a") == b"x"

    @pytest.mark.parametrize("name", ["a\0b", "a\ud800", "x" * 300])
    def test_names_that_no_file_has(self, tmp_path, name):
        """A name that no file can have raises an OSError."""
        with pytest.raises(OSError, match=r"no file can have this name|too long"):
            open_plain(tmp_path / name)


class TestReadPlain:
    def test_up_to_a_bound(self, tmp_path):
        """A file that is larger than the limit is refused before it is read."""
        (tmp_path / "a").write_bytes(b"123")
        assert read_plain(tmp_path / "a", 3) == b"123"
        with pytest.raises(OSError, match=r"too large: 3 bytes \(at most 2 are read\)"):
            read_plain(tmp_path / "a", 2)
        with pytest.raises(OSError, match="too large"):
            read_plain(sparse(tmp_path / "b"))


class TestHoles:
    def test_data_before_the_first_hole_is_counted(self, tmp_path):
        """The data before the first hole is counted without reading the hole, and the
        position in the file is kept.
        """
        path = sparse(tmp_path / "a", b"x" * 5000)
        with open_plain(path) as file:
            assert file.read(3) == b"xxx"
            assert 5000 <= data_bytes(file) < 1 << 20
            assert file.read(3) == b"xxx"

    def test_a_file_without_holes(self, tmp_path):
        """All bytes of a file without holes are counted."""
        (tmp_path / "a").write_bytes(b"12345")
        with open_plain(tmp_path / "a") as file:
            assert data_bytes(file) == 5

    def test_an_empty_file_has_no_holes(self, tmp_path):
        """An empty file has no data."""
        (tmp_path / "a").touch()
        with open_plain(tmp_path / "a") as file:
            assert (data_bytes(file), list(data_chunks(file))) == (0, [])

    def test_data_around_holes_is_read(self, tmp_path):
        """The data before and after a hole of 200 GB is read without the hole."""
        path = sparse(tmp_path / "a", b"begin")
        with path.open("r+b") as file:
            file.seek(HOLE - 3)
            file.write(b"end")
        with open_plain(path) as file:
            chunks = list(data_chunks(file))
        assert sum(map(len, chunks)) < 4 << 20
        assert (chunks[0][:5], chunks[-1][-3:]) == (b"begin", b"end")


class TestReadTable:
    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"", "damaged: empty"),
            (b"[]", "damaged: not a JSON object"),
            (b'{"a"', "damaged: "),
            (b'{"a": "\xff"}', "damaged: 'utf-8'"),
            (b'{"a":' * 100 + b"1" + b"}" * 100, "damaged: lists and objects are nested deeper than 64"),
        ],
    )
    def test_damaged(self, tmp_path, data, problem):
        """A file that is no JSON mapping, or is nested too deep, raises a
        ValueError that describes the damage.
        """
        (tmp_path / "a").write_bytes(data)
        with pytest.raises(ValueError, match=problem):
            read_table(tmp_path / "a")

    def test_while_it_is_replaced(self, tmp_path):
        """While a file is replaced, a reader sees the complete old or the complete new version."""
        path = tmp_path / "a"
        path.write_text(json.dumps({"n": 0}))
        stop = threading.Event()

        def replace():
            number = 0
            while not stop.is_set():
                number += 1
                (tmp_path / "b").write_text(json.dumps({"n": number}))
                (tmp_path / "b").replace(path)

        thread = threading.Thread(target=replace)
        thread.start()
        try:
            assert all("n" in read_table(path) for _ in range(200))
        finally:
            stop.set()
            thread.join()


OPENERS = {"open", "read_text", "read_bytes", "connect", "fdopen", "GzipFile", "FileIO", "ZipFile"}
OPENERS |= {"copyfile", "copytree", "copy2", "move", "memmap", "fromfile"}
OTHERS = {
    "host/plain_files.py": "the one that opens files of a run",
    # files that the module or this process has written
    "host/atomic_files.py": "temporary files of its own",
    "cli/commands/open.py": "the page that it writes",
    "recording/span_files.py": "its own span file",
    "formats/kineto_writer.py": "what this process's profiler wrote",
    "backends/memory/backend.py": "its own snapshot",
    "backends/torch/export.py": "a folder, to be synced",
    "analysis/timeline/merge.py": "its own parts and output",
    "analysis/timeline/workers.py": "pipes to its workers",
    "follow/below.py": "a step's folder and plain files below it, through no link",
    "follow/lock.py": "its own lock, through no link",
    "run/folders.py": "a name that is taken for what is moved aside",
    # files that belong to no run
    "run/announced.py": "the file in which `stepprof run` collects the paths of runs",
    "cli/main.py": "/dev/null",
    "run/rendezvous.py": "/proc",
    "host/process_identity.py": "/proc",
    "host/memory.py": "/proc and /sys",
    "host/kernel_times.py": "/proc",
    "doctor/finding.py": "/proc and /sys",
    "recording/export/deadlock.py": "/proc",
    "recording/export/fork.py": "/proc and /dev/null",
    "cli/demo_launcher.py": "/proc",
    "backends/nsys/process.py": "/proc",
    "backends/nsys/cuda.py": "/proc",
    "backends/torch/stop.py": "a library's function of that name",
    "host/device_lease.py": "the lease of a device",
    "config/loaders.py": "the configuration",
    "host/own_files.py": "makes a file to see whose it is",
    "doctor/torch_child.py": "a trace of its own in a temporary folder",
    "doctor/torch.py": "source of this package",
    "analysis/report/page.py": "source of this package",
    "backends/nsys/reports.py": "moves a report that it has claimed",
    "backends/npu/export.py": "what this process's profiler wrote",
    "analysis/timeline/untrusted_database.py": "SQLite opens the file itself, after open_plain has",
    "cli/commands/run.py": "the terminal of this process",
    "integrations/source_check.py": "source of an installed framework",
    # files of engines, which `remote/core/engine_files.py` opens with open_plain
    "remote/artifacts.py": "its own new artifact, and gzip over an engine's file that is open",
    "remote/core/engine_files.py": "/proc",
    "remote/core/ownership.py": "a lock of drivers, through no link",
    "remote/nsys_server.py": "/proc",
    "remote/ray/files.py": "its own copies",
    "remote/sglang/files.py": "a probe and copies of its own; moves a snapshot after it has opened it",
    "remote/sglang/stages.py": "its own parts of a trace, and gzip over a file that open_plain has opened",
    "remote/vllm/files.py": "/proc",
    "remote/vllm/folder.py": "its own lock, through no link",
    "remote/http/wire.py": "a socket",
    # methods with the same name
    "remote/core/engine_capture.py": "what calls wait for",
    "remote/core/engine_target.py": "what calls wait for",
    "remote/kinds.py": "drivers",
    "recording/local_target.py": "captures",
    "recording/region_capture.py": "captures",
    "analysis/artifact_check.py": "gzip over a file that open_plain has opened",
}
"""The modules that may open something else, and what they open."""
EXAMPLES = "examples/"  # programs of users, which are part of the wheel


def opens(path):
    """Return whether a module calls a function that opens a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in OPENERS:
                return True
    return False


def test_only_this_module_opens_files_of_a_run():
    """Only `stepprof.host.plain_files` opens files of a run. Each module that opens
    something else is listed with it.
    """
    package = Path(stepprof.__file__).parent
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if opens(path)}
    assert {name for name in found if not name.startswith(EXAMPLES)} == set(OTHERS)
