"""Install launchers that Debian packages: Slurm and Open MPI."""

from __future__ import annotations

import os
import shutil
import subprocess

# other sessions may install packages at the same time
_APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300")


def program(name: str, *packages: str) -> str:
    """Return the path of a program. Install its packages if it is missing and this user may.

    Raises:
        FileNotFoundError: it is not installed, and cannot be.
    """
    found = shutil.which(name)
    if found is None and shutil.which("apt-get") is not None and os.geteuid() == 0:
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
            subprocess.run([*_APT, *command], env=environ, stdin=subprocess.DEVNULL, check=False, timeout=300)
        found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name}: not installed (Debian: apt-get install {' '.join(packages)})")
    return found
