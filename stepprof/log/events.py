"""The table of log events: the level, the sentence and the fields of each.

`docs/logging.md` renders it, and a line on stderr is made from its sentence. A test holds that each call of the logger names an
event of this table, at its level and with its fields.
"""

from __future__ import annotations

from typing import NamedTuple

BOUND = ("run_id", "rank", "host", "step", "role", "occurrence")
"""Fields that are bound to the session and to the capture: any line may have them."""


class Event(NamedTuple):
    """One kind of log line.

    Args:
        level: ``warning``, ``info`` or ``debug``.
        sentence: what the line reports, without a full stop; ``{name}`` stands for the value of a field.
        fields: names of its fields in addition to the bound ones, separated by spaces.
    """

    level: str
    sentence: str
    fields: str = "reason"


EVENTS: dict[str, Event] = {
    "run.opened": Event("info", "this process records into {path}", "path"),
    # windows and captures of this process
    "state.changed": Event(
        "info", "{target} changed from {from} to {to}", "target from to seconds backend reason"
    ),
    "step.recorded": Event(
        "info", "step {step} is recorded: {files}, {size}; read it with: {next}", "files size next"
    ),
    "step.not_reached": Event("warning", "selected steps were never entered", "steps"),
    "step.reused": Event("warning", "a step number was used again"),
    "step.not_announced": Event(
        "debug", "a session in another process does not know which step runs", "name reason"
    ),
    "window.not_recorded": Event("warning", "a selected window was not recorded"),
    "arm.refused": Event("debug", "a target was not armed for the next step", "target step role reason"),
    "call.refused": Event("warning", "a call was refused in this state", "what reason"),
    "stop.refused": Event("warning", "a stop was refused in this state"),
    "capture.capped": Event("warning", "a capture ended early at a limit", "target reason"),
    "capture.stop_posted": Event(
        "warning", "the thread that owns the capture stops it at its next region, window or tick()"
    ),
    "capture.stop_missing": Event(
        "warning", "the driver process never stopped the capture; the actor stops it", "pid"
    ),
    "capture.stop_failed": Event("warning", "the actor could not stop a capture"),
    "capture.size_unknown": Event("warning", "the size of a capture is not known", "backend reason"),
    "abort.failed": Event("warning", "a backend could not abort its capture", "backend reason"),
    "backend.unavailable": Event("warning", "a backend cannot record in this process", "backend reason"),
    "evidence.failed": Event("warning", "the evidence of a capture is missing"),
    "region.not_marked": Event("warning", "a region is not marked in the capture"),
    "region.name_cut": Event("warning", "the name of a region was cut", "name reason"),
    # adapters of training frameworks
    "adapter.attached": Event("info", "the adapter of {name} {version} is attached", "name version"),
    "adapter.untested": Event(
        "warning",
        "the adapter of {name} is attached to a version outside its tested range",
        "name version reason",
    ),
    "adapter.refused": Event(
        "warning", "the adapter of {name} is not attached; the job runs unchanged", "name version reason"
    ),
    "adapter.failed": Event(
        "warning",
        "a patch of {name} failed and is not used again; the job is not affected",
        "name target reason",
    ),
    "adapter.not_started": Event("warning", "an adapter could not start a session", "name reason"),
    "adapter.other_profiler": Event(
        "warning", "the profiler of {name} itself records some of the same steps", "name steps reason"
    ),
    "adapter.left_out": Event(
        "warning", "the adapter of {name} does not record a part of this job: {part}", "name part"
    ),
    "adapter.step_missed": Event("warning", "{name}: the selected step {step} does not come", "name reason"),
    "adapter.yielded": Event(
        "info",
        "the job called init itself: the adapter of {name} opens no windows, its timers are regions",
        "name",
    ),
    "step.without_rollout": Event(
        "info",
        "step {step} generated nothing: it trained on earlier samples; to record a rollout: {next}",
        "next",
    ),
    # exports and files
    "export.failed": Event("warning", "the export of a recorded window failed"),
    "export.incomplete": Event("warning", "the export of a recorded window is incomplete"),
    "export.finished": Event("info", "a capture was exported", "bytes seconds"),
    "export.in_place": Event(
        "warning", "a capture is exported in the training thread", "label backend reason"
    ),
    "export.again": Event(
        "warning", "a process of an export ended without a result, and the job runs in another one", "label"
    ),
    "export.in_thread": Event(
        "warning", "a capture is exported in a thread, not in a child process", "label reason"
    ),
    "export.callback_failed": Event(
        "warning", "the result of an export could not be recorded", "label reason"
    ),
    "export.unfinished": Event("warning", "the run ended before its exports", "exports seconds"),
    "manifest.not_written": Event("warning", "the manifest could not be written", "folder files reason"),
    "status.not_written": Event("warning", "the status file could not be written"),
    "spans.dropped": Event("warning", "spans were dropped", "spans reason"),
    "spans.not_written": Event("warning", "spans could not be written", "spans reason"),
    "spans.observer_failed": Event(
        "warning", "an observer of spans failed and is removed", "observer reason"
    ),
    "spans.not_collected": Event("warning", "spans of an actor stay on its host", "name actor_host reason"),
    "folder.kept": Event("debug", "an empty folder could not be removed", "path reason"),
    "folder.not_locked": Event("debug", "a folder could not be locked", "path reason"),
    # the process and the run
    "config.expensive": Event("warning", "the configuration is expensive"),
    "config.variables_ignored": Event(
        "warning",
        "the script passes its own configuration to init(), so these variables do not count; init() without arguments reads them",
        "variables",
    ),
    "init.waiting": Event(
        "info",
        "init() has no configuration here: the driver attaches this actor, or a STEPPROF_* variable starts its session",
        "",
    ),
    "init.again": Event(
        "info",
        "init() was called with another configuration: this session ends, and a new one begins",
        "keys",
    ),
    "init.failed_late": Event("warning", "the session could not be started at the first window", "reason"),
    "init.deferred": Event("info", "init() was ignored: another process configures this one"),
    "internal.error": Event("warning", "stepprof itself failed; training goes on", "reason exc_info"),
    "background.failed": Event("warning", "work of the background thread failed", "work reason"),
    "signal.received": Event("warning", "SIGTERM arrived during a capture", "budget_seconds"),
    "signal.watchdog_failed": Event("warning", "the watchdog of the shutdown could not be started"),
    "shutdown.waiting": Event(
        "warning", "the end of the run waits for engines", "targets answer_seconds export_seconds"
    ),
    "rank.known": Event("info", "the rank of this process is known", "world_size source"),
    "rank.nonexistent": Event("warning", "the configuration selects ranks that do not exist"),
    "run.divided": Event("warning", "one job writes into several runs", "world_size other_run_id reason"),
    "run.shared": Event("warning", "two jobs write into one run", "other_pid other_host reason"),
    "run.set_aside": Event("warning", "a file of another run was renamed", "path now reason"),
    "run.alone": Event("warning", "several processes of one parent each record as the only one", "reason"),
    "run.folder_refused": Event("warning", "another run folder is used instead of {path}", "path reason"),
    "run.claims_unusable": Event("warning", "this process has a run of its own", "reason"),
    "run.job_unnamed": Event("warning", "Ray did not return the name of its job"),
    "store.unreachable": Event("warning", "the run id of the other ranks could not be read"),
    # requests while the job runs, watching
    "request.changed": Event(
        "info", "the outcome of a request is now {outcome}", "request outcome steps by reason"
    ),
    "request.missed": Event("warning", "steps of a request were missed", "request missed steps by reason"),
    "request.refused": Event("warning", "a request was refused", "request missed steps by reason"),
    "request.more_refused": Event("warning", "more requests were refused", "files in_all folder"),
    "request.unreadable": Event("warning", "requests cannot be read", "folder reason"),
    "request.withdrawal_refused": Event("warning", "a withdrawal of a request was refused", "request reason"),
    "watch.alert": Event(
        "warning",
        "the watch found something unusual: {what}",
        "what region seconds median_seconds times bytes bytes_before capture",
    ),
    "watch.rank_lags": Event(
        "warning",
        "rank {lagging_rank} falls behind",
        "lagging_rank median_step seconds_behind ranks_behind capture",
    ),
    # work after a recorded step
    "follow.needed": Event(
        "info", "this process does nothing with {keys}; next to the job: stepprof follow {path}", "keys path"
    ),
    "follow.failed": Event("warning", "the run cannot be followed"),
    "follow.waiting": Event(
        "info",
        "the job has ended, or is not awaited; some of its processes or exports are still alive",
        "processes count exporting",
    ),
    "follow.no_run": Event(
        "warning", "no process of the command has opened a session; there was no run to follow", ""
    ),
    "otel.failed": Event(
        "warning", "the collector did not accept the spans; they are sent again", "spans reason"
    ),
    "on_complete.finished": Event("info", "the on_complete command succeeded", "seconds"),
    "on_complete.failed": Event("warning", "the on_complete command failed", "output reason"),
    "retention.pruned": Event("info", "step {step} was removed", "bytes files not_uploaded reason"),
    "retention.not_uploaded": Event(
        "warning", "step {step} was removed before {count} of its artifacts were uploaded", "count"
    ),
    "retention.incomplete": Event("warning", "step {step} could not be removed completely", "kept"),
    "upload.finished": Event("info", "{files} files were uploaded", "url bytes files"),
    "upload.failed": Event("warning", "an upload failed", "url reason"),
    # backends
    "memory.exhausted": Event(
        "warning",
        "CUDA ran out of memory; a snapshot was written",
        "snapshot device asked_bytes free_bytes total_bytes",
    ),
    "memory.history_left_on": Event("warning", "torch's memory history could not be switched off"),
    "memory.on_oom_ignored": Event("warning", "on_oom has no effect"),
    "memory.oom_unwatched": Event("warning", "out-of-memory errors are not watched"),
    "memory.snapshot_failed": Event("warning", "no snapshot was taken when CUDA ran out of memory"),
    "npu.abort_refused": Event("warning", "only thread {owner} can abort this NPU capture", "owner thread"),
    "npu.close_failed": Event("debug", "the NPU profiler did not stop cleanly", "call reason"),
    "npu.complained": Event("warning", "CANN logged errors while the NPU recorded", "folder reason"),
    "npu.message": Event("debug", "torch_npu printed a message", "call text"),
    "npu.option_ignored": Event("warning", "an option of the NPU profiler has no effect"),
    "npu.range_failed": Event("warning", "a range is not in the NPU capture"),
    "nsys.environment_exposed": Event("warning", "nsys reports contain the environment with its secrets"),
    "nsys.not_found": Event("warning", "nsys was not found", "nsys reason"),
    "nsys.not_launched": Event("warning", "this process does not run under nsys"),
    "nsys.options_unknown": Event("warning", "nsys did not list its options", "nsys reason"),
    "nsys.range_left_open": Event("warning", "an nsys range was left open"),
    "nsys.range_not_ended": Event("warning", "the nsys range of a window was not ended"),
    "nsys.ranges_uncounted": Event(
        "debug", "the nsys ranges of an engine could not be counted", "path reason"
    ),
    "nsys.ray_folder_missing": Event("warning", "Ray's folder of nsys reports was not found"),
    "nsys.regions_unmarked": Event("warning", "regions are not marked in nsys reports"),
    "torch.abort_failed": Event("warning", "torch's profiler could not be aborted"),
    "torch.abort_refused": Event(
        "warning", "only thread {owner} can abort this torch capture", "owner thread"
    ),
    "torch.capture_abandoned": Event("warning", "a torch capture was abandoned"),
    "torch.cuda_started": Event("warning", "torch's profiler starts CUDA in this process"),
    "torch.profile_functions_ended": Event(
        "warning", "a capture with stacks ends the job's profile functions in other threads"
    ),
    # engines
    "attach.inside_window": Event(
        "warning", "{engine} was attached inside a recorded window", "engine takes_part_from"
    ),
    "engine.unhealthy": Event(
        "warning", "{target} cannot be recorded now", "target name before health count reason"
    ),
    "engine.healthy": Event(
        "info", "{target} can be recorded again", "target name before health count reason"
    ),
    "engine.unknown": Event("warning", "the engines of a role could not be listed"),
    "engine.limited": Event("warning", "an engine cannot record everything as requested", "name reason"),
    "engine.idle_polling": Event(
        "warning", "an idle engine fills its capture with polling", "name reason cure"
    ),
    "engine.query_failed": Event("debug", "an engine did not answer a question", "name reason"),
    "engine.claim_failed": Event("warning", "an engine could not be reserved", "target reason"),
    "engine.clock_unknown": Event("info", "the clock of {target} could not be compared", "target reason"),
    "engine.not_recorded": Event("warning", "the engines of a window were not recorded"),
    "engine.not_started": Event("warning", "{target} was not started", "target reason"),
    "engine.not_closed": Event("warning", "{target} was not closed", "target name reason"),
    "engine.stop_unanswered": Event("warning", "{target} did not answer its stop", "target name seconds"),
    "engine.stop_not_awaited": Event("warning", "the stop of {target} was not awaited", "target reason"),
    "engine.stopped_late": Event("warning", "{target} kept recording after its window", "target seconds"),
    "engine.cleanup_failed": Event(
        "warning", "{target} could not be stopped after a failed start", "target name reason"
    ),
    "engine.report_failed": Event("warning", "the late report of {target} failed", "target reason"),
    "engine.copy_kept": Event("info", "the engine's own copy of a trace was not removed", "path reason"),
    "capture.left": Event("warning", "an engine may still record: the next driver stops it", "name reason"),
    "capture.abandoned": Event(
        "warning",
        "a capture that a process left when it ended is stopped; its files stay where they are",
        "name left_by",
    ),
    "capture.lost": Event("warning", "a capture whose stop had failed is lost", "name reason"),
    "capture.recovered": Event("warning", "a capture that was still open is stopped", "name reason files"),
    "lease.unknown": Event("debug", "it is unknown whether the driver process is alive"),
    "lease.ended": Event("warning", "the driver process has ended; the actor ends its session", "driver"),
    "lease.not_ended": Event("warning", "the actor could not end the session of a dead driver process"),
    "remote.interrupted": Event("warning", "the thread that talks to engines was interrupted; it goes on"),
    "sglang.stage_left": Event("warning", "an armed profiler stage of SGLang stays armed", "name reason"),
    "trace.kept": Event("info", "a trace of an engine was not removed", "path reason"),
    "trace.not_split": Event("warning", "a trace was not split by forward steps", "path reason"),
    "worker.refused": Event("warning", "a worker of a router is not recorded", "name worker refused reason"),
    # Ray
    "actor.restarted": Event("info", "an actor restarted and records again", "name"),
    "actor.not_closed": Event("warning", "the session in an actor was not closed", "name actor_host reason"),
    "actor.role_failed": Event("warning", "an actor could not {verb} a role", "verb name reason"),
    "actor.spans_missing": Event("warning", "an actor returned no spans", "name reason"),
    "actor.files_not_collected": Event(
        "warning", "files of an actor stay on its host", "name actor_host reason"
    ),
    "agent.lost": Event("warning", "stepprof's agent on a node has ended", "node reason"),
}
"""The events by name, ``area.verb``."""
