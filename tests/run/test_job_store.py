"""The store of a torch.distributed job. A stand-in for torch makes the failures of the store reproducible."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest

from stepprof.run import job_store
from stepprof.run.job_store import JobStore
from stepprof.run.run_id import agree_on_run


class Store(dict):
    """A store that behaves like torch's: `compare_set` sets a missing key."""

    def compare_set(self, key, expected, desired):
        return self.setdefault(key, desired.encode())

    def add(self, key, amount):
        self[key] = self.get(key, 0) + amount
        return self[key]


@pytest.fixture
def torch(monkeypatch):
    """Install a stand-in for torch.distributed in a job of two ranks."""
    c10d = SimpleNamespace(store=Store(), _get_default_store=lambda: c10d.store)
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_world_size=lambda: 2,
        distributed_c10d=c10d,
    )
    module = SimpleNamespace(distributed=distributed)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


def agree(output_dir, number=1):
    return agree_on_run(output_dir, run_id=None, world_size=2, environ={}, store=JobStore(number))


class TestIsUp:
    def test_only_with_several_ranks(self, torch):
        assert JobStore(1).is_up()
        torch.distributed.get_world_size = lambda: 1
        assert not JobStore(1).is_up()

    @pytest.mark.parametrize("module", [SimpleNamespace(), SimpleNamespace(distributed=SimpleNamespace())])
    def test_torch_is_being_imported(self, monkeypatch, module):
        monkeypatch.setitem(sys.modules, "torch", module)
        assert not JobStore(1).is_up()


class TestAgree:
    def test_the_first_proposal_holds(self, torch, tmp_path):
        """Both ranks use the run that the first one proposed. The second rank removes
        the folder that it has made.
        """
        first, second = agree(tmp_path), agree(tmp_path)
        assert first == second
        assert first.source == "torch.distributed"
        assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == [first.run_id]

    def test_the_next_run_of_the_same_job(self, torch, tmp_path):
        """The second run of a job gets a new run id."""
        assert agree(tmp_path).run_id != agree(tmp_path, number=2).run_id

    @pytest.mark.parametrize("answer", [b"../theirs", b"/tmp/theirs", b"", b"a\0b", b"\xff", b"x" * 5000])
    def test_an_answer_that_is_not_a_plain_name_is_ignored(self, torch, tmp_path, caplog, answer):
        """If the store answers with an invalid name, the rank opens a run of its own and logs the reason."""
        torch.distributed.distributed_c10d.store["stepprof/run/1"] = answer
        found = agree(tmp_path)
        assert found.source == "process"
        assert (tmp_path / found.run_id).is_dir()
        assert "store.unreachable" in caplog.text

    def test_a_store_that_fails(self, torch, tmp_path, caplog):
        """If the store fails, the rank opens its own run and logs the exception."""
        torch.distributed.distributed_c10d = SimpleNamespace()
        assert agree(tmp_path).source == "process"
        assert "store.unreachable" in caplog.text
        assert "AttributeError" in caplog.text

    def test_a_store_that_never_answers(self, torch, tmp_path, caplog, monkeypatch):
        """If the store does not answer in time, the rank opens its own run and logs the time limit."""
        hanging = threading.Event()
        torch.distributed.distributed_c10d.store.compare_set = lambda *_: hanging.wait(60)
        monkeypatch.setattr(job_store, "ANSWER_SECONDS", 0.05)
        assert agree(tmp_path).source == "process"
        assert "no answer within 0.05 s" in caplog.text
        hanging.set()


class TestIsFirstToComplain:
    def test_one_rank_alone(self, torch):
        assert [JobStore(1).is_first_to_complain() for _ in range(3)] == [True, False, False]
