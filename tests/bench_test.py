"""`tamis bench` at sizes that take no time: reports, options, tables, refusals."""

import json
import re
import subprocess

import pytest
from processes import Processes
from program import expect_refused

ROW_KEYS = {"what", "dtype", "threads", "tokens", "batch", "seconds", "calls", "tokens_per_second", "page_faults",
            "peak_bytes", "extra_bytes"}  # fmt: skip
BENCHES = ("train", "forward", "decode")
BACKENDS = ("aten", "onednn", "widened", "tiled")  # of matrix products
RECIPE = """
[model]
{model}
[data.sources.abc_digits]
kind = "abc_digits"
[train]
steps = 1
length = 96
batch_tokens = 96
"""
MULTISCREEN = "hidden_size = 16\nnum_hidden_layers = 2\nnum_attention_heads = 2"
TRANSFORMER = 'model_type = "transformer"\n' + MULTISCREEN


def quick(tamis, *arguments, **options):
    """The report of a bench at its small sizes."""
    outcome = tamis("bench", *arguments, "--quick", "--json", **options)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("\n") == 1, outcome.stdout
    return json.loads(outcome.stdout)


def rows_where(report, **values):
    return [row for row in report["rows"] if all(row.get(key) == value for key, value in values.items())]


def refused(tamis, arguments, text, code=2):
    expect_refused(tamis("bench", *arguments), code, text)


def test_every_bench_reports(tamis):
    for name in BENCHES:
        report = quick(tamis, name)
        assert report["bench"] == name
        assert {"tamis", "date", "machine", "options", "peaks", "rows", "notes"} <= set(report)
        backends = report["machine"]["matmul"]
        assert set(backends) == {"float32", "bfloat16"} and set(backends.values()) <= set(BACKENDS), backends
        for peak in report["peaks"]["matmul"]:
            assert peak["flops_per_second"] > 0 and peak["backend"] == backends[peak["dtype"]], (peak, backends)
        assert all(peak["bytes_per_second"] > 0 for peak in report["peaks"]["read"])
        assert {row["dtype"] for row in report["rows"]} == {"float32", "bfloat16"}
        for row in report["rows"]:
            assert ROW_KEYS <= set(row), ROW_KEYS - set(row)
            seconds = row["seconds"]
            order = ("minimum", "lower_quartile", "median", "upper_quartile", "maximum")
            assert sorted(seconds[key] for key in order) == [seconds[key] for key in order], seconds
            assert row["error"] < (5e-3 if row["dtype"] == "float32" else 0.25), row


def test_lists_sweep(tamis):
    forward = quick(tamis, "forward", "--lengths", "20,40", "--threads", "1,2", "--windows", "initial,infinite")
    assert len(forward["rows"]) == 2 * 2 * 2 * 2
    assert len(rows_where(forward, threads=1, tokens=40, what="infinite windows", dtype="float32")) == 1
    assert {peak["threads"] for peak in forward["peaks"]["matmul"]} == {1, 2}
    decode = quick(tamis, "decode", "--depths", "0,9", "--batch", "1,3", "--dtypes", "float32,int8")
    assert len(decode["rows"]) == 2 * 2 * 2
    assert all(row["bytes_per_second"] > 0 for row in decode["rows"])


def test_options_win_over_quick(tamis):
    small = ("--psi", "3", "--batch-tokens", "60", "--lengths", "20")
    report = quick(tamis, "train", *small, "--recompute", "1", "--repeat", "3")
    assert report["options"] == {"psi": 3, "vocab": 64, "recompute": 1.0}
    assert {(row["batch"], row["calls"]) for row in report["rows"]} == {(3, 3)}
    outside = {"data", "optimizer", "logging", "saving"}
    assert all(set(row["outside_the_model_seconds"]) == outside for row in report["rows"])


def trained(tamis, directory, model):
    """A run of one step."""
    recipe, run = directory / "recipe.toml", str(directory / "run")
    recipe.write_text(RECIPE.format(model=model))
    outcome = tamis("train", recipe, "--set", f"run.dir={run}")
    assert outcome.returncode == 0, outcome.stderr
    return run


def test_a_trained_model_reads_a_text(tamis, tmp_path):
    run, text = trained(tamis, tmp_path, MULTISCREEN), tmp_path / "text.txt"
    text.write_text("A text shorter than what is read. ")
    small = ("forward", "--checkpoint", run, "--lengths", "30,50", "--dtypes", "float32")
    report = quick(tamis, *small, "--text", str(text))
    assert report["options"] == {"checkpoint": run, "text": str(text)}
    found = {(row["what"], row["tokens"]) for row in report["rows"]}
    assert found == {(f"{windows} windows", tokens) for windows in ("trained", "expanded") for tokens in (30, 50)}
    assert all(row["error"] < 5e-3 for row in report["rows"])
    assert {row["what"] for row in quick(tamis, *small, "--windows", "expanded")["rows"]} == {"expanded windows"}

    piped = quick(tamis, *small, "--text", "-", input=text.read_text())
    assert piped["options"]["text"] == "-" and {(row["what"], row["tokens"]) for row in piped["rows"]} == found
    refused(tamis, [*small, "--text", "-"], "standard input: is empty; expected a text", code=3)

    refused(tamis, [*small, "--windows", "initial"], 'unknown window "initial"')
    small = ("decode", "--checkpoint", run, "--depths", "30,0,50", "--tokens", "3", "--dtypes", "float32,int8")
    assert quick(tamis, *small, "--text", "-", input=text.read_text())["options"]["text"] == "-"
    rows = quick(tamis, *small, "--text", text)["rows"]
    assert [(row["what"], row["tokens"]) for row in rows if row["dtype"] == "float32"] == [
        (f"{windows} windows", depth) for windows in ("trained", "expanded") for depth in (0, 30, 50)
    ]
    assert all(row["ratio"]["to"] == "depth 30" for row in rows if row["tokens"] == 50)
    assert not any("ratio" in row for row in rows if row["tokens"] < 50)
    refused(tamis, ["forward", "--checkpoint", run, "--dtypes", "int8"], "int8 is a format of weights in decoding")
    text.write_text("")
    refused(tamis, [*small, "--text", str(text)], "is empty; expected a text", code=3)
    refused(tamis, [*small, "--text", str(text) + "x"], "text.txtx", code=3)
    refused(tamis, ["forward", "--checkpoint", tmp_path], str(tmp_path), code=3)
    refused(tamis, ["forward", "--text", "README.md"], "--text: needs a trained model; give --checkpoint, too")


def test_a_trained_transformer_is_refused(tamis, tmp_path):
    run = trained(tamis, tmp_path, TRANSFORMER)
    refused(tamis, ["forward", "--checkpoint", run], "expected a Multiscreen without variants")


def test_operators_are_checked_before_they_are_timed(program):
    operators = program.with_name("tamis_ops_bench")
    if not operators.is_file():
        pytest.skip(f"{operators} is not built")
    chosen = (
        "^(ops/[a-z_]+/[a-z0-9]+/64/initial/2%|attention/[a-z_]+/float32/64/.*|head/[a-z_]+/[a-z0-9]+/32/.*)/real_time$"
    )
    flags = (f"--benchmark_filter={chosen}", "--benchmark_format=json", "--benchmark_min_time=0")
    outcome = subprocess.run([operators, *flags], capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr
    rows = json.loads(outcome.stdout)["benchmarks"]
    assert len(rows) == 4 + 2 * 10 + 8, [row["name"] for row in rows]
    for row in rows:
        peer = "sdpa" in row["name"] or "products" in row["name"]
        assert peer or row["error"] < (1e-3 if "float32" in row["name"] else 0.05), row
        assert row["real_time"] > 0 and row["peak_bytes"] > 0, row


def test_the_table_is_aligned(tamis):
    outcome = tamis("bench", "forward", "--quick", "--dtypes", "float32", "--lengths", "30,48")
    assert outcome.returncode == 0, outcome.stderr
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith("bench forward: ") and lines[1].startswith("peak, "), outcome.stdout
    named = rf"peak, \d+ threads?: float32 [\d.]+ GFLOP/s \(({'|'.join(BACKENDS)})\), [\d.]+ GB/s read"
    assert re.fullmatch(named, lines[1]), lines[1]
    header = next(at for at, line in enumerate(lines) if line.startswith("what"))
    end = lines[header].index("error") + len("error")
    for line in lines[header + 1 : header + 3]:  # errors end where their title ends
        assert line[:end].split()[-1].count("e-") == 1, outcome.stdout
    assert "\x1b" not in outcome.stdout


def test_bad_input_is_one_line(tamis):
    refused(tamis, ["train", "--dtypes", "float33"], 'unknown dtype "float33"; did you mean "float32"?')
    refused(tamis, ["train", "--dtypes", "int8"], "int8 is a format of weights in decoding")
    for lengths in ("0", "-5", "512,x", "512,", "1.5", "99999999999999999999"):
        refused(tamis, ["train", "--lengths", lengths], "--lengths: expected whole numbers from 1 to")
    refused(tamis, ["decode", "--depths", "-1"], "--depths: expected whole numbers from 0 to")
    refused(tamis, ["decode", "--batch", "0"], "--batch: expected whole numbers from 1 to")
    refused(tamis, ["forward", "--threads", "1,two"], '--threads: expected whole numbers from 0 to 4096, but got "two"')
    refused(tamis, ["forward", "--repeat", "0"], "--repeat")
    refused(tamis, ["forward", "--seconds", "nan"], "--seconds")
    refused(tamis, ["train", "--recompute", "1.5"], "--recompute: expected numbers from")
    refused(tamis, ["decode", "--windows", "initial,infinit"], 'unknown window "infinit"; did you mean "infinite"?')
    refused(tamis, ["forwards"], 'unknown bench "forwards"; did you mean "forward"?')


def test_network_is_measured_between_processes(tamis):
    options = ["--megabytes", "1", "--seconds", "0", "--timeout", "60"]
    shown = {rank: {"stdout": subprocess.PIPE} for rank in range(2)}
    with Processes(tamis, 2, "bench", "network", *options, "--json", options=shown) as processes:
        done = processes.wait()
    assert [(each.returncode, each.stderr) for each in done] == [(0, "")] * 2, done
    report = json.loads(done[0].stdout)
    assert done[1].stdout == "" and report["processes"] == 2 and report["exchanged_bytes"] == 500_000, done
    assert report["bytes_per_second"] == pytest.approx(report["exchanged_bytes"] / report["exchange_seconds"])
    with Processes(tamis, 2, "bench", "network", *options, options=shown) as processes:
        text = processes.wait()[0].stdout
    last = text.splitlines()[-1].split()
    assert last[:5] == ["tamis", "plan", "RECIPE", "--processes", "2"] and float(last[6]) > 0 and float(last[8]) > 0, text
    refused(tamis, ["network"], "this is the only one; start it with torchrun, srun or mpirun")
    refused(tamis, ["network", "--megabytes", "0"], "--megabytes: expected")


def test_help_has_an_example(tamis):
    for arguments in ([], *([name] for name in BENCHES)):
        outcome = tamis("bench", *arguments, "--help")
        assert outcome.returncode == 0 and re.search(r"Examples?:\n  tamis bench", outcome.stdout), outcome.stdout
