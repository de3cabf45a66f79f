"""New interpreters of stepprof: where they search for modules, and with which settings they run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

HOME = Path(sys.modules["stepprof"].__file__).parents[1]
PARENT = """
import subprocess, sys
sys.path.append(sys.argv[1])
from stepprof.host.own_python import own_python
code = "import json, sys, stepprof; print(json.dumps([sys.path, stepprof.__file__, sys.argv[1:], sys.flags.isolated]))"
print(subprocess.run(own_python(code, "a b", "c"), check=True, stdout=subprocess.PIPE, text=True).stdout)
"""


def child_of(*command, cwd, home=HOME):
    """Return the module path of the child, its stepprof, its arguments, and whether it is isolated."""
    done = subprocess.run(
        [sys.executable, *map(str, command), str(home)],
        cwd=cwd,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path):
    """Return a folder whose files would break a child that imports them."""
    for name in ("json", "encodings", "site", "subprocess", "runpy"):
        (tmp_path / "here").mkdir(exist_ok=True)
        (tmp_path / "here" / f"{name}.py").write_text("raise SystemExit('imported')")
    return tmp_path / "here"


class TestOwnPython:
    def test_the_current_folder_is_not_searched(self, folder):
        """Neither in `python -c`, nor if it is the folder of the script; the other folders stay in order."""
        before = "import sys; here = sys.path.pop(0)\nimport json, subprocess; sys.path.insert(0, here)\n"
        path, file, arguments, isolated = child_of("-c", before + PARENT, cwd=folder)
        assert str(folder) not in path
        assert "" not in path
        assert (file, arguments, isolated) == (str(HOME / "stepprof" / "__init__.py"), ["a b", "c"], 0)
        (folder / "script.py").write_text(before + PARENT)
        (folder.parent / "link.py").symlink_to(folder / "script.py")
        for script in (folder / "script.py", folder.parent / "link.py"):
            path, *_ = child_of(script, cwd="/")
            assert not {str(folder), str(folder.parent)} & set(path)

    def test_the_interpreters_options_are_kept(self, tmp_path):
        *_, isolated = child_of("-I", "-c", PARENT, cwd=tmp_path)
        assert isolated == 1

    def test_stepprof_in_the_current_folder_is_found(self, tmp_path):
        """A clone without an installation, or a vendored copy: the child imports the same one."""
        (tmp_path / "stepprof").symlink_to(HOME / "stepprof")
        path, file, *_ = child_of("-c", PARENT, cwd=tmp_path)
        assert file == str(tmp_path / "stepprof" / "__init__.py")
        assert path[0] == str(tmp_path)

    def test_stepprof_in_a_zip_archive(self, tmp_path):
        only_code = shutil.ignore_patterns("__pycache__", "assets")
        shutil.copytree(HOME / "stepprof", tmp_path / "app" / "stepprof", ignore=only_code)
        (tmp_path / "app" / "__main__.py").write_text(PARENT)
        zipapp.create_archive(tmp_path / "app", tmp_path / "app.pyz")
        path, file, *_ = child_of(tmp_path / "app.pyz", cwd="/")
        assert file == str(tmp_path / "app.pyz" / "stepprof" / "__init__.py")
        assert path[0] == str(tmp_path / "app.pyz")

    def test_a_current_folder_that_was_removed(self, tmp_path):
        (tmp_path / "gone").mkdir()
        path, *_ = child_of("-c", "import os; os.rmdir(os.getcwd())\n" + PARENT, cwd=tmp_path / "gone")
        assert "" not in path
