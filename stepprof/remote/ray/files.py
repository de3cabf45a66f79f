"""Copy files from another node's disk to the run's folder in bounded pieces, or leave them there and list them.

Pieces travel through Ray's object store, by an agent on the node: the actor may be training, and the agent outlives it. A file gets its final name once it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepprof.host import real_time
from stepprof.host.atomic_files import publish, write_temporary
from stepprof.host.plain_files import open_plain
from stepprof.host.process_identity import writer_identity
from stepprof.interrupts import ignored, ours
from stepprof.remote.base import EngineFailure, Stopped
from stepprof.remote.loop import in_thread
from stepprof.remote.ray.calls import Agents
from stepprof.run.manifest_writer import describe_error
from stepprof.run.reasons import ReasonCode

PIECE_BYTES = 8 * 2**20
"""Size of one piece: several fit into any object store."""

SETTLE_SECONDS = 900.0
"""Timeout of a rank's export."""


@dataclass(frozen=True, slots=True)
class Carrier:
    """Fetches the files that one actor has left on its node.

    Args:
        fetch: False leaves files where they are.
        limit: files above this many bytes are left.
    """

    agents: Agents
    node: str
    host: str
    fetch: bool
    limit: int

    async def engine_files(self, stopped: Stopped, source: Path, folder: Path) -> Stopped:
        """Fetch an engine's artifacts from its folder there to the same place here. Files that stay
        there are the reason for `partial`.
        """
        sizes = {artifact.path: artifact.bytes for artifact in stopped.artifacts}
        left = await self._bring_all(sizes, source, folder)
        if not left:
            return stopped
        brought = tuple(artifact for artifact in stopped.artifacts if artifact.path not in left)
        partial = "; ".join(filter(None, [stopped.partial, *left.values()]))
        return replace(stopped, artifacts=brought, partial=partial)

    async def rank_files(self, fragment: Path, run: Path, step: str, lost: dict[str, Any]) -> None:
        """Fetch a rank's fragment and its artifacts into the step's folder of the run here. `lost` is written
        if the fragment cannot be fetched.
        """
        folder = run / step
        source = fragment.parent.parent
        try:
            content = json.loads(await self.agents.ask(self.node, "settled", str(fragment), SETTLE_SECONDS))
        except ours(EngineFailure, OSError, ValueError) as error:
            content = lost
            for record in content["windows"]:
                reason = f"left on {self.host} at {fragment}: {describe_error(error)}"
                record.update(pending=False, reason_code=ReasonCode.NOT_COLLECTED, error=reason)
        else:
            for record in content["windows"]:
                await self._bring_record(record, source, folder)
        await in_thread(_write, folder / "manifest" / fragment.name, content)

    async def _bring_record(self, record: dict[str, Any], source: Path, folder: Path) -> None:
        sizes = {entry["path"]: entry["bytes"] for entry in record["artifacts"]}
        left = await self._bring_all(sizes, source, folder)
        record["artifacts"] = [entry for entry in record["artifacts"] if entry["path"] not in left]
        if left:
            record["reason_code"] = record["reason_code"] or ReasonCode.NOT_COLLECTED
            record["error"] = "; ".join(filter(None, [record["error"], *left.values()]))

    async def _bring_all(self, sizes: Mapping[str, int], source: Path, folder: Path) -> dict[str, str]:
        """Fetch files from one folder to another; return why each of the others was left."""
        found = {path: await self._bring(source / path, folder / path, size) for path, size in sizes.items()}
        return {path: problem for path, problem in found.items() if problem is not None}

    async def plain_file(self, source: Path, final: Path) -> str | None:
        """Fetch a file under a name that is still free. Return why it was left, or None."""
        size = await self.agents.ask(self.node, "size", str(source))
        return "it is not there" if size is None else await self._bring(source, final, size)

    async def _bring(self, source: Path, final: Path, size: int) -> str | None:
        """Return why the file was left on its node, or None."""
        where = f"{final.name} ({size} bytes) was left on {self.host} at {source}"
        if not self.fetch:
            return f"{where}: fetch = False"
        if size > self.limit:
            return f"{where}: larger than fetch_bytes = {self.limit}"
        try:
            tmp = await in_thread(_new_file, final)
            try:
                await self._copy(source, tmp, size)
                await in_thread(publish, tmp, final)
            except BaseException:
                tmp.unlink(missing_ok=True)
                raise
        except ours(EngineFailure, OSError) as error:
            return f"{where}: {describe_error(error)}"
        return None

    async def _copy(self, source: Path, tmp: Path, size: int) -> None:
        """Copy a file: one piece is written while the next one is transferred."""
        offset = 0
        coming = self._ask_piece(source, offset)
        while offset < size:
            piece = await coming
            if not piece:
                raise EngineFailure(f"it ended after {offset} of {size} bytes", "unknown")
            offset += len(piece)
            if offset < size:
                coming = self._ask_piece(source, offset)
            await in_thread(_append, tmp, piece)

    def _ask_piece(self, source: Path, offset: int) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(self.agents.ask(self.node, "read", str(source), offset, PIECE_BYTES))


def _new_file(final: Path) -> Path:
    final.parent.mkdir(parents=True, exist_ok=True)
    return write_temporary(final, b"")


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def lost_fragment(
    run_id: str, step: int, version: object, records: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the manifest of a rank whose own cannot be fetched; this process writes it."""
    return {
        "schema_version": 1,
        "run_id": run_id,
        "step": step,
        "version": version,
        "writer": writer_identity(),
        "windows": list(records),
        "engines": [],
        "clocks": [],
        "written_unix_ns": real_time.time_ns(),
        "pid": os.getpid(),
    }


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    publish(write_temporary(path, json.dumps(content, indent=1, default=str).encode()), path)


@contextlib.asynccontextmanager
async def marked(run: Path) -> AsyncIterator[str]:
    """Yield the name of a file in the run's folder that no process looked for before, so that no cache
    of a shared file system can hide it. Raises OSError.
    """
    marker = run / f".seen-{uuid.uuid4().hex}"
    await in_thread(marker.touch)
    try:
        yield marker.name
    finally:
        with ignored(OSError):
            await in_thread(marker.unlink)


def take_over(stopped: Stopped, source: Path, folder: Path) -> Stopped:
    """Move files from the shared folder that the user named to the run."""
    for artifact in stopped.artifacts:
        final = folder / artifact.path
        tmp = _new_file(final)
        with open_plain(source / artifact.path) as file, tmp.open("wb") as copy:
            shutil.copyfileobj(file, copy, PIECE_BYTES)
        tmp.replace(final)
        (source / artifact.path).unlink()
    return stopped
