"""Build the command line of a new interpreter that runs code of stepprof.

Only this module knows where such an interpreter finds modules. By itself it would also search the
current folder, which may be the folder of a stranger's run, or the folder of the program that
started it, whose files may have the names of modules of the standard library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HOME = str(Path(__file__).absolute().parents[2])
"""The folder, or the zip archive, that contains the package."""
_FLAGS = {"isolated": "-I", "ignore_environment": "-E", "no_user_site": "-s", "no_site": "-S"}


def can_start() -> bool:
    """Return whether this process knows its interpreter. A frozen program would start itself again."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def own_python(code: str, *arguments: str) -> list[str]:
    """Return the command that runs `code` in a new interpreter.

    It searches the folders of this process for modules, except the current folder and the folder
    of the main program. The folder of stepprof is always searched.
    """
    flags = [flag for name, flag in _FLAGS.items() if getattr(sys.flags, name)]
    # Python 3.13 imports `linecache` before the first statement, and without this flag from the current folder. Older versions
    # import no file until then.
    if sys.version_info >= (3, 11):
        flags.append("-P")
    program = f"import sys; sys.path[:] = {_module_folders()!r}\n{code}"
    return [sys.executable, *flags, f"-Xutf8={sys.flags.utf8_mode}", "-c", program, *arguments]


def _module_folders() -> list[str]:
    entries: list[object] = [*sys.path]  # the import system ignores what is no string
    folders = [_absolute(entry) for entry in entries if isinstance(entry, str)]
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    without = {_absolute("")}
    if main:  # the interpreter follows a link to the script
        without |= {os.path.dirname(_absolute(path)) for path in (main, os.path.realpath(main))}  # noqa: PTH120
    kept = [folder for folder in folders if folder not in without or folder == _HOME]
    return kept if _HOME in kept else [_HOME, *kept]


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)  # noqa: PTH100 - links are kept, as the interpreter keeps them
    except FileNotFoundError:  # the current folder was removed
        return path
