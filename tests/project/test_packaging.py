"""The contents of the package: each subpackage, the examples, and the marker for types."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

from packaging.version import Version

import stepprof

FAULTY_BELOW = {
    "pyarrow": "14.0.1",  # CVE-2023-47248: a file of IPC or Parquet runs code
    "setuptools": "78.1.1",  # CVE-2025-47273: a path out of the folder
    "flask-cors": "6",  # CVE-2024-6839 and others
}
"""Versions of packages with known faults. SECURITY.md says what holds for the others."""


class TestDependencies:
    def test_lower_bounds_leave_out_known_faults(self) -> None:
        """No lower bound admits a version with a known fault that stepprof could meet."""
        text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
        bounds = dict(re.findall(r'"([a-z-]+)(?:\[[\w,-]+\])?>=([\d.]+)"', text))
        admitted = {name: Version(bounds[name]) for name in FAULTY_BELOW}
        assert all(admitted[name] >= Version(fixed) for name, fixed in FAULTY_BELOW.items())


class TestPackages:
    def test_every_folder_with_modules_is_a_package(self) -> None:
        """Each folder with modules has an `__init__.py`; otherwise setup.py would not find it."""
        package = Path(next(iter(stepprof.__path__)))
        folders = {path.parent for path in package.rglob("*.py")}
        assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").is_file()] == []

    def test_the_examples_ship_with_their_data(self) -> None:
        """The example and its prompts are part of the package."""
        examples = files("stepprof.examples")
        assert [name for name in ("grpo.py", "arithmetic.jsonl") if not (examples / name).is_file()] == []

    def test_the_file_that_python_runs_at_its_start(self) -> None:
        """The installation has `stepprof.pth`. It costs nothing without its variable."""
        installed = distribution("stepprof").locate_file("stepprof.pth")
        (line,) = Path(str(installed)).read_text().splitlines()
        assert line.startswith("import os; os.environ.get(")

    def test_types_are_announced(self) -> None:
        """The package has the file `py.typed`, so that type checkers read its annotations."""
        assert (files("stepprof") / "py.typed").is_file()
