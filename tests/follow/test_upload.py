"""Uploads to a store, and the record of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
import runs
from fsspec.registry import known_implementations
from structlog.testing import capture_logs

from stepprof.analysis.verify import verify_run
from stepprof.config.config import Config
from stepprof.follow import upload
from stepprof.follow.follower import Follower, stored_name
from stepprof.follow.upload import NotUploaded, Store, missing
from stepprof.follow.uploaded import Uploaded
from stepprof.redaction.messages import hide
from stepprof.run.layout import MANIFEST, UPLOADS

HEADER = {"schema_version": 1, "run_id": "r", "step": 2, "writer": {}}


@pytest.fixture
def memory(monkeypatch):
    """Return fsspec's file system in memory, empty."""
    monkeypatch.setattr(upload, "PAUSE_SECONDS", 0.001)
    files = fsspec.filesystem("memory")
    files.store.clear()
    yield files
    files.store.clear()


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 5000)
    return path


def breaks(monkeypatch, memory, name, *outcomes):
    """Let the next calls of a method of the store do this: raise an error, or call a function."""
    real, left = getattr(type(memory), name), list(outcomes)

    def method(self, *args, **options):
        found = left.pop(0) if left else None
        if isinstance(found, Exception):
            raise found
        return real(self, *args, **options) if found is None else found(*args)

    monkeypatch.setattr(type(memory), name, method)
    return left


class TestStore:
    def test_a_file(self, file, memory) -> None:
        """A file is written over what is there, and removed."""
        store = Store("memory://bucket/", 20.0)
        for data in (b"x" * 5000, b"y" * 4000):
            file.write_bytes(data)
            assert store.put(file.parent, "a", len(data)) == len(data)
            assert memory.cat("/bucket/a") == data
        store.remove("a")
        assert not memory.exists("/bucket/a")

    @pytest.mark.parametrize("scheme", ["file", "local"])
    def test_a_folder_on_a_disk(self, file, tmp_path, scheme) -> None:
        """A store with folders gets those that it needs."""
        Store(f"{scheme}://{tmp_path}/up/here", 20.0).put(file.parent, "a")
        assert (tmp_path / "up/here/a").read_bytes() == file.read_bytes()
        assert not (tmp_path / "up/here/a").is_symlink()

    @pytest.mark.parametrize(
        "outcome",
        [OSError("refused"), lambda *_: None, lambda local, remote: fsspec.filesystem("memory").pipe(remote, b"half")],
        ids=["refused", "lost", "half"],
    )  # fmt: skip
    def test_a_failed_upload_is_retried(self, file, memory, monkeypatch, outcome) -> None:
        """An upload is repeated until the stored file has the size of ours."""
        breaks(monkeypatch, memory, "put_file", outcome, outcome)
        Store("memory://bucket", 20.0).put(file.parent, "a")
        assert memory.cat("/bucket/a") == file.read_bytes()

    def test_after_a_failure_the_store_rests(self, file, memory, monkeypatch) -> None:
        """After a file that the store did not take it rests for a while, or until it is reset. A file that cannot be
        read is no failure of the store.
        """
        breaks(monkeypatch, memory, "put_file", *[OSError("down")] * 3)
        store = Store("memory://bucket", 20.0, tries=3)
        with pytest.raises(NotUploaded, match="No such file"):
            store.put(file.parent, "none")
        assert not store.rests
        with pytest.raises(NotUploaded, match="down"):
            store.put(file.parent, "a")
        assert store.rests
        store.reset()
        assert not store.rests
        assert store.put(file.parent, "a") == 5000

    def test_a_call_that_hangs_times_out(self, file, memory, monkeypatch) -> None:
        """A call that hangs fails at its time limit. Then the store rests."""
        go_on = threading.Event()
        breaks(monkeypatch, memory, "put_file", lambda *_: go_on.wait(60))
        store = Store("memory://bucket", 0.2)
        with pytest.raises(NotUploaded, match=r"timed out after 0\.2 s"):
            store.put(file.parent, "a")
        assert store.rests
        go_on.set()
        for thread in threading.enumerate():  # it would write into the store of the next test
            if thread.name == "stepprof-upload":
                thread.join(60)

    def test_a_folder_is_an_artifact_too(self, tmp_path, memory) -> None:
        """An artifact that is a folder is uploaded with all its files, without links. An empty folder is
        an error.
        """
        (tmp_path / "out/deep").mkdir(parents=True)
        (tmp_path / "out/a").write_text("a")
        (tmp_path / "out/deep/b").write_text("bb")
        (tmp_path / "secret").write_text("s")
        (tmp_path / "out/link").symlink_to(tmp_path / "secret")
        (tmp_path / "out/links").symlink_to(tmp_path)
        store = Store("memory://bucket", 20.0)
        assert store.put(tmp_path, "out") == 3
        assert sorted(memory.find("/bucket")) == ["/bucket/out/a", "/bucket/out/deep/b"]
        (tmp_path / "empty").mkdir()
        for path, reason in (("empty", "an empty folder"), ("out/link", "a link"), ("none", "No such file")):
            with pytest.raises(NotUploaded, match=reason):
                store.put(tmp_path, path)

    @pytest.mark.parametrize("link", ["keys", "keys/deep", "keys/deep/id"])
    def test_no_link_leads_out(self, tmp_path, memory, link) -> None:
        """A link on the way to a file, or in its place, is not followed: nothing outside of the run is sent."""
        outside = tmp_path / "outside"
        (outside / "deep").mkdir(parents=True)
        for name in ("id", "deep/id"):
            (outside / name).write_text("a secret")
        place = tmp_path / "run" / link
        place.parent.mkdir(parents=True)
        place.symlink_to(
            {"keys": outside, "keys/deep": outside / "deep", "keys/deep/id": outside / "id"}[link]
        )
        with pytest.raises(NotUploaded, match="cannot be read"):
            Store("memory://bucket", 20.0).put(tmp_path / "run", "keys/deep/id")
        assert memory.find("/bucket") == []

    def test_what_the_manifest_does_not_list(self, file, memory) -> None:
        """A file of another size than in the manifest, or with a hole, is refused: a store would fill the hole."""
        store = Store("memory://bucket", 20.0)
        with pytest.raises(NotUploaded, match="has 5000 bytes; the manifest lists 7"):
            store.put(file.parent, "a", 7)
        os.truncate(file, 1 << 40)
        with pytest.raises(NotUploaded, match="is a sparse file of 1099511627776 bytes"):
            store.put(file.parent, "a", 1 << 40)
        assert memory.find("/bucket") == []
        assert not store.rests

    def test_keys_in_a_stores_message_are_masked(self, file, memory, monkeypatch) -> None:
        """The reason has no secret, even in a long message, and is one line of limited length."""
        key = "sk-canary-5f2e9"
        hide(key)
        breaks(monkeypatch, memory, "put_file", *[OSError(f"\x1b[2J{'x' * 420}{key}/{key * 100}")] * 9)
        with pytest.raises(NotUploaded) as caught:
            Store("memory://bucket", 20.0, tries=1).put(file.parent, "a")
        reason = str(caught.value)
        assert reason.isprintable()
        assert "canary" not in reason
        assert len(reason) <= 501

    def test_a_missing_package_is_named(self, monkeypatch) -> None:
        """The reason names the package to install, for fsspec itself and for the scheme of the URL."""
        monkeypatch.setitem(known_implementations, "s3", {"class": "no_such.Class"})
        assert missing("s3://b") == "s3://b needs no_such, which is not installed: pip install no_such"
        find = upload.importlib.util.find_spec
        for package in ("fsspec", "tenacity"):
            monkeypatch.setattr(
                upload.importlib.util, "find_spec", lambda name, gone=package: None if name == gone else find(name)
            )  # fmt: skip
            assert 'install the extra "upload" of stepprof' in missing("file:///x")


class TestRecord:
    @pytest.fixture
    def step(self, tmp_path):
        """Return a function that uploads step 2 of a run as a new follower does."""
        run = runs.make_run(tmp_path)
        claim = runs.record(run)

        def upload_step():
            store = Store("memory://bucket/r", 20.0, tries=1)
            record = claim.folder / MANIFEST / UPLOADS
            name = "actor/rank-0.trace.json.gz"
            sizes = {name: (claim.folder / name).stat().st_size}
            return Uploaded(store, run.path, record, claim.folder, HEADER).upload(sizes, [claim.fragment])

        upload_step.claim = claim
        return upload_step

    TRACE = "/bucket/r/step-000002/actor/rank-0.trace.json.gz"
    FRAGMENT = "/bucket/r/step-000002/manifest/actor-rank-0.json"
    RECORD = "/bucket/r/step-000002/manifest/uploads.json"

    def entry(self, step):
        content = json.loads((step.claim.folder / MANIFEST / UPLOADS).read_text())
        (entry,) = content["uploads"]
        return entry

    def test_only_what_is_left_is_uploaded(self, step, memory, monkeypatch) -> None:
        """An artifact is uploaded once. A manifest that has changed replaces its earlier version."""
        assert step() == 0
        assert sorted(memory.find("/bucket")) == [self.TRACE, self.FRAGMENT, self.RECORD]
        entry = self.entry(step)
        assert (entry["status"], entry["url"]) == ("uploaded", f"memory:/{self.TRACE}")
        assert memory.cat(self.RECORD) == (step.claim.folder / MANIFEST / UPLOADS).read_bytes()
        left = breaks(monkeypatch, memory, "put_file", *[None] * 9)
        assert step() == 0
        assert len(left) == 9
        step.claim.fragment.write_text("{}")
        assert step() == 0
        assert len(left) == 7  # the fragment and the record
        assert memory.cat(self.FRAGMENT) == b"{}"

    def test_half_a_file_is_replaced(self, step, memory) -> None:
        """A follower that is killed in the middle of a file leaves half of it in the store, and no record."""
        memory.pipe(self.TRACE, b"half")
        assert step() == 0
        assert memory.size(self.TRACE) == self.entry(step)["bytes"]

    def test_a_failed_upload_is_tried_again(self, step, memory, monkeypatch) -> None:
        """A store that fails leaves the reason in the record, logged once. Later the file is uploaded, after those
        that have not failed.
        """
        no = PermissionError("the store says no")
        breaks(monkeypatch, memory, "put_file", no, None, None, no)
        with capture_logs() as logs:
            assert [step(), step()] == [3, 1]
        assert self.entry(step)["error"] == "PermissionError: the store says no"
        assert [line["event"] for line in logs] == ["upload.failed", "upload.finished"]
        assert step() == 0

    def test_one_file_that_the_store_refuses_does_not_stop_the_others(
        self, step, memory, monkeypatch
    ) -> None:
        """What has failed before is tried last."""
        other = step.claim.folder / "actor/b"
        other.write_text("b")
        real = type(memory).put_file

        def refuse(self, local, remote, **options):
            if remote.endswith(".gz"):
                raise OSError("too large")
            real(self, local, remote, **options)

        monkeypatch.setattr(type(memory), "put_file", refuse)
        run, record = step.claim.folder.parent, step.claim.folder / MANIFEST / UPLOADS
        sizes = {
            "actor/rank-0.trace.json.gz": other.with_name("rank-0.trace.json.gz").stat().st_size,
            "actor/b": 1,
        }
        left = []
        for _ in range(2):
            store = Store("memory://bucket/r", 20.0, tries=1)
            left.append(Uploaded(store, run, record, step.claim.folder, HEADER).upload(sizes, ()))
        assert left == [3, 1]
        assert memory.cat("/bucket/r/step-000002/actor/b") == b"b"

    def test_a_damaged_record(self, step, memory) -> None:
        """After a damaged record everything is uploaded again."""
        step()
        for text in ("{", "[]", '{"uploads": [3, {"path": 3}], "files": 5}'):
            (step.claim.folder / MANIFEST / UPLOADS).write_text(text)
            assert step() == 0
            assert "uploaded" in (step.claim.folder / MANIFEST / UPLOADS).read_text()


AWS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Start a moto server with a bucket on this machine, and yield its URL."""
    script = (
        "from moto.server import ThreadedMotoServer\nimport boto3, sys\n"
        "server = ThreadedMotoServer('127.0.0.1', 0, verbose=False); server.start()\n"
        "url = 'http://%s:%s' % server.get_host_and_port()\n"
        "boto3.client('s3', endpoint_url=url, region_name='us-east-1').create_bucket(Bucket='bucket')\n"
        "print(url, flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, **AWS}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )  # fmt: skip
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, "moto and boto3 are needed: pip install -c constraints.txt -e '.[dev]'"
    yield url
    process.kill()
    process.communicate()


@pytest.mark.s3
@pytest.mark.filterwarnings("ignore")
class TestS3:
    @pytest.fixture(autouse=True)
    def environment(self, server, monkeypatch) -> None:
        for name, value in {**AWS, "AWS_ENDPOINT_URL": server}.items():
            monkeypatch.setenv(name, value)

    def test_a_run_in_a_bucket(self, tmp_path) -> None:
        """A run is uploaded into a bucket, and the downloaded copy is a run."""
        run = runs.make_run(tmp_path / "runs")
        runs.record(run)
        runs.tell_status(run, ended=True)
        made = Follower(run.path, Config(upload="s3://bucket/profiles", keep_steps=1))
        assert made.look() is True
        assert not made.has_failed
        fsspec.filesystem("s3").get(
            f"bucket/profiles/{stored_name(run.path)}", str(tmp_path / "copy"), recursive=True
        )
        result = verify_run(tmp_path / "copy")
        assert (result.problems, result.artifacts) == ([], 1)
        made.close()

    def test_no_such_bucket(self, tmp_path, monkeypatch) -> None:
        """If the bucket does not exist, the reason is the store's."""
        monkeypatch.setattr(upload, "PAUSE_SECONDS", 0.001)
        (tmp_path / "a").write_text("a")
        with pytest.raises(NotUploaded, match=r"(?i)bucket"):
            Store("s3://no-such-bucket/x", 60.0, tries=1).put(tmp_path, "a")
