"""Lines that torch_npu prints are collected; lines of other code are passed on."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import redirect_stdout

import pytest

from stepprof.backends.npu.output import capture_output
from stepprof.formats.npu_folder import missing_parts, profile_folders

ERROR = "[2026-01-01 12:00:00] [ERROR] [4711] profiler.py: Call start failed. Exception: no such folder"
WARNING = "[2026-01-01 12:00:00] [WARNING] [4711] profiler.py: Profiler won't be using warmup"


class TestOverhear:
    def test_lines_of_torch_npu(self):
        with redirect_stdout(io.StringIO()) as out:
            with capture_output() as heard:
                print(ERROR, flush=True)
                print(WARNING)
                print("[ERROR] 2026-01-01-12:00:00 (PID:1) ERR00010 PTA system call failed")
                print("[2026-01-01 12:00:00] [INFO] [4711] profiler.py: it will collect all gc events.")
                print("Warning: ASCEND_HOME_PATH environment variable is not set.")
                print("Incorrect schedule: WARMUP followed by NONE", end="")
            assert heard.errors == [
                "Call start failed. Exception: no such folder",
                "2026-01-01-12:00:00 (PID:1) ERR00010 PTA system call failed",
                "Incorrect schedule: WARMUP followed by NONE",
            ]
            assert heard.warnings == [
                "Profiler won't be using warmup",
                "ASCEND_HOME_PATH environment variable is not set.",
            ]
            assert heard.notes == ["it will collect all gc events."]
            assert out.getvalue() == ""

    def test_lines_of_the_job(self):
        """Lines of the job, unfinished lines, and lines of other threads are passed on, even if they look
        like torch_npu's.
        """
        with redirect_stdout(io.StringIO()) as out:
            with capture_output() as heard:
                print("loss 0.3")
                sys.stdout.writelines(["a\n", "b\n"])
                thread = threading.Thread(target=lambda: print(ERROR))
                thread.start()
                thread.join()
                print("no end", end="")
            assert heard.errors == []
            assert out.getvalue() == f"loss 0.3\na\nb\n{ERROR}\nno end"

    def test_code_that_keeps_the_stream_writes_to_the_original(self):
        """Code that keeps the replaced stream after the block writes to the job's stream."""
        with redirect_stdout(io.StringIO()) as out:
            with capture_output() as heard:
                kept = sys.stdout
                assert not kept.isatty()
            assert sys.stdout is out
            print(ERROR, file=kept)
            assert (heard.errors, out.getvalue()) == ([], f"{ERROR}\n")

    def test_a_stream_replaced_meanwhile_is_kept(self):
        """A stream that other code has set in the meantime is not replaced."""
        with redirect_stdout(io.StringIO()):
            other = io.StringIO()
            with capture_output():
                sys.stdout = other
            assert sys.stdout is other

    def test_without_a_stream(self, monkeypatch):
        monkeypatch.setattr(sys, "stdout", None)
        with capture_output() as heard:
            pass
        assert (heard.errors, sys.stdout) == ([], None)

    def test_an_exception(self):
        with redirect_stdout(io.StringIO()) as out:
            with pytest.raises(ValueError, match="mine"), capture_output():
                raise ValueError("mine")
            assert sys.stdout is out


class TestFolder:
    """Missing parts of a recording are found by the names of its files."""

    @pytest.fixture
    def folder(self, tmp_path):
        made = tmp_path / "rank-0.npu" / "worker_1_20260101_ascend_pt"
        made.mkdir(parents=True)
        return made

    def test_not_ended(self, folder):
        assert "did not end" in missing_parts(folder)

    def test_nothing(self, folder):
        (folder / "profiler_info_3.json").touch()
        assert "no operations of the host or the device" in missing_parts(folder)
        assert "recorded nothing" in missing_parts(folder, on_device=True)
        assert "no operation" in missing_parts(folder, on_host=True)

    def test_both(self, folder):
        (folder / "profiler_info.json").touch()
        (folder / "PROF_000001_20260101_ABC").mkdir()
        (folder / "FRAMEWORK").mkdir()
        (folder / "FRAMEWORK" / "torch.op_range").touch()
        assert missing_parts(folder, on_host=True, on_device=True) is None

    def test_found(self, folder, tmp_path):
        (tmp_path / "file_ascend_pt").touch()
        assert list(profile_folders(tmp_path)) == [folder]
        assert list(profile_folders(folder)) == [folder]
