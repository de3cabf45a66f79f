"""Lists the packages: those below `stepprof/`, and `examples/` as `stepprof.examples`. The rest is in pyproject.toml.

Installs `stepprof.pth` next to them, which Python runs at its start: setuptools has no setting for it.
"""

import zipfile
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

WITHOUT_CODE = [
    "stepprof.analysis.report.assets"
]  # a package all the same to setuptools, which warns if it is not listed
PTH = "stepprof.pth"


class BuildWithPth(build_py):
    """Build the packages, and the file that Python runs at its start."""

    def run(self) -> None:
        """Copy the file next to the packages."""
        super().run()
        if not self.editable_mode:
            self.copy_file(PTH, str(Path(self.build_lib, PTH)))


class EditableWithPth(editable_wheel):
    """Build a wheel that points at the checkout, with the file that Python runs at its start."""

    def run(self) -> None:
        """Add the file to the wheel."""
        super().run()
        for path in Path(self.dist_dir).glob("*.whl"):
            with zipfile.ZipFile(path, "a") as wheel:
                wheel.write(PTH, PTH)


setup(
    packages=[*find_packages(include=["stepprof", "stepprof.*"]), *WITHOUT_CODE, "stepprof.examples"],
    py_modules=["stepprof_autoload", "stepprof_verl"],
    cmdclass={"build_py": BuildWithPth, "editable_wheel": EditableWithPth},
)
