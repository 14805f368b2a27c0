"""The logic of bench/peers.py: pairs, ratios, tables, kept rows, bad input; with torch, also small runs of real jobs."""

import copy
import json
import os
import pathlib
import subprocess
import sys

import pytest
from bench_rows import BENCH, ROOT, failed, row

import readme
from peers import llama, plan, process, table, worker
from peers.plan import Job, Measure
from peers.results import Results, file_name, processor

ABOUT = {"date": "2026-01-31", "processor": "Some CPU @ 2 GHz", "cores": 2, "threads": 2, "quick": False, "format": 1}


def settings(**changes):
    chosen = {"tamis": pathlib.Path(__file__), "llama_bench": None, "threads": 2, "quick": True, **changes}
    return process.Settings(**chosen)


# Which rows are compared with each other, and their ratios.


def test_peers_are_compared_with_what_they_can_do():
    tamis = Measure("ops", "forward, initial windows, 2% accepted", "float32", 4096)
    assert Measure("ops", "forward", "float32", 4096).is_compared_with(tamis)
    assert Measure("ops", "forward, initial windows", "float32", 4096).is_compared_with(tamis)
    for other in (
        Measure("ops", "forward and backward", "float32", 4096),
        Measure("ops", "forward", "bfloat16", 4096),
        Measure("ops", "forward, infinite windows", "float32", 4096),
        Measure("ops", "forward", "float32", 512),
        Measure("head", "forward", "float32", 4096),
        Measure("ops", "forward, entmax", "float32", 4096),
    ):
        assert not other.is_compared_with(tamis), other


def test_ratio_compares_speeds_whatever_the_tokens_of_a_call():
    found = table.ratio(row("Tamis", "step", 3000, per_call=2048), row("peer", "step", 1000, per_call=16))
    assert abs(found.value - 3) < 1e-9 and abs(found.low - 3 / 1.21) < 1e-9 and abs(found.high - 3 * 1.21) < 1e-9, found
    assert str(found) == "3.00 (2.48-3.63)", found


def test_the_best_peer_is_the_fastest_one_that_was_measured():
    rows = [
        row("slow", "step", 500),
        row("Tamis", "step", 3000, share_of_peak=0.71),
        row("fast", "step", 1500),
        failed("broken", "step", "out of memory: 3.0 GiB were available"),
    ]
    ((tamis, peers),) = table.pairs(rows)
    assert tamis["peer"] == "Tamis" and [peer["peer"] for peer in peers] == ["fast", "slow"]
    (line,) = [line for line in table.ratio_table(rows) if "step" in line]
    assert (
        "| 3,000 tok/s" in line and "| 71% |" in line and "fast | 1,500 tok/s" in line and "2.00 (1.65-2.42)" in line
    ), line


def test_a_failed_peer_gives_a_reason_and_no_number():
    text = table.report(ABOUT, [row("Tamis", "step", 10), failed("broken", "step", "check failed: gradients differ")])
    (line,) = [line for line in text.splitlines() if "broken" in line]
    assert "skipped: check failed: gradients differ" in line and "tok/s" not in line, line
    assert "none measured" in text


def test_report_says_what_else_ran():
    rows = [row("Tamis", "step", 10, others_cores=0.9), row("peer", "step", 10)]
    assert "1 of 2 rows were measured while something else ran** (up to 0.9 cores)" in table.report(ABOUT, rows)
    assert "something else" not in table.report(ABOUT, rows[1:])


def test_numbers_keep_three_digits():
    shown = {0.01234: "0.0123", 1.234: "1.23", 12.34: "12.3", 1234.5: "1,234", 0.5: "0.5"}
    assert {value: table.number(value) for value in shown} == shown


def test_tables_have_equally_many_columns():
    rows = [row("Tamis", "step", 10), row("peer", "step", 10), failed("broken", "step", "why")]
    for lines in (table.ratio_table(rows), table.peer_table(rows, "train")):
        assert len({line.count("|") for line in lines if line}) == 1, lines


# Plans.


def test_every_peer_of_a_full_run_is_compared_with_tamis():
    """But for what Tamis does not have."""
    jobs = plan.full()
    tamis = [measure for job in jobs if job.peer == plan.TAMIS for measure in job.measures]
    others = [job for job in jobs if job.peer not in (plan.TAMIS, plan.LLAMA) and job.kind != "peaks"]
    peers = [measure for job in others for measure in job.measures]
    alone = {str(measure) for measure in peers if not any(measure.is_compared_with(other) for other in tamis)}
    assert not alone, alone


def test_rows_of_the_plans_have_names_of_their_own():
    for jobs in (plan.full(), plan.quick()):
        names = [(job.peer, measure) for job in jobs for measure in job.measures]
        assert len(names) == len(set(names)), [name for name in names if names.count(name) > 1]
        assert {measure.section for _, measure in names} == set(plan.SECTIONS)


def test_a_full_run_takes_what_its_page_says():
    assert 45 <= sum(job.minutes for job in plan.full() if job.kind != "llama") <= 70


# What the programs print.


def test_rows_of_tamis_are_understood():
    time = {"median": 0.5, "minimum": 0.4, "maximum": 0.7, "lower_quartile": 0.45, "upper_quartile": 0.6}
    common = {
        "dtype": "float32",
        "threads": 2,
        "tokens": 64,
        "batch": 1,
        "seconds": time,
        "calls": 5,
        "tokens_per_second": 128.0,
        "page_faults": 0,
        "peak_bytes": 5,
        "error": 2e-6,
    }
    reports = {
        "train": ({"what": "training step"}, "step, initial windows"),
        "forward": ({"what": "initial windows"}, "text, initial windows"),
        "decode": ({"what": "infinite windows"}, "token, infinite windows"),
    }
    for bench, (details, what) in reports.items():
        text = json.dumps({"bench": bench, "rows": [{**common, **details}], "options": {"psi": 16, "vocab": 512}})
        ((measure, figures),) = process.parsed(Job(plan.TAMIS, "tamis", {}, [], 0), "a line of progress\n" + text)
        assert measure == Measure(bench, what, "float32", 64), measure
        assert figures["tokens_per_second"] == 128 and figures["check"].endswith("2e-06"), figures


def test_rows_of_google_benchmark_are_understood():
    def runs(name, label, *milliseconds, **more):
        figures = {"flops": 4e6, "page_faults": 0, "peak_bytes": 5, "extra_bytes": 1, "error": 2e-6, **more}
        common = {"run_name": f"{name}/real_time", "run_type": "iteration", "label": label, "iterations": 3, **figures}
        return [{**common, "real_time": each, "time_unit": "ms"} for each in milliseconds]

    peak = {"run_name": "peaks/float32/iterations:1/real_time", "run_type": "iteration", "real_time": 500.0}
    benchmarks = [
        *({**peak, "flops_per_second": each, "time_unit": "ms"} for each in (7e9, 8e9)),
        *runs("ops/forward/float32/64/initial/2%", "forward, initial windows, 2% accepted", 1.0, 3.0, 2.0),
        {"run_name": "ops/forward/float32/64/initial/2%/real_time", "run_type": "aggregate", "real_time": 9.0},
        *runs("head/forward/float32/32/100/16/products", "forward, bare products", 1.0),
        *runs("head/forward/float32/32/100/16", "forward", 1.5),
        {
            "run_name": "ops/forward/float32/64/infinite/2%/real_time",
            "run_type": "iteration",
            "label": "forward, infinite windows, 2% accepted",
            "error_occurred": True,
            "error_message": "bench: the output differs",
        },
    ]
    job = Job(plan.TAMIS, "operators", {"filter": "x"}, [], 0)
    found = dict(process.parsed(job, json.dumps({"context": {}, "benchmarks": benchmarks})))
    screening = found[Measure("ops", "forward, initial windows, 2% accepted", "float32", 64)]
    assert screening["seconds"]["median"] == 2e-3 and screening["seconds"]["lower_quartile"] == 1.5e-3, screening
    assert screening["calls"] == 9 and abs(screening["tokens_per_second"] - 32000) < 1e-6, screening
    assert abs(screening["share_of_peak"] - 0.25) < 1e-9 and screening["check"].endswith("2e-06"), screening
    assert found[Measure("head", "forward", "float32", 32)]["ratio"] == {"to": "GEMMs", "value": 1.5}, found
    wrong = found[Measure("ops", "forward, infinite windows, 2% accepted", "float32", 64)]
    assert wrong == {"status": "error", "why": "bench: the output differs"}, wrong
    job = Job(plan.TAMIS, "operators", {"filter": "x", "threads": 1}, [], 0)
    assert all(measure.what.startswith("1 thread, ") for measure, _ in process.parsed(job, json.dumps({"benchmarks": benchmarks})))


def test_rows_of_other_sizes_are_compared_with_no_peer():
    for bench, batch, sizes, what in (
        ("forward", 1, {"psi": 8, "vocab": 512}, "Psi 8, text, initial windows"),
        ("decode", 1, {"psi": 16, "vocab": 50257}, "vocabulary 50,257, token, initial windows"),
        ("decode", 8, {"psi": 16, "vocab": 512}, "batch 8, token, initial windows"),
    ):
        found = {"what": "initial windows", "dtype": "float32", "tokens": 64, "batch": batch}
        measure = process.tamis_measure(found, bench, sizes)
        assert measure == Measure(bench, what, "float32", 64), measure
        peer = Measure(bench, "text" if bench == "forward" else "token", "float32", 64)
        assert not peer.is_compared_with(measure)


def test_rows_of_another_number_of_threads_are_compared_with_no_peer():
    found = {"what": "training step", "dtype": "float32", "tokens": 64, "batch": 1, "threads": 1}
    sizes = {"psi": 16, "vocab": 512, "recompute": 0.5}
    measure = process.tamis_measure(found, "train", sizes, named_threads=True)
    assert measure.what == "1 thread, recompute 0.5, step, initial windows", measure
    assert not Measure("train", "step", "float32", 64).is_compared_with(measure)


def test_rows_of_llama_bench_are_understood():
    out = json.dumps(
        [
            {"n_prompt": 0, "n_gen": 32, "n_depth": 1024, "samples_ns": [2e8, 1e8, 3e8], "build_commit": "abc"},
            {"n_prompt": 0, "n_gen": 32, "n_depth": 7, "samples_ns": [1e8]},
        ]
    )
    (job,) = [job for job in plan.llama("int8", [512], [0, 1024], 1) if job.section == "decode"]
    ((measure, figures),) = llama.parsed(out, job.measures)
    assert measure == Measure("decode", "token", "int8", 1024)
    assert abs(figures["tokens_per_second"] - 160) < 1e-9 and figures["calls"] == 3 and figures["build"] == "abc"


def test_outcome_of_a_process_without_rows():
    assert process.outcome(worker.OUT_OF_MEMORY, "x\nout of memory: 3 GiB were available\n") == (
        "skipped",
        "out of memory: 3 GiB were available",
    )
    assert process.outcome(worker.NOT_INSTALLED, "x is not installed")[0] == "not run"
    assert process.outcome(worker.CHECK_FAILED, "check failed: y\n") == ("error", "check failed: y")
    assert process.outcome(-9, "")[0] == "skipped" and process.outcome(-11, "boom")[1] == "ended by signal 11: boom"
    assert process.outcome(0, "")[0] == "error"


def test_llama_without_a_program_is_not_run():
    for job in plan.llama("float32", [64], [0], 1):
        (found,) = process.run(job, settings(), pathlib.Path("/nowhere"))
        assert found["status"] == "not run" and "--llama-bench" in found["why"], found


def test_bfloat16_peers_are_skipped_where_torch_has_no_units_for_it():
    jobs = plan.full()
    without_units = {"float32": 140e9, "bfloat16": 0.3e9}
    skipped = [job for job in jobs if plan.why_skipped(job, without_units)]
    assert skipped and all(job.arguments["dtype"] == "bfloat16" for job in skipped)
    assert not any(job.kind in plan.PROGRAMS for job in skipped)
    assert not any(plan.why_skipped(job, {"float32": 200e9, "bfloat16": 440e9}) for job in jobs)
    assert not any(plan.why_skipped(job, {}) for job in jobs), "nothing was measured yet"
    kept = sum(job.minutes for job in jobs if job not in skipped)
    assert kept < sum(job.minutes for job in jobs)
    assert "0.3 GFLOP/s" in plan.why_skipped(skipped[0], without_units)


def test_a_process_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(process, "TIMEOUT_SECONDS", 0.3)
    code, _, errors = process.finished(["sleep", "60"], dict(os.environ))
    assert code != 0 and "not done after" in errors


# The file of a day.


def test_a_processor_without_a_number_is_told_by_its_generation():
    facts = "processor\t: {}\ncpu family\t: {}\nmodel\t\t: 2\nmodel name\t: {}\n\n"
    assert processor(facts.format(0, 26, "AMD EPYC")) == "AMD EPYC family 26 model 2"
    assert processor(facts.format(0, 25, "AMD EPYC 9654") + facts.format(1, 26, "other")) == "AMD EPYC 9654"
    assert processor("processor: 0\n") == "unknown"
    name = next(line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    assert processor().startswith(name)


def test_rows_are_kept_while_their_settings_are(tmp_path):
    job = Job("peer", "llama", {}, [Measure("train", "step", "float32", 512)], 1)
    path = tmp_path / (file_name("2026-01-31", "Some CPU @ 2 GHz") + ".json")
    assert path.name == "2026-01-31-some-cpu-2-ghz.json"
    results = Results(path, copy.deepcopy(ABOUT))
    results.add([row("peer", "step", 10, settings=settings().of(job))])
    assert list(tmp_path.iterdir()) == [path]
    again = Results.read(path)
    assert again.about == ABOUT and list(again.rows.values()) == list(results.rows.values())
    assert again.has(job, settings()) and not again.has(job, settings(threads=1))
    again.add([{**failed("peer", "step", "it broke"), "status": "error"}])
    assert len(again.rows) == 1 and not again.has(job, settings())
    again.add([failed("peer", "step", "out of memory") | {"settings": settings().of(job)}])
    assert again.has(job, settings()), "what does not fit does not fit an hour later either"


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "x.json"
    for text in ("", "[]", '{"rows": []}', '{"format": 99, "rows": []}', '{"format": 1, "rows": [{}]}'):
        path.write_text(text)
        with pytest.raises(ValueError) as error:
            Results.read(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value), error


# The command.


@pytest.fixture(scope="module")
def python(program):
    """An interpreter that can import torch and load the operators of this build."""
    library = program.with_name("libtamis_ops.so")
    if library.is_file() and any(name in library.read_bytes() for name in (b"__asan_init", b"__tsan_init")):
        pytest.skip("this Python cannot load operators that are built with a sanitizer")
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode != 0:
        pytest.skip("torch cannot be imported; `make python` installs it")
    return sys.executable


def peers(*arguments, python=sys.executable):
    return subprocess.run([python, BENCH / "peers.py", *map(str, arguments)], capture_output=True, text=True)


def test_bad_input_is_one_line_and_exit_2(tmp_path):
    build, here = tmp_path / "tamis", tmp_path / "llama-bench"
    build.write_text("#!/bin/sh\n")
    build.chmod(0o755)
    here.write_text("")
    cases = {
        ("--tamis", "/nowhere/tamis"): "/nowhere/tamis is missing; build it with `make build`",
        ("--only", "train,opps"): 'unknown section "opps"; known: peaks, start',
        ("--threads", "0"): "--threads must be at least 1",
        ("--tamis", build): "libtamis_ops.so is missing",
    }
    for arguments, expected in cases.items():
        done = peers(*arguments)
        assert done.returncode == 2 and expected in done.stderr, (arguments, done)
        assert done.stderr.count("\n") == 1 and not done.stdout, done
    (tmp_path / "libtamis_ops.so").write_text("")
    for program, expected in ((here, "cannot be executed"), ("/nowhere/llama-bench", "is missing")):
        done = peers("--tamis", build, "--llama-bench", program)
        assert done.returncode == 2 and expected in done.stderr and done.stderr.count("\n") == 1, done


def test_with_torch_small_jobs_are_measured(python, program, tmp_path):
    """Two peers of one section and the real program, twice: the second time nothing is left to do."""
    arguments = ("--quick", "--only", "start,head", "--tamis", program, "--results", tmp_path)
    done = peers(*arguments, python=python)
    assert done.returncode == 0, done.stderr
    assert "linear, cross_entropy" in done.stdout and "one token" in done.stdout, done.stdout
    (path,) = tmp_path.glob("*.json")
    assert {found["status"] for found in json.loads(path.read_text())["rows"]} == {"ok"}
    assert path.with_suffix(".md").is_file()
    done = peers(*arguments, python=python)
    assert done.returncode == 0 and "0 processes to run, 4 kept of today" in done.stderr, done.stderr


def test_with_torch_a_wrong_peer_gives_no_number(python, program):
    """A screening that forgets Trim's square must be caught by the check before it is timed."""
    code = (
        "import torch, sys\n"
        "from peers import checks, effort, operator_work, screening\n"
        "screening.trim = lambda s, inverse_r: torch.relu(1 - (1 - s) * inverse_r)\n"
        "try:\n"
        "    list(operator_work.operator(effort.QUICK, 'dense', 'float32', 32, ['forward'], False))\n"
        "except checks.CheckFailed as error:\n"
        "    print(error)\n"
    )
    places = {
        "PYTHONPATH": f"{BENCH}:{ROOT / 'python'}",
        "TAMIS_OPS_LIBRARY": str(program.with_name("libtamis_ops.so")),
    }
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env={**os.environ, **places})
    assert "tamis.screening: differs by" in done.stdout, done.stdout + done.stderr


def test_readme_has_the_table_of_the_file_that_it_names():
    text = readme.README.read_text()
    name = readme.named_in(text)
    assert name is not None, "README.md has no table of speeds"
    assert readme.replaced(text, ROOT / name) == text, f"run bench/readme.py {name}"
