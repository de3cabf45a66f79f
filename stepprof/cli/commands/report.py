"""`stepprof report`: show where the time of a step went: in the terminal, as JSON, as a page.

`stepprof report A B` shows what changed between two steps, and `--fail-on-regression` makes a gate of
it: exit status 3 for a regression, 4 if it cannot be judged.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stepprof.analysis.timeline.named_traces import is_file
from stepprof.cli.common import only_traces, output_dir
from stepprof.cli.make_outputs import is_written
from stepprof.cli.output import print_json, print_lines, print_text
from stepprof.cli.trace_options import (
    add_sources,
    add_work,
    begin_reading,
    chosen_cluster,
    progress_bar,
    report_console,
    short_files,
    warn_incomplete,
    warn_unread,
)
from stepprof.errors import ConfigError
from stepprof.formats.recognise import shows_events
from stepprof.host.plain_files import resolved
from stepprof.run.runs import is_folder

if TYPE_CHECKING:
    from stepprof.analysis.report.schema import Comparison, Report
    from stepprof.analysis.timeline.find import Found
    from stepprof.analysis.timeline.ray_workers import Cluster

_THERE = "there"  # --html and --json without a file
_COMPARISON = "comparison"
_STATUS = {"none": 0, "regression": 3, "unknown": 4}
"""Exit statuses of --fail-on-regression; 1 and 2 are those of every command."""
Chosen = tuple[list[str], int | None]
"""The paths of one run, and the selected step."""


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `report`."""
    parser.description = "Report where the time of a step went: print a summary, and write report.html and report.json into the step's folder. With two runs, or two RUN:STEP, compare them: A before, B after. RUN may also be a trace of another tool, or a folder of them: torch.profiler, vLLM, SGLang, torch_npu; the files are written next to it."
    add_sources(parser)
    parser.add_argument(
        "--html",
        nargs="?",
        const=_THERE,
        metavar="FILE",
        help="write only the HTML page, to FILE (default: into the step's folder)",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const=_THERE,
        metavar="FILE",
        help="write only the JSON (schema_version 4), to FILE (default: print it instead of text)",
    )
    parser.add_argument(
        "--markdown",
        nargs="?",
        const=_THERE,
        metavar="FILE",
        help="write only Markdown, for a pull request or a chat, to FILE (default: print it instead of text)",
    )
    parser.add_argument(
        "--fail-on-regression",
        metavar="PERCENT",
        help='with A and B: exit with status 3 if the step of B is longer than that of A by more than this and by more than noise, such as "5%%", and with 4 if that cannot be judged',
    )
    add_work(parser)


def run(args: argparse.Namespace) -> int:
    """Report or compare. Return 1 if a source, or a file of RUN…, is not in the report or was read only in part, or a requested file not written; with
    --fail-on-regression 3 for a regression and 4 if it cannot be judged; else 0.
    """
    assume = begin_reading(args)
    outputs = Outputs(
        _file(args.html, "--html", ".html"),
        _file(args.json, "--json", ".json"),
        _file(args.markdown, "--markdown", ".md"),
    )
    if outputs.json == outputs.markdown == _THERE:
        raise ConfigError("--json and --markdown: both print to stdout; give one of them a FILE")
    limit = _limit(args.fail_on_regression)
    given = only_traces(args.runs, output_dir(args), compared=True)
    sides = _sides(given.paths, args.step, output_dir(args))
    if limit is not None and len(sides) != 2:
        raise ConfigError("--fail-on-regression: needs two runs, or two RUN:STEP: A before, B after")
    with chosen_cluster(args) as cluster:
        founds = [_found(args, side, cluster) for side in sides]
        founds[0].findings += given.left_out
        _check_assumed(assume, founds)
        reports = [_analysed(args, found, assume, cluster) for found in founds]
    for found, report in zip(founds, reports, strict=True):
        if not found.runs and not any(source.events for source in report.sources):
            problems = [f"{finding.source}: {finding.problem}" for finding in report.problems]
            raise ConfigError(f"nothing could be read: {'; '.join(problems[:3]) or 'no trace has an event'}")
    folder = founds[-1].folder or Path()
    unread = [problem.source or "" for report in reports for problem in report.problems if problem.unread]
    incomplete = [_incomplete(*each) for each in zip(reports, founds, strict=True)]
    lacks = int(bool(given.left_out) or any(incomplete))
    if len(reports) == 1:
        failed = _give(reports[0], folder, founds[0].named("report"), outputs)
        return warn_unread(unread, "the report") or failed or lacks
    compared = _compared(reports, founds, sides, limit)
    failed = _give(compared, folder, _COMPARISON, outputs)
    if compared.gate is not None and unread:
        warn_unread(unread, "the comparison")
        return _STATUS["unknown"]
    verdict = 0 if compared.gate is None else _STATUS[compared.gate.verdict]
    return verdict or warn_unread(unread, "the comparison") or failed or lacks


def _incomplete(report: Report, found: Found) -> int:
    """Print which files that no manifest lists were not read to their end, or have no event. Return the exit status."""
    empty = [each.path or "" for each in report.sources if each.kind == "trace" and not each.events]
    cut = short_files(
        ((each.label, each.path) for each in report.sources),
        ((each.label, each.status) for each in report.shortfalls),
        found.unlisted,
    )
    return warn_incomplete(empty, cut, "the report")


def _compared(
    reports: Sequence[Report], founds: Sequence[Found], sides: Sequence[Chosen], limit: float | None
) -> Comparison:
    """Return the comparison, with the gate if there is a limit."""
    from msgspec.structs import replace

    from stepprof.analysis.report.compare import compare
    from stepprof.analysis.report.gate import gate_runs, gate_steps
    from stepprof.analysis.report.schema import Problem
    from stepprof.analysis.report.step_times import marked_run, run_steps
    from stepprof.analysis.timeline.recording_options import unlike_options

    folders = [{resolved(run) for run in found.runs} for found in founds]
    is_one_run = bool(folders[0] & folders[1])
    steps = [run_steps(sorted(each)) for each in ([folders[0] | folders[1]] if is_one_run else folders)]
    if not any(folders):
        steps = [marked_run(report.marked) for report in reports]
    compared = compare(reports[0], reports[1], steps[0], steps[-1])
    if unlike := unlike_options(founds[0].inputs, founds[1].inputs):
        compared = replace(compared, problems=[*compared.problems, Problem(None, unlike)])
    if compared.a == compared.b:  # two runs with one id
        a, b = (
            ", ".join(paths) + ("" if found.step is None else f" step {found.step}")
            for (paths, _), found in zip(sides, founds, strict=True)
        )
        compared = replace(compared, a=a, b=b)
    if limit is None:
        return compared
    if not is_one_run:
        return replace(compared, gate=gate_runs(steps[0], steps[-1], limit))
    a_visit, b_visit = (steps[0].visit(found.step, found.occurrence, found.occurrences) for found in founds)
    return replace(compared, gate=gate_steps(steps[0], a_visit, b_visit, limit))


def _limit(text: str | None) -> float | None:
    """Return the limit of --fail-on-regression as a share."""
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,4}(\.\d+)?%", text, re.ASCII):
        raise ConfigError(f'--fail-on-regression "{text}": must be a percentage, such as 5%')
    return float(text[:-1]) / 100


class Outputs(NamedTuple):
    """The values of --html, --json and --markdown."""

    html: str | None
    json: str | None
    markdown: str | None


def _give(content: Report | Comparison, folder: Path, stem: str, outputs: Outputs) -> int:
    """Print and write the requested outputs; by default text, plus both files of a report.

    A file that cannot be written prevents no other output. Return 1 if it was requested, else 0.
    """
    from stepprof.analysis.report import markdown as text
    from stepprof.analysis.report.page import render
    from stepprof.analysis.report.store import dump

    html, json, markdown = outputs
    unasked = outputs == (None, None, None) and stem != _COMPARISON
    files: dict[Path, bytes] = {}
    if html is not None or unasked:
        path = folder / f"{stem}.html" if html in (None, _THERE) else Path(str(html))
        files[path] = render(content).encode()
    if json not in (None, _THERE) or unasked:
        files[folder / f"{stem}.json" if json is None else Path(str(json))] = dump(content)
    if markdown not in (None, _THERE):
        files[Path(str(markdown))] = text.render(content).encode()
    written = [path for path, data in files.items() if is_written(path, data)]
    if json == _THERE:
        print_json(dump(content).decode())
    elif markdown == _THERE:
        print_text(text.render(content).rstrip("\n"))
    else:
        _show(content)
        for path in written:
            print_lines(path)
    return 1 if len(written) < len(files) and not unasked else 0


def _show(content: Report | Comparison) -> None:
    from stepprof.analysis.report.schema import Report
    from stepprof.analysis.report.terminal import print_comparison, print_report

    console = report_console()
    if isinstance(content, Report):
        print_report(content, console)
    else:
        print_comparison(content, console)
    print_lines()


def _found(args: argparse.Namespace, chosen: Chosen, cluster: Cluster | None) -> Found:
    from stepprof.analysis.timeline.find import find

    paths, step = chosen
    elsewhere = None if cluster is None else cluster.elsewhere
    return find(
        paths,
        output_dir=output_dir(args),
        step=step,
        occurrence=args.occurrence,
        elsewhere=elsewhere,
        marked=True,
    )


def _check_assumed(assume: Mapping[str, int], founds: Sequence[Found]) -> None:
    from stepprof.analysis.timeline.assumed_offsets import check_assumed

    check_assumed(assume, [each for found in founds for each in found.inputs])


def _analysed(
    args: argparse.Namespace, found: Found, assume: Mapping[str, int], cluster: Cluster | None
) -> Report:
    from stepprof.analysis.report.analyse import analyse

    with progress_bar("reading traces") as progress:
        return analyse(found, workers=args.workers, progress=progress, assume=assume, cluster=cluster)


def _sides(runs: Sequence[str], step: int | None, folder: Path) -> list[Chosen]:
    """Return the requested step, or the two steps to compare.

    Paths of one run and one step belong together: they are its parts from several nodes. Two runs
    with the same id are two runs.
    """
    if len(runs) == 2 and runs[0] == runs[1]:
        raise ConfigError(
            f'RUN: "{runs[0]}" given twice: must be two different runs, or RUN:STEP with two different steps'
        )
    compared = len(runs) == 2 and _are_compared(*map(Path, runs))
    named: dict[tuple[str, int | None], list[tuple[str, Path]]] = {}
    for text in runs:
        path, wanted = _split(text, step)
        key, place = _run_of(path, folder)
        if compared:
            key = path
        named.setdefault((key, wanted), []).append((path, place))
    sides = [
        ([path for path, place in given if place in part], wanted)
        for (_, wanted), given in named.items()
        for part in _parts([place for _, place in given])
    ]
    if len(sides) > 2:
        names = ", ".join(
            f"{', '.join(paths)}{'' if number is None else f':{number}'}" for paths, number in sides
        )
        raise ConfigError(f"RUN: {len(sides)} runs given ({names}); must be one, or two to compare")
    return sides or [([], step)]


def _are_compared(a: Path, b: Path) -> bool:
    """Return whether two files are traces before and after: stepprof recorded neither, and they are not of two ranks."""
    from stepprof.analysis.timeline.file_names import origin_of_file

    if not (is_file(a) and is_file(b)):
        return False
    one, other = (origin_of_file(each, each.name)[0] for each in (a, b))
    return one.kind == other.kind == "trace" and one.rank == other.rank


def _parts(places: Sequence[Path]) -> Sequence[Sequence[Path]]:
    """Return directories with one id, grouped by the run that they are parts of."""
    from stepprof.run.same_run import parts_of_one_run

    return parts_of_one_run(list(dict.fromkeys(places)))


def _split(text: str, step: int | None) -> tuple[str, int | None]:
    """Split `RUN:STEP`. A path that exists under the whole name is not split."""
    path, colon, number = text.rpartition(":")
    if not colon or not path or not number.isdecimal() or is_file(text) or is_folder(Path(text)):
        return text, step
    if step is not None and step != int(number):
        raise ConfigError(f'--step = {step}: "{text}" names another step; omit one of them')
    return path, int(number)


def _run_of(path: str, folder: Path) -> tuple[str, Path]:
    """Return the key that identifies a path's run, and its directory.

    The key is the run id for a run, and the path itself for anything else.
    """
    from stepprof.run.layout import step_number
    from stepprof.run.runs import is_run, named_run, run_id_of

    found = named_run(folder, path)
    if found is not None:
        return run_id_of(found), resolved(found)
    place = resolved(path)
    if is_file(place):
        return str(place.parent), place.parent
    if is_folder(place) and step_number(place.name) is not None and is_run(place.parent):
        return f"{run_id_of(place.parent)} {place.name}", place.parent
    return str(place), place


def _file(given: str | None, option: str, ending: str) -> str | None:
    """Check the name of an output file: `--json RUN` or `--json TRACE` would otherwise overwrite that."""
    if given is None or given == _THERE:
        return given
    if is_file(given) and shows_events(Path(given)):
        raise ConfigError(
            f'{option} "{given}": is a trace, which the report would replace; put it before {option}'
        )
    if given.endswith(ending):
        return given
    raise ConfigError(
        f'{option} "{given}": must end in {ending}; did you mean {option} {given}{ending}? If it is a run, put it before {option}'
    )
