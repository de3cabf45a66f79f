"""The module that entry points name, and the `sitecustomize` of `stepprof run`."""

from __future__ import annotations

import os
from pathlib import Path

import stepprof.integrations.bootstrap

BOOTSTRAP = str(Path(stepprof.integrations.bootstrap.__file__).parent)
COST = """
import os, sys, time
before = set(sys.modules)
start = time.perf_counter()
import stepprof_autoload
stepprof_autoload.activate()
seconds = time.perf_counter() - start
print(*sorted(set(sys.modules) - before))
assert seconds < 0.05, seconds
"""


def path(*folders: str) -> dict[str, str]:
    """Return a PYTHONPATH with stepprof's bootstrap folder first, then the given folders, then that of the
    tests.
    """
    return {"PYTHONPATH": os.pathsep.join([BOOTSTRAP, *folders, os.environ.get("PYTHONPATH", "")])}


class TestEntryPoints:
    def test_a_job_without_stepprof_imports_nothing(self, run_script) -> None:
        """Without a variable, `activate` imports no further module and takes less than 50 ms."""
        done = run_script(COST).check()
        assert done.stdout.split() == ["stepprof_autoload"]

    def test_stepprof_0_switches_the_adapters_off(self, run_script) -> None:
        """With STEPPROF=0, `activate` imports nothing, whatever the other variables are."""
        done = run_script(COST, env={"STEPPROF": "0", "STEPPROF_STEPS": "2"}).check()
        assert done.stdout.split() == ["stepprof_autoload"]

    def test_a_variable_registers_the_adapters(self, run_script) -> None:
        """With a variable, all adapters are registered, and no framework is imported."""
        done = run_script(
            "import sys, stepprof_autoload\nstepprof_autoload.activate()\n"
            "from stepprof.integrations import activation\n"
            "assert {each.name for each in activation.adapters()} == activation._registered\n"
            "assert {each.trigger.partition('.')[0] for each in activation.adapters()} == set(stepprof_autoload.FRAMEWORKS)\n"
            "print([name for name in ('torch', 'transformers', 'trl') if name in sys.modules])",
            env={"STEPPROF_STEPS": "2"},
        ).check()
        assert done.stdout.strip() == "[]"


class TestVerl:
    def test_verls_entry_point_is_a_module(self, run_script) -> None:
        """verl only imports the module that the entry point names. The import loads stepprof if a variable
        is set.
        """
        script = "import sys, stepprof_verl\nprint('stepprof' in sys.modules)\n"
        assert run_script(script).check().stdout.split() == ["False"]
        assert run_script(script, env={"STEPPROF_STEPS": "2"}).check().stdout.split() == ["True"]

    def test_a_key_of_hydra_asks_for_it(self, run_script) -> None:
        """The key `+stepprof.steps=[2]` on the command line loads stepprof before Hydra reads it, unless
        STEPPROF=0.
        """
        script = "import sys, stepprof_verl\nprint('stepprof' in sys.modules)\n"
        assert run_script(script, "+stepprof.steps=[2]").check().stdout.split() == ["True"]
        assert run_script(script, "+stepprof.steps=[2]", env={"STEPPROF": "0"}).check().stdout.split() == [
            "False"
        ]


class TestSitecustomize:
    def test_the_hidden_sitecustomize_runs_first(self, run_script, tmp_path) -> None:
        """The `sitecustomize` that stepprof's own one hides is executed and keeps the module's name. Then
        stepprof is loaded.
        """
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "sitecustomize.py").write_text("import sys\nsys.hidden = 1\n")
        done = run_script(
            "import sys, sitecustomize\n"
            "print(sys.hidden, sitecustomize.__file__, 'stepprof_autoload' in sys.modules)",
            env={**path(str(tmp_path / "other")), "STEPPROF_STEPS": "2"},
        ).check()
        assert done.stdout.split() == ["1", str(tmp_path / "other" / "sitecustomize.py"), "True"]

    def test_an_error_of_the_hidden_sitecustomize_is_reported(self, run_script, tmp_path) -> None:
        """Python prints the error of the hidden `sitecustomize`, and stepprof is loaded all the same."""
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
        done = run_script(
            "import sys\nprint('stepprof_autoload' in sys.modules)",
            env={**path(str(tmp_path / "other")), "STEPPROF_STEPS": "2"},
        ).check()
        assert done.stdout.split() == ["True"]
        assert "RuntimeError: theirs" in done.stderr

    def test_the_first_framework_loads_the_adapters(self, run_script) -> None:
        """The package stepprof is loaded only when the job imports its first framework."""
        done = run_script(
            "import contextlib, sys\nprint('stepprof' in sys.modules)\n"
            "with contextlib.suppress(ImportError):\n    import vllm\n"
            "with contextlib.suppress(ImportError):\n    import trl\n"
            "print('stepprof.integrations.activation' in sys.modules)",
            env={**path(), "STEPPROF_STEPS": "2"},
        ).check()
        assert done.stdout.split() == ["False", "True"], done.stderr

    def test_without_another_sitecustomize_nothing_happens(self, run_script) -> None:
        """Without another `sitecustomize` and without a variable, stepprof is not loaded and nothing is
        printed.
        """
        done = run_script("import sys\nprint('stepprof' in sys.modules)", env=path()).check()
        assert (done.stdout.split(), done.stderr) == (["False"], "")
