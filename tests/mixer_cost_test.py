"""Adding a mixer takes an operator's folder, a module and one line in the registry: no other file names a mixer."""

import pathlib
import re
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIXERS = ROOT / "tamis/models/mixers"
MAKER = re.compile(r"std::unique_ptr<Mixer> (make_\w+)\(const ModelConfig& config, at::Device device\) \{")
OPERATOR = re.compile(r'#include "tamis/ops/(\w+)/')
# The first writes a whole Multiscreen once more in float64, to check the models that are timed; the second compares the
# operators' weights on given scores.
HAS_A_DEFINITION = {"tamis/bench/check.cc", "tamis/study/functions.cc"}


def sources():
    """Production code: no tests and no benchmarks."""
    files = [file for file in sorted((ROOT / "tamis").rglob("*")) if file.suffix in (".cc", ".h")]
    return [file for file in files if not file.stem.endswith(("_test", "_bench"))]


def modules():
    return [file for file in sources() if file.parent == MIXERS and file.suffix == ".cc"]


def makers():
    """Every maker of a mixer, and the module that has it."""
    found = {}
    for module in modules():
        for name in MAKER.findall(module.read_text()):
            found[name] = module
    return found


def files_with(word, files):
    pattern = re.compile(rf"\b{word}\b")
    return {file.relative_to(ROOT).as_posix() for file in files if pattern.search(file.read_text())}


def test_a_maker_is_known_to_its_module_and_the_registry_alone():
    found, files = makers(), sources()
    assert len(found) >= 7, f"only {sorted(found)}: is the pattern still right?"
    for name, module in found.items():
        expected = {module.relative_to(ROOT).as_posix(), "tamis/models/mixers/mixers.h", "tamis/models/mixers/mixers.cc"}
        assert files_with(name, files) == expected, f"{name}: {files_with(name, files)}"


def test_a_mixer_has_one_line_in_the_registry():
    registry = (MIXERS / "mixers.cc").read_text()
    for name in makers():
        entries = [entry for entry in re.findall(r"MixerKind\{.*?\},\n", registry, re.DOTALL) if f" {name}}}" in entry]
        assert len(entries) == 1 and len(re.findall(rf"\b{name}\b", registry)) == 1, f"{name}: {entries}"


def test_an_operator_of_a_mixer_is_known_to_its_module_alone():
    own = {}
    for module in modules():
        for operator in OPERATOR.findall(module.read_text()):
            own.setdefault(operator, set()).add(module.relative_to(ROOT).as_posix())
    assert {"sieve_attention", "entmax_attention", "mlstm", "screening"} <= set(own), own
    for operator, known in own.items():
        outside = {
            file.relative_to(ROOT).as_posix()
            for file in sources()
            if operator in OPERATOR.findall(file.read_text()) and "tamis/ops/" not in file.as_posix()
        }
        assert outside - HAS_A_DEFINITION == known, f"{operator}: {outside}"


def test_the_example_in_contributing_is_the_code():
    """CONTRIBUTING.md shows the maker of Sieve attention and its line in the registry as they are."""
    blocks = re.findall(r"^   ```cpp\n(.*?)^   ```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)
    maker, line = [textwrap.dedent(block) for block in blocks]
    assert maker in (MIXERS / "sieve.cc").read_text()
    registry = (MIXERS / "mixers.cc").read_text()
    assert " ".join(line.split()) in " ".join(registry.split())
