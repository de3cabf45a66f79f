"""Run in every Python process below `stepprof run`: Python imports it at its start.

Another `sitecustomize`, which this one hides, runs first.
"""

import os
import sys


def _run_hidden() -> None:
    """Import the `sitecustomize` that would be imported without this folder on the path."""
    folder = os.path.dirname(os.path.abspath(__file__))
    ours = [each for each in sys.path if os.path.abspath(each) == folder]
    this = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [each for each in sys.path if each not in ours]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the hidden one
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.path[:0] = ours
        if this is not None:
            sys.modules.setdefault("sitecustomize", this)


try:
    _run_hidden()
finally:
    try:
        import stepprof_autoload
    except ImportError:  # another environment, without stepprof
        pass
    else:
        stepprof_autoload.activate_later()
