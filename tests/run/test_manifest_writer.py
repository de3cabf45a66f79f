"""The part of a step's manifest that one target writes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
from runs import make_run

from stepprof.config.config import Config
from stepprof.recording.window_handle import Ticket, log_outcome
from stepprof.redaction.messages import hide
from stepprof.run.entry_times import Timing
from stepprof.run.manifest_writer import Fragment, Origin, as_entries, describe_error, window_entry
from stepprof.run.model import Artifact, Window
from stepprof.run.reasons import ReasonCode
from stepprof.run.schema import EngineEntry, WindowEntry

WINDOW = Window(step=2, role="actor", occurrence=1, version=7)


@pytest.fixture
def origin(tmp_path):
    """Return rank 0 of 2, in a new run."""
    return Origin(make_run(tmp_path), 0, 2)


def at_once(work) -> None:
    """Stand in for the background thread: do the work at once."""
    work()


def read(fragment) -> dict:
    return json.loads(fragment.claim.fragment.read_text())


class TestFragment:
    def test_the_fragment_is_written_ahead(self, origin) -> None:
        """The fragment is written before the recording as lost: this is what remains if the process dies."""
        fragment = Fragment(origin, WINDOW, at_once)
        fragment.windows.append(window_entry(origin, WINDOW, Timing(0), status="lost", error="lost"))
        claim = fragment.write_ahead()
        assert fragment.write_ahead() is claim
        content = read(fragment)
        assert (content["step"], content["version"], content["run_id"]) == (2, 7, "r")
        assert content["writer"]["pid"] == origin.pid
        assert [w["status"] for w in content["windows"]] == ["lost"]
        assert content["clocks"] == [
            {"host": origin.host, "offset_ns": 0, "error_ns": origin.anchor.error_ns, "method": "local"}
        ]

    def test_a_clock_that_was_set(self, origin) -> None:
        """If the wall clock was set, windows and engines stay on the process's clock.
        The manifest states the offset.
        """
        real = origin.anchor
        origin.anchor = replace(real, unix_ns=real.unix_ns - 37 * 10**9)
        fragment = Fragment(origin, WINDOW, at_once)
        fragment.windows.append(window_entry(origin, WINDOW, Timing(real.monotonic_ns), status="lost"))
        fragment.engines.append(EngineEntry(start_unix_ns=real.unix_ns))
        fragment.clocks = [{"host": "b", "offset_ns": 5, "error_ns": 1, "method": "ping-pong"}]
        fragment.write()
        content = read(fragment)
        assert content["windows"][0]["start_unix_ns"] == origin.anchor.unix_ns
        local, other = content["clocks"]
        assert abs(local["offset_ns"] - 37 * 10**9) <= local["error_ns"]
        assert other["offset_ns"] == local["offset_ns"] + 5
        assert content["engines"][0]["start_unix_ns"] == real.unix_ns - local["offset_ns"]

    def test_an_error_in_a_manifest_shows_no_secret(self, origin) -> None:
        """Errors in windows and engines are masked when the fragment is written."""
        hide("canary-0123")
        fragment = Fragment(origin, WINDOW, at_once)
        fragment.windows.append(WindowEntry(error="no canary-0123\n"))
        fragment.engines.append(EngineEntry(body_error="no canary-0123"))
        fragment.write()
        text = json.dumps(read(fragment))
        assert "canary" not in text
        assert read(fragment)["windows"][0]["error"] == "no …\\n"

    def test_the_last_version_replaces_the_others(self, origin) -> None:
        """A later version replaces the whole file, and only one file exists."""
        fragment = Fragment(origin, WINDOW, at_once)
        record = window_entry(origin, WINDOW, Timing(0), status="lost")
        fragment.windows.append(record)
        fragment.save()
        record.update(status="complete")
        fragment.save()
        assert [w["status"] for w in read(fragment)["windows"]] == ["complete"]
        assert len(list(fragment.claim.fragment.parent.iterdir())) == 1

    def test_fragments_of_one_window_do_not_overwrite_each_other(self, origin) -> None:
        """A second fragment of the same window gets a number, and the first one stays."""
        claims = [Fragment(origin, WINDOW, at_once).write_ahead() for _ in range(2)]
        assert [claim.stem for claim in claims] == ["actor/rank-0", "actor/rank-0.2"]

    def test_a_disk_that_refuses(self, origin, log) -> None:
        """If the run directory cannot be written, the log has one
        `manifest.not_written` with step and role.
        """
        shutil.rmtree(origin.run.path)
        origin.run.path.write_text("in the way")
        Fragment(origin, WINDOW, at_once).save()
        (line,) = log
        assert (line["event"], line["step"], line["role"]) == ("manifest.not_written", 2, "actor")


class TestLogOutcome:
    def test_an_uncaptured_window_has_a_reason(self, origin) -> None:
        """A skipped window is written to a fragment of its own, with the reason and the waiting time."""
        policy = Config(backend="null").policy(None)
        ticket = Ticket(WINDOW, policy, Timing(0, 1.23456789))
        log_outcome(ticket, origin, at_once, status="skipped", code=ReasonCode.BUSY, reason="busy")
        (window,) = read(ticket.fragment)["windows"]
        assert (window["pending"], window["reason_code"]) == (False, "busy")
        assert (window["status"], window["error"], window["backend"]) == ("skipped", "busy", "null")
        assert (window["wait_seconds"], window["artifacts"]) == (1.234568, [])
        ticket.note_error(ValueError("mine"))
        assert read(ticket.fragment)["windows"][0]["body_error"] == "ValueError: mine"


class TestValues:
    def test_metadata(self, origin) -> None:
        """The metadata of an artifact contain the run, step, role, rank and
        anchor, and can be written as JSON.
        """
        found = json.loads(json.dumps(origin.metadata(WINDOW)))
        assert {
            key: found[key]
            for key in ("run_id", "step", "role", "occurrence", "version", "rank", "world_size")
        } == {
            "run_id": "r",
            "step": 2,
            "role": "actor",
            "occurrence": 1,
            "version": 7,
            "rank": 0,
            "world_size": 2,
        }
        assert found["anchor"] == origin.anchor.to_dict()

    def test_an_error_is_one_line(self) -> None:
        """An error is described by its type and its message, with a limited length."""
        assert describe_error(ValueError("no")) == "ValueError: no"
        assert describe_error(KeyboardInterrupt()) == "KeyboardInterrupt"
        assert len(describe_error(ValueError("x" * 10_000))) < 2_010

    def test_control_characters(self):
        """Colors are removed and control characters are escaped, so that the description is one line."""
        assert (
            describe_error(ValueError("\x1b[36mred\x1b[0m\r\n\tand \x07more\x9b"))
            == r"ValueError: red\r\n\tand \x07more\x9b"
        )

    def test_artifacts(self) -> None:
        """Artifacts become entries with path, kind, bytes and events."""
        assert as_entries([Artifact("actor/rank-0.json", "faulty", 3)]) == [
            {"path": "actor/rank-0.json", "kind": "faulty", "bytes": 3, "events": None}
        ]
