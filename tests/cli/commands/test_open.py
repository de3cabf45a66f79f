"""The command `stepprof open`: the timeline that it serves, and its message if no viewer is installed."""

from __future__ import annotations

import http.client
import os
import signal
import stat
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import pytest
from runs import make_run, record

from stepprof import open_run
from stepprof.cli.main import main
from stepprof.errors import ConfigError

TRACE = b'{"baseTimeNanoseconds":1700000000000000000,"traceEvents":[{"ph":"X","name":"aten::add","ts":1,"dur":2}]}'


@pytest.fixture
def no_viewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide viztracer, as if it were not installed."""
    monkeypatch.setitem(sys.modules, "viztracer", None)


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return the folder of a recorded step that has a timeline."""
    run = make_run(tmp_path / "runs")
    folder = record(run, data=TRACE).folder
    (folder / "timeline.pftrace").write_bytes(b"timeline")
    return folder


@pytest.mark.usefixtures("no_viewer")
class TestWithoutAViewer:
    def test_without_a_viewer_it_prints_how_to_open_the_file(self, step, capsys) -> None:
        """The command prints the file, the extra to install and the public viewer. The exit status is 0."""
        assert main(["open", "--output-dir", str(step.parent.parent)]) == 0
        said = capsys.readouterr().out
        assert str(step / "timeline.pftrace") in said
        assert 'install the extra "open" of stepprof' in said
        assert "https://ui.perfetto.dev" in said

    def test_a_missing_timeline_is_merged_once(self, step, capsys) -> None:
        """A missing timeline is merged, and the next call does not merge it again."""
        (step / "timeline.pftrace").unlink()
        assert main(["open", str(step.parent)]) == 0
        made = (step / "timeline.pftrace").read_bytes()
        assert b"aten::add" in made
        assert f"{step} has no timeline yet: merging" in capsys.readouterr().out
        assert main(["open", str(step.parent)]) == 0
        assert "merging" not in capsys.readouterr().out

    def test_a_link_is_not_followed(self, step, tmp_path, capsys) -> None:
        """In a run from elsewhere, a link may lead to a private file of the reader. The timeline is
        merged in place of the link.
        """
        (tmp_path / "private").write_bytes(b"key")
        (step / "timeline.pftrace").unlink()
        (step / "timeline.pftrace").symlink_to(tmp_path / "private")
        assert main(["open", str(step.parent)]) == 0
        assert "merging" in capsys.readouterr().out
        assert b"aten::add" in (step / "timeline.pftrace").read_bytes()
        assert (tmp_path / "private").read_bytes() == b"key"

    def test_any_trace_can_be_opened_by_its_path(self, step, capsys) -> None:
        """A trace outside a run can be opened by its path."""
        assert main(["open", str(step / "timeline.pftrace")]) == 0
        assert str(step / "timeline.pftrace") in capsys.readouterr().out

    def test_a_file_never_hides_a_run_of_the_same_name(self, step, tmp_path, capsys, monkeypatch) -> None:
        """As in every other command, a run id names the run. A path with a separator names the file."""
        monkeypatch.chdir(tmp_path)
        run = step.parent
        (tmp_path / run.name).write_bytes(TRACE)
        assert main(["open", run.name, "--output-dir", str(run.parent)]) == 0
        assert str(step / "timeline.pftrace") in capsys.readouterr().out
        assert main(["open", f"./{run.name}", "--output-dir", str(run.parent)]) == 0
        assert capsys.readouterr().out.startswith(f"{tmp_path / run.name}\n")

    @pytest.mark.parametrize("name", ["x" * 5000, "a\0b"], ids=["long", "nul"])
    @pytest.mark.parametrize("command", ["open", "check", "report", "merge", "export", "show"])
    def test_a_name_that_no_folder_can_have(self, command, name, tmp_path, capsys, monkeypatch) -> None:
        """No file system has a name that is too long or has a NUL character, so there is no such run."""
        monkeypatch.chdir(tmp_path)
        more = {"export": ["--parquet", "out"], "report": [f"{name}y:2"]}.get(command, [])
        with pytest.raises(ConfigError, match="neither a run under"):
            open_run(name)
        assert main([command, name, *more]) == 2
        assert "neither a run under" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--port", "65536"], "--port = 65536: must be 0 to 65535"),
            (["--port", "-1"], "--port = -1: must be 0 to 65535"),
            (["--step", "7"], "step 7: not recorded in"),
        ],
    )
    def test_wrong_arguments(self, step, arguments, message, capsys) -> None:
        """A port out of range or a step that was not recorded is refused."""
        assert main(["open", str(step.parent), *arguments]) == 2
        assert message in capsys.readouterr().err

    def test_a_step_of_a_file(self, step, capsys) -> None:
        """A file has no steps, so `--step` is refused."""
        assert main(["open", str(step / "timeline.pftrace"), "--step", "2"]) == 2
        assert "omit --step" in capsys.readouterr().err


@pytest.fixture
def command(step, tmp_path) -> list[str]:
    """Return the command for that step, with a viewer installed."""
    package = tmp_path / "path" / "viztracer"
    (package / "web_dist").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "web_dist" / "index.html").write_text("viewer")
    script = f"import sys; sys.path.insert(0, {str(package.parent)!r})\nfrom stepprof.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", script, "open", str(step.parent)]


class TestServing:
    def test_serves_until_ctrl_c(self, step, command) -> None:
        """The command prints the address and serves the timeline until Ctrl-C. Then it ends with
        status 0 and no traceback.
        """
        with subprocess.Popen(
            [*command, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(step / "timeline.pftrace")
            address = process.stdout.readline().partition("url=")[2].partition("&")[0]
            target = urlsplit(unquote(address))
            connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=20)
            connection.request("GET", target.path)
            answer = connection.getresponse().read()
            connection.close()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=200)
        assert answer == b"timeline"
        assert (process.returncode, errors) == (0, "")

    def test_the_browser_gets_the_address(self, command, tmp_path) -> None:
        """Without `--no-browser`, $BROWSER gets a page that leads to the address. Every user can
        read a process's arguments, so they do not contain the address. Only this user can read the
        page.
        """
        seen = tmp_path / "seen"
        os.mkfifo(seen)
        browser = tmp_path / "browser"
        browser.write_text(f'#!/bin/sh\necho "$1" > {seen}\n')
        browser.chmod(0o755)
        environ = {**os.environ, "BROWSER": str(browser)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as process:
            assert process.stdout is not None
            printed = [process.stdout.readline().strip() for _ in range(2)]
            opened = Path(url2pathname(urlsplit(seen.read_text().strip()).path))
            leads_to = unescape(opened.read_text().partition("url=")[2].rpartition('">')[0])
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (opened, opened.parent)]
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        assert leads_to == printed[1]
        assert modes == [0o600, 0o700]
        assert not opened.exists()
