"""Sending spans to a collector over HTTP: one that accepts, one that refuses, one
that hangs, and none at all.
"""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

import stepprof
from stepprof.config.config import Config
from stepprof.config.options.otel import OtelOptions
from stepprof.errors import ConfigError
from stepprof.instrument.scope import Scope
from stepprof.recording import otel
from stepprof.recording.otel import Sender
from stepprof.remote.ray.inside.follower import spans_only


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


def record(tmp_path, url, rank=0, steps=(1, 2), **options) -> None:
    """Run a loop whose session sends its spans to the URL."""
    stepprof.init(
        {"output_dir": tmp_path, "backend": "null", "otel": {"enabled": True, "endpoint": url, **options}},
        rank=rank,
        world_size=4,
        run_id="r",
    )
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


class TestCollector:
    def test_a_step_is_one_trace_on_all_ranks(self, tmp_path, collector) -> None:
        """All ranks of a step share one trace. Windows lie below the whole step,
        and regions below their window.
        """
        before = time.time_ns()
        for rank in (0, 1):
            record(tmp_path, collector.url, rank=rank)
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
        for name, parent in (("update", "actor"), ("weights", "actor"), ("bad", "actor"), ("actor", "step")):
            assert len(collector.named(name)) == 4
            for span in collector.named(name):
                above = own[span.parent_span_id]
                assert above.name == parent
                for key in ("stepprof.rank", "stepprof.step"):
                    assert attributes_of(above)[key] == attributes_of(span)[key]
                assert above.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert {span.parent_span_id for span in collector.named("step")} == {b""}
        assert all(before <= span.start_time_unix_nano <= after for span in collector.spans)
        assert collector.named("queue") == []

    def test_spans_have_attributes_error_and_identity(self, tmp_path, collector) -> None:
        """Spans have attributes in OpenTelemetry's types, the error, and the identity of their process."""
        record(tmp_path, collector.url, steps=[7])
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

    def test_a_collector_that_refuses(self, tmp_path) -> None:
        """If the collector refuses the spans, one line gives the reason and one
        the number of dropped spans.
        """
        refusing = Collector(status=400)
        try:
            with capture_logs() as logs:
                record(tmp_path, refusing.url)
        finally:
            refusing.close()
        events = [line["event"] for line in logs if line["event"].startswith("otel.")]
        assert events == ["otel.failed", "otel.dropped"]

    def test_a_hanging_collector_is_not_awaited(self, tmp_path, collector) -> None:
        """If the collector hangs, the shutdown ends after the timeout, and the dropped spans are logged."""
        collector.hold.clear()
        began = time.monotonic()
        with capture_logs() as logs:
            record(tmp_path, collector.url, timeout_seconds=0.5)
        assert time.monotonic() - began < 20
        assert "otel.dropped" in [line["event"] for line in logs]

    def test_an_unreachable_collector(self, run_script) -> None:
        """If no collector is reachable, the job ends normally, and the failure is logged once."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
            ran = run_script(
                f"""
                import logging, sys, time
                import stepprof
                logging.basicConfig(level="WARNING", stream=sys.stderr, format="%(name)s %(message)s")
                stepprof.init({{"output_dir": "runs", "backend": "null",
                               "otel": {{"enabled": True, "endpoint": "{url}", "timeout_seconds": 1}}}})
                for step in range(3000):
                    with stepprof.profile_step(step), stepprof.region("r"):
                        time.sleep(0.001)
                stepprof.shutdown()
                print("done", "opentelemetry.sdk" in sys.modules)
                """
            ).check()
        assert ran.stdout.split() == ["done", "True"]
        assert ran.stderr.count("otel.failed") == 1


class TestSender:
    def sender(self, exporter, **options) -> Sender:
        return Sender(OtelOptions(enabled=True, **options), "r", lambda: 0, exporter)

    def span(self, name="r") -> tuple:
        return (name, "region", 1, 2, 1, None, None, None, False)

    def test_spans_beyond_the_queue_are_dropped_and_counted(self) -> None:
        """Spans beyond the limit of the queue are dropped and counted, without a wait."""
        release = threading.Event()

        class Slow(InMemorySpanExporter):
            def export(self, spans):
                release.wait(30)
                return super().export(spans)

        exporter = Slow()
        sender = self.sender(exporter, max_queue=10)
        for _ in range(100):
            sender.take([self.span()] * 10)
        assert len(sender._queue) <= 10
        release.set()
        with capture_logs() as logs:
            sender.close(5)
        kept = len(exporter.get_finished_spans())
        assert kept + sender.dropped == 1000
        assert [line["spans"] for line in logs] == [sender.dropped]

    def test_full_batches_leave_at_once(self) -> None:
        """Full batches are sent at once, in the order in which the spans ended."""
        exporter = InMemorySpanExporter()
        sender = self.sender(exporter)
        sender.take([self.span(str(number)) for number in range(2000)])
        deadline = time.monotonic() + 10
        while len(exporter.get_finished_spans()) < 2000 and time.monotonic() < deadline:
            time.sleep(0.01)
        sender.look()
        sender.close(5)
        assert [span.name for span in exporter.get_finished_spans()] == [str(n) for n in range(2000)]
        assert (sender.sent, sender.dropped) == (2000, 0)

    def test_an_exporter_that_raises(self) -> None:
        """If the exporter raises an exception, this is logged once, and all spans count as dropped."""

        class Bad(InMemorySpanExporter):
            def export(self, spans):
                raise RuntimeError("boom")

        with capture_logs() as logs:
            sender = self.sender(Bad())
            sender.take([self.span()] * 1500)
            deadline = time.monotonic() + 10
            while not sender.dropped and time.monotonic() < deadline:
                time.sleep(0.01)
            sender.close(5)
        assert [line["event"] for line in logs] == ["otel.failed", "otel.dropped"]
        assert (logs[0]["reason"], logs[1]["spans"]) == ("RuntimeError: boom", 1500)

    def test_windows_are_forgotten(self) -> None:
        """The number of windows in memory is limited."""
        sender = self.sender(InMemorySpanExporter())
        for step in range(3000):
            window = Scope()
            window.number, window.role = step, None
            sender._translator._note_end(window, step)
        assert len(sender._translator._ended) <= otel.MAX_WINDOWS
        assert len(sender._translator._known) <= otel.MAX_WINDOWS
        sender.close(5)


class TestLateEnd:
    def test_a_region_that_ends_after_its_window(self, tmp_path, collector) -> None:
        """Its span is in the trace of the step in which it began, below that step's window."""
        stepprof.init(
            {"output_dir": tmp_path, "backend": "null", "otel": {"enabled": True, "endpoint": collector.url}}
        )
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
        [span] = collector.named("late")
        window = collector.named("reward")[1]
        assert attributes_of(span)["stepprof.step"] == 3
        assert (span.trace_id, span.parent_span_id) == (window.trace_id, window.span_id)


class TestConfigured:
    def test_a_missing_package_is_named(self, tmp_path, monkeypatch) -> None:
        """If a package is missing, the warning names the command that installs it, and the job goes on."""
        monkeypatch.setattr(otel, "_MODULES", ("opentelemetry.sdk.no_such", "no_such.module"))
        with capture_logs() as logs:
            record(tmp_path, None)
        (line,) = [line for line in logs if line["event"] == "otel.disabled"]
        assert 'install the extra "otel" of stepprof' in line["reason"]
        monkeypatch.setattr(otel, "_MODULES", ("no_such.module",))
        assert "no_such.module" in otel.missing()

    def test_the_exporter_s_own_variables_may_be_wrong(self, tmp_path, monkeypatch) -> None:
        """If OpenTelemetry's own variables are wrong, the exporter is disabled, and `init` succeeds."""
        monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "no_such")
        with capture_logs() as logs:
            record(tmp_path, None)
        assert "otel.disabled" in [line["event"] for line in logs]

    @pytest.mark.parametrize("endpoint", ["localhost:4318", "http://user:secret@host/v1", 4318, "file:///x"])
    def test_no_url(self, endpoint) -> None:
        """An invalid endpoint raises a ConfigError."""
        with pytest.raises(ConfigError, match=r"otel\.endpoint"):
            Config(otel={"endpoint": endpoint})

    def test_processes_that_only_follow_send_theirs(self) -> None:
        """A process that only records spans for a run has the same collector as the run."""
        config = Config(steps="2", otel={"enabled": True, "endpoint": "http://collector:4318/v1/traces"})
        theirs = Config.from_mapping(spans_only(config.to_dict()))
        assert (theirs.otel, theirs.off) == (config.otel, True)
        assert spans_only({"output_dir": "x"}) == {"output_dir": "x", "spans": True, "backend": "null"}

    def test_nothing_is_loaded_unless_configured(self, run_script) -> None:
        """A session that does not configure OpenTelemetry imports none of its modules."""
        ran = run_script(
            """
            import sys
            import stepprof
            stepprof.init({"output_dir": "runs", "backend": "null"})
            stepprof.shutdown()
            print([name for name in sys.modules if name.startswith(("opentelemetry", "stepprof.recording.otel", "stepprof.recording.watch.watcher"))])
            """
        ).check()
        assert ran.stdout.strip() == "[]"
