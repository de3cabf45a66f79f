"""Build a skeleton of a framework: its own modules from the wheel, and stand-ins for modules with
dependencies that cannot be installed here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from wheels import packages, wheel

ANYTHING = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {"__init__": lambda self, *args, **kwargs: None})
"""
"""The source of a module in which every name is a class that takes any arguments."""


def build(framework: str, folder: Path, kept: list[str], stubs: dict[str, str], which: int = -1) -> Path:
    """Copy modules of an unpacked wheel and write stand-ins. Every package that contains them is
    empty.

    Args:
        framework: its name on PyPI.
        folder: the folder of the skeleton, which has to be on the path.
        kept: the files of the wheel that are copied unchanged.
        stubs: the source of each stand-in, by its file.
        which: the index among its wheels; the oldest is 0, the latest -1.
    """
    for metadata in wheel(framework, which).glob("*.dist-info"):
        shutil.copytree(metadata, folder / metadata.name)
    for name in kept:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(packages(framework, which) / name, folder / name)
    for name, text in stubs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in (*kept, *stubs):
        for parent in [*Path(name).parents][:-1]:
            (folder / parent / "__init__.py").touch()
    return folder
