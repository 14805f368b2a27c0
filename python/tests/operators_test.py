"""The operators inside PyTorch: registration (torch.library.opcheck), gradients, the example of docs/python.md.

`make python` runs them, with the operators in build/release or those that TAMIS_OPS_LIBRARY names.
"""

import functools
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.autograd import gradcheck
from torch.library import opcheck

import tamis

PYTHON = Path(__file__).resolve().parents[1]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(autouse=True, params=DEVICES)
def device(request):
    """Where the tensors of a test are."""
    with torch.device(request.param):
        yield request.param


# Inputs.


def there(options: dict) -> dict:
    """Options with their tensors on the device of the test."""
    return {name: value.to(torch.get_default_device()) if torch.is_tensor(value) else value for name, value in options.items()}


def head_inputs(*leading: int, words: int = 11, width: int = 5, dtype: torch.dtype = torch.float32, grad: bool = True,
                ignored: int = -100):  # fmt: skip
    torch.manual_seed(0)
    x = torch.randn(*leading, width, dtype=dtype, requires_grad=grad)
    weight = torch.randn(words, width, dtype=dtype, requires_grad=grad)
    target = torch.randint(words, leading)
    target.view(-1)[:1] = ignored
    return x, weight, target


def screening_inputs(queries: int = 6, keys: int = 6, dtype: torch.dtype = torch.float32, grad: bool = True):
    torch.manual_seed(0)
    heads, key_dim, value_dim = 2, 4, 3

    def random(*shape: int):
        return torch.randn(*shape, dtype=dtype, requires_grad=grad)

    scalars = torch.float64 if dtype == torch.float64 else torch.float32
    s_w = torch.tensor([0.7, 1.6], dtype=scalars, requires_grad=grad)
    s_r = torch.tensor([0.3, 3.0], dtype=scalars, requires_grad=grad)
    return (random(2, queries, heads, key_dim), random(2, keys, heads, key_dim), random(2, keys, heads, value_dim),
            s_w, s_r), random(2, queries, heads, value_dim)  # fmt: skip


DOCUMENT = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 2, 2]])
SCREENING_OPTIONS = [
    {},
    {"mipe_threshold": 4.0},
    {"expand_beyond": 3.0},
    {"tanh_norm": False, "position": "none"},
    {"document": DOCUMENT},
    {"trim_power": 3, "softmask": "linear"},
    {"trim_power": 1, "softmask": "none"},
]


# Torch.library.opcheck: schema, autograd registration, fake tensors, ahead-of-time dispatch with dynamic shapes.


def test_opcheck_linear_cross_entropy():
    for reduction, dtype in itertools.product(["mean", "sum", "none"], [torch.float32, torch.bfloat16, torch.float64]):
        opcheck(torch.ops.tamis.linear_cross_entropy, head_inputs(2, 3, dtype=dtype), {"reduction": reduction})
    opcheck(torch.ops.tamis.linear_cross_entropy, head_inputs(7, grad=False, ignored=3), {"ignore_index": 3})
    opcheck(torch.ops.tamis.linear_cross_entropy, head_inputs(2, 3), {"soft_cap": 2.0})
    opcheck(torch.ops.tamis.linear_cross_entropy, head_inputs(0))


def test_opcheck_linear_cross_entropy_backward():
    x, weight, target = head_inputs(2, 3, grad=False)
    for reduction, grad in {"mean": torch.tensor(2.0), "sum": torch.tensor(2.0), "none": torch.randn(2, 3)}.items():
        opcheck(torch.ops.tamis.linear_cross_entropy_backward, (grad, x, weight, target), {"reduction": reduction})
    for wanted in itertools.product([False, True], repeat=2):
        options = dict(zip(["x_gradient", "weight_gradient"], wanted))
        opcheck(torch.ops.tamis.linear_cross_entropy_backward, (torch.tensor(1.0), x, weight, target), options)
        opcheck(torch.ops.tamis._linear_cross_entropy_with_gradients, (x, weight, target), options)


def test_opcheck_screening():
    for options in SCREENING_OPTIONS:
        inputs, gate = screening_inputs()
        opcheck(torch.ops.tamis.screening, inputs, there(options))
        opcheck(torch.ops.tamis.screening, inputs, {"gate": gate, **there(options)})
    for dtype in [torch.bfloat16, torch.float64]:
        inputs, gate = screening_inputs(queries=2, dtype=dtype)
        opcheck(torch.ops.tamis.screening, inputs, {"gate": gate})


def test_opcheck_screening_backward():
    for options in SCREENING_OPTIONS:
        inputs, gate = screening_inputs(grad=False)
        opcheck(torch.ops.tamis.screening_backward, (torch.randn_like(gate), *inputs), {"gate": gate, **there(options)})
    inputs, gate = screening_inputs(queries=2, grad=False)
    opcheck(torch.ops.tamis.screening_backward, (torch.randn_like(gate), *inputs))


# Gradients against finite differences, values against plain torch.


def attention_inputs(queries: int = 6, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    shapes = ((2, queries, 2, 4), (2, 6, 2, 4), (2, 6, 2, 3))
    return tuple(torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes)


def scalable_softmax_options(dtype: torch.dtype = torch.float32) -> dict:
    return {"log_scale": torch.tensor([0.5, 1.0], dtype=dtype), "log_bias": torch.tensor([0.1, 0.0], dtype=dtype)}


ATTENTIONS = {
    "softmax_attention": ({}, {"window": 3}, {"window": 2, "strict": True, "document": DOCUMENT}, {"document": DOCUMENT}, {"key_start": 9, **scalable_softmax_options()}),
    "entmax_attention": ({}, {"alpha": 1.2, "strict": True}, {"alpha": 2.0, "document": DOCUMENT}),
    "stick_breaking_attention": ({}, {"strict": False}, {"document": DOCUMENT}),
    "sieve_attention": ({}, {"alpha": 1.2, "strict": False}, {"document": DOCUMENT}),
    "sieve_algorithm1": ({}, {"epsilon": 0.5, "strict": False}, {"document": DOCUMENT}),
}


def test_opcheck_attentions():
    for name, all_options in ATTENTIONS.items():
        operator = getattr(torch.ops.tamis, name).default
        for options, queries in itertools.product(all_options, (6, 4)):
            opcheck(operator, attention_inputs(queries), there(options))


def mlstm_inputs(dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    shapes = ((2, 6, 2, 4), (2, 6, 2, 4), (2, 6, 2, 3), (2, 6, 2), (2, 6, 2))
    return tuple(torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes)


def test_opcheck_mlstm():
    state = (torch.randn(2, 2, 4, 3), torch.randn(2, 2, 4), torch.randn(2, 2))
    for options in ({}, {"chunk": 2}, {"document": DOCUMENT}, {"state": list(state)}):
        opcheck(torch.ops.tamis.mlstm.default, mlstm_inputs(), there(options))


def test_gradients_of_attentions():
    for name in ATTENTIONS:
        assert gradcheck(getattr(tamis, name), attention_inputs(dtype=torch.float64)), name
    scaled = functools.partial(tamis.softmax_attention, **scalable_softmax_options(torch.float64))
    assert gradcheck(scaled, attention_inputs(dtype=torch.float64))
    assert gradcheck(lambda *x: tamis.mlstm(*x)[0], mlstm_inputs(torch.float64))


def test_gradients_of_linear_cross_entropy():
    for reduction in ["mean", "sum", "none"]:
        x, weight, target = head_inputs(2, 3, dtype=torch.float64)
        assert gradcheck(lambda x, w: tamis.linear_cross_entropy(x, w, target, reduction=reduction), (x, weight))


def test_gradients_of_screening():
    for options in SCREENING_OPTIONS:
        inputs, gate = screening_inputs(dtype=torch.float64)
        assert gradcheck(lambda *x: tamis.screening(*x[:5], gate=x[5], **there(options)), (*inputs, gate))


def test_linear_cross_entropy_equals_torch():
    x, weight, target = head_inputs(3, 50, words=1000, width=16)
    ours = tamis.linear_cross_entropy(x, weight, target)
    plain = torch.nn.functional.cross_entropy((x @ weight.t()).flatten(0, 1), target.flatten())
    torch.testing.assert_close(ours, plain)
    for found, expected in zip(torch.autograd.grad(ours, (x, weight)), torch.autograd.grad(plain, (x, weight))):
        torch.testing.assert_close(found, expected)


def test_kept_graph_gives_the_same_gradient_twice():
    x, weight, target = head_inputs(4)
    loss = tamis.linear_cross_entropy(x, weight, target) * 3
    first = torch.autograd.grad(loss, (x, weight), retain_graph=True)
    again = torch.autograd.grad(loss, (x, weight))
    assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_graph_capture_is_whole():
    for reduction in ["mean", "none"]:
        x, weight, target = head_inputs(6)

        def loss(x, weight):
            return tamis.linear_cross_entropy(x, weight, target, reduction=reduction).sum()

        captured = torch.compile(loss, backend="aot_eager", fullgraph=True)
        for form in [captured, loss]:
            form(x, weight).backward()
        eager = torch.autograd.grad(loss(x, weight), (x, weight))
        torch.testing.assert_close((x.grad, weight.grad), tuple(2 * gradient for gradient in eager))


def test_second_derivative_is_refused():
    x, weight, target = head_inputs(4)
    for reduction in ["mean", "none"]:
        loss = tamis.linear_cross_entropy(x, weight, target, reduction=reduction).sum()
        with pytest.raises(RuntimeError, match="linear_cross_entropy"):
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            gradient.sum().backward()
    q = torch.randn(1, 5, 2, 4, requires_grad=True)
    loss = tamis.screening(q, q, q, torch.ones(2), torch.zeros(2)).sum()
    with pytest.raises(RuntimeError, match="screening"):
        (gradient,) = torch.autograd.grad(loss, q, create_graph=True)
        gradient.sum().backward()


# The package.


def test_example_of_the_documentation():
    text = (PYTHON.parent / "docs" / "python.md").read_text()
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert example, "docs/python.md holds no example"
    done = run_python(example.group(1))
    assert done.returncode == 0 and re.match(r"loss \d+\.\d+, gradient", done.stdout), done.stdout + done.stderr


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess:
    variables = {**os.environ, "PYTHONPATH": str(PYTHON), **environment}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)


def import_error(library: Path) -> str:
    """The message of the ImportError that `import tamis` raises with this library file."""
    code = "try:\n import tamis\nexcept ImportError as error:\n print(error)"
    done = run_python(code, TAMIS_OPS_LIBRARY=str(library))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def advises(message: str) -> bool:
    """In one line, in the source tree and for an installed package."""
    return "\n" not in message and "make python" in message and "pip install --no-build-isolation" in message


def test_missing_library_is_one_clear_line():
    message = import_error(Path("/nowhere/libtamis_ops.so"))
    assert advises(message) and "/nowhere/libtamis_ops.so" in message, message


def test_foreign_library_is_one_clear_line():
    message = import_error(Path(__file__))
    assert advises(message) and "does not load" in message, message


def test_library_for_another_torch_is_one_clear_line(tmp_path):
    ours = torch.__version__.split("+")[0].encode()
    other = re.sub(rb"\d", b"1", ours)
    library = tmp_path / "libtamis_ops.so"
    library.write_bytes(tamis._library.find().read_bytes().replace(ours + b"\0", other + b"\0"))
    message = import_error(library)
    assert advises(message) and f"was built for torch {other.decode()}" in message, message


def test_library_is_loaded_once():
    code = (
        "import torch\n"
        "import tamis\n"
        "path = tamis._library.find()\n"
        "torch.ops.load_library(path)\n"
        "import importlib\n"
        "importlib.reload(tamis)\n"
        "print('fine')"
    )
    done = run_python(code)
    assert done.stdout.strip() == "fine", done.stderr
