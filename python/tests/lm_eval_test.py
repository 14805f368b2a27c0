"""The adapter for the LM Evaluation Harness: tasks on local files, offline, and agreement with the program."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import tokenizers
import torch
from conftest import RECIPE, ROOT

pytest.importorskip("lm_eval", reason="lm_eval is not installed (scripts/setup.sh python)")

from tamis.lm_eval import TamisLM  # noqa: E402

CHOICES = [
    {"question": "Line 3 of a", "choices": [" small text", " large book", "xyz"], "answer": 0},
    {"question": "of a small", "choices": [" text: 9, \u00e9 and 3", " text"], "answer": 1},
    {"question": "and", "choices": ["", " 4.\nLine"], "answer": 1},
]
TEXTS = ["Line 5 of a small text: 25, \u00e9 and 5.\n" * 5, "Line 9", "nothing of the kind " * 9]

CHOICE_TASK = """
task: small_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: question
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
PERPLEXITY_TASK = """
task: small_perplexity
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list: [{{metric: word_perplexity}}, {{metric: byte_perplexity}}, {{metric: bits_per_byte}}]
"""


@pytest.fixture(scope="module")
def run(program, tmp_path_factory):
    directory = tmp_path_factory.mktemp("harness")
    return program.train(directory, "run", 'model_type = "swax"\npattern = "sawm"\nhidden_size = 32\nwindow = 12\n'
                         'num_hidden_layers = 4\nnum_attention_heads = 2\nmax_position_embeddings = 64')  # fmt: skip


@pytest.fixture(scope="module")
def lm(run):
    return TamisLM(str(run), batch_size=3, chunk_tokens=48)


def requests(*arguments) -> list:
    return [SimpleNamespace(args=each) for each in arguments]


def right_choices(lm) -> int:
    """Of the first two questions, by the model itself; the harness puts a space before each choice."""
    right = 0
    for each in CHOICES[:2]:
        scored = lm.loglikelihood(requests(*((each["question"], " " + choice) for choice in each["choices"])), True)
        right += max(range(len(scored)), key=lambda i: scored[i][0]) == each["answer"]
    return right


def offline(directory) -> dict[str, str]:
    """The environment in which the harness finds the package and reads nothing from the network."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "python"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
            "HF_HOME": str(directory / "cache")}  # fmt: skip


def ids_of(lm, text: str) -> list[int]:
    return lm.tok_encode(text)


def test_log_likelihoods_are_those_of_the_program(lm, run, program, tmp_path):
    pairs = [(each["question"], choice) for each in CHOICES for choice in each["choices"] if choice]
    found = lm.loglikelihood(requests(*pairs, ("", "Line")), disable_tqdm=True)
    for (context, continuation), (logprob, greedy) in zip([*pairs, ("", "Line")], found):
        start = ids_of(lm, context) or [lm.eot_token_id]
        ids = start + ids_of(lm, continuation)
        scored = program.logprobs(run, ids, tmp_path)[len(start) - 1 :]
        assert logprob == pytest.approx(sum(scored), abs=1e-4)
        with torch.no_grad():
            likeliest = lm.model(torch.tensor([ids]))[0, len(start) - 1 : -1].argmax(-1).tolist()
        assert greedy == (likeliest == ids[len(start) :])


def test_rolling_log_likelihoods_are_those_of_the_program(lm, run, program, tmp_path):
    """Texts longer than the training length of 64 and the chunks of 48 tokens: nothing is cut off."""
    found = lm.loglikelihood_rolling(requests(*((text,) for text in [*TEXTS, ""])), disable_tqdm=True)
    expected = [sum(program.logprobs(run, [lm.eot_token_id, *ids_of(lm, text)], tmp_path)) for text in TEXTS]
    assert found == pytest.approx([*expected, 0.0], abs=1e-4)


def test_generated_texts_are_those_of_the_program(lm, run, program):
    """Prompts of different lengths in one batch, stopped at a string that one of them has."""
    prompts = ["Line 3 of a small", "a", "and 5.\nLine 7 of"]
    whole = [program.json("generate", run, "--prompt", prompt, "--temperature", 0, "--max-new-tokens", 12)["text"]
             for prompt in prompts]  # fmt: skip
    greedy = {"until": [], "max_gen_toks": 12}
    assert lm.generate_until(requests(*((prompt, greedy) for prompt in prompts)), disable_tqdm=True) == whole
    stop = whole[0][3:5]
    assert stop
    stopped = lm.generate_until(requests((prompts[0], {"until": [stop], "max_gen_toks": 12})), disable_tqdm=True)
    assert stopped == [whole[0][: whole[0].index(stop)]]
    assert lm.generate_until(requests((prompts[0], {"until": "x", "max_gen_toks": 0})), disable_tqdm=True) == [""]


@pytest.fixture
def with_files(run, tmp_path):
    """The model with these `eos_token_id` in config.json and generation_config.json, or another tokenizer."""

    def made(tokenizer=None, **ends) -> TamisLM:
        copy = shutil.copytree(run / "checkpoints/step-4", tmp_path / "copy", dirs_exist_ok=True)
        (copy / "trainer.json").unlink()  # the digests of the files
        for name in ["config", "generation_config"]:
            content = json.loads((copy / f"{name}.json").read_text())
            (copy / f"{name}.json").write_text(json.dumps({**content, "eos_token_id": ends.get(name)}))
        if tokenizer is not None:
            tokenizer.save(str(copy / "tokenizer.json"))
        return TamisLM(str(copy))

    return made


def test_texts_end_at_every_end_token_of_the_files(lm, run, with_files, program, tmp_path):
    prompt = "Line 3 of a small"
    ids = lm.model.generate(torch.tensor([ids_of(lm, prompt)]), 12)[0].tolist()
    end = max(ids, key=ids.index)  # the last that is new
    assert 254 not in ids
    whole, cut = (lm.vocabulary.decode(part, skip_special_tokens=False) for part in (ids, ids[: ids.index(end)]))
    request = requests((prompt, {"until": [], "max_gen_toks": 12}))
    for first, ends, text in [
        (end, {"generation_config": end}, cut),
        (254, {"generation_config": [254, end]}, cut),
        (end, {"config": end}, cut),
        (254, {"config": [254, end]}, cut),
        (254, {"config": end, "generation_config": 254}, whole),
    ]:
        own = with_files(**ends)
        assert own.eot_token_id == first and own.generate_until(request, disable_tqdm=True) == [text], ends
        (found,) = own.loglikelihood_rolling(requests((TEXTS[0],)), disable_tqdm=True)
        assert found == pytest.approx(sum(program.logprobs(run, [first, *ids_of(lm, TEXTS[0])], tmp_path)), abs=1e-4)


@pytest.mark.parametrize("name", ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot|>", "[SEP]", "<end>"])
def test_the_end_of_text_of_a_tokenizer_is_that_of_the_program(name, with_files):
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "Line": 1, name: 2}, unk_token="<unk>"))
    tokenizer.add_special_tokens([name])
    own = with_files(tokenizer, config=-1)
    if name == "<end>":
        with pytest.raises(ValueError, match="config.json nor tokenizer.json names an end of text"):
            own.loglikelihood_rolling(requests(("Line",)), disable_tqdm=True)
    else:
        assert own.eot_token_id == 2 and with_files(tokenizer, config=1).eot_token_id == 1


def test_tasks_on_local_files_run_offline(run, lm, tmp_path):
    """As a user runs them: the harness's command line with tasks of one's own."""
    (tmp_path / "choices.jsonl").write_text("".join(json.dumps(each) + "\n" for each in CHOICES[:2]))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    (tmp_path / "choice.yaml").write_text(CHOICE_TASK.format(file=tmp_path / "choices.jsonl"))
    (tmp_path / "perplexity.yaml").write_text(PERPLEXITY_TASK.format(file=tmp_path / "texts.jsonl"))
    command = [sys.executable, "-m", "tamis.lm_eval", "--model", "tamis", "--model_args", f"path={run}", "--tasks",
               "small_choice,small_perplexity", "--include_path", str(tmp_path), "--batch_size", "4",
               "--output_path", str(tmp_path / "results")]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=offline(tmp_path), timeout=900)
    assert done.returncode == 0, done.stderr
    (file,) = tmp_path.glob("results/**/results_*.json")
    results = json.loads(file.read_text())["results"]
    assert results["small_choice"]["acc,none"] == right_choices(lm) / 2
    logprob = sum(lm.loglikelihood_rolling(requests(*((text,) for text in TEXTS)), disable_tqdm=True))
    count = sum(len(text.encode()) for text in TEXTS)
    bits = -logprob / count / torch.log(torch.tensor(2.0)).item()
    assert results["small_perplexity"]["bits_per_byte,none"] == pytest.approx(bits, abs=1e-4)


STUDY = "[study]\n" + RECIPE + """
[[evaluations]]
kind = "lm_eval"
tasks = ["{task}"]
include = "{include}"
limit = 2
"""
MODEL = 'model_type = "transformer"\nhidden_size = 32\nnum_hidden_layers = 2\nnum_attention_heads = 2'


def test_a_study_measures_multiple_choice(run, program, tmp_path):
    """Its accuracy is that of the harness; a task that does not exist is one line of error."""
    (tmp_path / "choices.jsonl").write_text("".join(json.dumps(each) + "\n" for each in CHOICES))
    (tmp_path / "small_choice.yaml").write_text(CHOICE_TASK.format(file=tmp_path / "choices.jsonl"))
    environment = {**offline(tmp_path), "TAMIS_PYTHON": sys.executable}
    filled = {"model": MODEL, "text": run.parent / "text.txt", "include": tmp_path}
    recipe = tmp_path / "choice.toml"
    recipe.write_text(STUDY.format(task="small_choice", **filled))
    program("study", recipe, "--threads", 1, cwd=tmp_path, env=environment)
    rows = json.loads((tmp_path / "runs/choice/results.json").read_text())
    found = {row["metric"]: row["value"] for row in rows if row.get("task") == "small_choice"}
    trained = TamisLM(str(tmp_path / "runs/choice/all/seed-1"))
    assert found["acc"] == right_choices(trained) / 2 and 0 <= found["acc_norm"] <= 1, found
    assert not list((tmp_path / "runs/choice/all/seed-1").glob(".lm_eval*")), "nothing is left"
    recipe.write_text(STUDY.format(task="no_such_task", **filled))
    error = program("study", recipe, "--threads", 1, cwd=tmp_path, env=environment, code=1).splitlines()[-1]
    assert error.startswith("tamis: 1 of 1 jobs failed; all/seed-1: ") and "no_such_task" in error, error


def test_bad_arguments_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match="dtype must be one of float32, bfloat16, float64, but is 'int8'"):
        TamisLM(str(run), dtype="int8")
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        TamisLM(str(run), batch_size=0)
    with pytest.raises(FileNotFoundError, match="holds no checkpoint"):
        TamisLM(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        TamisLM(str(ROOT / "tests/data/version-0.1/multiscreen"))


def test_an_installed_package_registers_the_model():
    """tamis_lm_eval.pth runs this import when Python starts; the harness alone is named afterwards."""
    code = "import tamis_lm_eval_hook\nfrom lm_eval.api.registry import get_model\nprint(get_model('tamis'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600)
    assert done.stdout == "<class 'tamis.lm_eval.TamisLM'>\n", done.stderr
