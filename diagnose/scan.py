"""Many runs: finds them, judges each in a process of a pool, and sorts the reports worst first.

A run that can't be judged costs itself: its report is unreadable and says why. That holds for an error, for a run that
takes its worker process down with it, and for a path that no reader claims.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from diagnose import engine
from diagnose.assembly import discover
from diagnose.errors import DiagnoseError, NothingReadable
from diagnose.model import Frozen, Problem, Report
from diagnose.outline import ranked
from diagnose.reports import json_v1
from diagnose.table import Run

Progress = Callable[[int, int, str], None]  # runs done, runs in all, name of the run that was just judged

# What a pool must save before it is worth its start: a worker needs about two seconds to import numpy, scipy and Arrow.
START_S = 4.0
RUN_S = 0.05  # of a tiny run
BYTES_PER_S = 10e6  # of a large one, reading and judging together


@dataclass(frozen=True, slots=True)
class Job:
    """One run to judge: a discovered target, a saved run table, or one of the reports that were saved in a file."""

    name: str
    what: Any  # engine.Target | Path | Report
    size: int = 0  # bytes, for the order of work


def scan(paths: Iterable[str | Path], jobs: int | None = None, progress: Progress | None = None) -> list[Report]:
    """A report for each run below the paths, worst first; the order does not depend on the order of work.

    jobs: worker processes; None chooses by the amount of work, 1 stays in this process.
    """
    found, failed = find(paths)
    return ranked([*failed, *_judge_all(found, jobs, progress)])


# -- what there is to judge


def find(paths: Iterable[str | Path]) -> tuple[list[Job], list[Report]]:
    """The runs below the paths, and a report for each path in which nothing can be read."""
    found: list[Job] = []
    failed: list[Report] = []
    for path in map(Path, paths):
        try:
            found += _jobs(path)
        except (DiagnoseError, OSError) as error:
            failed.append(unreadable(str(path), error, path=str(path)))
    return found, failed


def _jobs(path: Path) -> list[Job]:
    if path.is_symlink() and not path.exists():
        raise NothingReadable("a symbolic link that leads to no file.", where=str(path))
    if not path.exists():
        raise NothingReadable("there is no such file or directory.", where=str(path))
    saved = _saved(path)
    if saved:
        return saved
    try:
        return [Job(t.name, t, t.size) for t in discover([path])]
    except NothingReadable:
        stages = [job for child in sorted(path.iterdir()) for job in _saved(child)] if path.is_dir() else []
        if stages:  # a folder of run tables or reports, to be judged or looked at again
            return stages
        raise


def _saved(path: Path) -> list[Job]:
    """The jobs of a saved stage, a run table or a report; none when the path is something else."""
    if not path.is_file():
        return []
    if path.suffix == ".parquet":
        return [Job(path.stem, path, _size([path]))]
    if json_v1.looks_like_report(path):
        text = path.read_text(encoding="utf-8", errors="replace")
        return [Job(str(r.run.get("name", path.name)), r) for r in json_v1.load_many(text, where=str(path))]
    return []


def _size(paths: Iterable[Path]) -> int:
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


def read_one(path: str | Path) -> Run:
    """The one run at a path, for saving; NothingReadable when there are several."""
    path = Path(path)
    found = _jobs(path)
    if len(found) != 1:
        names = ", ".join(j.name for j in found[:4])
        raise NothingReadable(
            f"holds {len(found)} runs ({names}{', …' if len(found) > 4 else ''}).", where=str(path), hint="Name one of them."
        )
    what = found[0].what
    if isinstance(what, Report):
        raise NothingReadable("is a saved report, which does not hold the run's points.", where=str(path), hint="Read the log itself.")
    return engine.read(what)


@contextmanager
def spooled(stream: IO[bytes]) -> Iterator[Path]:
    """Standard input as a file that is gone afterwards, since readers want to look twice."""
    folder = Path(tempfile.mkdtemp(prefix="diagnose-"))
    try:
        path = folder / "stdin.log"
        with path.open("wb") as file:
            shutil.copyfileobj(stream, file)
        yield path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def as_stdin(report: Report, path: Path) -> Report:
    """A report on a spooled file, told as one on standard input."""

    def told(text: Any) -> str:
        return str(text).replace(str(path), "-").replace(str(path.parent), "-")

    name = "standard input" if report.run.get("name") in ("stdin", "stdin.log", path.parent.name, str(path)) else report.run.get("name")
    return replace(
        report,
        run=Frozen({**report.run, "name": name, "path": "-"}),
        verdict=told(report.verdict),
        sources=tuple(replace(s, path=told(s.path)) for s in report.sources),
        problems=tuple(Problem(told(p.where), told(p.what)) for p in report.problems),
    )


# -- judging


def judge(job: Job) -> Report:
    """One job's report; whatever goes wrong becomes an unreadable report."""
    try:
        if isinstance(job.what, Report):
            return job.what
        return engine.diagnose(job.what)
    except Exception as error:
        return unreadable(job.name, error, path=_path(job))


def unreadable(name: str, error: BaseException | str, *, path: str = "") -> Report:
    """The report of a run that could not be judged: a verdict that says why, and the same as a problem."""
    if isinstance(error, (DiagnoseError, str)):
        why = str(error)
    elif isinstance(error, OSError):
        why = f"{error.filename or path}: {error.strerror or error}."
    else:
        why = f"{path or name}: judging stopped with {type(error).__name__}: {error}. This is a bug in diagnose or in a plug-in."
    return engine.unreadable(name, path or name, DiagnoseError(why))


def _path(job: Job) -> str:
    if isinstance(job.what, Path):
        return str(job.what)
    files: Sequence[tuple[str, Path]] = getattr(job.what, "files", ())
    return str(files[0][1] if len(files) == 1 else getattr(job.what, "home", ""))


def _judge_all(found: Sequence[Job], jobs: int | None, progress: Progress | None) -> list[Report]:
    count = _workers(found, jobs)
    order = sorted(range(len(found)), key=lambda i: (-found[i].size, i))  # big first, so that none is left for the end
    reports: dict[int, Report] = {}

    def done(index: int, report: Report) -> None:
        reports[index] = report
        if progress:
            progress(len(reports), len(found), found[index].name)

    if count > 1:
        _in_pool(found, order, count, done)
    for index in order:
        if index not in reports:
            done(index, judge(found[index]))
    return [reports[i] for i in range(len(found))]


def _workers(found: Sequence[Job], jobs: int | None) -> int:
    if jobs is not None:
        return min(max(1, jobs), len(found))
    work_s = sum(RUN_S + job.size / BYTES_PER_S for job in found)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, len(found)) if work_s > START_S else 1


def _in_pool(found: Sequence[Job], order: Sequence[int], count: int, done: Callable[[int, Report], None]) -> None:
    left = set(order)
    try:
        with _pool(count) as pool:
            futures = {pool.submit(judge, found[i]): i for i in order}
            for future in _as_done(futures):
                report = _result(future, found[futures[future]])
                left.discard(futures[future])
                done(futures[future], report)
    except BrokenProcessPool:
        _one_by_one(found, [i for i in order if i in left], done)


def _one_by_one(found: Sequence[Job], order: Sequence[int], done: Callable[[int, Report], None]) -> None:
    """After a worker died: each run alone in a worker, so that the one that kills it is known."""
    rest = list(order)
    while rest:
        try:
            with _pool(1) as pool:
                if not pool.submit(_alive).result():
                    return
                while rest:
                    report = _result(pool.submit(judge, found[rest[0]]), found[rest[0]])
                    done(rest.pop(0), report)
        except BrokenProcessPool:
            if not _can_start():
                return  # workers die of themselves here: the caller judges in its own process
            job = found[rest[0]]
            why = f"{_path(job) or job.name}: the process that judged it died, probably for want of memory."
            done(rest.pop(0), unreadable(job.name, why, path=_path(job)))


def _alive() -> bool:
    return True


def _can_start() -> bool:
    try:
        with _pool(1) as pool:
            return pool.submit(_alive).result()
    except BrokenProcessPool:
        return False


def _result(future: Future[Report], job: Job) -> Report:
    try:
        return future.result()
    except BrokenProcessPool:
        raise
    except Exception as error:  # the report, or its error, could not cross the process border
        return unreadable(job.name, error, path=_path(job))


def _as_done(futures: Iterable[Future[Report]]) -> Iterator[Future[Report]]:
    pending = set(futures)
    while pending:
        ready, pending = wait(pending, return_when=FIRST_COMPLETED)
        # those that finished well come first: a broken pool raises at the first that did not
        yield from sorted(ready, key=lambda f: f.exception() is not None)


@contextmanager
def _pool(count: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        yield pool
    except BaseException:
        workers = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:  # our own children; none may go on working after an interrupt
            worker.terminate()
        raise
    pool.shutdown()


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker without a traceback


class _Callable(types.ModuleType):
    """`diagnose.scan` is this module once it is imported, and the public function before: calling works on both."""

    def __call__(self, paths: Iterable[str | Path], jobs: int | None = None, progress: Progress | None = None) -> list[Report]:
        return scan(paths, jobs, progress)


sys.modules[__name__].__class__ = _Callable
