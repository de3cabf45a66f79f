"""Upload a run: each complete step, and at its end the other files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from stepprof.follow.below import own
from stepprof.follow.completeness import Step
from stepprof.follow.upload import Store
from stepprof.follow.uploaded import Uploaded
from stepprof.host.own_files import is_foreign
from stepprof.host.plain_files import json_files
from stepprof.run.layout import AFTER, MANIFEST, PRUNED, SPANS, UPLOADS, step_folder
from stepprof.run.names import RUN_FILE


class Uploads:
    """The uploads of one run.

    Args:
        store: the folder of the run in the store.
        run: the run directory.
        header: the run and the writer, for the records.
    """

    def __init__(self, store: Store, run: Path, header: Mapping[str, object]) -> None:
        self._store = store
        self._run = run
        self._header = header
        self._folders: dict[int | None, Uploaded] = {}
        """What was uploaded of a step; of the run: None. In memory too: a full disk keeps no record."""
        self._left: dict[int | None, int] = {}
        """How many files of each were not uploaded."""

    @property
    def has_failed(self) -> bool:
        """Return whether files were not uploaded."""
        return any(self._left.values())

    def failures(self, number: int) -> int:
        """Return how often uploads of a step have failed."""
        return self._folder(number).failures

    def is_due(self, number: int) -> bool:
        """Return whether files of a step are left, and the store may be tried."""
        return bool(self._left.get(number)) and not self._store.rests

    def retry(self) -> None:
        """Try what failed again at once."""
        self._store.reset()
        for each in self._folders.values():
            each.retry()

    def upload_step(self, step: Step) -> None:
        """Upload what is new in a step. Raises OSError: the record cannot be written."""
        base = self._run / step_folder(step.number)
        artifacts: Mapping[str, int] = step.artifacts
        if (base / MANIFEST / PRUNED).exists():
            artifacts = {path: size for path, size in artifacts.items() if os.path.lexists(base / path)}
        try:
            self._upload(step.number, artifacts, _json(base / MANIFEST))
        finally:
            step.not_uploaded = sum(not self._folder(step.number).has(path) for path in artifacts)

    def upload_run(self) -> None:
        """Upload the files that belong to no step. Raises OSError: the record cannot be written."""
        spans = sorted((self._run / SPANS).glob("*.jsonl"))
        self._upload(None, {}, [self._run / RUN_FILE, *spans, *_json(self._run / AFTER)])

    def _upload(self, number: int | None, artifacts: Mapping[str, int], files: Iterable[Path]) -> None:
        folder = self._folder(number)
        own(self._run, folder.record)
        ours = [file for file in files if file.is_file() and not is_foreign(file)]
        self._left[number] = folder.upload(artifacts, ours)

    def _folder(self, number: int | None) -> Uploaded:
        if number not in self._folders:
            base = self._run if number is None else self._run / step_folder(number)
            record = base / (AFTER if number is None else MANIFEST) / UPLOADS
            where = {} if number is None else {"step": number}
            self._folders[number] = Uploaded(self._store, self._run, record, base, {**self._header, **where})
        return self._folders[number]


def _json(folder: Path) -> list[Path]:
    try:
        return json_files(folder)
    except OSError:
        return []
