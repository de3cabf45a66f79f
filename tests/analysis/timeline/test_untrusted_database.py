"""Databases whose schema computes values are refused, and limits hold for all others."""

from __future__ import annotations

import sqlite3

import pytest
from npudatabase import SCHEMA, write_database

from stepprof.analysis.timeline import npu_database, untrusted_database
from stepprof.analysis.timeline.find import find
from stepprof.analysis.timeline.load import load
from stepprof.analysis.timeline.untrusted_database import open_database

NAME = "ascend_pytorch_profiler_3.db"
VIEW = "DROP TABLE STRING_IDS; CREATE VIEW STRING_IDS AS SELECT 1 AS id, 'x' AS value"
GENERATED = "DROP TABLE STRING_IDS; CREATE TABLE STRING_IDS (id INTEGER, value TEXT AS ('x'))"
LOWER_CASE = VIEW.replace("VIEW STRING_IDS", "VIEW string_ids")
STORED = "DROP TABLE STRING_IDS; CREATE TABLE STRING_IDS (id INTEGER, value TEXT AS ('x') STORED)"
WITHOUT_ROWID = """
CREATE TABLE new (id INTEGER PRIMARY KEY, value TEXT) WITHOUT ROWID; INSERT INTO new SELECT * FROM STRING_IDS;
DROP TABLE STRING_IDS; ALTER TABLE new RENAME TO string_ids
"""
VIRTUAL = "DROP TABLE STRING_IDS; CREATE VIRTUAL TABLE STRING_IDS USING fts5(id, value)"
# the name in the schema's row is not the one that its text defines
DECOY = (
    VIEW
    + """;
CREATE TABLE decoy (id, value); PRAGMA writable_schema = ON;
UPDATE sqlite_master SET name = 'other', type = 'table' WHERE name = 'STRING_IDS';
UPDATE sqlite_master SET name = 'STRING_IDS' WHERE name = 'decoy'
"""
)


@pytest.fixture
def database(tmp_path):
    return write_database(tmp_path / "d" / NAME)


def changed(path, script):
    """Run a script in a database, and return its path."""
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.commit()
    connection.close()
    return path


def read(path):
    (found,) = find([path], output_dir=path.parent).inputs
    return load(found, args=True)


class TestRefused:
    @pytest.mark.parametrize(
        "script",
        [VIEW, LOWER_CASE, GENERATED, STORED, VIRTUAL],
        ids=["view", "lower-case", "generated", "stored", "virtual"],
    )
    def test_a_table_that_computes(self, database, script):
        """A view, a virtual table, or a table with a generated column is not read, and a finding names it."""
        source = read(changed(database, script))
        assert "computes its table STRING_IDS: that is not read" in source.findings
        assert "aten::mm" not in source.names
        assert not source.whole

    def test_a_schema_with_other_names(self, database):
        """A view is refused also if its row in the schema has the name of another object."""
        source = read(changed(database, DECOY))
        assert source.findings
        assert "aten::mm" not in source.names

    @pytest.mark.parametrize(
        "script",
        [
            "CREATE VIEW v AS SELECT * FROM TASK; CREATE INDEX i ON TASK (startNs)",
            "CREATE INDEX i ON TASK (startNs + endNs, abs(deviceId)) WHERE deviceId >= 0",
            "CREATE TRIGGER t AFTER INSERT ON TASK BEGIN DELETE FROM TASK; END",
            WITHOUT_ROWID,
        ],
        ids=["view", "expressions", "trigger", "without-rowid"],
    )
    def test_other_objects_are_ignored(self, database, script):
        """A view that is not read, an index, a trigger, and another form of a table do not prevent its reading."""
        before = read(database)
        after = read(changed(database, script))
        assert (after.findings, list(after.names)) == (before.findings, list(before.names))


class TestLimits:
    def test_a_long_value(self, database):
        """A longer value than a name can have ends its table with a finding."""
        changed(database, "INSERT INTO STRING_IDS VALUES (1000, hex(zeroblob(600000)))")
        assert any("its table STRING_IDS cannot be read to its end" in f for f in read(database).findings)

    def test_the_sum_of_all_names(self, database, monkeypatch):
        """All names together have a limit; the rest is ignored with a finding."""
        monkeypatch.setattr(npu_database, "_NAME_BYTES", 20)
        source = read(database)
        assert "has more than 20 characters of names: the rest is ignored" in source.findings
        assert not source.whole

    def test_a_deadline(self, database, monkeypatch):
        """Queries end after a time that depends on the size of the file."""
        monkeypatch.setattr(untrusted_database, "_SECONDS", -1e9)
        monkeypatch.setattr(untrusted_database, "_LOOK", 1)
        source = read(database)
        assert any("interrupted" in finding for finding in source.findings)

    def test_a_file_that_is_replaced(self, database, monkeypatch):
        """A file that is replaced while it is opened is not read."""
        other = write_database(database.with_name("other.db"), schema=SCHEMA)
        opened = untrusted_database.open_plain

        def replaced(path):
            file = opened(path)
            other.replace(path)
            return file

        monkeypatch.setattr(untrusted_database, "open_plain", replaced)
        with pytest.raises(sqlite3.DatabaseError, match="was replaced"):
            open_database(database, frozenset({"TASK"}), bytes.decode, [])

    def test_a_file_that_is_put_back(self, database, monkeypatch):
        """A file that lay there only while SQLite opened it is not read."""
        other = write_database(database.with_name("other.db"), schema=SCHEMA)
        kept = database.with_name("kept.db")
        opened, bound = untrusted_database.open_plain, untrusted_database._bound

        def replaced(path):
            file = opened(path)
            path.rename(kept)
            other.rename(path)
            return file

        def put_back(connection, size):
            kept.replace(database)
            bound(connection, size)

        monkeypatch.setattr(untrusted_database, "open_plain", replaced)
        monkeypatch.setattr(untrusted_database, "_bound", put_back)
        with pytest.raises(sqlite3.DatabaseError, match="was replaced"):
            open_database(database, frozenset({"TASK"}), bytes.decode, [])
