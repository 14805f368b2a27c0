"""Multiple choice from a text, in the manner of HellaSwag: the piece that follows, among three from elsewhere."""

import os
import random

import datasets

CONTEXT, PIECE, CHOICES = 240, 40, 4  # characters


def questions(**_):
    path = os.environ.get("TAMIS_HELDOUT", "heldout.txt")
    with open(path, encoding="utf-8", errors="replace") as file:
        text = " ".join(file.read().split())
    starts = range(CONTEXT, len(text) - PIECE, CONTEXT // 3)
    if len(starts) <= CHOICES:
        raise ValueError(f"{path} has {len(text)} characters, too few for questions of {CONTEXT + PIECE}")
    draw = random.Random(1)
    documents = []
    for start in starts:
        elsewhere = [other for other in starts if abs(other - start) > CONTEXT]
        wrong = [text[other : other + PIECE] for other in draw.sample(elsewhere, CHOICES - 1)]
        answer = draw.randrange(CHOICES)
        choices = wrong[:answer] + [text[start : start + PIECE]] + wrong[answer:]
        documents.append({"context": text[start - CONTEXT : start], "choices": choices, "answer": answer})
    return {"test": datasets.Dataset.from_list(documents)}
