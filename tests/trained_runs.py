"""Two small trained runs with evaluations and reports, for the tests of `tamis inspect` and `tamis report`."""

import json

HOSTILE = "</script><script>window.boom = 1</script><b>&amp;\n"
RECIPE = f"""
[model]
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
[data.sources.abc_digits]
kind = "abc_digits"
[train]
steps = 24
length = 96
batch_tokens = 768
lr = 0.03
warmup_steps = 4
log_every = 2
save_every = 12
validate_every = 8
validate_tokens = 2048
sample_every = 8
sample_prompt = {json.dumps(HOSTILE)}
sample_tokens = 8
"""

# Five mechanisms on a text with carriage returns: attention maps without ABCDigits.
STACK = """
[model]
model_type = "swax"
pattern = "awems"
hidden_size = 32
num_hidden_layers = 5
num_attention_heads = 2
window = 24
[data.sources.letter]
kind = "text"
files = ["letter.txt"]
validation_fraction = 0.2
[train]
steps = 24
length = 64
batch_tokens = 512
lr = 0.01
warmup_steps = 4
log_every = 1
save_every = 12
validate_every = 8
validate_tokens = 512
sample_every = 12
sample_prompt = "one\\r\\ntwo\\rthree\\u0001"
sample_tokens = 8
"""


def train_digits(tamis):
    """A Multiscreen on ABCDigits, evaluated on two tasks and resumed once."""
    recipe, run = tamis.directory / "recipe.toml", tamis.directory / "run"
    recipe.write_text(RECIPE)
    tamis.out("train", recipe, "--set", f"run.dir={run}")
    tamis.out("eval", "abc_digits", run, "--lengths", "236,256", "--depths", "0.1,0.9", "--instances", 2)
    tamis.out("train", recipe, "--set", f"run.dir={run}", "--set", "train.steps=26")
    tamis.out("eval", "copy", run, "--lengths", "16,32,64", "--instances", 4)
    assert tamis.out("report", run).strip() == str(run / "report.html")
    return run


def train_letters(tamis):
    """A mixture of five mechanisms on a letter."""
    recipe, letter, run = (tamis.directory / name for name in ("stack.toml", "letter.txt", "stack"))
    letter.write_bytes(b"".join(b"Dear reader, line %d of this letter.\r\n" % i for i in range(400)))
    recipe.write_text(STACK.replace("letter.txt", str(letter)))
    tamis.out("train", recipe, "--set", f"run.dir={run}")
    tamis.out("eval", "loss", run, letter, "--window", 64)
    tamis.out("report", run)
    return run
