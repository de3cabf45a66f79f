"""Sending the spans of a run to a collector over HTTP: one that accepts, one that hangs, and none at all."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import runs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

import stepprof
from stepprof.config.config import Config
from stepprof.config.options.otel import OtelOptions
from stepprof.errors import ConfigError
from stepprof.follow import otel
from stepprof.follow.follower import Follower, stored_name
from stepprof.follow.otel import Sender, missing_for_sending
from stepprof.follow.settings import settings


class Collector:
    """A collector that receives OTLP over HTTP."""

    def __init__(self, status: int = 200) -> None:
        self.spans: list = []
        self.resources: list[dict] = []
        self.requests = 0
        self.status = status
        self.hold = threading.Event()
        self.hold.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests += 1
                collector.hold.wait(30)
                if collector.status == 200:
                    collector._take(body)
                self.send_response(collector.status)
                self.end_headers()

            def log_message(self, *arguments) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def _take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(
                {
                    each.key: each.value.string_value or each.value.int_value
                    for each in resource.resource.attributes
                }
            )
            for library in resource.scope_spans:
                self.spans.extend(library.spans)

    def named(self, name: str) -> list:
        return [span for span in self.spans if span.name == name]

    def close(self) -> None:
        self.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def attributes_of(span) -> dict:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value") or "string_value")
        for each in span.attributes
    }


def record(tmp_path, rank=0, steps=(1, 2)) -> Path:
    """Run a loop, and return its run directory."""
    session = stepprof.init({"output_dir": tmp_path, "backend": "null"}, rank=rank, world_size=4, run_id="r")
    try:
        for step in steps:
            with stepprof.profile_step(step), stepprof.profile_step(step, role="actor"):
                with stepprof.bind(sample="a"), stepprof.region("update", batch=64, shape=[2, 3], big=2**80):
                    stepprof.mark("weights", version=3)
                    stepprof.counter("queue", 17)
                with pytest.raises(ValueError, match="x"), stepprof.region("bad"):
                    raise ValueError("x")
    finally:
        stepprof.shutdown()
    return session.path


def send(run, url, **options) -> None:
    """Follow a run until its end, with the URL of a collector."""
    made = Follower(run, Config(otel={"enabled": True, "endpoint": url, **options}))
    made.look(0.0)
    made.close()


class TestCollector:
    def test_a_step_is_one_trace_on_all_ranks(self, tmp_path, collector) -> None:
        """All ranks of a step share one trace. Regions lie below their window."""
        before = time.time_ns()
        for rank in (0, 1):
            run = record(tmp_path, rank=rank)
        send(run, collector.url)
        after = time.time_ns()
        assert len(collector.spans) == 2 * 2 * 5
        traces = {
            attributes_of(span)["stepprof.step"]: {
                each.trace_id
                for each in collector.spans
                if attributes_of(each)["stepprof.step"] == attributes_of(span)["stepprof.step"]
            }
            for span in collector.spans
        }
        assert sorted(traces) == [1, 2]
        assert all(len(ids) == 1 for ids in traces.values())
        assert traces[1] != traces[2]
        assert len({span.span_id for span in collector.spans}) == len(collector.spans)
        own = {span.span_id: span for span in collector.spans}
        for name, parent in (("update", "actor"), ("weights", "actor"), ("bad", "actor")):
            assert len(collector.named(name)) == 4
            for span in collector.named(name):
                above = own[span.parent_span_id]
                assert above.name == parent
                for key in ("stepprof.rank", "stepprof.step"):
                    assert attributes_of(above)[key] == attributes_of(span)[key]
                assert above.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        windows = [*collector.named("step"), *collector.named("actor")]
        assert {span.parent_span_id for span in windows} == {b""}
        assert all(before <= span.start_time_unix_nano <= after for span in collector.spans)
        assert collector.named("queue") == []

    def test_spans_have_attributes_error_and_identity(self, tmp_path, collector) -> None:
        """Spans have attributes in OpenTelemetry's types, the error, and the identity of their process."""
        send(record(tmp_path, steps=[7]), collector.url)
        (update,), (bad,), (mark,) = (collector.named(name) for name in ("update", "bad", "weights"))
        found = attributes_of(update)
        assert (found["batch"], found["sample"], found["shape"], found["big"]) == (
            64,
            "a",
            "[2, 3]",
            str(2**80),
        )
        assert (found["stepprof.step"], found["stepprof.role"], found["stepprof.rank"]) == (7, "actor", 0)
        assert (bad.status.code, update.status.code) == (2, 0)
        assert attributes_of(mark)["stepprof.kind"] == "mark"
        resource = collector.resources[0]
        assert (resource["service.name"], resource["stepprof.run_id"]) == ("stepprof", "r")
        assert resource["host.name"] == socket.gethostname()

    def test_only_what_is_left_is_sent(self, tmp_path, collector) -> None:
        """A second follower sends only spans that are new; each span has the same id whoever sends it."""
        run = record(tmp_path, steps=[1])
        for _ in range(2):
            send(run, collector.url)
        assert len(collector.spans) == 5
        record(tmp_path, steps=[2])
        send(run, collector.url)
        assert len(collector.spans) == 10
        (run / "after" / "otel.json").unlink()
        send(run, collector.url)
        assert len({span.span_id for span in collector.spans}) == 10

    def test_a_hanging_collector_does_not_delay_the_rest(self, tmp_path, collector) -> None:
        """While a collector hangs, the follower goes on. What it has not accepted is sent later."""
        collector.hold.clear()
        options = OtelOptions(enabled=True, endpoint=collector.url, timeout_seconds=60)
        run = record(tmp_path)
        (run / "after").mkdir()
        sender = Sender(run, "r", options)
        for _ in range(3):
            sender.look()
        assert collector.spans == []
        collector.hold.set()
        sender.finish()
        assert len(collector.spans) == 10
        sender.close()

    def test_an_unreachable_collector(self, tmp_path) -> None:
        """If no collector is reachable, the other work of the follower is done."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
            run = record(tmp_path)
            config = Config(
                upload=f"file://{tmp_path}/up", otel={"enabled": True, "endpoint": url, "timeout_seconds": 1}
            )
            made = Follower(run, config)
            assert made.look(0.0) is True
            assert made.has_failed
            made.close()
        assert (tmp_path / "up" / stored_name(run) / "run.json").exists()


class Exporter(InMemorySpanExporter):
    """Accepts some batches, and refuses the others."""

    def __init__(self, *accepts: bool) -> None:
        super().__init__()
        self.accepts = list(accepts)

    def export(self, spans):
        if self.accepts and not self.accepts.pop(0):
            return SpanExportResult.FAILURE
        return super().export(spans)

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.get_finished_spans()]


class TestSender:
    @pytest.fixture
    def run(self, tmp_path):
        made = runs.make_run(tmp_path)
        (made.path / "after").mkdir()
        runs.write_spans(made, 0, *(runs.region(str(number), 1) for number in range(2000)))
        return made

    def made(self, run, exporter, **options) -> Sender:
        return Sender(run.path, "r", OtelOptions(enabled=True, **options), exporter)

    def test_more_spans_than_one_look_sends(self, run) -> None:
        """A late start sends all spans, a number of them at once."""
        exporter = Exporter()
        sender = self.made(run, exporter, max_queue=150)
        sender.look()
        sender.finish()
        assert exporter.names == [str(n) for n in range(2000)]
        sender.close()

    def test_an_exporter_that_raises(self, run, mocker) -> None:
        """The log has the exception of the exporter, and the spans are sent again."""
        exporter = Exporter()
        raises = mocker.patch.object(exporter, "export", side_effect=RuntimeError("no certificate"))
        sender = self.made(run, exporter)
        with capture_logs() as logs:
            sender.finish()
        (line,) = logs
        assert (line["event"], line["spans"]) == ("otel.failed", 2000)
        assert line["reason"] == "RuntimeError: no certificate"
        mocker.stop(raises)
        sender.finish()
        assert len(exporter.names) == 2000
        assert not sender.has_failed
        sender.close()

    def test_no_span_is_lost(self, run, monkeypatch) -> None:
        """What the collector does not accept is logged once and sent again, also by the next follower. It is noted as
        sent only then.
        """
        exporter = Exporter(True, False, False)
        sender = self.made(run, exporter)
        with capture_logs() as logs:
            sender.finish()
        assert sender.has_failed
        assert len(exporter.names) == 512
        assert [(line["event"], line["spans"]) for line in logs] == [("otel.failed", 1488)]
        assert not (run.path / "after" / "otel.json").exists()
        sender.look()  # it rests
        assert len(exporter.names) == 512
        sender.finish()
        assert sender.has_failed
        sender.finish()
        assert not sender.has_failed
        assert exporter.names == [str(n) for n in range(2000)]
        sender.close()
        after = Exporter()
        again = self.made(run, after)
        again.finish()
        assert after.names == []
        again.close()

    def test_ranks_of_equal_number(self, run) -> None:
        """Two processes with one rank have windows of their own, whose regions lie in them."""
        for pid in (1, 2):
            window = {"kind": "window", "name": "step", "step": 5, "role": None, "start": 5, "dur": 9}
            region = {**window, "kind": "region", "name": "in"}
            runs.write_spans(run, 3, region, window, pid=pid)
        exporter = Exporter()
        sender = self.made(run, exporter)
        sender.finish()
        found = [span for span in exporter.get_finished_spans() if span.name in ("step", "in")]
        windows = [span.context.span_id for span in found if span.name == "step"]
        assert len(set(windows)) == 2
        assert [span.parent.span_id for span in found if span.name == "in"] == windows
        sender.close()

    def test_windows_are_forgotten(self, run, monkeypatch) -> None:
        """The number of windows in memory is limited."""
        monkeypatch.setattr(otel, "MAX_WINDOWS", 10)
        windows = [{"kind": "window", "name": "w", "step": step, "start": 5, "dur": 9} for step in range(50)]
        runs.write_spans(run, 3, *windows)
        sender = self.made(run, Exporter())
        sender.finish()
        assert len(sender._ended) == 10
        sender.close()


class TestLateEnd:
    def test_a_region_that_ends_after_its_window(self, tmp_path, collector) -> None:
        """Its span is in the trace of the step in which it began, below that step's window."""
        session = stepprof.init({"output_dir": tmp_path, "backend": "null"})
        begun, go_on = threading.Event(), threading.Event()

        @stepprof.region("late")
        def reward() -> None:
            begun.set()
            go_on.wait(10)

        with stepprof.profile_step(3, role="reward"):
            pass
        pool = ThreadPoolExecutor(1)
        pool.submit(int).result()  # the thread is older than the window
        with stepprof.profile_step(3, role="reward"):
            late = pool.submit(reward)
            assert begun.wait(10)
        with stepprof.profile_step(4, role="reward"):
            go_on.set()
            late.result()
        pool.shutdown()
        stepprof.shutdown()
        send(session.path, collector.url)
        [span] = collector.named("late")
        window = collector.named("reward")[1]
        assert attributes_of(span)["stepprof.step"] == 3
        assert (span.trace_id, span.parent_span_id) == (window.trace_id, window.span_id)


class TestConfigured:
    def test_a_missing_package_is_named(self, tmp_path, monkeypatch) -> None:
        """If a package is missing, `stepprof follow` names the command that installs it before it begins."""
        (tmp_path / "c.toml").write_text("[otel]\nenabled = true")
        for modules in (("opentelemetry.sdk.no_such", "no_such.module"), ("no_such.module",)):
            monkeypatch.setattr(otel, "_MODULES", modules)
            with pytest.raises(ConfigError, match='install the extra "otel" of stepprof'):
                settings(tmp_path / "c.toml", {})

    def test_the_exporter_s_own_variables_may_be_wrong(self, monkeypatch) -> None:
        """If OpenTelemetry's own variables are wrong, the reason is given before the follower begins."""
        monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "no_such")
        assert "no_such" in str(missing_for_sending(OtelOptions(enabled=True)))

    @pytest.mark.parametrize("endpoint", ["localhost:4318", "http://user:secret@host/v1", 4318, "file:///x"])
    def test_no_url(self, endpoint) -> None:
        """An invalid endpoint raises a ConfigError."""
        with pytest.raises(ConfigError, match=r"otel\.endpoint"):
            Config(otel={"endpoint": endpoint})

    def test_nothing_of_it_is_in_the_job(self, run_script) -> None:
        """A session whose configuration has the watch and a collector imports nothing for them, starts no
        thread, and publishes its memory.
        """
        ran = run_script(
            """
            import json, pathlib, sys, threading
            import stepprof
            config = {"output_dir": "runs", "backend": "null", "otel": {"enabled": True}, "watch": {"enabled": True}}
            session = stepprof.init(config)
            names = sorted(thread.name for thread in threading.enumerate())
            stepprof.shutdown()
            status = json.loads((session.path / "status" / "rank-0.json").read_text())
            print(names, status["resident_bytes"] > 1 << 20, status["device_bytes"])
            print([name for name in sys.modules if name.startswith(("opentelemetry", "fsspec", "stepprof.follow"))])
            """
        ).check()
        assert ran.stdout.splitlines() == ["['MainThread', 'stepprof'] True None", "[]"]
