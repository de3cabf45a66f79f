"""Ask pip-audit for known faults of the pinned versions and of the lower bounds. Exit with 1 only if an answer names one.

An index that gives no answer, or is not reachable, is no failure: tests/project/test_packaging.py has the faults that
were found. The session `audit` of noxfile.py runs this.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADMITTED = {"torch", "transformers"}
"""Lower bounds that SECURITY.md explains: stepprof does not use what is at fault."""
SECONDS = 180


def main() -> int:
    """Print a line for each fault, or why there is no answer."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    bounds = {*re.findall(r'"([\w.-]+)(?:\[[\w,-]+\])?>=([\d.]+)', text)}
    ordered = sorted(bounds, key=lambda bound: [int(each) for each in bound[1].split(".")], reverse=True)
    lowest = [(name, version) for name, version in dict(ordered).items() if name not in ADMITTED]
    found = {"constraints.txt": audited(pins)}
    found["pyproject.toml"] = audited("".join(f"{name}=={version}\n" for name, version in lowest))
    for file, faults in found.items():
        print(f"{file}: no answer" if faults is None else "\n".join(f"{file}: {each}" for each in faults))
    return int(any(found.values()))


def audited(requirements: str) -> list[str] | None:
    """Return the faults of these versions; None if there is no answer for any of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requirements.txt"
        path.write_text(requirements, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "pip_audit",
            "--no-deps",
            "--disable-pip",
            "--format",
            "json",
            "-r",
            str(path),
        ]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            known = [each for each in json.loads(ran.stdout)["dependencies"] if "vulns" in each]
        except (subprocess.TimeoutExpired, ValueError, KeyError):
            return None
    if not known:
        return None
    return [f"{each['name']} {each['version']}: {fault['id']}" for each in known for fault in each["vulns"]]


if __name__ == "__main__":
    sys.exit(main())
