"""Importing stepprof is cheap, and loads only what a job has requested."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepprof

HEAVY = (
    "torch",
    "ray",
    "vllm",
    "sglang",
    "torch_npu",
    "numpy",
    "structlog",
    "transitions",
    "asyncio",
    "omegaconf",
    "tomli",
    "tomllib",
    "msgspec",
    "multiprocessing",
    "ctypes",
    "importlib.metadata",
)

LOADED = f"""
    import sys
    before = set(sys.modules)
    import stepprof
    BODY
    print(*sorted(name for name in {HEAVY!r} if name in sys.modules and name not in before))
"""

USED = """
    with stepprof.profile_step(1), stepprof.region("r", a=1), stepprof.bind(b=2):
        stepprof.mark("m")
        stepprof.counter("c", 3)
        stepprof.tick()
    @stepprof.profile_step(step="n")
    @stepprof.region
    def f(n):
        return n
    assert f(3) == 3
    str(stepprof.state())
    dir(stepprof)
"""


class TestImport:
    @pytest.mark.parametrize("body", ["", USED], ids=["imported", "used"])
    def test_nothing_heavy_is_loaded(self, run_script, body) -> None:
        """Neither the import nor a use without a session loads torch, an engine, numpy
        or a dependency of stepprof.
        """
        done = run_script(LOADED.replace("    BODY\n", body)).check()
        assert done.stdout.split() == []

    def test_only_what_the_training_loop_calls_is_loaded(self, run_script) -> None:
        """The import loads only the modules that a training loop calls, because each is a
        file to read in every process.
        """
        done = run_script(
            """
            import sys, stepprof
            print(*sorted(name for name in sys.modules if name.startswith("stepprof.")))
            """
        ).check()
        instrument = ("attributes", "context", "decorators", "region", "scope", "state", "step")
        assert done.stdout.split() == [
            "stepprof.host",
            "stepprof.host.real_time",
            "stepprof.instrument",
            *(f"stepprof.instrument.{name}" for name in instrument),
            "stepprof.interrupts",
            "stepprof.untraced",
            "stepprof.version",
        ]

    def test_a_session_without_torch(self, run_script) -> None:
        """A session with the null backend records without loading torch, Ray, an engine or numpy."""
        done = run_script(
            """
            import sys, stepprof
            session = stepprof.init({"output_dir": "runs", "backend": "null", "steps": "1"}, rank=0, world_size=1)
            with stepprof.profile_step(1), stepprof.region("r"):
                pass
            stepprof.shutdown()
            print(*[name for name in ("torch", "ray", "vllm", "sglang", "torch_npu", "numpy") if name in sys.modules])
            """
        ).check()
        assert done.stdout.split() == []

    def test_an_import_leaves_the_process_alone(self, run_script) -> None:
        """The import installs no signal handler, starts no thread, prints nothing and makes no file."""
        done = run_script(
            """
            import os, signal, threading
            before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
            import stepprof
            with stepprof.profile_step(1), stepprof.region("r"):
                pass
            assert {number: signal.getsignal(number) for number in before} == before
            assert threading.active_count() == 1
            print(*[name for name in os.listdir() if not name.startswith("script")])
            """
        ).check()
        assert (done.stdout.strip(), done.stderr) == ("", "")

    def test_the_package_works_without_assertions_and_docstrings(self, tmp_path) -> None:
        """The package works under `python -OO`, which removes assertions and docstrings."""
        code = "import stepprof\n@stepprof.region\ndef f(): return 3\nassert_ = f(); print(assert_)"
        done = subprocess.run(
            [sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert done.stdout.strip() == "3"


class TestPublicNames:
    def test_every_name_is_there(self) -> None:
        """Each name in `__all__` is in `dir` and has a docstring."""
        assert stepprof.__all__ == sorted(stepprof.__all__)
        assert set(stepprof.__all__) <= set(dir(stepprof))
        for name in stepprof.__all__:
            thing = getattr(stepprof, name)
            assert inspect.getdoc(thing), name

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        """An unknown name raises AttributeError, as in any module."""
        with pytest.raises(AttributeError, match="module 'stepprof' has no attribute 'profil_step'"):
            stepprof.profil_step  # noqa: B018

    def test_after_init_it_is_a_module_like_any_other(self, run_script) -> None:
        """After `init`, all names are plain attributes of the module, so that CPython specialises them.
        Names and a reload still work.
        """
        run_script(
            """
            import dis, importlib, pickle, sys, stepprof
            from stepprof import Config
            assert "structlog" not in sys.modules
            stepprof.init()
            from stepprof import errors, profile_step, TorchOptions
            assert set(stepprof.__all__) <= set(vars(stepprof)) and stepprof.Config is Config
            assert pickle.loads(pickle.dumps(stepprof.region)) is stepprof.region
            try:
                stepprof.profil_step
            except AttributeError as error:
                assert str(error) == "module 'stepprof' has no attribute 'profil_step'"
            def use():
                for _ in range(1000):
                    with stepprof.region("r"):
                        pass
            sys.settrace(None)  # a traced function is not specialised, and its coverage is of no interest
            use()
            if sys.version_info >= (3, 11):
                assert "LOAD_ATTR_MODULE" in {one.opname for one in dis.get_instructions(use, adaptive=True)}
            assert importlib.reload(stepprof).Config is Config
            stepprof.init()
            stepprof.shutdown()
            """
        ).check()

    def test_functions_have_examples(self) -> None:
        """Each public function has an example in its docstring."""
        for name in (
            "bind",
            "counter",
            "current_step",
            "mark",
            "profile_step",
            "region",
            "shutdown",
            "state",
            "tick",
        ):
            assert ">>>" in (inspect.getdoc(getattr(stepprof, name)) or ""), name

    def test_types_are_shipped(self) -> None:
        """The package has the file `py.typed`, by which type checkers recognise its annotations."""
        assert (Path(stepprof.__file__).parent / "py.typed").exists()

    def test_types_of_the_public_face(self, tmp_path) -> None:
        """mypy in strict mode accepts the examples in tests/typing."""
        pytest.importorskip("mypy")
        here, root = Path(__file__).parents[1], Path(stepprof.__file__).parent.parent
        paths = {} if "site-packages" in root.parts else {"MYPYPATH": str(root)}
        config = tmp_path / "mypy.ini"  # modules of which no public type consists are skipped
        config.write_text("[mypy]\n[mypy-torch.*,numpy.*,rich.*]\nfollow_imports = skip\n")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--config-file",
                str(config),
                "--cache-dir",
                str(tmp_path / "cache"),
                "--follow-imports=silent",
                str(here / "typing" / "api.py"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=here,
            env={**os.environ, **paths},
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def test_the_modules_import_alone(self, run_script) -> None:
        """Each of these modules can be imported first."""
        for name in (
            "stepprof.errors",
            "stepprof.instrument.region",
            "stepprof.instrument.step",
            "stepprof.recording.span_files",
            "stepprof.recording.session",
        ):
            run_script(f"import {name}").check()
            assert importlib.import_module(name)
