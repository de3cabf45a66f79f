"""Commands in the folder of a stranger's run, which has files of the names of modules: none is imported."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import make_run, record, region, write_spans

from stepprof.cli.main import COMMANDS

OTHERS = "isal msgspec numpy packaging pyarrow ray rich sitecustomize stepprof stepprof_autoload structlog torch torch_npu transformers transitions usercustomize viztracer wrapt"
OPTIONS = {
    "analyse": ["--again"],
    "check": ["--workers", "2"],
    "demo": None,  # tests/trial/test_demo.py launches its ranks next to such files
    "doctor": ["--timeout", "60"],
    "export": ["--parquet", "tables"],
    "merge": ["--workers", "2", "--critical-path"],
    "open": None,
    "report": ["--workers", "2"],
    "run": None,
}
"""Options of commands that take RUN; None: its test is below."""
NAME = "worker_1_20260101_ascend_pt"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run with two ranks and a capture of torch_npu. Each of its folders has a file for each module."""
    made = make_run(tmp_path_factory.mktemp("strange"), "r")
    for rank in (0, 1):
        record(made, rank=rank)
        write_spans(made, rank, region("update", 1.0))
    artifact = {"path": f"ref/rank-0.npu/{NAME}", "kind": "npu-profile", "bytes": 2, "events": None}
    capture = (
        record(made, role="ref", data=b"", backend="npu", artifacts=[artifact]).folder / artifact["path"]
    )
    (capture / "FRAMEWORK").mkdir(parents=True)
    (capture / "FRAMEWORK" / "torch.op_range").touch()
    (capture / "profiler_info.json").write_text("{}")
    lay(made.path)
    return made.path


def lay(run):
    """Lay a file for each module into each folder of a run. It notes that it was imported."""
    for folder in [run, *(path for path in run.rglob("*") if path.is_dir())]:
        for name in (*sys.stdlib_module_names, *OTHERS.split()):
            (folder / f"{name}.py").write_text(
                f"open({str(run.parent / 'imported')!r}, 'a').write({name!r} + ' ')\n"
            )


def imported(run):
    """Return the names of the files that were imported since the last call."""
    notes = run.parent / "imported"
    names = notes.read_text().split() if notes.exists() else []
    notes.unlink(missing_ok=True)
    return names


def stepprof(run, *arguments, cwd=None):
    program = Path(sys.executable).with_name("stepprof")
    return subprocess.run([program, *arguments], cwd=cwd or run, capture_output=True, text=True, timeout=120)


def test_the_files_note_an_import(run):
    """A search of the current folder finds them."""
    search = "import sys; sys.path.insert(0, ''); import torch_npu, multiprocessing"
    subprocess.run([sys.executable, "-I", "-c", search], cwd=run, check=True)
    assert imported(run) == ["torch_npu", "multiprocessing"]


@pytest.mark.parametrize("command", [name for name in COMMANDS if OPTIONS.get(name, []) is not None])
def test_no_command_imports_a_file_of_the_run(run, command):
    """Neither the command, nor its workers, nor what they start."""
    for folder in (run, run / "step-000002"):
        done = stepprof(
            run, command, *([] if command == "doctor" else [str(run)]), *OPTIONS.get(command, []), cwd=folder
        )
        assert "Traceback" not in done.stderr
        assert imported(run) == []


def test_run(run):
    done = stepprof(run, "run", "--steps", "1", "--", sys.executable, "-I", "-c", "print('ran')")
    assert "ran" in done.stdout
    assert imported(run) == []


def test_open(run):
    program = Path(sys.executable).with_name("stepprof")
    with subprocess.Popen(
        [program, "open", ".", "--no-browser"], cwd=run, stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if "Ctrl-C" in line or "No viewer" in line:
                break
        process.send_signal(signal.SIGINT)
    assert imported(run) == []
