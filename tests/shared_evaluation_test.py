"""Evaluations by several processes: the result of one, written once; what does not fit is refused."""

import json

import pytest
from processes import Processes
from program import expect_refused

TASK = ("--lengths", "250,320", "--depths", "0,0.5,1", "--instances", "5", "--threads", "1")


@pytest.fixture(scope="module")
def text(tamis):
    path = tamis.directory / "text.txt"
    path.write_text("".join(f"line {i}: {i * i % 97}\n" for i in range(700)))
    return path


def stored(run, task) -> dict:
    """What an evaluation wrote, without the time that it took."""
    path = run / f"eval/{task}.json"
    result = json.loads(path.read_text())
    path.unlink()
    del result["seconds"]
    return result


def together(tamis, size, *arguments, **options):
    with Processes(tamis, size, *arguments, "--timeout", 60, **options) as processes:
        done = processes.wait()
    for each in done:
        each.stdout = each.stdout or ""
    return done


def evaluated(tamis, size, run, task, *arguments) -> dict:
    done = together(tamis, size, "eval", task, run, *arguments)
    assert [each.returncode for each in done] == [0] * size, done
    assert not any(each.stderr for each in done[1:]), "the first process alone shows progress"
    return stored(run, task)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_task_has_the_result_of_one_process(tamis, digits, size):
    tamis.out("eval", "abc_digits", digits, *TASK)
    alone = stored(digits, "abc_digits")
    assert len(alone["cells"]) == 6 and all(cell["instances"] == 5 for cell in alone["cells"])
    assert evaluated(tamis, size, digits, "abc_digits", *TASK) == alone


def test_fewer_instances_than_processes(tamis, digits):
    few = ("--lengths", "250", "--depths", "0.5", "--instances", "2", "--threads", "1")
    tamis.out("eval", "abc_digits", digits, *few)
    alone = stored(digits, "abc_digits")
    assert evaluated(tamis, 4, digits, "abc_digits", *few) == alone


@pytest.mark.parametrize(("window", "more"), [(0, ()), (37, ("--points", 5, "--smooth", 0.2)), (5000, ("--points", 9))])
def test_a_loss_has_the_result_of_one_process(tamis, digits, text, window, more):
    settings = ("--window", window, *more, "--threads", "1")
    tamis.out("eval", "loss", digits, text, *settings)
    alone = stored(digits, "loss")
    assert evaluated(tamis, 3, digits, "loss", text, *settings) == alone


def test_windows_in_the_middle_have_the_result_of_one_process(tamis, digits, text):
    short = tamis.directory / "short.txt"
    short.write_text("a text of 25 characters.\n")
    settings = (text, short, text, "--window", "40", "--middle", "--points", "8", "--threads", "1")
    tamis.out("eval", "loss", digits, *settings)
    alone = stored(digits, "loss")
    assert alone["texts"] == 2 and alone["texts_left_out"] == 1 and alone["tokens"] == 80, alone
    assert evaluated(tamis, 3, digits, "loss", *settings) == alone


def test_other_settings_are_refused(tamis, digits):
    done = together(tamis, 2, "eval", "abc_digits", digits, *TASK, also={1: ("--seed", "7")})
    for each in done:
        expect_refused(each, 2, "process 1 evaluates something else than process 0, see /evaluation/seed")
    assert not (digits / "eval/abc_digits.json").exists()


def test_another_window_is_refused(tamis, digits, text):
    done = together(tamis, 2, "eval", "loss", digits, text, "--threads", "1", also={1: ("--window", "16")})
    for each in done:
        expect_refused(each, 2, "process 1 evaluates something else than process 0, see /evaluation/window")


def test_other_weights_are_refused(tamis, digits):
    """Checkpoints of one run: the same configuration and other weights."""
    checkpoints = sorted((digits / "checkpoints").glob("step-*"))
    assert len(checkpoints) >= 2, checkpoints
    link = digits.with_name("alternating")
    commands = []
    for rank, checkpoint in enumerate(checkpoints[:2]):
        (tamis.directory / f"rank-{rank}").mkdir()
        (tamis.directory / f"rank-{rank}" / link.name).symlink_to(checkpoint)
        commands.append({"cwd": tamis.directory / f"rank-{rank}"})
    options = dict(enumerate(commands))
    done = together(tamis, 2, "eval", "abc_digits", link.name, *TASK, options=options)
    for each in done:
        expect_refused(each, 2, "process 1 evaluates something else than process 0, see /weights")


def test_a_text_task_with_needle_scores(tamis, digits):
    settings = ("--lengths", "250", "--instances", "3", "--needle-score", "--threads", "1")
    tamis.out("eval", "passkey", digits, *settings)
    alone = stored(digits, "passkey")
    assert alone["by_length"][0]["needle_score"] > 0
    assert evaluated(tamis, 3, digits, "passkey", *settings) == alone
    done = together(tamis, 2, "eval", "passkey", digits, *settings[:-3], "--threads", "1", also={1: ("--needle-score",)})
    for each in done:
        expect_refused(each, 2, "needle_score; start all with the same command")


def test_standard_input_cannot_be_shared(tamis, digits):
    for task, arguments in (("loss", ("-",)), ("needle", ("--haystack", "-"))):
        done = together(tamis, 2, "eval", task, digits, *arguments)
        for each in done:
            expect_refused(each, 2, f"eval {task}: several processes cannot share standard input; name a file")


def test_a_process_that_does_not_come(tamis, digits):
    with Processes(tamis, 2, "eval", "abc_digits", digits, *TASK, "--timeout", 3) as processes:
        processes.all[1].kill()
        done = processes.all[0].communicate(timeout=300)
        assert processes.all[0].returncode == 21, done
