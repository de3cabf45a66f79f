"""Whether code belongs to the job, to a library or to torch's compiler, according to the files of a stack."""

from __future__ import annotations

import json
import threading

import pytest

from stepprof.recording.evidence.code_origin import caller_of, is_compiling


def frame(file: str):
    return compile("pass", file, "exec"), 1


LIBRARY = (json.loads.__code__, 300), (threading.Thread.run.__code__, 900)
INSTALLED = frame("/opt/env/lib/python3.11/site-packages/torch/nn/modules/module.py")
FROZEN = frame("<frozen importlib._bootstrap>")
OWN = frame("/job/train.py")


class TestCallerOf:
    def test_the_innermost_frame_of_the_job(self) -> None:
        outer = frame("/job/main.py")
        assert caller_of([FROZEN, *LIBRARY, INSTALLED, OWN, outer]) == OWN

    def test_none_of_the_job(self) -> None:
        assert caller_of([FROZEN, *LIBRARY, INSTALLED]) is None


class TestIsCompiling:
    @pytest.mark.parametrize(
        "file",
        ["torch/_dynamo/symbolic_convert.py", "torch/_subclasses/fake_tensor.py", "torch/_inductor/graph.py"],
    )
    def test_a_module_of_the_compiler(self, file) -> None:
        assert is_compiling([FROZEN, frame(f"/env/site-packages/{file}"), OWN])

    @pytest.mark.parametrize("file", ["torch/_dynamo/eval_frame.py", "torch/_inductor/output_code.py"])
    def test_a_call_of_a_compiled_function(self, file) -> None:
        assert not is_compiling([frame(f"/env/site-packages/{file}"), OWN])
