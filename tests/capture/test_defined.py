"""Operators of a user's own in a captured model, and what is refused."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from meshwright.base.errors import InputError
from meshwright.capture.capture_model import capture_model
from meshwright.capture.load import load_model
from meshwright.capture.operators.aten import overloads
from meshwright.capture.recognised.user_operators import definitions_in
from meshwright.capture.source.function import loaded_function
from meshwright.capture.source.model_source import parse_source
from meshwright.graph.pieces import splits_of
from meshwright.graph.validation import unknown_kinds
from meshwright.rewrite.library.rule_files import read_operators

MODELS = "support.user_kernels"

SWIGLU = "swiglu(x, y)[i..] = silu(x[i..]) * y[i..]"
SCALED = "scaled[s](x, w)[i.., o] = sum(k) s * x[i.., k] * w[o, k]"


@pytest.fixture
def operators(tmp_path: Path) -> Path:
    path = tmp_path / "operators.txt"
    path.write_text(f"# mine\n{SWIGLU}\n{SCALED}\n    kernel = meshwright_tests::scaled\n")
    return path


def test_operators_are_met_by_name_or_by_kernel(operators: Path) -> None:
    graph = capture_model(f"{MODELS}:gated", operators=operators)
    assert unknown_kinds(graph) == ()
    swiglu, scaled = (
        operator for operator in graph.operators if operator.kind.startswith("meshwright_tests")
    )
    assert swiglu.attributes == (("definition", SWIGLU),)
    # The default of the operator's own schema.
    assert scaled.attributes == (("definition", SCALED), ("s", 2.0))
    roles = [f"{split.name} {split.role} {split.extent}" for split in splits_of(graph.call(scaled))]
    assert roles == ["sample sample 8", "dim1 parameter 32", "sum-k reduction 64"]


def test_without_a_definition_only_samples_are_cut() -> None:
    with pytest.warns(UserWarning, match="no family tells about"):
        graph = capture_model(f"{MODELS}:gated")
    scaled = next(operator for operator in graph.operators if operator.kind.endswith("scaled"))
    assert [split.name for split in splits_of(graph.call(scaled))] == ["sample"]


def test_a_graph_tells_its_definitions(operators: Path) -> None:
    graph = capture_model(f"{MODELS}:gated", operators=operators)
    definitions = definitions_in(graph)
    assert {
        name: (definition.line, definition.kernel) for name, definition in definitions.items()
    } == {
        "swiglu": (SWIGLU, "meshwright_tests::swiglu"),
        "scaled": (SCALED, "meshwright_tests::scaled"),
    }
    assert load_model(f"{MODELS}:gated", None, definitions).graph == graph


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "swiglu(x, y)[i..] = x[i..] * silu(y[i..])",
            "the kernel of meshwright_tests.swiglu does not compute "
            "'swiglu(x, y)[i..] = x[i..] * silu(y[i..])': element [",
        ),
        (
            "swiglu(x, y)[i.., j] = sum(k) x[i.., k] * y[i.., j]",
            "the kernel of meshwright_tests.swiglu does not compute",
        ),
        (
            "swiglu(x)[i..] = silu(x[i..])",
            "operator 'meshwright_tests.swiglu' (meshwright_tests.swiglu) does not fit its "
            "definition: swiglu reads 1 tensors, not 2",
        ),
        (
            "swiglu(x, y)[i..] = sum(k) x[i.., k] * y[i.., k]",
            "operator 'meshwright_tests.swiglu' (meshwright_tests.swiglu) gives [8, 64], and by "
            "its definition [8]; correct the line.",
        ),
        (
            "swiglu[z](x, y)[i..] = silu(x[i..]) * y[i..]",
            "the definition of 'swiglu' has an attribute 'z', which operator",
        ),
        (
            "scaled(x, w)[i.., o] = sum(k) x[i.., k] * w[o, k]\n kernel = meshwright_tests::scaled",
            "the kernel of meshwright_tests.scaled does not compute",
        ),
    ],
)  # fmt: skip
def test_what_the_model_refutes(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "operators.txt"
    path.write_text(line)
    with pytest.raises(InputError) as error:
        capture_model(f"{MODELS}:gated", operators=path)
    assert str(error.value).startswith(sentence)


def test_an_attribute_that_the_line_forgets(tmp_path: Path) -> None:
    path = tmp_path / "operators.txt"
    path.write_text("scaled(x, w)[i.., o] = sum(k) x[i.., k] * w[o, k]")
    with pytest.raises(InputError, match="has the attribute 's', of which the definition"):
        capture_model(f"{MODELS}:tripled", operators=path)


def test_training_needs_a_gradient(tmp_path: Path) -> None:
    path = tmp_path / "operators.txt"
    path.write_text("bare(x)[i..] = tanh(x[i..])")
    with pytest.raises(InputError, match=r"gradients have to flow through meshwright_tests\.bare"):
        capture_model(f"{MODELS}:bare", operators=path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\nf(x)[i] = x[i", "line 2: 'f(x)[i] = x[i' has the end of the line at column 14;"),
        ("kernel = a::b", "line 1: kernel 'a::b' stands below no operator; put it below its line."),
        (f"{SWIGLU}\nkernel = a::b\nkernel = c::d", "line 3: 'swiglu' has two kernels;"),
        (f"{SWIGLU}\nkernel = nowhere", "line 2: the kernel of 'swiglu' is 'nowhere'; write"),
        ("f(x)[i.., j < n] = x[i..]", "line 1: operator 'f': 'n' is not known there;"),
        ("f[n](x)[i, j < n] = x[i] * x[j]", "line 1: operator 'f': j < n is told twice:"),
        ("f[definition](x)[i] = x[i]", "line 1: operator 'f': no attribute can be called"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "operators.txt"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_operators(path)
    assert str(error.value).startswith(f"{path}: {sentence}")


def test_a_kernel_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "operators.txt"
    path.write_text(f"{SWIGLU}\nkernel = {MODELS}:nothing")
    with pytest.raises(InputError, match=f"kernel '{MODELS}:nothing': there is no function"):
        capture_model(f"{MODELS}:gated", operators=path)


REGISTERS = """import torch

@torch.library.custom_op("meshwright_tests::registered", mutates_args=())
def registered(x: torch.Tensor) -> torch.Tensor:
    return x.tanh()
"""


def test_operators_that_are_registered_again_are_looked_up_again(tmp_path: Path) -> None:
    """PyTorch frees what was registered before under that name."""
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(REGISTERS)
        loaded_function(parse_source(f"{tmp_path / name}:registered"))
        packet = torch.ops.meshwright_tests.registered
        assert overloads("meshwright_tests.registered") == (packet.default,)


def test_a_file_that_is_imported_is_not_run_again() -> None:
    module = importlib.import_module(MODELS)
    assert loaded_function(parse_source(f"{module.__file__}:gated")) is module.gated
