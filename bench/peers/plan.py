"""What is measured: jobs, each a fresh process that yields one row per measure.

A peer's row is compared with a row of Tamis when section, dtype and tokens are the same and its `what` begins theirs:
"forward" is compared with "forward, initial windows, 2% accepted", as softmax attention has neither.
"""

from dataclasses import asdict, dataclass

SECTIONS = ("peaks", "start", "train", "forward", "decode", "ops", "attention", "head")
BOTH = ("float32", "bfloat16")
PASSES = ("forward", "forward and backward")
TAMIS = "Tamis"
LLAMA = "llama.cpp, Transformer"
INITIAL = "initial windows"
MODELS = {
    "transformer": ("Transformer (SDPA)", ""),
    "multiscreen_dense": ("dense Multiscreen", ""),
    "multiscreen_banded": ("banded Multiscreen", f", {INITIAL}"),
}
OPERATORS = {
    "sdpa": ("SDPA", ""),
    "dense": ("dense screening", ""),
    "banded": ("banded screening", f", {INITIAL}"),
}
ATTENTIONS = {
    "sdpa": ("SDPA", ", softmax"),
    "entmax15": ("entmax", ", entmax 1.5"),
    "window": ("window in chunks", ", window 256"),
    "stick_breaking": ("stick-breaking, dense", ", stick_breaking"),
    "mlstm": ("mLSTM in chunks", ", mlstm"),
}
SIEVE = "sieve 1.5"  # no peer has it: compared with the package of entmax, which selects the same keys
LONG_STICKS = "stick_breaking, logits -8"  # no stick is used up within the text: compared with softmax attention over as many keys
ATTENTION_CASES = {  # of tamis_ops_bench, with what their rows are called
    "softmax": "softmax",
    "window": "window 256",
    "entmax_1.5": "entmax 1.5",
    "stick_breaking": "stick_breaking",
    "mlstm": "mlstm",
    "sieve_1.5": SIEVE,
    "entmax_1.1": "entmax 1.1",  # at which nearly every key is selected
    "sieve_1.1": "sieve 1.1",
    "stick_breaking_-8": LONG_STICKS,
}
ATTENTION_NAMES = tuple(ATTENTION_CASES)[:6]


@dataclass(frozen=True)
class Measure:
    section: str
    what: str
    dtype: str
    tokens: int  # length of the text, or depth of the context

    def is_compared_with(self, tamis: "Measure") -> bool:
        mine, theirs = self.what.split(", "), tamis.what.split(", ")
        same = (self.section, self.dtype, self.tokens) == (tamis.section, tamis.dtype, tamis.tokens)
        return same and theirs[: len(mine)] == mine

    def as_dict(self) -> dict:
        return asdict(self)

    @staticmethod
    def of(row: dict) -> "Measure":
        return Measure(row["section"], row["what"], row["dtype"], row["tokens"])

    def __str__(self) -> str:
        return f"{self.section}: {self.what}, {self.dtype}, {self.tokens:,}"


@dataclass
class Job:
    """One process. `kind`: "tamis" (`tamis bench`), "operators" (tamis_ops_bench), "llama", or a function of
    start_work.py, model_work.py or operator_work.py by name."""

    peer: str
    kind: str
    arguments: dict
    measures: list[Measure]
    minutes: float  # of a full run on two cores, for the estimate
    batch: int = 1

    @property
    def section(self) -> str:
        return self.measures[0].section


def compiled_name(peer: str, compiled: bool) -> str:
    return f"{peer}, compiled" if compiled else peer


# ---- jobs in PyTorch


def train(model: str, dtype: str, tokens: int, batch: int, minutes: float, compiled: bool = False) -> Job:
    peer, what = MODELS[model]
    arguments = {"model": model, "dtype": dtype, "tokens": tokens, "batch": batch, "compiled": compiled}
    measures = [Measure("train", f"step{what}", dtype, tokens)]
    return Job(compiled_name(peer, compiled), "train", arguments, measures, minutes, batch)


def forward(model: str, dtype: str, lengths: list[int], minutes: float, compiled: bool = False) -> Job:
    peer, what = MODELS[model]
    arguments = {"model": model, "dtype": dtype, "lengths": lengths, "compiled": compiled}
    measures = [Measure("forward", f"text{what}", dtype, length) for length in lengths]
    return Job(compiled_name(peer, compiled), "forward", arguments, measures, minutes)


def decode(model: str, dtype: str, depths: list[int], minutes: float) -> Job:
    peer, what = MODELS[model]
    measures = [Measure("decode", f"token{what}", dtype, depth) for depth in depths]
    return Job(peer, "decode", {"model": model, "dtype": dtype, "depths": depths}, measures, minutes)


def operator(kind: str, dtype: str, tokens: int, minutes: float, compiled: bool = False) -> Job:
    peer, what = OPERATORS[kind]
    arguments = {"kind": kind, "dtype": dtype, "tokens": tokens, "passes": list(PASSES), "compiled": compiled}
    measures = [Measure("ops", f"{each}{what}", dtype, tokens) for each in PASSES]
    return Job(compiled_name(peer, compiled), "operator", arguments, measures, minutes)


def attention(kind: str, tokens: int, minutes: float, compiled: bool = False, operator: str = "") -> Job:
    """A peer of the operator that `operator` names, or of its own kind."""
    peer, what = ATTENTIONS[kind]
    what = f", {operator}" if operator else what
    arguments = {"kind": kind, "dtype": "float32", "tokens": tokens, "passes": list(PASSES), "compiled": compiled}
    measures = [Measure("attention", f"{each}{what}", "float32", tokens) for each in PASSES]
    return Job(compiled_name(peer, compiled), "operator", arguments, measures, minutes)


def tamis_operators(
    section: str,
    tokens: int,
    cases: dict[str, str],
    minutes: float,
    dtypes: tuple[str, ...] = BOTH,
    threads: int | None = None,
) -> Job:
    """Cases of tamis_ops_bench: the ends of their names, as regular expressions, with what their rows are called."""
    names = f"{section}/[a-z_]+/({'|'.join(dtypes)})/{tokens}/({'|'.join(cases)})/real_time"
    prefix = "" if threads is None else f"{threads} thread{'s' * (threads > 1)}, "
    measures = [
        Measure(section, f"{prefix}{each}{what}", dtype, tokens)
        for each in PASSES
        for what in cases.values()
        for dtype in dtypes
    ]
    arguments = {"filter": f"^({names}|peaks/({'|'.join(dtypes)})/.*)$"}
    return Job(TAMIS, "operators", arguments | ({} if threads is None else {"threads": threads}), measures, minutes)


def tamis_attention(tokens: int, minutes: float, operators: tuple[str, ...] = ATTENTION_NAMES) -> Job:
    cases = {name: f", {ATTENTION_CASES[name]}" for name in operators}
    return tamis_operators("attention", tokens, cases, minutes, ("float32",))


def tamis_head(tokens: int, vocabulary: int, width: int, minutes: float) -> Job:
    """With the bare products, as a ratio."""
    return tamis_operators("head", tokens, {f"{vocabulary}/{width}(/products)?": ""}, minutes)


def head(dtype: str, tokens: int, vocabulary: int, minutes: float) -> Job:
    arguments = {"dtype": dtype, "tokens": tokens, "vocabulary": vocabulary, "passes": list(PASSES)}
    measures = [Measure("head", each, dtype, tokens) for each in PASSES]
    return Job("linear, cross_entropy", "head", arguments, measures, minutes)


def peaks(when: str) -> Job:
    measures = [Measure("peaks", f"matmul, {when}", dtype, 0) for dtype in BOTH]
    return Job("torch", "peaks", {}, [*measures, Measure("peaks", f"read, {when}", "float32", 0)], 0.3)


# ---- jobs of programs


def start(minutes: float) -> list[Job]:
    """Whole processes: help, and one token of a model of the usual size."""
    whats = {"tamis --help": False, "tamis generate, one token": True}
    return [
        Job(TAMIS, "start", {"model": model}, [Measure("start", what, "float32", int(model))], minutes)
        for what, model in whats.items()
    ]


def tamis(
    section: str,
    options: list[str],
    lengths: list[int],
    whats: list[str],
    minutes: float,
    dtypes: tuple[str, ...] = BOTH,
) -> Job:
    """`tamis bench SECTION OPTIONS`, which has a row for every length, dtype and what."""
    measures = [Measure(section, what, dtype, tokens) for what in whats for dtype in dtypes for tokens in lengths]
    return Job(TAMIS, "tamis", {"options": [section, *options, "--dtypes", ",".join(dtypes)]}, measures, minutes)


def tamis_lengths(
    section: str,
    lengths: list[int],
    whats: list[str],
    minutes: float,
    options: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = BOTH,
) -> Job:
    name = "--depths" if section == "decode" else "--lengths"
    listed = [name, ",".join(map(str, lengths)), *options]
    return tamis(section, listed, lengths, whats, minutes, dtypes)


def one_thread(section: str, tokens: int, what: str, minutes: float) -> Job:
    """What a second thread is worth: the rows of a section once more, on one."""
    return tamis_lengths(section, [tokens], [f"1 thread, {what}"], minutes, ("--threads", "1"))


def tamis_ops(
    length: int,
    windows: str,
    minutes: float,
    percents: tuple[str, ...] = ("2", "50"),
    dtypes: tuple[str, ...] = BOTH,
    threads: int | None = None,
) -> Job:
    """Screening at these accepted shares, of those that tamis_ops_bench has."""
    cases = {f"{windows}/{percent}%": f", {windows} windows, {percent}% accepted" for percent in percents}
    return tamis_operators("ops", length, cases, minutes, dtypes, threads)


def llama(dtype: str, lengths: list[int], depths: list[int], minutes: float) -> list[Job]:
    """llama-bench on the Transformer's sizes; int8 is q8_0."""
    prefill = [Measure("forward", "text", dtype, length) for length in lengths]
    tokens = [Measure("decode", "token", dtype, depth) for depth in depths]
    jobs = [({"dtype": dtype, "lengths": lengths}, prefill), ({"dtype": dtype, "depths": depths}, tokens)]
    return [Job(LLAMA, "llama", arguments, measures, minutes) for arguments, measures in jobs]


# ---- what makes no sense on a machine

PROGRAMS = ("tamis", "operators", "llama", "start", "peaks")


def why_skipped(job: Job, matmul: dict[str, float]) -> str:
    """Why a job of torch is not worth its time where `matmul` gives torch's operations per second by dtype; else ""."""
    dtype = job.arguments.get("dtype")
    if job.kind in PROGRAMS or dtype not in matmul or "float32" not in matmul or matmul[dtype] * 10 > matmul["float32"]:
        return ""
    return (
        f"torch multiplies {dtype} at {matmul[dtype] / 1e9:.1f} GFLOP/s on this processor, "
        f"float32 at {matmul['float32'] / 1e9:.0f}"
    )


# ---- the two plans, in the order in which they run


def full() -> list[Job]:
    lengths, depths = [4096, 8192, 16384], [0, 1024, 16384, 65536]
    briefly = ("--repeat", "2", "--seconds", "0")
    again = ("--recompute", "0.25", *briefly)  # the activations that are not kept bring 65,536 tokens under 6 GB
    again_float32 = ("--recompute", "0.75", *briefly)
    jobs = [peaks("first"), *start(0.3)]
    jobs += [
        tamis_lengths("train", [512, 2048, 4096], [f"step, {INITIAL}"], 1.2),
        tamis_lengths("train", [16384, 65536], [f"step, {INITIAL}"], 1.2, briefly, ("bfloat16",)),
        tamis_lengths("train", [65536], [f"step, {INITIAL}"], 2.5, briefly, ("float32",)),
        tamis_lengths("train", [65536], [f"recompute 0.25, step, {INITIAL}"], 1.2, again, ("bfloat16",)),
        tamis_lengths("train", [65536], [f"recompute 0.75, step, {INITIAL}"], 2.0, again_float32, ("float32",)),
        one_thread("train", 4096, f"step, {INITIAL}", 0.9),
    ]
    for dtype in BOTH:
        jobs += [
            train("transformer", dtype, 512, 4, 0.2),
            train("transformer", dtype, 2048, 1, 0.3),
            train("transformer", dtype, 4096, 1, 0.4),
            train("transformer", dtype, 512, 4, 0.4, compiled=True),
            train("transformer", dtype, 4096, 1, 0.6, compiled=True),
            train("multiscreen_dense", dtype, 512, 4, 0.4),
            train("multiscreen_dense", dtype, 512, 4, 0.6, compiled=True),
            train("multiscreen_banded", dtype, 512, 4, 0.3),
            train("multiscreen_banded", dtype, 4096, 1, 0.3),
        ]
    jobs += [train("transformer", "bfloat16", 16384, 1, 3)]
    jobs += [train("multiscreen_dense", dtype, 2048, 1, 0.7, compiled=dtype == "bfloat16") for dtype in BOTH]
    jobs += [
        tamis_lengths("forward", lengths, [f"text, {INITIAL}"], 0.9),
        one_thread("forward", 4096, f"text, {INITIAL}", 0.5),
        tamis_lengths("forward", [65536, 131072], [f"text, {INITIAL}"], 1.8, briefly, ("float32",)),
        tamis_lengths("forward", [65536], [f"text, {INITIAL}"], 0.5, briefly, ("bfloat16",)),
    ]
    jobs += [
        tamis_lengths("forward", [131072], [f"text, {INITIAL}"], 0.8, briefly, ("bfloat16",)),
        tamis_lengths("forward", [1 << 20], [f"text, {INITIAL}"], 3, ("--repeat", "1", "--seconds", "0"), ("bfloat16",)),
        tamis_lengths("forward", [4096, 131072], [f"Psi 8, text, {INITIAL}"], 0.6, ("--psi", "8", *briefly)),
    ]
    jobs += [forward("transformer", "float32", lengths, 1.3), forward("transformer", "bfloat16", lengths, 0.9)]
    jobs += [forward("multiscreen_banded", dtype, lengths, 0.8) for dtype in BOTH]
    jobs += [
        forward("multiscreen_dense", "float32", [4096], 1.4),
        forward("multiscreen_dense", "float32", [4096], 0.8, compiled=True),
    ]
    # A process for each dtype: all depths interleaved, after a million tokens were read.
    for dtype in (*BOTH, "int8"):
        jobs += [tamis_lengths("decode", [*depths, 1 << 20], [f"token, {INITIAL}"], 2.5, (), (dtype,))]
    jobs += [tamis_lengths("decode", [1024, 16384], ["token, infinite windows"], 0.9, ("--windows", "infinite"), BOTH)]
    jobs += [one_thread("decode", 1024, f"token, {INITIAL}", 0.4)]
    large = f"vocabulary 50,257, token, {INITIAL}"
    jobs += [tamis_lengths("decode", [0], [large], 0.5, ("--vocab", "50257"), (*BOTH, "int8"))]
    many = [f"batch {batch}, token, {INITIAL}" for batch in (8, 32)]
    jobs += [tamis_lengths("decode", [1024], many, 0.7, ("--batch", "8,32"), (*BOTH, "int8"))]
    jobs += [decode("transformer", dtype, depths, 0.5) for dtype in BOTH]
    jobs += [decode("multiscreen_dense", "float32", depths, 0.7)]
    for dtype in (*BOTH, "int8"):
        jobs += llama(dtype, [512, 4096], [0, 1024, 16384], 0.4)
    jobs += [tamis_ops(4096, "initial", 0.5), tamis_ops(16384, "initial", 0.5), tamis_ops(4096, "infinite", 0.5)]
    jobs += [tamis_ops(16384, "infinite", 2)]
    jobs += [tamis_ops(4096, "initial", 0.4, ("2",), threads=1)]
    jobs += [tamis_ops(4096, "infinite", 0.6, ("0.1", "0.5", "5", "10", "20"), ("float32",))]
    for dtype in BOTH:
        jobs += [
            operator("sdpa", dtype, 4096, 0.3),
            operator("sdpa", dtype, 16384, 1.5),
            operator("banded", dtype, 4096, 0.2),
            operator("banded", dtype, 4096, 0.5, compiled=True),
            operator("banded", dtype, 16384, 0.3),
        ]
    jobs += [operator("dense", "float32", 4096, 0.6, compiled=True)]
    jobs += [tamis_attention(4096, 0.8)]
    jobs += [attention(kind, 4096, 0.4) for kind in ATTENTIONS]
    jobs += [attention(kind, 4096, 0.6, compiled=True) for kind in ("window", "stick_breaking")]
    jobs += [attention("entmax15", 4096, 0.8, operator=SIEVE)]
    jobs += [tamis_attention(4096, 0.8, ("entmax_1.1", "sieve_1.1"))]
    jobs += [tamis_attention(4096, 0.4, ("stick_breaking_-8",)), attention("sdpa", 4096, 0.3, operator=LONG_STICKS)]
    jobs += [tamis_attention(16384, 1.5)]
    jobs += [attention(kind, 16384, 0.7) for kind in ("sdpa", "window", "mlstm")]  # of the others: no room for T x T
    jobs += [tamis_head(2048, 50257, 256, 0.6)]
    jobs += [head(dtype, 2048, 50257, 0.3) for dtype in BOTH]
    return [*jobs, peaks("last")]


def quick() -> list[Job]:
    """Every kind of job once, at sizes that only show whether it works; one compiled."""
    quick_options = ("--quick",)
    jobs = [peaks("first"), *start(0.05), tamis_lengths("train", [48], [f"step, {INITIAL}"], 0.05, quick_options)]
    for model in MODELS:
        jobs += [train(model, "float32", 48, 2, 0.1)]
    jobs += [
        train("transformer", "bfloat16", 48, 2, 0.1),
        tamis_lengths("forward", [64], [f"text, {INITIAL}"], 0.05, quick_options),
    ]
    for model in MODELS:
        jobs += [forward(model, "float32", [64], 0.1)]
    jobs += [tamis_lengths("decode", [0, 40], [f"token, {INITIAL}"], 0.05, quick_options)]
    jobs += [decode("transformer", "bfloat16", [0, 40], 0.1), decode("multiscreen_dense", "float32", [0, 40], 0.1)]
    jobs += llama("float32", [64], [0, 40], 0.1)
    jobs += [tamis_ops(64, "initial", 0.05, ("2",))]
    jobs += [operator(kind, "float32", 64, 0.1) for kind in OPERATORS]
    jobs += [operator("dense", "bfloat16", 64, 0.3, compiled=True)]
    jobs += [tamis_attention(64, 0.05)]
    jobs += [attention(kind, 64, 0.1) for kind in ATTENTIONS]
    jobs += [tamis_head(32, 100, 16, 0.05), head("float32", 32, 100, 0.1)]
    return [*jobs, peaks("last")]
