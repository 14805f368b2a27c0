"""A fresh process for one job in PyTorch: reads it as JSON from its argument, writes rows as lines of JSON.

Only rows go to standard output. Exit code 3: out of memory; 4: a check failed; 5: a package is missing.
"""

import json
import resource
import sys

OUT_OF_MEMORY, CHECK_FAILED, NOT_INSTALLED = 3, 4, 5
MEMORY_TEXTS = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "not enough memory")


def available_bytes() -> int:
    with open("/proc/meminfo") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def main() -> int:
    job = json.loads(sys.argv[1])
    memory = available_bytes()
    # Beyond this an allocation fails here; without it the kernel would end some process, perhaps another one.
    resource.setrlimit(resource.RLIMIT_DATA, (int(memory * 0.95), resource.RLIM_INFINITY))

    import torch

    from peers import checks, model_work, operator_work, start_work
    from peers.effort import effort

    kinds = {
        function.__name__: function
        for function in (
            model_work.train,
            model_work.forward,
            model_work.decode,
            operator_work.operator,
            operator_work.head,
            operator_work.peaks,
            start_work.start,
        )
    }
    torch.set_num_threads(job["threads"])
    try:
        for row in kinds[job["kind"]](effort(job["quick"]), **job["arguments"]):
            print(json.dumps(row), flush=True)
    except checks.CheckFailed as error:
        print(f"check failed: {error}", file=sys.stderr)
        return CHECK_FAILED
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed; `scripts/setup.sh bench` does that", file=sys.stderr)
        return NOT_INSTALLED
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(text in str(error) for text in MEMORY_TEXTS):
            raise
        print(f"out of memory: {memory / 2**30:.1f} GiB were available", file=sys.stderr)
        return OUT_OF_MEMORY
    return 0


if __name__ == "__main__":
    sys.exit(main())
