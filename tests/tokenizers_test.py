"""Tokenizers: `tamis tokenize`, `detokenize` and `data train-tokenizer` against the Python package `tokenizers`."""

import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
from corpora import tokens_of
from program import expect_refused, limited_memory

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
MISSING = "apt-get install cargo-web"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SOURCE = pathlib.Path(__file__).read_text(encoding="utf-8")
TEXTS = {
    "plain": "It's the cat that sat, isn't it? I'LL see; they've 1234567 hats.\n\n  Indented.\tTab \r\n end  ",
    "emoji": "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f \U0001f1eb\U0001f1f7 a\U0001f600b",
    "code": SOURCE,
    "cjk": "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002\u4e2d\u6587\uff0c\ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22",
    "combining": "e\u0301 a\u0308\u0323 Z\u0351\u036b\u0343 \u0915\u094d\u0937\u093f \u1e69 s\u0323\u0307",
    "long runs": " " * 3000 + "a" * 3000 + "\n" * 500 + "=" * 2000 + "\u65e5" * 700 + "\t " * 300,
    "special": "one<|endoftext|>two </s> <s>three [SEP] <|endoftext|><|endoftext|> <|end",
    "spaces": "\u00a0\u2003\u3000\ufeff\u200b\u2028 \x00\x01\x7f\x85",
    "empty": "",
}
CORPUS = (
    [SOURCE, *(t for name, t in TEXTS.items() if name != "special")]
    + ["The quick brown fox jumps over the lazy dog's back.\n"] * 9
)


def byte_level_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    )
    return tokenizer


def llama_3():
    """With whole words of the vocabulary before merges, and a post-processor that adds a token."""
    made = json.loads(byte_level_bpe().to_str())
    made["model"]["ignore_merges"] = True
    tokenizer = Tokenizer.from_str(json.dumps(made))
    split = pre_tokenizers.Split(Regex(LLAMA_3), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))]
    )
    return tokenizer


def llama_2():
    """BPE on characters with a space before the first word and bytes for unknown characters."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    corpus = [word for text in CORPUS[-4:] for word in text.split()]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    made = json.loads(tokenizer.to_str())
    made["added_tokens"] = made["added_tokens"][:3]  # the bytes are ordinary tokens
    return Tokenizer.from_str(json.dumps(made))


def metaspace():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", "</s>"]))
    return tokenizer


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=700, special_tokens=special))
    tokenizer.add_tokens([AddedToken("quick brown", lstrip=True, single_word=True)])
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        CORPUS, trainers.UnigramTrainer(vocab_size=500, special_tokens=["<unk>", "</s>"], unk_token="<unk>")
    )
    return tokenizer


KINDS = {each.__name__: each for each in (byte_level_bpe, llama_3, llama_2, metaspace, word_piece, unigram)}
ROUND_TRIP = ("byte_level_bpe", "llama_3", "llama_2")


@pytest.fixture(scope="module")
def works(tamis):
    """Skips in a build without cargo, which has to say so."""
    tamis.directory.joinpath("probe.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}')
    done = tamis("tokenize", "probe.json", "-")
    if done.returncode == 1:
        expect_refused(done, 1, "probe.json", MISSING)
        pytest.skip("this build has no cargo")


@pytest.fixture(scope="module", params=KINDS)
def made(request, tamis, works):
    """A tokenizer, and the path of its tokenizer.json."""
    tokenizer = KINDS[request.param]()
    path = tamis.directory / f"{request.param}.json"
    tokenizer.save(str(path))
    # Read again: Unigram's scores are rounded in the file, which decides between segmentations of equal scores.
    return request.param, Tokenizer.from_file(str(path)), path


def tokens(tamis, tokenizer, text: bytes):
    path = tamis.directory / "text"
    path.write_bytes(text)
    return json.loads(tamis.out("tokenize", tokenizer, path, "--json"))["tokens"]


def detokenized(tamis, tokenizer, ids) -> str:
    path = tamis.directory / "ids.json"
    path.write_text(json.dumps({"tokens": ids}))
    done = tamis("detokenize", tokenizer, path, encoding=None, errors=None)
    assert done.returncode == 0, done
    return done.stdout.decode("utf-8")


@pytest.mark.parametrize("name", TEXTS)
def test_ids_and_text_are_those_of_the_package(tamis, made, name):
    kind, tokenizer, path = made
    text = TEXTS[name]
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokens(tamis, path, text.encode("utf-8")) == expected
    assert detokenized(tamis, path, expected) == tokenizer.decode(expected, skip_special_tokens=False)
    if kind in ROUND_TRIP and "</s>" not in text:
        assert detokenized(tamis, path, expected) == text


def test_invalid_utf8_becomes_replacement_characters(tamis, made):
    _, tokenizer, path = made
    numbers = random.Random(3)
    for text in (b"a\xff\xe2\x82 b", b"\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80", numbers.randbytes(2000)):
        expected = tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
        assert tokens(tamis, path, text) == expected


def test_plain_ids_are_read_back(tamis, made):
    _, _, path = made
    done = tamis("tokenize", path, "-", input="The quick brown fox.\n")
    assert done.returncode == 0 and "{" not in done.stdout, done
    ids = [int(word) for word in done.stdout.split()]
    assert tamis.out("detokenize", path, "-", input=done.stdout) == detokenized(tamis, path, ids)


def test_the_byte_tokenizer_needs_no_rust(tamis):
    text = bytes(range(256)) + "\u65e5".encode()
    assert tokens(tamis, "byte", text) == list(text)
    (tamis.directory / "plain").write_text(" ".join(map(str, text)) + " 256\n")
    done = tamis("detokenize", "byte", "plain", encoding=None, errors=None)
    assert done.returncode == 0 and done.stdout == text + b"<|endoftext|>"
    for ids, problem in (("[1, 2.5]", "2.5"), ('{"ids": [1]}', "tokens"), ("1 x", '"x"'), ("[300]", "300")):
        (tamis.directory / "ids").write_text(ids)
        expect_refused(tamis("detokenize", "byte", "ids"), 3, problem)


def train(tamis, text, *options):
    path = tamis.directory / "corpus.txt"
    path.write_text(text, encoding="utf-8", newline="")
    out = tamis.directory / "trained.json"
    tamis.out("data", "train-tokenizer", path, "--vocab", 500, "--min-frequency", 2, "--out", out, *options)
    return out


def test_training_equals_the_package_and_itself(tamis, works):
    text = "".join(CORPUS) + TEXTS["special"]
    out = train(tamis, text)
    first = out.read_bytes()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        min_frequency=2,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(tamis.directory / "corpus.txt")], trainer)
    trained = Tokenizer.from_file(str(out))
    assert trained.get_vocab() == tokenizer.get_vocab()
    assert json.loads(first)["model"]["merges"] == json.loads(tokenizer.to_str())["model"]["merges"]
    sample = TEXTS["plain"] + TEXTS["special"]
    assert tokens(tamis, out, sample.encode()) == trained.encode(sample, add_special_tokens=False).ids
    for _ in range(2):
        out.unlink()
        assert train(tamis, text).read_bytes() == first


def test_standard_input_trains_the_same_tokenizer(tamis, works):
    text = "".join(CORPUS)
    piped = tamis.directory / "piped.json"
    arguments = ("data", "train-tokenizer", "-", "--vocab", 500, "--min-frequency", 2, "--out", piped)
    summary = json.loads(tamis.out(*arguments, "--json", input=text))
    assert piped.read_bytes() == train(tamis, text).read_bytes()
    assert (summary["files"], summary["bytes"]) == (1, len(text.encode()))
    expect_refused(tamis(*arguments, input=""), 3, "standard input: expected text, but it is empty")
    expect_refused(tamis(*arguments, input="\udcff"), 3, "standard input: is not UTF-8")


def trained_on(tamis, text, **options):
    """The summary, and the merges."""
    path, out = tamis.directory / "words.txt", tamis.directory / "words.json"
    path.write_text(text)
    done = tamis("data", "train-tokenizer", path, "--vocab", 300, "--threads", 1, "--out", out, "--json", **options)
    assert done.returncode == 0 and not done.stderr.startswith("tamis"), done
    return json.loads(done.stdout), json.loads(out.read_text())["model"]["merges"]


def test_long_words_are_cut(tamis, works):
    limits = {"preexec_fn": limited_memory(tamis, 1_900_000 << 10), "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    summary, merges = trained_on(tamis, "x" * 30_000_000, timeout=120, **limits)
    assert summary["cut_bytes"] == summary["bytes"] == 30_000_000
    assert merges[:8] == [["x" * 2**i] * 2 for i in range(8)]
    words = "".join(f"word{i} of a line\n" for i in range(200))
    assert trained_on(tamis, words + "y" * 4096)[0]["cut_bytes"] == 0
    assert trained_on(tamis, words + "y" * 4097)[0]["cut_bytes"] == 4097
    done = tamis("data", "train-tokenizer", "words.txt", "--out", "words.json", "--vocab", 300)
    assert "  cut into pieces: 4.0 KiB in words of more than 4096 bytes\n" in done.stdout, done


def test_a_line_of_many_words_has_the_merges_of_its_words(tamis, works):
    """A line of more than 1 MiB is divided between words."""
    chance = random.Random(1)
    words = [f"w{chance.randrange(10**6):x}" for _ in range(300_000)]
    merges = [trained_on(tamis, space.join(["", *words]))[1] for space in (" ", "\n ")]
    assert len(merges[0]) > 20 and merges[0] == merges[1]


def test_training_says_what_is_wrong_and_nothing_else(tamis, works):
    (tamis.directory / "empty.txt").write_text("")
    (tamis.directory / "one_bad.jsonl").write_text('{"text": "good"}\n{"body": "bad"}\n')
    arguments = ("data", "train-tokenizer", "--vocab", 257, "--out", "made.json")
    expect_refused(tamis(*arguments, "empty.txt"), 3, "empty.txt: expected text, but it is empty")
    assert "left out: 1 corrupt record, such as" in tamis.out(*arguments, "one_bad.jsonl")
    for option in ("--field", "--out"):
        expect_refused(tamis(*arguments[:4], "one_bad.jsonl", option, ""), 2, f"{option}: expected a name, but it is empty")
    expect_refused(tamis(*arguments, ""), 2, "expected the name of a file or folder, or a pattern, but it is empty")


def test_pieces_of_a_long_text_have_the_ids_of_the_whole(tamis, works, tmp_path):
    """With merges from words to line ends, which a text must not be cut between."""
    chance = random.Random(0)
    words = "of a to go window model token with text head".split()
    ends = [chance.choice(["the", "cats"]) if i % 50 else "end" for i in range(30_000)]
    lines = [" ".join(chance.choice(words) for _ in range(8)) + f" {end}\n" for end in ends]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([line for line in lines[:3000] if not line.endswith("end\n")], trainer)
    assert any(token.endswith("the\u010a") for token in tokenizer.get_vocab())
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = "".join(lines)
    (tmp_path / "text.txt").write_text(text)
    tamis.out("data", "prepare", tmp_path / "text.txt", "--tokenizer", tmp_path / "tokenizer.json", "--out", tmp_path / "out")
    expected = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokens_of(tmp_path / "out") == [[*expected, tokenizer.token_to_id("<|endoftext|>")]]


RECIPE = """
[model]
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2

[data]
tokenizer = "{tokenizer}"

[data.sources.text]
kind = "text"
files = "{text}"

[train]
steps = 2
length = 32
batch_size = 2
warmup_steps = 1
sample_prompt = "The"
sample_tokens = 2
"""


def test_a_tokenizer_larger_than_the_vocabulary_is_one_line(tamis, works, tmp_path):
    tokenizer = train(tamis, "".join(CORPUS))
    recipe, run = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(RECIPE.format(tokenizer=tokenizer, text=tamis.directory / "corpus.txt"))

    def trained(vocab_size):
        return tamis("train", recipe, "--set", f"run.dir={run}", "--set", f"model.vocab_size={vocab_size}")

    refusal = "model.vocab_size is 499, but the BPE tokenizer has 500 tokens; give at least as many"
    expect_refused(trained(499), 2, refusal)
    assert not run.exists()
    done = trained(512)  # more than it needs
    assert done.returncode == 0, done
    # The same of a checkpoint whose tokenizer was replaced.
    (checkpoint,) = (run / "checkpoints").iterdir()
    larger = json.loads((checkpoint / "tokenizer.json").read_text())
    for token in range(500, 513):
        larger["added_tokens"].append({**larger["added_tokens"][0], "id": token, "content": f"<|{token}|>"})
    (checkpoint / "tokenizer.json").write_text(json.dumps(larger))
    (checkpoint / "trainer.json").unlink()
    expect_refused(tamis("generate", checkpoint, "--prompt", "The"), 3, "the model has a vocabulary of 512, but its BPE tokenizer has 513 tokens")


def test_the_comparison_of_speeds_finds_equal_ids(tamis, works, tmp_path):
    """bench/prepare.py: ids of `tamis data prepare` and of the package, over a few documents."""
    (tmp_path / "text.txt").write_text("\n\n".join(CORPUS + [t for name, t in TEXTS.items() if name != "special"]))
    command = [sys.executable, ROOT / "bench/prepare.py", tamis.path, tmp_path / "text.txt", "--vocab", "500"]
    options = ["--megabytes", "0.2", "--turns", "2", "--threads", "2", "--out", tmp_path / "results"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "| encode_batch_fast | " in done.stdout, done
    result = json.loads(next((tmp_path / "results").iterdir()).read_text())
    assert [row["program"] for row in result["rows"]] == ["tamis", "encode_batch", "encode_batch_fast"]
    assert result["tokens"] > 50_000 and result["rows"][0]["tamis_over_it"] == 1, result


BPE = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
HOSTILE = {
    "nothing": "",
    "truncated": '{"model": {"type": "BPE", "vocab": {"a": 0',
    "deep": '{"model": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "not an object": "[1]",
    "no model": "{}",
    "huge id": '{"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}',
    "huger id": '{"model": {"type": "BPE", "vocab": {"a": 1e99}, "merges": []}}',
    "negative id": '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
    "wrong type": '{"model": {"type": "BPE", "vocab": 7, "merges": {}}}',
    "merge of nothing": '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
    "bad expression": json.dumps(
        {**BPE, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}}
    ),
    "bad map": json.dumps({**BPE, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}),
    "map of gigabytes": json.dumps({**BPE, "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AApadding+AA"}}),
    "unigram without tokens": '{"model": {"type": "Unigram", "vocab": [], "unk_id": 7}}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_one_line(tamis, works, name):
    path = tamis.directory / "hostile.json"
    path.write_text(HOSTILE[name])
    expect_refused(tamis("tokenize", path, "-", input="a b", timeout=60), 3, "hostile.json")


def test_a_vocabulary_key_of_100_megabytes_is_refused(tamis, works):
    path = tamis.directory / "large.json"
    with open(path, "w") as file:
        file.write('{"model": {"type": "BPE", "vocab": {"')
        for _ in range(100):
            file.write("a" * 1_000_000)
        file.write('": 0}, "merges": []}}')
    expect_refused(tamis("tokenize", path, "-", timeout=60), 3, "large.json", "at most")
    os.remove(path)


def test_an_expression_that_takes_exponential_time_ends(tamis, works):
    path = tamis.directory / "slow.json"
    pattern = {"type": "Split", "pattern": {"Regex": "(a+a+)+[cd]"}, "behavior": "Isolated", "invert": False}
    path.write_text(json.dumps({**BPE, "pre_tokenizer": pattern}))
    expect_refused(tamis("tokenize", path, "-", input="a" * 60 + "b", timeout=120), 3, "slow.json")
