#!/usr/bin/env python3
"""Compares the RULER tasks with lm-evaluation-harness: its code must generate the same prompts from the same draws.

compare_ruler.py PROGRAM [COUNT]: of each task COUNT instances (20) of `tamis data generate` are taken apart into keys,
values, places and sentences. These are what the harness draws: its functions run with them instead of its random
numbers, and prompt, answers and the score of the right answer have to be equal, byte for byte. `make ruler` installs
the harness and runs this.
"""

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
from unittest import mock

NEEDLE = re.compile(r"One of the special magic (numbers|uuids) for (\S+) is: (\S+)\.")
QUESTION = "\nWhat "
VARIABLE = re.compile(r"VAR ([A-Z]+) = (?:(\d{5})|VAR ([A-Z]+) )")
IN_TEXT = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")
NIAH = (*IN_TEXT, "niah_single_1", "niah_multikey_2", "niah_multikey_3")
SENTENCES = [f"Sentence {n} of a text that says {n * n} things." for n in range(1, 60)]
ONE_TOKEN = types.SimpleNamespace(input_ids=[0])  # for the harness, every prompt is short enough


def instances(program, task, length, count, *options):
    command = [program, "data", "generate", task, "--length", str(length), "--count", str(count), *options]
    outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in outcome.stdout.splitlines()]


class Replay:
    """Replaces the module `random`: returns the given draws in order, and shuffles into `order`."""

    def __init__(self, samples, choices=(), order=()):
        self.samples, self.strings, self.order = list(samples), list(choices), list(order)

    def sample(self, population, k):
        drawn = self.samples.pop(0)
        assert len(drawn) == k and set(drawn) <= set(population), f"{drawn} is no draw of {k} from {population}"
        return drawn

    def choices(self, population, k):
        drawn = self.strings.pop(0)
        assert len(drawn) == k and set(drawn) <= set(population), f"{drawn} is no draw of {k} from {population}"
        return list(drawn)

    def Random(self, seed):  # noqa: N802: the module's name
        return types.SimpleNamespace(shuffle=lambda needles: needles.sort(key=self.order.index))


# ---- needles in a haystack


def niah_prompt(harness, task, prompt, asked_answers):
    """The prompt, answers and document that the harness generates with the draws of this prompt."""
    from lm_eval.tasks.ruler import niah_utils

    keyed, valued = ("uuids" if task == "niah_multikey_3" else "words"), "numbers"
    found = list(NEEDLE.finditer(prompt[: prompt.rindex(QUESTION)]))
    if "uuids for" in prompt:
        valued = "uuids"
    context = prompt[prompt.index("\n") + 1 : prompt.rindex(QUESTION)]
    answers = set(asked_answers)
    among = task in ("niah_multikey_2", "niah_multikey_3")
    hidden = [needle for needle in found if not among or needle[3] in answers]
    keys = list(dict.fromkeys(needle[2] for needle in hidden))
    values = {key: [needle[3] for needle in hidden if needle[2] == key] for key in keys}
    for drawn in values.values():  # drawn in the order of the answers, then shuffled
        drawn.sort(key=lambda value: asked_answers.index(value) if value in answers else 0)
    draws = [drawn for key in keys for drawn in (key, *values[key])]
    asked = [key for answer in asked_answers for key in keys if answer in values[key]]
    indices = [keys.index(key) for key in dict.fromkeys(asked)]
    texts = [needle[0] for needle in hidden]

    if task in IN_TEXT:
        kind, haystack, samples = "essay", ["text"], [depths_of(harness.DEPTHS, context, texts), indices]
        sentences = split_sentences(context, texts)
    else:
        lines = context.split("\n")
        places = [lines.index(text) for text in texts]
        others = [line for line in lines if line not in texts]
        kind, sentences = ("needle" if among else "repeat"), others
        haystack = harness.get_haystack(type_haystack=kind)
        samples = [[place - before for before, place in enumerate(places)], indices]
        draws += [drawn for line in others if among for drawn in NEEDLE.fullmatch(line).group(2, 3)]

    real = harness.generate_input_output

    def with_these_draws(num_haystack, given, **settings):
        drawn = iter(draws)
        with (
            mock.patch.object(harness, "random", Replay(samples, order=texts)),
            mock.patch.object(harness, "generate_random", lambda kind_of_needle: next(drawn)),
        ):
            made = real(len(sentences), given, **settings)
        assert next(drawn, None) is None, "the harness drew fewer keys and values"
        return made

    with (
        mock.patch.object(harness, "tqdm", lambda items, **settings: items),
        mock.patch.object(harness, "cached_sent_tokenize", lambda text: sentences),
        mock.patch.object(harness, "generate_input_output", with_these_draws),
    ):
        document = harness.generate_samples(
            haystack,
            lambda text: ONE_TOKEN,
            max_seq_length=129,  # 128 for the answer and 1 for the prompt: the first attempt fits
            num_samples=1,
            template=niah_utils.TEMPLATE,
            type_haystack=kind,
            type_needle_k=keyed,
            type_needle_v=valued,
            num_needle_k=len(keys),
            num_needle_v=len(hidden) // len(keys),
            num_needle_q=len(indices),
        )[0]
    return document


def split_sentences(context, texts):
    for text in texts:
        context = context.replace(text, "")
    return [found.strip() for found in re.findall(r"Sentence[^.]*\.?", context)]  # the last one may be incomplete


def depths_of(all_depths, context, texts):
    """Distinct depths in percent that give the needles their positions."""
    sentences = len(split_sentences(context, texts))
    chosen = []
    for text in texts:
        before = len(split_sentences(context[: context.index(text)], texts))
        fits = [depth for depth in all_depths if int(sentences * (depth / 100)) == before and depth not in chosen]
        assert fits, f"no depth puts a needle behind {before} of {sentences} sentences"
        chosen.append(fits[0])
    return chosen


# ---- variable tracking


def chains_of(context, value, noise):
    """Chains of (name, text), first the one that begins with `value`, and all lines of noise and assignments in order."""
    parts = re.findall(rf"VAR [A-Z]+ = (?:\d{{5}}|VAR [A-Z]+ )|{re.escape(noise)}", context)
    chains = {}
    for part in parts:
        match = VARIABLE.fullmatch(part)
        if match and match[2]:
            chains[match[1]] = [(match[1], part)]
        elif match:
            chain = next(chain for chain in chains.values() if chain[-1][0] == match[3])
            chain.append((match[1], part))
    ordered = sorted(chains.values(), key=lambda chain: not chain[0][1].endswith(f" {value}"))
    return ordered, parts


def places_of(chain, later, parts):
    """The positions at which the harness must insert a chain, among noise and earlier chains."""
    own, unknown = [text for _, text in chain], [text for other in later for _, text in other]
    before, places = 0, []
    for part in parts:
        if part in own:
            places.append(before)
        elif part not in unknown:
            before += 1
    return places


def tracking_text(harness, problem, is_example):
    """The prompt and answers that the harness generates for one problem with our draws."""
    from lm_eval.tasks.ruler import prepare_niah

    noise = prepare_niah.get_haystack(type_haystack="repeat")
    value = re.search(r"assigned the value (\d{5}) in", problem)[1]
    context = problem[problem.index("\n\n") + 2 : problem.rindex("\nQuestion:")]
    chains, parts = chains_of(context, value, noise)
    values = iter(int(chain[0][1].split()[-1]) for chain in chains)
    names = [name for chain in chains for name, _ in chain]
    samples = [places_of(chain, chains[c + 1 :], parts) for c, chain in enumerate(chains)]
    numbers = types.SimpleNamespace(random=types.SimpleNamespace(randint=lambda low, high: next(values)))
    with mock.patch.object(harness, "random", Replay(samples, names)), mock.patch.object(harness, "np", numbers):
        return harness.generate_input_output(parts.count(noise), len(chains), len(chains[0]) - 1, is_icl=is_example)


def tracking_document(harness, prompt):
    """The document that the harness generates with the draws of this prompt."""
    second = prompt.rindex("Memorize and track")
    example, problem = prompt[:second], prompt[second:]
    example_input, example_answers = tracking_text(harness, example[: example.rindex(":") + 1], is_example=True)
    made = tracking_text(harness, problem, is_example=False)
    with (
        mock.patch.object(harness, "generate_input_output", lambda *given, **settings: made),
        mock.patch.object(harness, "randomize_icl", lambda text: text),  # renames the variables of one example
        mock.patch.object(harness, "tqdm", lambda items: items),
        mock.patch("builtins.print"),
    ):
        return harness.sys_vartrack_w_noise_random(
            tokenizer=lambda text: ONE_TOKEN,
            num_samples=1,
            max_seq_length=32,
            icl_example={"input": example_input, "outputs": example_answers},
        )[0]


# ---- all of them


def compare(task, ours, document):
    from lm_eval.api.utils import maybe_delimit
    from lm_eval.tasks.ruler import common_utils

    theirs = maybe_delimit(document["input"], document["gen_prefix"], delimiter=" ")
    if theirs != ours["prompt"]:
        at = len(os.path.commonprefix([theirs, ours["prompt"]]))
        raise SystemExit(
            f"{task}, instance {ours['index']}: the prompts differ at byte {at}\n"
            f"  harness {theirs[max(0, at - 60) : at + 60]!r}\n  tamis   {ours['prompt'][max(0, at - 60) : at + 60]!r}"
        )
    if list(document["outputs"]) != ours["answers"]:
        raise SystemExit(f"{task}: the harness expects {document['outputs']}, tamis {ours['answers']}")
    said = "it says: " + ", ".join(ours["answers"]).upper()
    scores = common_utils.process_results({**document, "max_length": 4096}, [said])
    assert scores["4096"] == 1.0, f"{task}: the harness scores the right answer {scores}"


def main():
    program, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20
    os.environ["HF_HUB_OFFLINE"] = "1"
    import nltk

    with mock.patch.object(nltk.data, "find"):  # sentences come from us, so no model is downloaded
        from lm_eval.tasks.ruler import prepare_niah, vt_utils

    print(f"lm_eval {importlib.metadata.version('lm_eval')}, {count} instances of each task and length")
    with tempfile.TemporaryDirectory() as directory:
        text = pathlib.Path(directory, "text.txt")
        text.write_text(" ".join(SENTENCES))
        for task in NIAH:
            haystack = ["--haystack", str(text)] if task in IN_TEXT else []
            for length in (1200, 4096):
                for ours in instances(program, task, length, count, *haystack):
                    compare(task, ours, niah_prompt(prepare_niah, task, ours["prompt"], ours["answers"]))
            print(f"{task}: the same")
    for chains in (1, 2):
        for length in (2600, 4096):
            for ours in instances(program, "variable_tracking", length, count, "--chains", str(chains)):
                compare("variable_tracking", ours, tracking_document(vt_utils, ours["prompt"]))
        print(f"variable_tracking, {chains} chain{'s' * (chains > 1)}: the same")


if __name__ == "__main__":
    main()
