"""Take the pictures of the report and the timeline for the pages, from a recorded run, with a real Chromium.

python docs/make_pictures.py [RUN] [--step N] [--prefix NAME | --report NAME]

Without RUN it records the demo first. With `--report roll` it writes the report alone, roll.png. With `--prefix verl` it writes verl-report.png, verl-rollout.png and verl-timeline.png. Needs Chromium, and the extra `open` for the timeline.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "tests" / "real" / "viewers"))

from chromium import Chromium, chromium  # noqa: E402 - the tests' own browser

IMAGES = DOCS / "images"
WIDTH, HEIGHT = 1360, 1000
REPORT_READY = "document.documentElement !== null && document.documentElement.dataset.ready === 'yes'"
TIMELINE_READY = "typeof app !== 'undefined' && !!app.trace && app.trace.workspace.children.some(step => step.name !== 'System' && step.children.length > 0)"
UNFOLD = """(() => {
    for (const step of app.trace.workspace.children) {
        if (step.name === "System") continue;
        step.expand();
        for (const process of step.children) process.expand();
    }
    if (app.sidebar.visible) app.sidebar.toggleVisibility();
})()"""


def main() -> None:
    """Write the pictures into docs/images: report-light.png, report-dark.png, report-figures.png and timeline.png, or three with a prefix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", metavar="RUN", help="a run; by default one of the demo's")
    parser.add_argument("--step", type=int, help="by default the last one recorded")
    parser.add_argument(
        "--prefix", metavar="NAME", help="of the names of two pictures of a report and one of its timeline"
    )
    parser.add_argument("--report", metavar="NAME", help="of the one picture of a report")
    args = parser.parse_args()
    prefix = "" if args.prefix is None else f"{args.prefix}-"
    with tempfile.TemporaryDirectory(prefix="stepprof-pictures-") as folder:
        run = args.run or record(Path(folder))
        chosen = [run] if args.step is None else [run, "--step", str(args.step)]
        page = Path(folder) / "report.html"
        stepprof("report", *chosen, "--html", str(page))
        if args.report is not None:
            with chromium() as browser:
                take(browser, page.as_uri(), "light", args.report)
            return
        timeline = Path(folder) / "timeline.pftrace"
        stepprof("merge", *chosen, "--output", str(timeline))
        IMAGES.mkdir(exist_ok=True)
        with chromium() as browser:
            if prefix:
                take(browser, page.as_uri(), "light", f"{prefix}report")
                take_part(browser, "rollout", f"{prefix}rollout")
            else:
                take_report(browser, page.as_uri())
        with served(timeline) as address, chromium() as browser:
            take_timeline(browser, address, f"{prefix}timeline")


def record(folder: Path) -> str:
    """The demo's run."""
    stepprof("demo", "--train-steps", "4", "--output-dir", str(folder / "runs"))
    (run,) = (folder / "runs").iterdir()
    return str(run)


def take_report(browser: Chromium, address: str) -> None:
    """The top of the page in both schemes, and in the light one the figures below it."""
    for scheme in ("dark", "light"):
        take(browser, address, scheme, f"report-{scheme}")
    take_part(browser, "timeline", "report-figures")


def take(browser: Chromium, address: str, scheme: str, name: str) -> None:
    """The top of the page in one scheme."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    browser.goto(address)
    browser.wait_for(REPORT_READY)
    browser.screenshot(IMAGES / f"{name}.png", width=WIDTH, height=HEIGHT)


def take_part(browser: Chromium, part: str, name: str) -> None:
    """The page that is open, from one of its parts on."""
    browser.evaluate(f"document.getElementById('{part}').scrollIntoView()")
    browser.screenshot(IMAGES / f"{name}.png", width=WIDTH, height=HEIGHT)


def take_timeline(browser: Chromium, address: str, name: str) -> None:
    """The timeline in the Perfetto UI, its processes unfolded."""
    browser.goto(address)
    browser.wait_for(TIMELINE_READY)
    settle(browser)  # its plug-ins are still adding to the tracks
    browser.evaluate(UNFOLD)
    for _ in range(2):  # what comes into view in the picture's size is loaded for the second one
        browser.screenshot(IMAGES / f"{name}.png", width=WIDTH, height=HEIGHT)
        settle(browser)


def settle(browser: Chromium) -> None:
    """Give the Perfetto UI the seconds for which it has no event."""
    browser.evaluate("new Promise(done => setTimeout(done, 5000))")


@contextmanager
def served(timeline: Path) -> Iterator[str]:
    """`stepprof open`, for as long as it is needed; gives its address."""
    command = [sys.executable, "-m", "stepprof", "open", "--no-browser", str(timeline)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            lines = (line.strip() for line in process.stdout)
            yield next(line for line in lines if line.startswith("http://"))
        finally:
            process.terminate()


def stepprof(*arguments: str) -> None:
    """One command, from this checkout."""
    subprocess.run([sys.executable, "-m", "stepprof", *arguments], check=True, cwd=DOCS.parent)


if __name__ == "__main__":
    main()
