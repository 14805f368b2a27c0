"""The command line of bench/peers.py."""

import argparse
import importlib.util
import os
import pathlib
import sys
import tempfile
import time

from peers import plan, table
from peers.plan import Job
from peers.process import ROOT, Settings, rows_without_figures, run
from peers.results import Results, write_whole

EXIT_ERRORS, EXIT_USAGE, EXIT_STOPPED = 1, 2, 130


class UsageError(Exception):
    pass


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="peers.py",
        description="Measures Tamis and its peers, each in a fresh process with the same threads; prints the ratios. "
        "Rows that were measured today with the same settings are kept; what is done is saved after every process.",
        epilog="Example: bench/peers.py --only train,ops --llama-bench ~/llama.cpp/build/bin/llama-bench",
    )
    made.add_argument("--only", metavar="SECTIONS", help=f"of {', '.join(plan.SECTIONS)}, separated by commas")
    made.add_argument("--quick", action="store_true", help="small sizes: only to see whether it works")
    made.add_argument("--again", action="store_true", help="measure anew what was measured today")
    made.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of every process (%(default)s)"
    )
    made.add_argument("--tamis", type=pathlib.Path, default=ROOT / "build/release/tamis", help="the program")
    made.add_argument(
        "--llama-bench", type=pathlib.Path, metavar="PATH", help="measure llama.cpp too, with this program"
    )
    made.add_argument(
        "--results", type=pathlib.Path, metavar="DIRECTORY", help="bench/results, with --quick build/peers"
    )
    made.add_argument("--list", action="store_true", help="print what would be measured")
    return made


def chosen_jobs(options: argparse.Namespace) -> list[Job]:
    jobs = plan.quick() if options.quick else plan.full()
    if options.only is None:
        return jobs
    wanted = options.only.split(",")
    for section in wanted:
        if section not in plan.SECTIONS:
            raise UsageError(f'--only: unknown section "{section}"; known: {", ".join(plan.SECTIONS)}')
    return [job for job in jobs if job.section in wanted]


def require_program(name: str, program: pathlib.Path, advice: str) -> pathlib.Path:
    program = program.absolute()
    if not program.is_file():
        raise UsageError(f"{name}: {program} is missing; {advice}")
    if not os.access(program, os.X_OK):
        raise UsageError(f"{name}: {program} cannot be executed; {advice}")
    return program


def checked_settings(options: argparse.Namespace) -> Settings:
    if options.threads < 1:
        raise UsageError(f"--threads must be at least 1, but is {options.threads}")
    tamis = require_program("--tamis", options.tamis, "build it with `make build`")
    llama = options.llama_bench
    if llama is not None:
        llama = require_program("--llama-bench", llama, "name the llama-bench program of a llama.cpp build")
    settings = Settings(tamis, llama, options.threads, options.quick)
    if not settings.operators.is_file():
        raise UsageError(f"{settings.operators} is missing; build it with `make build`")
    for package in ("torch", "gguf") if llama else ("torch",):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"{sys.executable} has no {package}; `scripts/setup.sh bench` installs it into .venv")
    return settings


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def short(row: dict) -> str:
    return table.figure(row) if row["status"] == "ok" else f"{row['status']}: {row['why']}"


def short_peak(row: dict) -> str:
    return f"{row['tokens_per_second'] / 1e9:.1f} G/s" if row["status"] == "ok" else short(row)


def measure_all(jobs: list[Job], results: Results, settings: Settings, again: bool) -> None:
    todo = [job for job in jobs if again or not results.has(job, settings)]
    left = sum(job.minutes for job in todo)
    kept = len(jobs) - len(todo)
    say(f"{len(todo)} processes to run{f', {kept} kept of today' if kept else ''}; about {left:.0f} min")
    spent = estimated = 0.0
    with tempfile.TemporaryDirectory(prefix="tamis-peers-") as scratch:
        for at, job in enumerate(todo, 1):
            start = time.monotonic()
            why = plan.why_skipped(job, results.matmul_flops())
            if why:
                rows = rows_without_figures(job, settings, "skipped", why)
            else:
                rows = run(job, settings, pathlib.Path(scratch))
            results.add(rows)
            seconds = time.monotonic() - start
            spent, estimated, left = spent + seconds / 60, estimated + job.minutes, left - job.minutes
            for row in rows:
                text = short_peak(row) if job.section == "peaks" else short(row)
                say(f"[{at:2}/{len(todo)}] {job.peer}: {plan.Measure.of(row)}: {text}")
            say(f"        {seconds:.0f} s; about {max(left, 0) * spent / estimated:.0f} min left")


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        jobs, settings = chosen_jobs(options), checked_settings(options)
        directory = options.results or ROOT / ("build/peers" if options.quick else "bench/results")
        results = Results.of_today(directory, settings)
    except (UsageError, ValueError) as error:
        say(f"peers.py: {error}")
        return EXIT_USAGE
    if options.list:
        print("\n".join(f"{job.peer}: {measure}" for job in jobs for measure in job.measures))
        return 0
    try:
        measure_all(jobs, results, settings, options.again)
    except KeyboardInterrupt:
        say(f"peers.py: stopped; what is done lies in {results.path}, and the same command goes on from there")
        return EXIT_STOPPED
    rows = list(results.rows.values())
    write_whole(results.path.with_suffix(".md"), table.report(results.about, rows))
    print("\n".join(table.ratio_table(rows)))
    say(f"written: {results.path} and .md; `bench/plot.py {results.path}` draws them")
    return EXIT_ERRORS if any(row["status"] == "error" for row in rows) else 0
