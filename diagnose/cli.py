"""The command line: arguments -> scan -> renderer -> exit code. `diagnose --help` loads nothing but typer.

Exit codes: 0 judged · 1 a diagnosis at or above --fail-on · 2 bad arguments · 3 something could not be judged · 4 a rule
failed, which is a bug; the first of 2, 4, 3, 1 that applies. 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diagnose.errors import BadPart, DiagnoseError

if TYPE_CHECKING:
    from diagnose.model import Report
    from diagnose.parts import Rule
    from diagnose.scan import Progress

OK, FAILED_ON, BAD_ARGUMENTS, NOT_JUDGED, BROKEN_RULE, INTERRUPTED = 0, 1, 2, 3, 4, 130
NOTES = 8  # runs that could not be judged, named on standard error before they are only counted
SUFFIXES = {".json": "json", ".md": "markdown", ".markdown": "markdown", ".txt": "text"}

app = typer.Typer(
    name="diagnose",
    help="Reads finished training logs and says what went wrong, since which step, how sure it is, why, and what to change.",
    epilog="`diagnose PATH...` is short for `diagnose run PATH...`; a path that is named like a command is given as ./scan.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class FailOn(str, Enum):
    """From which severity on a diagnosis makes the exit code 1."""

    INFO = "info"
    MINOR = "minor"
    MAJOR = "major"
    CRITICAL = "critical"
    NEVER = "never"


class BadArgument(DiagnoseError):
    """An argument that can't be meant as it stands: exit code 2."""


Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...", help="A run, a log file, a folder of runs, a saved run.parquet or report.json, or - for standard input."
    ),
]
Format = Annotated[str, typer.Option("--format", "-f", metavar="NAME", help="text, json or markdown. [default: by -o's suffix, else text]")]
Output = Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of standard output.")]
Fail = Annotated[FailOn, typer.Option("--fail-on", help="Exit with 1 on a diagnosis of this severity or above.")]
Plain = Annotated[bool, typer.Option("--no-colour", "--no-color", help="No colour on a terminal (so does NO_COLOR).")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Everything in full.")]
Jobs = Annotated[int, typer.Option("--jobs", "-j", min=0, help="Worker processes; 0 chooses by the amount of work.")]


def _tell_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        _emit(f"diagnose {version('diagnose')}\n")
    except PackageNotFoundError:
        _emit("diagnose (not installed: running from its source)\n")
    raise typer.Exit(OK)


Version = Annotated[bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and exit.")]


@app.callback()
def _root(version: Version = False) -> None:
    pass


@app.command("run")
def run_command(  # noqa: PLR0917 - typer fills them by name
    paths: Paths,
    format: Format = "",
    output: Output = "",
    fail_on: Fail = FailOn.NEVER,
    no_colour: Plain = False,
    verbose: Verbose = False,
    jobs: Jobs = 0,
) -> int:
    """Judge runs: one in full, several as a table, worst first. This is the default command."""
    return _judge(paths, format, output, fail_on, _Look(not no_colour, verbose, table=False), jobs)


@app.command("scan")
def scan_command(  # noqa: PLR0917 - typer fills them by name
    paths: Paths,
    format: Format = "",
    output: Output = "",
    fail_on: Fail = FailOn.NEVER,
    no_colour: Plain = False,
    jobs: Jobs = 0,
) -> int:
    """Judge all runs below a folder and list them, worst first."""
    return _judge(paths, format, output, fail_on, _Look(not no_colour, False, table=True), jobs)


@app.command("read")
def read_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, a log file, or - for standard input.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="The Parquet file to write.")],
) -> int:
    """Read one run and save it as a run table (Parquet), for pandas or to judge it again later."""
    from diagnose.outline import clean, counted
    from diagnose.scan import read_one

    _writable(output)
    with ExitStack() as stack:
        path = _stdin(stack) if run == "-" else run
        found = read_one(path)
        if not found.points and not found.events:
            raise DiagnoseError("was read, but holds no number and no event.", where=run)
        found.save(output)
    _note(f"{clean(found.name)}: {counted(found.points, 'point')}, {counted(len(found.problems), 'problem')} of reading -> {output}")
    return OK


@app.command("rules")
def rules_command(format: Annotated[str, typer.Option("--format", "-f", metavar="NAME", help="text or json.")] = "text") -> int:
    """List the rules: id, title, family, severity, status and what they need."""
    from diagnose import registry

    found = registry.rules()
    if format not in ("text", "json"):
        raise BadArgument(f"there is no format '{format}' for the list of rules.", hint="Known: text, json.")
    _emit(_rules_json(found) if format == "json" else _rules_text(found))
    for problem in found.problems:
        _note(f"{problem.where}: {problem.what}")
    return OK


@app.command("explain")
def explain_command(rule: Annotated[str, typer.Argument(metavar="RULE", help="A rule's id; `diagnose rules` lists them.")]) -> int:
    """Explain a rule: what it looks for, how it decides, when it is wrong, what to do, and examples."""
    from diagnose import registry

    _emit(_explained(registry.rule(rule)))
    return OK


@app.command("app")
def app_command(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port of the page.")] = 8501,
    address: Annotated[
        str, typer.Option("--address", help="Where the page can be reached from; localhost is this machine only.")
    ] = "localhost",
) -> int:
    """Open the page in a browser: drop a log, see the verdict on its curves."""
    import subprocess

    home = Path(__file__).resolve().parent.parent
    places = [home / "app.py", *([Path.cwd() / "app.py"] if (Path.cwd() / "diagnose" / "cli.py").is_file() else [])]
    page = next((p for p in places if p.is_file()), None)
    if page is None:
        raise BadArgument(
            f"app.py is not in {home}.", hint="The page comes with the source tree: start `diagnose app` in a checkout of it."
        )
    words = [sys.executable, "-m", "streamlit", "run", str(page), "--server.port", str(port), "--server.address", address]
    return subprocess.run([*words, "--browser.gatherUsageStats", "false"], check=False).returncode


# -- judging and saying


class _Look:
    """How the text should look."""

    def __init__(self, colour: bool, verbose: bool, *, table: bool) -> None:
        self.colour, self.verbose, self.table = colour, verbose, table


def _judge(paths: Sequence[str], format: str, output: str, fail_on: FailOn, look: _Look, jobs: int) -> int:  # noqa: PLR0917
    from diagnose import registry

    renderer = registry.renderer(format or SUFFIXES.get(Path(output).suffix.lower(), "text"))
    _writable(output)
    reports = _reports(paths, jobs)
    _tell(reports, paths)
    one = reports[0] if len(reports) == 1 and not look.table else None
    if one is not None:
        text = renderer.render(one, colour=look.colour and not output and _colourful(), verbose=look.verbose)
    elif renderer.render_many is None:
        raise BadArgument(f"the format '{renderer.id}' is for one run, and there are {len(reports)}.")
    else:
        text = renderer.render_many(reports)
    if output:
        _write(output, text)
        _note(f"wrote {output}")
    elif renderer.id == "json" or one is None or one.readable:  # else standard error has said all there is
        _emit(text)
    return exit_code(reports, fail_on.value)


def _reports(paths: Sequence[str], jobs: int) -> list[Report]:
    from diagnose.scan import as_stdin, scan

    with ExitStack() as stack:
        spool = _stdin(stack) if "-" in paths else None
        real = [spool if p == "-" and spool else p for p in dict.fromkeys(paths)]
        progress = stack.enter_context(_progress())
        reports = scan(real, jobs or None, progress)
    if spool is None:
        return reports
    return [as_stdin(r, spool) if str(spool.parent) in str(r.run.get("path", "")) else r for r in reports]


def _stdin(stack: ExitStack) -> Path:
    from diagnose.scan import spooled

    if sys.stdin is None or sys.stdin.isatty():
        _note("reading standard input; end it with Ctrl-D")
    return stack.enter_context(spooled(sys.stdin.buffer))


def exit_code(reports: Sequence[Report], fail_on: str = "never") -> int:
    """The first of 4, 3, 1 that applies to the reports, else 0."""
    from diagnose.model import Severity, Status

    if any(o.status is Status.FAILED for r in reports for o in r.outcomes):
        return BROKEN_RULE
    if not reports or not all(r.readable for r in reports):
        return NOT_JUDGED
    if fail_on != "never" and any(r.worst is not None and r.worst.rank >= Severity(fail_on).rank for r in reports):
        return FAILED_ON
    return OK


def _tell(reports: Sequence[Report], paths: Sequence[str]) -> None:
    """One sentence on standard error for each run that could not be judged and each rule that failed."""
    from diagnose.model import Status
    from diagnose.outline import clean, origin, path_shown

    if not reports:
        _note(f"{', '.join(paths)}: no run was found.")
    unreadable = [r for r in reports if not r.readable]
    for report in unreadable[:NOTES]:
        where = origin(report)
        if not report.sources and where != "-" and path_shown(report) not in where:
            where = f"{path_shown(report)} in {where}"
        said = clean(report.verdict.removeprefix("Could not judge: "))
        tried = f" Read as {', '.join(dict.fromkeys(clean(s.reader) for s in report.sources))}." if report.sources else ""
        odd = f" {_sentence(clean(report.problems[0].what))}" if report.sources and report.problems else ""
        _note(f"{'' if where in said else f'{where}: '}{said}{tried}{odd}")
        near = _near_command(where)
        if near:
            _note(f"to use the command of that name: diagnose {near}")
    if len(unreadable) > NOTES:
        _note(f"{len(unreadable) - NOTES} more could not be judged; the table names them all.")
    for report in reports:
        for outcome in report.outcomes:
            if outcome.status is Status.FAILED:
                _note(f"the rule {clean(outcome.rule)} failed on {path_shown(report)}: {clean(outcome.error)}")


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


def _near_command(word: str) -> str:
    import difflib

    if os.sep in word or "." in word or Path(word).exists():
        return ""
    return next(iter(difflib.get_close_matches(word, COMMANDS, n=1)), "")


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A bar on standard error for three runs or more, if that is a terminal; otherwise nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    from diagnose.outline import clean

    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None, visible=False)

        def step(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(clean(name)[-40:]), visible=total > 2)

        yield step


# -- rules


def _rules_text(found: Any) -> str:
    rows = [("id", "severity", "status", "family", "needs", "title")]
    rows += [(r.id, r.severity.value, r.status, r.family, ", ".join(r.needs), r.title) for r in found]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "".join("  ".join([*(f"{row[i]:<{widths[i]}}" for i in range(5)), row[5]]).rstrip() + "\n" for row in rows)


def _rules_json(found: Any) -> str:
    import json

    names = ("id", "title", "family", "status", "since", "needs", "wants", "uses")
    plain = [{"severity": r.severity.value, **{n: getattr(r, n) for n in names}} for r in found]
    return json.dumps({"schema": "diagnose.rules/1", "rules": plain}, indent=1, ensure_ascii=False) + "\n"


def _explained(rule: Rule) -> str:
    import inspect

    lines = [f"{rule.id}: {rule.title}", f"{rule.severity.value} at worst · {rule.family} · {rule.status} since {rule.since}"]
    lines.append(f"needs {', '.join(rule.needs) or 'nothing'}" + (f" · sharper with {', '.join(rule.wants)}" if rule.wants else ""))
    lines += ["", inspect.cleandoc(rule.page)]
    for example in rule.examples:
        lines += ["", f"{'Fires' if example.fires else 'Quiet'}: {example.title}", *_pictures(rule, example)]
    return "\n".join(lines).rstrip() + "\n"


def _pictures(rule: Rule, example: Any) -> Iterator[str]:
    from diagnose.model import Curve
    from diagnose.outline import number
    from diagnose.reports.text import sparkline

    made = example.make()
    wanted = {n for need in (*rule.needs, *rule.wants) for n in need.split("|")}
    for name in [n for n in made if n in wanted][:3] or list(made)[:1]:
        steps, values = made[name]
        curve = Curve(name, name, "", steps, values, points=len(steps))
        bars, logarithmic, low, high = sparkline(curve, 56)
        yield f"  {name:<16} {bars}  {number(low)} to {number(high)}{' (log)' if logarithmic else ''}"


# -- the outside world


def _note(text: str) -> None:
    from contextlib import suppress

    with suppress(OSError):
        print(f"diagnose: {text}", file=sys.stderr, flush=True)


def _emit(text: str) -> None:
    """Writes to standard output; a reader that has gone away is no error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit stays quiet as well


def _colourful() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _writable(output: str) -> None:
    if not output:
        return
    target = Path(output)
    if target.is_dir():
        raise BadArgument("is a directory; -o wants a file.", where=output)
    if not target.parent.is_dir():
        raise BadArgument(f"can't be written: there is no directory {target.parent}.", where=output)


def _write(output: str, text: str) -> None:
    """Writes a file whole or not at all."""
    target = Path(output)
    try:
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(scratch, 0o666 & ~mask)
            os.replace(scratch, target)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise BadArgument(f"can't be written: {error.strerror or error}.", where=output) from None


COMMANDS = tuple(c.name for c in app.registered_commands if c.name)


def routed(words: Sequence[str]) -> list[str]:
    """The arguments with the default command in front where none is named."""
    if not words:
        return ["--help"]
    if words[0] in COMMANDS or words[0] in ("-h", "--help", "--version"):
        return list(words)
    return ["run", *words]


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line and exits with its code; nothing raised on purpose shows a traceback."""
    words = sys.argv[1:] if words is None else words
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows ? instead of failing
    sys.exit(_run(words) if words else (_run(words), BAD_ARGUMENTS)[1])


def _run(words: Sequence[str]) -> int:  # noqa: PLR0911 - one return a kind of ending
    try:
        code = app(routed(words), prog_name="diagnose", standalone_mode=False)
        return code if isinstance(code, int) else OK
    except (BadPart, BadArgument) as error:
        _note(str(error))
        return BAD_ARGUMENTS
    except DiagnoseError as error:
        _note(str(error))
        return NOT_JUDGED
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        return OK
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # typer's usage errors; their class moved between versions
            error.show()
            return BAD_ARGUMENTS
        if isinstance(error, OSError):
            _note(f"{error.filename}: {error.strerror}." if error.filename else str(error))
            return NOT_JUDGED
        raise
