"""Timing in the process that computes, with the statistics of `tamis bench`: quartiles of the calls after a warm-up."""

import ctypes
import resource
import statistics
import time
from typing import Callable

from peers.effort import Effort


def page_faults() -> int:
    """Pages that the kernel has given to this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def forget_peak_memory() -> None:
    """Gives back what the allocator keeps of earlier work, and lets the high-water mark begin anew."""
    process = ctypes.CDLL(None)
    if hasattr(process, "MallocExtension_ReleaseFreeMemory"):  # tcmalloc
        process.MallocExtension_ReleaseFreeMemory()
    else:
        process.malloc_trim(0)
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:  # forbidden: the peak of the whole process is reported then
        pass


def peak_bytes() -> int:
    """The most that was resident since forget_peak_memory."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:"))


def summarise(seconds: list[float]) -> dict:
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return {
        "median": median,
        "minimum": min(seconds),
        "maximum": max(seconds),
        "lower_quartile": lower,
        "upper_quartile": upper,
    }


def measure(run: Callable[[], object], effort: Effort) -> dict:
    """The figures of a row: seconds and faults of a call, the most memory that was resident, warm-up included."""
    forget_peak_memory()
    run()
    faults, start, seconds = page_faults(), time.perf_counter(), []

    def enough() -> bool:
        long = time.perf_counter() - start >= effort.seconds or len(seconds) >= effort.most_calls
        return long and len(seconds) >= effort.calls

    while not enough():
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return {
        "seconds": summarise(seconds),
        "calls": len(seconds),
        "page_faults": round((page_faults() - faults) / len(seconds)),
        "peak_bytes": peak_bytes(),
    }
