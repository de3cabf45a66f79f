"""The contents of the package: each subpackage, the examples, and the marker for types."""

from __future__ import annotations

from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

import stepprof


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
