"""Which steps are complete, and which processes are gone."""

from __future__ import annotations

import json
import math
import os
import time

import pytest
import runs
from counting import instructions_of

from stepprof.follow import completeness
from stepprof.follow.completeness import Peers, read_step_for
from stepprof.host.process_identity import writer_identity


class TestSteps:
    def test_completeness_follows_from_the_fragments(self, tmp_path, monkeypatch) -> None:
        """A lost entry is pending while its process lives, and final once it has ended. A process on
        another host counts as living until its status says that it has ended.
        """
        run = runs.make_run(tmp_path)
        peers = Peers(run.path)
        claim = runs.record(run, step=2, status="lost", error="x", writer=writer_identity())
        assert read_step_for(run.path, 2, peers).pending
        runs.record(run, step=3, status="lost", error="x")
        assert (
            read_step_for(run.path, 3, peers).pending,
            read_step_for(run.path, 3, peers).status,
        ) == (False, "lost")
        elsewhere = {**writer_identity(), "host": "another"}
        runs.record(run, step=4, status="lost", error="x", writer=elsewhere)
        assert read_step_for(run.path, 4, peers).pending
        runs.tell_status(run, rank=1, writer=elsewhere, ended=True)
        peers.look()
        assert not read_step_for(run.path, 4, peers).pending
        (claim.fragment.parent / "half.json").write_text('{"windows": [')
        (claim.fragment.parent / "list.json").write_text("[]")
        os.mkfifo(claim.fragment.parent / "pipe.json")
        assert read_step_for(run.path, 2, peers).windows == 1
        assert read_step_for(run.path, 99, peers).windows == 0

    def test_an_engine_that_died(self, tmp_path) -> None:
        """An engine that died is lost for good, even while its driver lives."""
        run = runs.make_run(tmp_path)
        runs.tell_engines(
            run,
            runs.record_engine(run, status="lost", pending=False, health="dead", data=b""),
            writer=writer_identity(),
        )
        step = read_step_for(run.path, 2, Peers(run.path))
        assert (step.pending, step.status) == (False, "lost")

    def test_ranks_that_have_not_reached_the_step_are_awaited(self, tmp_path, monkeypatch) -> None:
        """A step waits for living ranks that have not reached it. A rank on another host counts as
        ended if its status is too old.
        """
        run = runs.make_run(tmp_path)
        peers = Peers(run.path)
        runs.tell_status(run, rank=0, step=3)
        runs.tell_status(run, rank=1, step=2)
        runs.tell_status(run, rank=2, step=None)
        peers.look()
        assert (peers.here(1), peers.here(2), peers.here(3)) == (False, True, True)
        assert len(peers.alive) == 3
        runs.tell_status(run, rank=1, step=2, writer=runs.ended_writer())
        peers.look()
        assert not peers.here(2)
        runs.tell_status(run, rank=1, step=2, writer={**writer_identity(), "host": "another"})
        peers.look()
        assert peers.here(2)
        assert peers.alive
        monkeypatch.setattr(completeness, "SILENT_SECONDS", 0.0)
        peers.look()
        assert not peers.here(2)

    def test_a_run_is_over_when_its_processes_have_ended(self, tmp_path, monkeypatch) -> None:
        """A run whose processes have ended well is over. If one was killed or failed, or none has a status
        yet, it is over when no restart is awaited any more, counted from the last status.
        """
        run = runs.make_run(tmp_path)
        peers = Peers(run.path)
        runs.tell_status(run, rank=0)
        peers.look()
        assert (peers.alive, peers.over(0.0)) == (["rank-0.json"], False)
        runs.tell_status(run, rank=0, ended=True)
        peers.look()
        assert (peers.alive, peers.over(math.inf)) == ([], True)
        for more in ({"writer": runs.ended_writer()}, {"ended": True, "failed": True}):
            runs.tell_status(run, rank=1, **more)
            peers.look()
            assert (peers.over(600.0), peers.over(math.inf), peers.over(0.0)) == (False, False, True)
        earlier = time.time_ns() - 700 * 10**9
        for rank in (0, 1):
            path = runs.tell_status(run, rank, ended=True, failed=True, published_unix_ns=earlier)
            os.utime(path, ns=(earlier, earlier))
        peers.look()
        assert peers.over(600.0)
        empty = Peers(tmp_path / "none")
        empty.look()
        assert (empty.over(600.0), empty.over(0.0)) == (False, True)

    @pytest.mark.parametrize(("seconds", "over"), [(10, True), (-10, False)])
    def test_a_rank_that_was_started_again_counts_once(self, tmp_path, seconds, over) -> None:
        """Of a rank that was started again after its last report the later status counts: it ended well. Two ranks
        of one number at the same time, as in replica groups, count both.
        """
        run = runs.make_run(tmp_path)
        died = time.time_ns() - 60 * 10**9
        path = runs.tell_status(run, writer=runs.ended_writer(), started_unix_ns=died, published_unix_ns=died)
        path.rename(path.with_name("rank-0.2.json"))
        runs.tell_status(run, ended=True, started_unix_ns=died + seconds * 10**9)
        peers = Peers(run.path)
        peers.look()
        assert (len(peers.statuses), peers.over(600.0)) == (2, over)

    def test_an_export_outlives_its_process(self, tmp_path) -> None:
        """What a forked export still writes is pending while the export lives, though its process was killed."""
        run = runs.make_run(tmp_path)
        claim = runs.record(run, step=2, status="lost", error="x", pending=True)
        content = json.loads(claim.fragment.read_text())
        for exporter, pending in ((writer_identity(), True), (runs.ended_writer(), False), (7, False)):
            claim.fragment.write_text(json.dumps({**content, "exporter": exporter}))
            step = read_step_for(run.path, 2, Peers(run.path))
            assert (step.pending, step.exporting) == (pending, pending)

    def test_ranks_of_an_earlier_job_are_not_awaited(self, tmp_path) -> None:
        """A step does not wait for a rank of an earlier job on another host once the
        new job has published a status.
        """
        run = runs.make_run(tmp_path)
        elsewhere = {**writer_identity(), "host": "another"}
        runs.tell_status(run, rank=1, step=2, writer=elsewhere)
        path = run.status_path(1)
        path.write_text(json.dumps({**json.loads(path.read_text()), "published_unix_ns": 10**18}))
        os.utime(path, (10**9, 10**9))
        peers = Peers(run.path)
        peers.look()
        assert peers.here(2)
        runs.tell_status(run, rank=0, step=3)
        peers.look()
        assert not peers.here(2)

    def test_each_further_rank_costs_the_same(self, tmp_path) -> None:
        """Reading a step costs the same for each further rank: the process of a
        fragment is looked up, not searched.
        """
        run = runs.make_run(tmp_path)
        costs = []
        for first, after in ((0, 20), (20, 40), (40, 80)):
            for rank in range(first, after):
                writer = {**writer_identity(), "host": f"node-{rank}"}
                runs.tell_status(run, rank=rank, writer=writer, ended=True)
                runs.record(run, rank=rank, data=b"", status="lost", writer=writer)
            peers = Peers(run.path)
            peers.look()
            costs.append(instructions_of(read_step_for, run.path, 2, peers))
        assert costs[2] - costs[1] < 2.06 * (costs[1] - costs[0])

    @pytest.mark.parametrize(
        "path", ["/etc/passwd", "../x", "a/../../x", "", "a\\b", "manifest/a.json", None, 3]
    )
    def test_no_artifact_leads_out_of_its_step(self, tmp_path, path) -> None:
        """A path that leaves the step's folder, or leads into its manifest folder, is no artifact."""
        run = runs.make_run(tmp_path)
        runs.record(run, artifacts=[{"path": path, "bytes": 5}], data=b"")
        assert read_step_for(run.path, 2, Peers(run.path)).artifacts == {}
