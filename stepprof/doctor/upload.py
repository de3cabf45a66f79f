"""Test uploads to a URL: upload a small file as `stepprof follow` does, then remove it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from stepprof.config.post_step_validators import upload_url
from stepprof.doctor.finding import Finding
from stepprof.follow.upload import NotUploaded, Store, missing

NAME = "upload"


def upload_findings(url: str, seconds: float) -> Iterator[Finding]:
    """Run the test. Raise ConfigError if the URL is not a valid upload target."""
    url = upload_url(url, NAME)
    problem = missing(url)
    if problem is not None:
        yield Finding(NAME, "problem", problem)
        return
    store = Store(url, seconds, tries=1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="stepprof-") as folder:
        file = Path(folder, f".stepprof-doctor-{time.time_ns()}")
        file.write_text("test file of stepprof doctor; it can be removed\n")
        try:
            store.put(file.parent, file.name)
        except NotUploaded as error:
            remedy = "credentials and addresses are the store's own variables and files: see docs/after.md"
            yield Finding(NAME, "problem", f"{url}: {error}", remedy)
            return
        try:
            store.remove(file.name)
        except NotUploaded as error:
            problem = f"{url}: written, but it cannot be removed: {error}"
            yield Finding(NAME, "warning", problem, f"remove {file.name} there")
            return
    yield Finding(NAME, "ok", f"{url}: written and removed in {time.monotonic() - began:.2f} s")
