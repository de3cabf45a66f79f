"""Write the tables of a run as Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepprof.analysis.data.run import RecordedStep, Run
from stepprof.analysis.data.schema import TABLES
from stepprof.analysis.data.table import Table
from stepprof.errors import ConfigError
from stepprof.host.atomic_files import temporary


@dataclass(frozen=True, slots=True)
class Written:
    """A written file."""

    path: Path
    rows: int
    bytes: int


def export(run: Run, folder: Path, recorded: Sequence[RecordedStep]) -> list[Written]:
    """Write one file for each table of a run: ``steps.parquet``, …

    Args:
        run: the run.
        folder: is made if it is missing; files of an earlier export are replaced as a whole.
        recorded: the steps whose slices, forward steps and findings are written.

    Raises:
        ConfigError: a file cannot be written.
    """
    tables: dict[str, Sequence[Table]] = {
        "steps": [run.steps],
        "spans": [run.spans],
        "slices": [step.slices for step in recorded],
        "iterations": [step.iterations for step in recorded],
        "findings": [step.findings for step in recorded],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name in TABLES:
            if tables[name]:
                written.append(_write(folder / f"{name}.parquet", tables[name]))
    except OSError as error:
        raise ConfigError(
            f'--parquet "{folder}": cannot be written: {error.strerror or error}; name another folder'
        ) from error
    return written


def _write(path: Path, tables: Sequence[Table]) -> Written:
    from pyarrow import parquet

    hidden = temporary(path)
    try:
        rows = 0
        with parquet.ParquetWriter(hidden, tables[0].reader().schema, compression="zstd") as file:
            for table in tables:
                for batch in table.reader():
                    file.write_batch(batch)
                    rows += batch.num_rows
        size = hidden.stat().st_size
        hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)
    return Written(path, rows, size)
