"""Adapters attach completely or not at all, in any order of imports, and their state is reported."""

from __future__ import annotations

import json

import pytest
from fake_framework import write
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from stepprof.integrations.activation import adapters
from stepprof.integrations.adapter import is_tested
from stepprof.run.manifest import read_step
from stepprof.run.runs import list_runs, read_run

ENV = {"STEPPROF_STEPS": "2", "STEPPROF_BACKEND": "null", "STEPPROF_OUTPUT_DIR": "runs"}
ATTACH = "from stepprof.integrations.activation import *; from adapted import *; register(FAKE)\n"
TRAIN = "framework.Trainer().fit()\nprint(len(framework.CALLS))\n"
SHOW = "import stepprof, json; print(json.dumps(dict(stepprof.state().adapters)))\n"


@pytest.fixture(autouse=True)
def _framework(tmp_path):
    write(tmp_path)


def windows(folder):
    """Return the roles of the windows of step 2, with their statuses."""
    (run,) = list_runs(folder / "runs")
    return sorted((each["role"] or "step", each["status"]) for each in read_step(run, 2)["windows"])


def test_the_model_is_recorded(run_script, tmp_path) -> None:
    """`run.json` contains the name of the model; values that are not names are ignored."""
    note = "for model in (None, '', 7, 'Qwen/Qwen3-8B', object()): note_model('fake', model)\n"
    run_script(ATTACH + "import framework\n" + TRAIN + note + "note_model('other', 'a')\n", env=ENV).check()
    (run,) = list_runs(tmp_path / "runs")
    assert read_run(run)["adapters"]["fake"]["model"] == "Qwen/Qwen3-8B"
    assert "other" not in read_run(run)["adapters"]


class TestOrder:
    @pytest.mark.parametrize(
        "script",
        [
            ATTACH + "import framework\n",
            "import framework\n" + ATTACH,
            "import framework\nfrom framework import Trainer\n" + ATTACH,
            ATTACH + "import framework\nregister(FAKE)\n",
            "import framework\n" + ATTACH + "deactivate_all()\nregister(FAKE)\n",
        ],
        ids=["before", "after", "class bound before", "twice", "undone and again"],
    )
    def test_every_order_attaches_once(self, run_script, tmp_path, script) -> None:
        """The step has one capture that the role joins, and each function of the framework runs once."""
        done = run_script(script + TRAIN, env=ENV).check()
        assert done.stdout.split() == ["8"]
        assert windows(tmp_path) == [("rollout", "joined"), ("step", "complete")]

    def test_undone_patches_leave_nothing(self, run_script) -> None:
        """After `deactivate_all`, the classes have their original functions again."""
        run_script(
            "import framework\n"
            "before = {c: dict(vars(c)) for c in (framework.Trainer, framework.Timer)}\n"
            + ATTACH
            + "assert vars(framework.Trainer)['fit'] is not before[framework.Trainer]['fit']\n"
            "deactivate_all()\n"
            "assert all(dict(vars(c)) == was for c, was in before.items())\n",
            env=ENV,
        ).check()


class TestVersions:
    def test_a_newer_patch_release_is_tested(self) -> None:
        """Each adapter counts a newer patch release of the versions that the tests run as tested, and no
        newer major version.
        """
        for adapter in adapters():
            lowest = min(Version(each.version) for each in SpecifierSet(adapter.tested))
            assert is_tested(adapter, f"{lowest.major}.{lowest.minor}.99"), adapter
            assert not is_tested(adapter, f"{lowest.major + 90}.0.0"), adapter
            assert not is_tested(adapter, None), adapter


class TestAllOrNothing:
    def test_a_missing_name_keeps_it_out(self, run_script, tmp_path) -> None:
        """If a name is missing, nothing is patched and nothing is recorded. The state and one log line
        state the missing name.
        """
        (tmp_path / "framework.py").write_text(
            (tmp_path / "framework.py").read_text().replace("fail_at", "broken_at")
        )
        done = run_script(ATTACH + "import framework\n" + TRAIN + SHOW, env=ENV).check()
        calls, shown = done.stdout.splitlines()
        assert calls == "8"
        entry = json.loads(shown)["fake"]
        assert entry["status"] == "name_missing"
        assert "framework:Trainer.step(fail_at)" in entry["reason"]
        assert done.stderr.count("framework:Trainer.step(fail_at)") == 1
        assert not (tmp_path / "runs").exists()

    def test_an_attach_that_raises_is_undone(self, run_script) -> None:
        """If an adapter raises while it attaches, its earlier patches are undone, and its status is
        failed.
        """
        done = run_script(
            "import framework, dataclasses\nbefore = framework.Trainer.fit\n"
            "from adapted import *\nfrom stepprof.integrations.activation import register\n"
            "def half(patches):\n"
            "    patches.around('framework:Trainer.fit', None, fit_ends)\n"
            "    raise ValueError('half way')\n"
            "register(dataclasses.replace(FAKE, attach=half))\n"
            "assert framework.Trainer.fit is before\n" + SHOW,
            env=ENV,
        ).check()
        assert json.loads(done.stdout)["fake"]["status"] == "failed"

    def test_an_untested_version_is_attached_and_reported(self, run_script, tmp_path) -> None:
        """An adapter attaches to an untested version; the state and `run.json` say `untested`."""
        done = run_script(
            "import framework, dataclasses\nfrom adapted import *\nfrom stepprof.integrations.activation import register\n"
            "register(dataclasses.replace(FAKE, tested='<1'))\n" + TRAIN + SHOW,
            env=ENV,
        ).check()
        assert json.loads(done.stdout.splitlines()[1])["fake"]["status"] == "untested"
        (run,) = list_runs(tmp_path / "runs")
        assert read_run(run)["adapters"]["fake"]["status"] == "untested"

    def test_two_adapters_patch_one_function(self, run_script, tmp_path) -> None:
        """Two adapters patch the same functions. Both are called at each call, and the framework's code
        runs once.
        """
        done = run_script(
            "import framework, dataclasses\nfrom adapted import *\nfrom stepprof.integrations.activation import register\n"
            "seen = []\n"
            "def other(patches):\n"
            "    patches.around('framework:Trainer.step', lambda *_: seen.append(1))\n"
            "register(FAKE)\nregister(dataclasses.replace(FAKE, name='other', attach=other))\n"
            + TRAIN
            + "print(len(seen))\n",
            env=ENV,
        ).check()
        assert done.stdout.split() == ["8", "4"]
        assert windows(tmp_path) == [("rollout", "joined"), ("step", "complete")]


class TestFailures:
    def test_an_error_of_stepprof_is_logged_once(self, run_script) -> None:
        """An error in a patch is logged once, and the framework's function runs exactly once at each call."""
        done = run_script(
            "import framework, dataclasses\nfrom adapted import *\nfrom stepprof.integrations.activation import register\n"
            "def broken(*_):\n    raise ValueError('ours')\n"
            "def both(patches):\n"
            "    patches.around('framework:Trainer.step', broken, broken)\n"
            "register(dataclasses.replace(FAKE, attach=both))\n" + TRAIN,
            env=ENV,
        ).check()
        assert done.stdout.split() == ["8"]
        assert done.stderr.count("ValueError: ours") == 1

    def test_an_error_of_the_job_passes_through(self, run_script, tmp_path) -> None:
        """The caller gets the job's own exception without a context, and the window of the step has it."""
        done = run_script(
            ATTACH + "import framework\n"
            "try:\n    framework.Trainer().fit(fail_at=2)\n"
            "except RuntimeError as error:\n    print(error, error.__context__)\n"
            "print(len(framework.CALLS))\n",
            env=ENV,
        ).check()
        assert done.stdout.splitlines() == ["out of luck None", "4"]
        (run,) = list_runs(tmp_path / "runs")
        whole = next(each for each in read_step(run, 2)["windows"] if each["role"] is None)
        assert "out of luck" in whole["body_error"]
