"""Whether code belongs to the job, to a library or to torch's compiler, according to the files of a stack."""

from __future__ import annotations

import json
import sys
import sysconfig
import threading
import types

import pytest

from stepprof.recording.evidence.call_names import call_name
from stepprof.recording.evidence.code_origin import is_compiling, library_calls, own_frames
from stepprof.recording.evidence.stacks import stack_of


def frame(file: str):
    return compile("pass", file, "exec"), 1, 0


LIBRARY = (json.loads.__code__, 300, 0), (threading.Thread.run.__code__, 900, 0)
SITE = "/opt/env/lib/python3.11/site-packages"
INSTALLED = frame(f"{SITE}/torch/nn/modules/module.py")
FROZEN = frame("<frozen importlib._bootstrap>")
OWN = frame("/job/train.py")


class TestOwnFrames:
    def test_what_is_neither_installed_nor_of_the_library(self) -> None:
        """The job's own files are known by where they are."""
        assert own_frames((FROZEN, *LIBRARY, INSTALLED, OWN)) == [False] * 4 + [True]

    def test_a_job_that_is_an_installed_package(self) -> None:
        """Without a file of its own, the job is the package of the outermost frame: its console script only starts it."""
        script = frame(f"{sysconfig.get_path('scripts')}/train")
        mine = frame(f"{SITE}/trainer/loop.py")
        stack = (*LIBRARY, INSTALLED, mine, frame(f"{SITE}/trainer/cli.py"), script)
        assert own_frames(stack) == [False, False, False, True, True, False]
        assert own_frames((INSTALLED, script)) == [False, True]

    def test_a_launcher_is_not_the_job(self) -> None:
        """Ray's worker calls the package that is the job."""
        stack = (INSTALLED, frame(f"{SITE}/verl/trainer.py"), frame(f"{SITE}/ray/default_worker.py"))
        assert own_frames(stack) == [False, True, False]

    def test_a_cell_of_a_notebook(self) -> None:
        """IPython names the code of cells itself."""
        assert own_frames((INSTALLED, frame("<ipython-input-3-ab12>"))) == [False, True]

    @pytest.mark.parametrize("file", [None, "/job/train.py"])
    def test_code_without_a_file(self, file, monkeypatch) -> None:
        """The code of `python -c` is the job's own; in a script, `<string>` is code that a library made."""
        main = types.ModuleType("__main__")
        if file is not None:
            main.__file__ = file
        monkeypatch.setitem(sys.modules, "__main__", main)
        assert own_frames((frame("<string>"), INSTALLED)) == [file is None, False]


class Seen:
    """Notes its own stack when `copy`, `pickle` or `json` calls it."""

    def __deepcopy__(self, memo):
        self.stack = stack_of(threading.get_ident())[1:]
        return self

    def __reduce__(self):
        self.stack = stack_of(threading.get_ident())[1:]
        return str, ()


def note(seen: Seen) -> Seen:
    seen.stack = stack_of(threading.get_ident())[1:]
    return seen


class TestLibraryCalls:
    def test_a_library_in_python(self) -> None:
        """A call is named as the source writes it, with the file of the called function."""
        import copy

        seen = Seen()
        copy.deepcopy([seen])
        first = next(library_calls(seen.stack, own_frames(seen.stack), call_name))
        assert first == ("copy.deepcopy", "copy.py")

    def test_a_function_in_c_that_calls_the_job(self) -> None:
        """A function in C has no frame; its callback is the job's own."""
        import pickle

        seen = Seen()
        pickle.dumps([seen])
        assert next(library_calls(seen.stack, own_frames(seen.stack), call_name)) == ("pickle.dumps", "")

    def test_the_jobs_own_functions_are_no_library(self) -> None:
        """Calls between functions of the job are left out."""
        seen = note(Seen())
        names = [name for name, _ in library_calls(seen.stack, own_frames(seen.stack), call_name)]
        assert "note" not in names


class TestIsCompiling:
    @pytest.mark.parametrize(
        "file",
        ["torch/_dynamo/symbolic_convert.py", "torch/_subclasses/fake_tensor.py", "torch/_inductor/graph.py"],
    )
    def test_a_module_of_the_compiler(self, file) -> None:
        """A frame of the compiler shows that it works."""
        assert is_compiling((FROZEN, frame(f"/env/site-packages/{file}"), OWN))

    @pytest.mark.parametrize("file", ["torch/_dynamo/eval_frame.py", "torch/_inductor/output_code.py"])
    def test_a_call_of_a_compiled_function(self, file) -> None:
        """A compiled function passes through these modules, and nothing is compiled."""
        assert not is_compiling((frame(f"/env/site-packages/{file}"), OWN))
