"""Runs one job in a fresh process, with the settings that all share, and turns what it prints into rows."""

import datetime
import glob
import hashlib
import json
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Iterator

from peers import llama, worker
from peers.plan import INITIAL, Job, Measure

BENCH = pathlib.Path(__file__).resolve().parents[1]
ROOT = BENCH.parent
TIMEOUT_SECONDS = 900
PSI, VOCABULARY = 16, 512  # of Tamis' model that is compared with the peers
PEER_SOURCES = (
    "checks",
    "effort",
    "mechanisms",
    "model_work",
    "multiscreen",
    "operator_work",
    "screening",
    "timing",
    "transformer",
)


@dataclass(frozen=True)
class Settings:
    tamis: pathlib.Path
    llama_bench: pathlib.Path | None
    threads: int
    quick: bool

    @property
    def operators(self) -> pathlib.Path:
        """The library next to the program."""
        return self.tamis.parent / "libtamis_ops.so"

    @property
    def operator_bench(self) -> pathlib.Path:
        """The timing of operators by Google Benchmark, next to the program."""
        return self.tamis.parent / "tamis_ops_bench"

    def of(self, job: Job) -> str:
        """What a row depends on besides its job: a row made with other settings is measured again."""
        if job.kind in ("tamis", "start"):
            return f"{self.threads} threads, memory kept by itself, program {digest(self.tamis, self.operators)}"
        if job.kind == "operators":
            program = digest(self.operator_bench, self.operators) if self.operator_bench.is_file() else "none"
            return f"{self.threads} threads, memory kept by itself, program {program}"
        if job.kind == "llama":
            return f"{self.threads} threads, glibc, program {digest(self.llama_bench) if self.llama_bench else 'none'}"
        sources = digest(*(BENCH / "peers" / f"{name}.py" for name in PEER_SOURCES))
        return f"{self.threads} threads, {allocator()[0]}, torch {metadata.version('torch')}, peers {sources}"


def digest(*files: pathlib.Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def allocator() -> tuple[str, dict[str, str]]:
    """An allocator that keeps large tensors, as glibc by default gives them back to the kernel after every use."""
    for name in ("libtcmalloc_minimal.so*", "libtcmalloc.so*"):
        found = [file for place in ("lib/*", "lib", "lib64") for file in sorted(glob.glob(f"/usr/{place}/{name}"))]
        if found:
            return "tcmalloc", {"LD_PRELOAD": found[0], "TCMALLOC_RELEASE_RATE": "0"}
    # M_MMAP_THRESHOLD ends at 32 MiB, so that larger tensors would still be mapped: no mapping at all.
    return "glibc that keeps memory", {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MALLOC_ARENA_MAX": "1",
    }


def environment(job: Job, settings: Settings) -> dict[str, str]:
    threads = str(job.arguments.get("threads", settings.threads))
    variables = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if job.kind in ("tamis", "operators", "llama"):
        return variables
    if job.kind == "start":
        return {**variables, "PYTHONPATH": str(BENCH)}
    places = {"PYTHONPATH": f"{BENCH}:{ROOT / 'python'}", "TAMIS_OPS_LIBRARY": str(settings.operators)}
    return {**variables, **allocator()[1], **places}


def command(job: Job, settings: Settings, scratch: pathlib.Path) -> list[str]:
    if job.kind == "tamis":
        options = job.arguments["options"]
        threads = [] if "--threads" in options else ["--threads", str(settings.threads)]
        return [str(settings.tamis), "bench", *options, *threads, "--json"]
    if job.kind == "operators":
        effort = ("2", "0") if settings.quick else ("5", "0.4")
        flags = {
            "filter": job.arguments["filter"],
            "format": "json",
            "repetitions": effort[0],
            "min_time": effort[1],
            "enable_random_interleaving": "true" if job.section == "head" else "false",  # its ratio is what counts
        }
        return [str(settings.operator_bench), *(f"--benchmark_{name}={value}" for name, value in flags.items())]
    if job.kind == "llama":
        model = llama.write_model(scratch, job.arguments["dtype"], settings.quick)
        return llama.command(settings.llama_bench, model, job.arguments, settings.threads)
    arguments = {**job.arguments, "tamis": str(settings.tamis)} if job.kind == "start" else job.arguments
    text = {"kind": job.kind, "arguments": arguments, "threads": settings.threads, "quick": settings.quick}
    return [sys.executable, "-m", "peers.worker", json.dumps(text)]


def rows_without_figures(job: Job, settings: Settings, status: str, why: str) -> list[dict]:
    about = {"peer": job.peer, "batch": job.batch, "settings": settings.of(job), "date": now()}
    return [{**about, **measure.as_dict(), "status": status, "why": why} for measure in job.measures]


def run(job: Job, settings: Settings, scratch: pathlib.Path) -> list[dict]:
    """One row per measure of the job, in their order; one without figures says why in `why`."""
    about = {"peer": job.peer, "batch": job.batch, "settings": settings.of(job), "date": now()}

    def row(measure: Measure, figures: dict) -> dict:
        return {**about, **measure.as_dict(), **figures}

    if job.kind == "llama" and settings.llama_bench is None:
        return rows_without_figures(job, settings, "not run", "name its llama-bench with --llama-bench PATH")
    if job.kind == "operators" and not settings.operator_bench.is_file():
        return rows_without_figures(job, settings, "not run", f"{settings.operator_bench} is missing; `make peers` builds it")
    clock = OthersClock()
    code, out, errors = finished(command(job, settings, scratch), environment(job, settings))
    others = clock.cores()
    found = {} if job.kind == "llama" and code != 0 else dict(parsed(job, out))
    status, why = outcome(code, errors)
    failed = {"status": status, "why": why}
    return [
        row(measure, {"status": "ok", "others_cores": others, **found[measure]} if measure in found else failed)
        for measure in job.measures
    ]


def finished(arguments: list[str], variables: dict[str, str]) -> tuple[int, str, str]:
    """Exit code (below 0: the signal) and what it printed. What interrupts the wait ends the whole process group."""
    process = subprocess.Popen(
        arguments,
        env=variables,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return 1, out, f"not done after {TIMEOUT_SECONDS} s"
    return process.returncode, out, errors


class OthersClock:
    """How much of the machine other processes used while one of ours ran."""

    def __init__(self) -> None:
        self.start, self.busy, self.ours = time.monotonic(), busy_seconds(), children_seconds()

    def cores(self) -> float:
        others = busy_seconds() - self.busy - (children_seconds() - self.ours)
        return round(max(0.0, others / (time.monotonic() - self.start)), 2)


def busy_seconds() -> float:
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def outcome(code: int, errors: str) -> tuple[str, str]:
    """Status and reason of the measures that a process has no row for."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    last = lines[-1] if lines else "it said nothing"
    if code == 0:
        return "error", "the program has no such row"
    if code in (worker.OUT_OF_MEMORY, worker.NOT_INSTALLED):
        return "skipped" if code == worker.OUT_OF_MEMORY else "not run", last
    if code == -signal.SIGKILL:
        return "skipped", "ended by the kernel, most likely out of memory"
    return "error", last if code > 0 else f"ended by signal {-code}: {last}"


# ---- what the programs print


def parsed(job: Job, out: str) -> Iterator[tuple[Measure, dict]]:
    """Measures and figures; only those of the job count."""
    if job.kind == "tamis":
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        alone = "--threads" in job.arguments.get("options", ())
        return (
            (tamis_measure(row, report["bench"], report["options"], alone), tamis_figures(row))
            for report in lines
            for row in report["rows"]
        )
    if job.kind == "operators":
        return parsed_operators(json.loads(out)["benchmarks"] if out else [], job.arguments.get("threads"))
    if job.kind == "llama":
        return llama.parsed(out, job.measures)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return ((measure, torch_figures(line)) for measure, line in zip(job.measures, lines))


def torch_figures(line: dict) -> dict:
    per_call = line.pop("per_call")
    return {**line, "tokens_per_second": per_call / line["seconds"]["median"]}


def other_sizes(row: dict, bench: str, options: dict) -> str:
    """What keeps a row apart from those of the peers: another model, or several sequences at once."""
    others = [f"Psi {options['psi']}, "] if options.get("psi", PSI) != PSI else []
    others += [f"vocabulary {options['vocab']:,}, "] if options.get("vocab", VOCABULARY) != VOCABULARY else []
    others += [f"batch {row['batch']}, "] if bench == "decode" and row["batch"] != 1 else []
    others += [f"recompute {options['recompute']:g}, "] if options.get("recompute") else []
    return "".join(others)


def tamis_measure(row: dict, bench: str, options: dict, named_threads: bool = False) -> Measure:
    """`named_threads`: the job sets its own number of threads, which keeps its rows apart from all others."""
    if named_threads:
        measure = tamis_measure(row, bench, options)
        return replace(measure, what=f"{row['threads']} thread{'s' * (row['threads'] > 1)}, {measure.what}")
    plain = {"train": f"step, {INITIAL}", "forward": f"text, {row['what']}", "decode": f"token, {row['what']}"}
    what = other_sizes(row, bench, options) + plain[bench]
    return Measure(bench, what, row["dtype"], row["tokens"])


SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def parsed_operators(benchmarks: list[dict], threads: int | None) -> Iterator[tuple[Measure, dict]]:
    """Of Google Benchmark's JSON: every case with its repetitions. Names are SECTION/PASSES/DTYPE/TOKENS/..., labels
    are what the rows are called. `threads`: the number that the job sets itself, which keeps its rows apart."""
    cases: dict[str, list[dict]] = {}
    for each in benchmarks:
        if each["run_type"] == "iteration":
            cases.setdefault(each["run_name"], []).append(each)
    peaks = {
        name.split("/")[1]: max(each["flops_per_second"] for each in runs)
        for name, runs in cases.items()
        if name.startswith("peaks/")
    }
    medians = {name: statistics.median(seconds_of(runs)) for name, runs in cases.items() if not failed(runs)}
    for name, runs in cases.items():
        if name.startswith("peaks/"):
            continue
        section, _, dtype, tokens = name.split("/")[:4]
        prefix = "" if threads is None else f"{threads} thread{'s' * (threads > 1)}, "
        measure = Measure(section, prefix + runs[0]["label"], dtype, int(tokens))
        if failed(runs):
            yield measure, {"status": "error", "why": runs[0]["error_message"]}
            continue
        figures = operator_figures(runs, measure.tokens)
        median = medians[name]
        if runs[0]["flops"] > 0 and dtype in peaks:
            figures["share_of_peak"] = runs[0]["flops"] / median / peaks[dtype]
        products = name.replace("/real_time", "/products/real_time")
        if products in medians:
            figures["ratio"] = {"to": "GEMMs", "value": median / medians[products]}
        yield measure, figures


def failed(runs: list[dict]) -> bool:
    return any(each.get("error_occurred") for each in runs)


def seconds_of(runs: list[dict]) -> list[float]:
    """Of a call, by repetition."""
    return [each["real_time"] * SECONDS[each["time_unit"]] for each in runs]


def operator_figures(runs: list[dict], tokens: int) -> dict:
    seconds, first = seconds_of(runs), runs[0]
    median = statistics.median(seconds)
    lower, _, upper = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else [median] * 3
    return {
        "seconds": {
            "median": median,
            "minimum": min(seconds),
            "maximum": max(seconds),
            "lower_quartile": lower,
            "upper_quartile": upper,
        },
        "calls": sum(each["iterations"] for each in runs),
        "tokens_per_second": tokens / median,
        "page_faults": statistics.mean(each["page_faults"] for each in runs),
        "peak_bytes": int(first["peak_bytes"]),
        "extra_bytes": int(first["extra_bytes"]),
        "check": checked(first),
    }


def checked(row: dict) -> str:
    return f"equals the definition in float64: {row['error']:.0e}" if "error" in row else "none"


def tamis_figures(row: dict) -> dict:
    kept = (
        "seconds",
        "calls",
        "tokens_per_second",
        "page_faults",
        "peak_bytes",
        "extra_bytes",
        "outside_the_model_seconds",
        "batch",
        "share_of_peak",
        "share_of_bandwidth",
        "ratio",
    )
    figures = {name: row[name] for name in kept if name in row}
    return {**figures, "check": checked(row)}
