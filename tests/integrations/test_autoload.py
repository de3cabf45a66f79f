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
    """Return a PYTHONPATH with our folder first, then others, then that of the tests."""
    return {"PYTHONPATH": os.pathsep.join([BOOTSTRAP, *folders, os.environ.get("PYTHONPATH", "")])}


class TestEntryPoints:
    def test_a_job_without_stepprof_imports_nothing(self, run_script) -> None:
        """The functions import nothing but `os`, which every Python has loaded."""
        done = run_script(COST).check()
        assert done.stdout.split() == ["stepprof_autoload"]

    def test_stepprof_0_switches_the_adapters_off(self, run_script) -> None:
        """STEPPROF=0 counts more than the other variables."""
        done = run_script(COST, env={"STEPPROF": "0", "STEPPROF_STEPS": "2"}).check()
        assert done.stdout.split() == ["stepprof_autoload"]

    def test_a_variable_registers_the_adapters(self, run_script) -> None:
        """With one of the variables; no framework is imported."""
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
        """verl loads what an entry point of its group names, and calls nothing."""
        script = "import sys, stepprof_verl\nprint('stepprof' in sys.modules)\n"
        assert run_script(script).check().stdout.split() == ["False"]
        assert run_script(script, env={"STEPPROF_STEPS": "2"}).check().stdout.split() == ["True"]

    def test_a_key_of_hydra_asks_for_it(self, run_script) -> None:
        """`+stepprof.steps=[2]` is seen before Hydra reads the command line."""
        script = "import sys, stepprof_verl\nprint('stepprof' in sys.modules)\n"
        assert run_script(script, "+stepprof.steps=[2]").check().stdout.split() == ["True"]
        assert run_script(script, "+stepprof.steps=[2]", env={"STEPPROF": "0"}).check().stdout.split() == [
            "False"
        ]


class TestSitecustomize:
    def test_the_hidden_sitecustomize_runs_first(self, run_script, tmp_path) -> None:
        """The one that ours hides runs, and has the module's name afterwards."""
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "sitecustomize.py").write_text("import sys\nsys.hidden = 1\n")
        done = run_script(
            "import sys, sitecustomize\n"
            "print(sys.hidden, sitecustomize.__file__, 'stepprof_autoload' in sys.modules)",
            env={**path(str(tmp_path / "other")), "STEPPROF_STEPS": "2"},
        ).check()
        assert done.stdout.split() == ["1", str(tmp_path / "other" / "sitecustomize.py"), "True"]

    def test_an_error_of_the_hidden_sitecustomize_is_reported(self, run_script, tmp_path) -> None:
        """Python reports it as without ours, and the adapters are registered."""
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "sitecustomize.py").write_text("raise RuntimeError('theirs')\n")
        done = run_script(
            "import sys\nprint('stepprof_autoload' in sys.modules)",
            env={**path(str(tmp_path / "other")), "STEPPROF_STEPS": "2"},
        ).check()
        assert done.stdout.split() == ["True"]
        assert "RuntimeError: theirs" in done.stderr

    def test_the_first_framework_loads_the_adapters(self, run_script) -> None:
        """Before it is imported; until then the package itself is not loaded."""
        done = run_script(
            "import contextlib, sys\nprint('stepprof' in sys.modules)\n"
            "with contextlib.suppress(ImportError):\n    import vllm\n"
            "with contextlib.suppress(ImportError):\n    import trl\n"
            "print('stepprof.integrations.activation' in sys.modules)",
            env={**path(), "STEPPROF_STEPS": "2"},
        ).check()
        assert done.stdout.split() == ["False", "True"], done.stderr

    def test_without_another_sitecustomize_nothing_happens(self, run_script) -> None:
        """Without another one, and without a variable, nothing happens."""
        done = run_script("import sys\nprint('stepprof' in sys.modules)", env=path()).check()
        assert (done.stdout.split(), done.stderr) == (["False"], "")
