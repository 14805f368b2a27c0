"""llama.cpp on a Transformer of the peer's sizes: a GGUF file with random weights, and what its llama-bench prints."""

import json
import pathlib
import statistics
from typing import Iterator

from peers.plan import Measure
from peers.effort import Sizes, effort

QUANTIZATIONS = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
LONGEST_CONTEXT = 1 << 17
DECODED_TOKENS = 32
REPEATS = 5


def write_model(directory: pathlib.Path, dtype: str, quick: bool) -> pathlib.Path:
    import gguf
    import numpy

    sizes, file = effort(quick).sizes, directory / f"transformer-{dtype}.gguf"
    random, kind = numpy.random.default_rng(0), gguf.GGMLQuantizationType[QUANTIZATIONS[dtype]]
    writer = gguf.GGUFWriter(file, "llama")
    describe(writer, sizes)
    for name, shape in tensors(sizes).items():
        if len(shape) == 1:
            writer.add_tensor(name, numpy.ones(shape, numpy.float32))
            continue
        weights = random.normal(0, (2 / (5 * sizes.width)) ** 0.5, shape).astype(numpy.float32)
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def describe(writer, sizes: Sizes) -> None:
    import gguf

    writer.add_context_length(LONGEST_CONTEXT)
    writer.add_embedding_length(sizes.width)
    writer.add_block_count(sizes.layers)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.heads)
    writer.add_rope_dimension_count(sizes.width // sizes.heads)
    writer.add_layer_norm_rms_eps(1e-6)
    special, bytes_ = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"word{at}" for at in range(sizes.vocabulary - len(special) - len(bytes_))]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*special, *bytes_, *words])
    writer.add_token_scores([0.0] * sizes.vocabulary)
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, *[kinds.NORMAL] * len(words)]
    )


def tensors(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Names and shapes [out, in]; without output.weight the head is the embedding."""
    square, wide, norm = (sizes.width, sizes.width), (sizes.inner, sizes.width), (sizes.width,)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (sizes.vocabulary, sizes.width),
        "output_norm.weight": norm,
    }
    for layer in range(sizes.layers):
        parts = {"attn_norm": norm, "ffn_norm": norm, "ffn_gate": wide, "ffn_up": wide, "ffn_down": wide[::-1]}
        parts |= {f"attn_{name}": square for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes


def command(program: pathlib.Path, model: pathlib.Path, arguments: dict, threads: int) -> list[str]:
    listed = [program, "-m", model, "-t", threads, "-r", REPEATS, "-o", "json"]
    if "lengths" in arguments:
        listed += ["-n", 0, "-p", ",".join(map(str, arguments["lengths"]))]
    else:
        listed += ["-p", 0, "-n", DECODED_TOKENS, "-d", ",".join(map(str, arguments["depths"]))]
    return [str(each) for each in listed]


def parsed(out: str, measures: list[Measure]) -> Iterator[tuple[Measure, dict]]:
    """Rows of llama-bench; a test reads n_prompt tokens or decodes n_gen behind n_depth."""
    by_tokens = {measure.tokens: measure for measure in measures}
    for row in json.loads(out or "[]"):
        reads = row["n_prompt"] > 0
        measure = by_tokens.get(row["n_prompt"] if reads else row.get("n_depth", 0))
        if measure is None:
            continue
        seconds = sorted(ns / 1e9 for ns in row["samples_ns"])
        lower, median, upper = (
            statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
        )
        yield measure, {
            "seconds": {
                "median": median,
                "minimum": seconds[0],
                "maximum": seconds[-1],
                "lower_quartile": lower,
                "upper_quartile": upper,
            },
            "calls": len(seconds),
            "tokens_per_second": (row["n_prompt"] if reads else row["n_gen"]) / median,
            "check": "none: random weights",
            "build": row.get("build_commit", "unknown"),
        }
