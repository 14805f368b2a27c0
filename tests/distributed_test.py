"""Training with several processes: the same bits as one, loss of a process, every way in which they do not fit."""

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time

import pytest
from processes import (
    LOST,
    RECIPE,
    alone,
    arguments,
    checkpoint_files,
    free_port,
    left_over,
    losses,
    overflows,
    records,
    refused,
    start,
    together,
    wait_for_step,
    weights,
)
from program import Program, environment, limited, saved_steps, small_disk, wait_until

STEPS = 12
KILLS = int(os.environ.get("TAMIS_KILLS", "5"))


@pytest.fixture(scope="module")
def tamis(program, tmp_path_factory):
    """The program in a directory with a recipe and `alone`, the run of a single process."""
    tamis = Program(program, tmp_path_factory.mktemp("tamis"))
    (tamis.directory / "recipe.toml").write_text(RECIPE)
    alone(tamis, tamis.directory / "alone")
    return tamis


def flops_per_token_and_process(run):
    """What the MFU of the last record stands for."""
    record = [record for record in records(run) if record["type"] == "train"][-1]
    return record["mfu"] / record["tokens_per_second"] * json.loads((run / "run.json").read_text())["matmul_flops"]


def is_logged(run, step):
    """Whether all processes have done this step."""
    log = run / "log.jsonl"
    return log.exists() and f'"step":{step},' in log.read_text().replace(" ", "")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_ordered_sums_give_the_bits_of_one_process(tamis, run, size):
    messages = together(tamis, size, run)
    assert weights(run, STEPS) == weights(tamis.directory / "alone", STEPS)
    assert losses(run) == losses(tamis.directory / "alone")
    assert f"{size} processes with 1 thread" in messages[0]
    assert messages[1:] == [""] * (size - 1), "the first process alone writes messages"
    names = [f"{what}-{rank + 1:05}-of-{size:05}.safetensors" for what in ("model", "optimizer") for rank in range(size)]
    assert list(checkpoint_files(run, STEPS)) == names
    assert not left_over(run)
    assert json.loads((run / "run.json").read_text())["machine"]["processes"] == size
    assert flops_per_token_and_process(run) == pytest.approx(flops_per_token_and_process(tamis.directory / "alone") / size)


@pytest.mark.parametrize("settings", [(), ("train.accumulation=1",), ("train.batch_size=7", "train.accumulation=1")])
def test_fast_sums_give_the_losses_of_one_process(tamis, run, tmp_path, settings):
    alone(tamis, tmp_path / "alone", *settings)
    together(tamis, 3, run, "train.reduction=fast", *settings)
    found, expected = losses(run), losses(tmp_path / "alone")
    assert found[:-1] == pytest.approx(expected[:-1], rel=1e-5)
    # Rounding decides which pairs Trim accepts: after the last step one process differs by 1e-5 between instruction sets.
    assert found[-1] == pytest.approx(expected[-1], rel=1e-4)


def test_a_process_may_own_nothing_of_a_small_model(tamis, run, tmp_path):
    settings = ("model.hidden_size=16", "model.num_attention_heads=2", "model.key_dim=4", "model.value_dim=8")
    alone(tamis, tmp_path / "alone", *settings)
    together(tamis, 4, run, "train.shard=parameters", *settings)
    assert weights(run, STEPS) == weights(tmp_path / "alone", STEPS)
    together(tamis, 2, run, *settings, "train.steps=16")
    alone(tamis, tmp_path / "alone", *settings, "train.steps=16")
    assert weights(run, 16) == weights(tmp_path / "alone", 16)


def test_fast_sums_have_the_same_bits_in_every_run(tamis, run, tmp_path):
    together(tamis, 3, run, "train.reduction=fast")
    together(tamis, 3, tmp_path / "again", "train.reduction=fast")
    assert checkpoint_files(run, STEPS) == checkpoint_files(tmp_path / "again", STEPS)


def test_gradients_can_be_sent_in_bfloat16(tamis, run):
    together(tamis, 2, run, "train.reduction=fast", "train.reduction_dtype=bfloat16")
    expected = losses(tamis.directory / "alone")
    assert losses(run) != expected
    assert losses(run) == pytest.approx(expected, rel=0.02)


def test_a_run_starts_from_that_of_several_processes(tamis, run, tmp_path):
    """With its optimizer, and with parameters that the other run did not have."""
    together(tamis, 2, run)
    settings = ("train.steps=16", f"train.start_from={run}", "train.start_state=all", "model.num_hidden_layers=3")
    alone(tamis, tmp_path / "one", *settings)
    together(tamis, 3, tmp_path / "three", *settings)
    assert weights(tmp_path / "one", 16) == weights(tmp_path / "three", 16)


def test_processes_can_meet_at_a_file(tamis, run, tmp_path):
    together(tamis, 2, run, also={rank: ("--rendezvous", f"file://{tmp_path}/meet") for rank in range(2)})
    assert weights(run, STEPS) == weights(tamis.directory / "alone", STEPS)


@pytest.mark.parametrize(
    "names",
    [
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ],
)
def test_srun_and_mpirun_set_variables_of_their_own(tamis, run, names):
    meeting = ("--rendezvous", f"tcp://127.0.0.1:{free_port()}")
    started = []
    for rank in range(2):
        env = environment(**dict(zip(names, (str(rank), "2", str(rank), "2"), strict=True)))
        started.append(tamis.start(*arguments(run), *meeting, env=env))
    for process in started:
        _, messages = process.communicate(timeout=300)
        assert process.returncode == 0, messages
    assert weights(run, STEPS) == weights(tamis.directory / "alone", STEPS)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="mpirun is not installed")
def test_mpirun_starts_processes(tamis, run):
    oversubscribe = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    train = [*arguments(run), "--rendezvous", f"tcp://127.0.0.1:{free_port()}"]
    command = ["mpirun", "-n", "2", str(tamis.path), *map(str, train)]
    done = subprocess.run(
        command, cwd=tamis.directory, env=environment(**oversubscribe), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert weights(run, STEPS) == weights(tamis.directory / "alone", STEPS)


@pytest.mark.parametrize("victim", [0, 1])
def test_the_others_end_when_a_process_is_killed(tamis, run, victim):
    with start(tamis, 3, run, "train.steps=100000", timeout=120) as processes:
        wait_for_step(processes, run, 8)
        processes.all[victim].kill()
        before = time.monotonic()
        done = processes.wait()
        assert time.monotonic() - before < 60
    for rank, each in enumerate(done):
        if rank == victim:
            continue
        assert each.returncode == LOST, each
        assert f"process {rank} of 3: another process was lost or does not answer" in each.stderr, each


@pytest.mark.parametrize("shard", ["optimizer", "parameters"])
def test_the_others_end_when_a_process_dies_while_they_wait_for_it(tamis, run, shard):
    """Process 1 is stopped, so process 0 waits in the next exchange, most often that of gradients; then process 1 is
    killed. The time-out is longer than the test waits: the broken connection ends process 0."""
    settings = ("train.steps=100000", "train.save_every=100000", "train.sample_every=0", "train.validate_every=0")
    with start(tamis, 2, run, *settings, f"train.shard={shard}", timeout=600) as processes:
        first, second = processes.all
        wait_until(lambda: is_logged(run, 4), first, "step 4")
        second.send_signal(signal.SIGSTOP)
        wait_until(is_silent(run / "log.jsonl", 1), first, "second without a step")
        second.kill()
        done = processes.wait(120)[0]
    assert done.returncode == LOST, done
    errors = [line for line in done.stderr.splitlines() if "tamis: " in line]
    assert len(errors) == 1 and done.stderr.endswith(errors[0] + "\n"), done
    assert errors[0].startswith("tamis: process 0 of 2: another process was lost or does not answer: "), done


def is_silent(log, seconds):
    """A condition: nothing was added to a log for so long."""
    last = (-1, 0.0)  # size, and when it was first seen

    def condition():
        nonlocal last
        size, now = log.stat().st_size, time.monotonic()
        if size != last[0]:
            last = (size, now)
        return now - last[1] > seconds

    return condition


def test_the_others_end_when_a_process_is_stopped_for_too_long(tamis, run):
    """The time-out is also that of the start, so it is not short."""
    with start(tamis, 2, run, "train.steps=100000", timeout=10) as processes:
        wait_for_step(processes, run, 4)
        processes.all[1].send_signal(signal.SIGSTOP)
        assert processes.all[0].wait(timeout=120) == LOST
        processes.all[1].send_signal(signal.SIGCONT)
        assert processes.all[1].wait(timeout=120) == LOST


def test_a_slow_process_is_waited_for(tamis, run):
    with start(tamis, 2, run, "train.steps=150", "train.save_every=4") as processes:
        wait_for_step(processes, run, 4)
        processes.all[1].send_signal(signal.SIGSTOP)
        time.sleep(2)
        processes.all[1].send_signal(signal.SIGCONT)
        assert [each.returncode for each in processes.wait()] == [0, 0]


def test_killed_processes_end_in_the_same_bytes(tamis, run):
    """A random process is killed at a random moment, and all are started again, KILLS times (TAMIS_KILLS), each time as
    many and with parameters sharded or not as chance has it. Every other time they have saved a step before."""
    steps = 150 * KILLS
    settings = (f"train.steps={steps}", f"train.save_every={steps}", "train.sample_every=0", "train.validate_every=0")
    limit = 600 + 60 * KILLS
    alone(tamis, run.parent / "reference", *settings, timeout=limit)
    chance = random.Random(1)
    for kill in range(KILLS):
        size, shard = chance.choice([2, 3, 4]), chance.choice(["optimizer", "parameters"])
        changed = ("train.save_every=1", "train.keep=2", f"train.shard={shard}")
        before = max(saved_steps(run), default=0)
        with start(tamis, size, run, *settings, *changed, timeout=10) as processes:
            if kill % 2 == 0:
                wait_for_step(processes, run, before + 1)
            time.sleep(chance.uniform(0.2, 0.8))
            victim = processes.all[chance.randrange(size)]
            assert victim.poll() is None, "the run ended before it was killed often enough"
            victim.kill()
            done = processes.wait()
        assert all(each.returncode in (LOST, -signal.SIGKILL) for each in done), done
    together(tamis, 2, run, *settings, seconds=limit)
    assert weights(run, steps) == weights(run.parent / "reference", steps)
    assert not left_over(run)


@pytest.mark.parametrize("receiver", [0, 1])
def test_a_signal_to_any_process_stops_all_after_a_save(tamis, run, receiver):
    with start(tamis, 2, run, "train.steps=100000", "train.save_every=100000") as processes:
        wait_until(lambda: is_logged(run, 2), processes.all[0], "step 2")
        processes.all[receiver].send_signal(signal.SIGTERM)
        done = processes.wait()
    assert [each.returncode for each in done] == [128 + signal.SIGTERM] * 2, done
    assert "stopped by SIGTERM and saved after step" in done[0].stderr


def test_all_diverge_together(tamis, run):
    messages = together(tamis, 2, run, "train.lr=1e30", "train.warmup_steps=0", "train.non_finite=stop", codes=[20, 20])
    assert "diverged" in messages[0] and "first non-finite tensor" in messages[0]


def test_all_leave_out_a_step_together(tamis, run, tmp_path):
    settings = ("train.lr=1e30", "train.warmup_steps=0")
    done = tamis(*arguments(tmp_path / "alone", *settings))
    assert done.returncode == 20, done
    messages = together(tamis, 2, run, *settings, codes=[20, 20])
    expected = done.stderr.replace(str(tmp_path / "alone"), str(run))

    def recovery(text):
        return [line for line in text.splitlines() if "diverged" in line]

    assert len(recovery(expected)) == 3
    assert recovery(messages[0]) == recovery(expected)


def test_float16_with_overflows_has_the_bits_of_one_process_and_resumes(tamis, run, tmp_path):
    """All skip the same steps and halve the same loss scale, which checkpoints hold."""
    settings = ("train.precision=float16", "train.steps=4")
    alone(tamis, run, *settings)
    state = run / "checkpoints/step-4/trainer.json"
    content = json.loads(state.read_text())
    assert content["loss_scale"] == {"value": 65536, "good_steps": 4}
    content["loss_scale"] = {"value": 2.0**40, "good_steps": 9}
    del content["sha256"]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    state.write_text(json.dumps(content))
    for name in ("alone", "resumed", "sharded"):
        shutil.copytree(run, tmp_path / name)
    settings = ("train.precision=float16", "train.keep=0")
    alone(tamis, tmp_path / "alone", *settings, "train.steps=40")
    alone(tamis, tmp_path / "resumed", *settings, "train.steps=10")
    assert overflows(tmp_path / "resumed") == overflows(tmp_path / "alone")[:6]
    assert scale_at(tmp_path / "resumed", 10) == scale_at(tmp_path / "alone", 8) / 4, "each step halves it"
    alone(tamis, tmp_path / "resumed", *settings, "train.steps=40")
    together(tamis, 2, run, *settings, "train.steps=40")
    together(tamis, 2, tmp_path / "sharded", *settings, "train.steps=40", "train.shard=parameters")
    assert 6 < len(overflows(run)) < 30
    for other in (tmp_path / "alone", tmp_path / "resumed", tmp_path / "sharded"):
        assert weights(run, 40) == weights(other, 40)
        assert overflows(run) == overflows(other)
        assert scale_at(run, 40) == scale_at(other, 40)


def scale_at(run, step):
    return json.loads((run / f"checkpoints/step-{step}/trainer.json").read_text())["loss_scale"]["value"]


# ---- sharded parameters


@pytest.mark.parametrize(
    "settings", [(), ('model.model_type="transformer"',), ("train.recompute=0.5",), ("train.dropout=0.1",)]
)
def test_sharded_parameters_give_the_bits_of_one_process(tamis, run, tmp_path, settings):
    alone(tamis, tmp_path / "alone", *settings)
    together(tamis, 3, run, "train.shard=parameters", *settings)
    assert weights(run, STEPS) == weights(tmp_path / "alone", STEPS)
    assert losses(run) == losses(tmp_path / "alone")
    assert samples(run) == samples(tmp_path / "alone")


def samples(run):
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [record["text"] for record in records if record["type"] == "sample"]


def test_sharded_parameters_in_bfloat16(tamis, run, tmp_path):
    alone(tamis, tmp_path / "alone", "train.precision=bfloat16")
    together(tamis, 2, run, "train.precision=bfloat16", "train.shard=parameters")
    assert weights(run, STEPS) == weights(tmp_path / "alone", STEPS)


def test_sharded_parameters_and_shared_sequences(tamis, run, tmp_path):
    settings = ("train.reduction=fast", "train.batch_size=4", "train.accumulation=2")
    alone(tamis, tmp_path / "alone", *settings)
    together(tamis, 4, run, "train.context_parallel=2", "train.shard=parameters", *settings)
    assert losses(run) == pytest.approx(losses(tmp_path / "alone"), rel=2e-5)


def test_sharded_parameters_diverge_together(tamis, run):
    settings = ("train.lr=1e30", "train.warmup_steps=0", "train.non_finite=stop", "train.shard=parameters")
    together(tamis, 2, run, *settings, codes=[20, 20])


def test_another_recipe_is_refused(tamis, run):
    also = {1: ("--set", "train.lr=0.5")}
    refused(tamis, run, 2, "process 1 has another recipe than process 0: train.lr is 0.5, not 0.01", also=also)


@pytest.mark.parametrize("setting", ["save_every=3", "shard=parameters", "steps=13", "validate_every=0", "context_parallel=2"])
def test_settings_that_a_resumed_run_may_change_are_the_same_for_all(tamis, run, setting):
    key = setting.split("=")[0]
    text = f"process 1 has another recipe than process 0: train.{key}"
    refused(tamis, run, 2, text, also={1: ("--set", f"train.{setting}")})


def test_ordered_sums_need_a_fitting_number_of_processes(tamis, run):
    text = "only if the number of processes, 3, divides train.accumulation, which is 4"
    refused(tamis, run, 2, text, size=3, settings=("train.accumulation=4",))


def test_ordered_sums_of_rounded_gradients_are_refused(tamis, run):
    text = 'train.reduction = "ordered" gives the bits of a single process, which rounds no gradients; choose "fast"'
    refused(tamis, run, 2, text, settings=("train.reduction_dtype=bfloat16",))


@pytest.mark.parametrize("settings", [("train.save_every=100000",), ("train.validate_tokens=100000",)])
def test_a_process_that_dies_in_the_last_validation_or_save_ends_the_others(tamis, run, settings):
    settings = ("train.steps=200", "train.sample_every=0", "train.validate_every=0", *settings)
    with start(tamis, 2, run, *settings) as processes:
        wait_until(lambda: is_logged(run, 200), processes.all[0], "last step")
        processes.all[1].kill()
        first = processes.wait()[0]
    if "validate" in settings[-1]:
        assert first.returncode == LOST and 200 not in saved_steps(run), first
    else:
        assert first.returncode == LOST or (first.returncode == 0 and 200 in saved_steps(run)), first
    together(tamis, 2, run, *settings)
    assert 200 in saved_steps(run) and not left_over(run)


def test_other_data_are_refused(tamis, run, tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name * 4000)
    also = {
        rank: ("--set", "data.sources.digits.kind=text", "--set", f"data.sources.digits.files={tmp_path}/{name}.txt")
        for rank, name in enumerate("ab")
    }
    setting = f'data.sources.digits.files.0 is "{tmp_path}/b.txt", not "{tmp_path}/a.txt"'
    refused(tamis, run, 2, f"process 1 has another recipe than process 0: {setting};", also=also)


def test_changed_data_are_refused(tamis, run, tmp_path):
    """The same path with other content, as on a disk that is not shared."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "text.txt").write_text(name * 4000)
        (tmp_path / name / "recipe.toml").write_text(RECIPE.replace('kind = "abc_digits"', 'kind = "text"\nfiles = "text.txt"'))
    elsewhere = {rank: {"cwd": tmp_path / name} for rank, name in enumerate("ab")}
    refused(tamis, run, 2, "process 1 reads other data than process 0", options=elsewhere)


def test_more_processes_than_sequences_are_refused(tamis, run):
    settings = ("train.batch_size=2", "train.accumulation=1")
    refused(tamis, run, 2, "train.batch_size = 2: 3 processes need at least one sequence each", size=3, settings=settings)
    assert not run.exists()


def test_a_full_disk_ends_all(tamis, tmp_path):
    with small_disk(tmp_path / "disk", "900k"):
        with start(tamis, 2, tmp_path / "disk/run", "train.save_every=1", "train.keep=0", "train.steps=1000") as processes:
            done = processes.wait()
        assert {each.returncode for each in done} <= {LOST, 30} and 30 in {each.returncode for each in done}, done
        assert any("No space left on device" in each.stderr for each in done), done


def test_a_file_that_one_process_cannot_write(tamis, run):
    """Process 1 alone has no room for its part of the second checkpoint: all end, and the first one stays."""
    processes = start(tamis, 2, run, "train.steps=4")
    with processes:
        assert [each.returncode for each in processes.wait()] == [0, 0]
    before = checkpoint_files(run, 4)
    options = {1: {"preexec_fn": limited(resource.RLIMIT_FSIZE, 4096)}}
    with start(tamis, 2, run, "train.steps=12", options=options) as processes:
        done = processes.wait()
    assert [each.returncode for each in done] == [LOST, 30], done
    assert "File too large" in done[1].stderr, done
    assert checkpoint_files(run, 4) == before
    together(tamis, 2, run)
    assert weights(run, STEPS) == weights(tamis.directory / "alone", STEPS)
    assert not left_over(run)
