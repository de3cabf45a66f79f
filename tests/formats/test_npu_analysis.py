"""`stepprof analyse` without torch_npu: its messages for runs with and without folders to analyse."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
from runs import make_run, record

from stepprof.cli import main
from stepprof.formats.npu_analysis import analyse

NAME = "worker_1_20260101_ascend_pt"


@pytest.fixture
def run(tmp_path):
    """Return a run with one capture of torch_npu and one of torch."""
    made = make_run(tmp_path)
    artifact = {"path": f"actor/rank-0.npu/{NAME}", "kind": "npu-profile", "bytes": 2, "events": None}
    claim = record(made, data=b"", backend="npu", artifacts=[artifact])
    folder = claim.folder / artifact["path"]
    (folder / "FRAMEWORK").mkdir(parents=True)
    (folder / "FRAMEWORK" / "torch.op_range").touch()
    (folder / "profiler_info.json").write_text("{}")
    record(made, step=3)
    return made.path


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Return a function that installs a torch_npu with the given body of `analyse`.

    Nothing of stepprof is replaced, and the session `npu` runs the real torch_npu.
    """

    def install(body):
        package = tmp_path / "installed" / "torch_npu" / "profiler"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        (package / "__init__.py").touch()
        text = "import os, time\ndef analyse(path, max_process_number):\n" + textwrap.indent(body, "    ")
        (package / "profiler.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path / "installed")

    return install


def folder_of(run):
    return run / "step-000002" / "actor" / "rank-0.npu" / NAME


def test_without_torch_npu(run, capsys):
    assert main.main(["analyse", str(run)]) == 1
    out = capsys.readouterr().out
    assert f"step-000002/actor/rank-0.npu/{NAME}: torch_npu is not installed here" in out
    assert "0 of 1 captures analysed" in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--step", "3"], "step 3 of"),
        (["--workers", "0"], "--workers = 0: must be >= 1"),
        (["--timeout", "0"], "--timeout = 0.0"),
        (["--step", "9"], "9"),
    ],
)
def test_invalid_arguments_are_refused(run, capsys, arguments, reason):
    assert main.main(["analyse", str(run), *arguments]) == 2
    assert reason in capsys.readouterr().err


DONE = """
os.makedirs(path + "/ASCEND_PROFILER_OUTPUT")
open(path + "/ASCEND_PROFILER_OUTPUT/analyse.done", "w").close()
"""
TRACE = DONE + 'open(path + "/ASCEND_PROFILER_OUTPUT/trace_view.json", "w").write("[]")\n'


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (TRACE, None),
        (DONE, "wrote nothing: it says nothing"),
        ("pass\n", "wrote nothing"),
        ("raise SystemExit(3)\n", "failed (exit status 3)"),
        ("os.kill(os.getpid(), 9)\n", "failed (exit status -9)"),
        (TRACE + 'print("[x] [ERROR] [1] profiler.py: no msprof")\n', "is incomplete: no msprof"),
        ("os.fork()\ntime.sleep(60)\n", "did not end within 1.5 s"),
    ],
)
def test_how_an_analysis_ends(run, stand_in, body, problem):
    stand_in(body)
    found = analyse(folder_of(run), timeout_seconds=1.5 if "sleep" in body else 60)
    assert found is None if problem is None else problem in str(found)


def test_as_json(run, stand_in, capsys):
    stand_in(TRACE)
    assert main.main(["analyse", str(run), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [result["problem"] for result in answer["analysed"]] == [None]
    assert main.main(["analyse", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done_before"] == 1


def test_python_that_cannot_start(run, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "did not start" in str(analyse(folder_of(run), timeout_seconds=60))
