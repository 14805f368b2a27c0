"""The file of a day's results: rows by peer and measure, kept while they can be, written whole after every job."""

import datetime
import json
import os
import pathlib
import re
from dataclasses import dataclass, field

from peers.plan import Job, Measure
from peers.process import Settings

FORMAT = 1


def processor(cpuinfo: str | None = None) -> str:
    """The processor's name. Virtual machines hide its number: family and model then tell generations apart."""
    text = cpuinfo if cpuinfo is not None else pathlib.Path("/proc/cpuinfo").read_text()
    facts = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", text.split("\n\n")[0], flags=re.MULTILINE))
    name = facts.get("model name", "unknown").strip()
    if re.search("[0-9]", name) or "cpu family" not in facts:
        return name
    return f"{name} family {facts['cpu family']} model {facts.get('model', '?')}"


def file_name(date: str, cpu: str) -> str:
    """2026-01-31-amd-epyc-9004"""
    return f"{date}-{re.sub('[^a-z0-9]+', '-', cpu.lower()).strip('-')}"


def in_todays_words(row: dict) -> dict:
    """Files of earlier versions call the accepted share "survive"."""
    return {**row, "what": row["what"].replace("% survive", "% accepted")}


def key(row: dict) -> tuple:
    return row["peer"], Measure.of(row)


@dataclass
class Results:
    path: pathlib.Path
    about: dict
    rows: dict[tuple, dict] = field(default_factory=dict)

    @staticmethod
    def of_today(directory: pathlib.Path, settings: Settings) -> "Results":
        date, cpu = datetime.date.today().isoformat(), processor()
        path = directory / (file_name(date, cpu) + ".json")
        about = {
            "date": date,
            "processor": cpu,
            "cores": os.cpu_count(),
            "threads": settings.threads,
            "quick": settings.quick,
            "format": FORMAT,
        }
        return Results.read(path, about) if path.is_file() else Results(path, about)

    @staticmethod
    def read(path: pathlib.Path, about: dict | None = None) -> "Results":
        """Throws ValueError when the file is none of ours."""
        try:
            content = json.loads(path.read_text())
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']}, expected {FORMAT}")
            rows = {key(row): row for row in map(in_todays_words, content.pop("rows"))}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds no results ({type(error).__name__}: {error}); move it away") from None
        return Results(path, about or content, rows)

    def has(self, job: Job, settings: Settings) -> bool:
        """Every row of the job was measured with these settings."""
        rows = [self.rows.get((job.peer, measure)) for measure in job.measures]
        return all(row and row["status"] in ("ok", "skipped") and row["settings"] == settings.of(job) for row in rows)

    def matmul_flops(self) -> dict[str, float]:
        """torch's operations per second in matrix products, by dtype, as far as they were measured."""
        peaks = [row for row in self.rows.values() if row["section"] == "peaks" and row["status"] == "ok"]
        return {row["dtype"]: row["tokens_per_second"] for row in peaks if row["what"] == "matmul, first"}

    def add(self, rows: list[dict]) -> None:
        for row in rows:
            self.rows[key(row)] = row
        self.save()

    def save(self) -> None:
        write_whole(self.path, json.dumps({**self.about, "rows": list(self.rows.values())}, indent=1) + "\n")


def write_whole(path: pathlib.Path, text: str) -> None:
    """Never half: another name first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".new")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
