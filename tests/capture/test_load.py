"""Sources: what each form gives, and a sentence for each mistake."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from meshwright.base.errors import InputError
from meshwright.capture.load import load_model
from meshwright.capture.translation.program import graph_of
from meshwright.graph.validation import check

FILE = Path(__file__).with_name("user_models.py")


def user(function: str) -> str:
    return f"{FILE}:{function}"


def line_of(text: str, nth: int = 0) -> int:
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line][nth]


def sentence(source: str, batch: int | None = None) -> str:
    """The sentence that a wrong source gives."""
    with pytest.raises(InputError) as caught:
        load_model(source, batch)
    return str(caught.value)


def test_zoo_with_sizes_and_batch() -> None:
    graph = load_model("zoo:resnet-50/tiny?blocks=1,1&classes=7", batch=5).graph
    assert graph.name == "resnet-50/tiny"
    assert str(graph.inputs[0]) == "image: float32[batch=5, channel=3, height=32, width=32]"
    assert graph.tensors["fc.weight"].shape == (7, 32)


def test_function_of_a_file() -> None:
    graph = load_model(user("good?width=6"), batch=3).graph
    assert [str(tensor) for tensor in graph.inputs] == [
        "input: float32[batch=3, feature=6]",
        "targets: float32[batch=3, feature=3]",
    ]
    assert (graph.name, graph.loss) == ("good", "mse_loss")


@pytest.mark.parametrize("name", ["settings_of_mine.py", "json.py"])
def test_a_file_with_a_dataclass_and_a_name_that_may_be_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(
        "from __future__ import annotations\n"
        "import json\n"
        "from dataclasses import dataclass\n"
        "import torch\n"
        "@dataclass\n"
        "class Settings:\n"
        "    width: int = 4\n"
        "def build():\n"
        "    width = json.loads(str(Settings().width))\n"
        "    return torch.nn.Linear(width, width), torch.zeros(2, width)\n"
    )
    assert load_model(f"{tmp_path / name}:build").graph.parameter_count == 20


def test_function_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FILE.parent))
    assert load_model("user_models:good").graph.parameter_count == 4 * 3 + 3
    monkeypatch.delitem(sys.modules, "user_models")


@pytest.mark.parametrize("function", ["good", "needs_numbers"])
def test_the_user_s_generator_goes_on_as_before(function: str) -> None:
    before = torch.get_rng_state()
    load_model(user(function))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_mapping_with_a_loss() -> None:
    graph = load_model(user("with_loss")).graph
    assert graph.outputs == ("mean",)
    assert graph.loss == "mean"


def test_the_only_number_in_a_tuple_is_its_loss() -> None:
    one, two = (load_model(user(f"pair_with_loss?losses={count}")) for count in (1, 2))
    assert one.graph.loss == "mean"
    assert one.warnings == (
        "output 1 of what the model returns is taken for its loss, as the only number in it with a "
        "gradient; if it is another, return a loss function too",
    )
    assert two.graph.loss is None, "either could be meant, or both"


def test_a_part_in_evaluation_mode_stays_in_it() -> None:
    loaded = load_model(user("with_teacher"))
    modes = {
        own.kind: dict(own.attributes).get("training", dict(own.attributes).get("train"))
        for own in loaded.graph.operators
    }
    assert modes["batch_norm"] is modes["dropout"] is False
    assert loaded.warnings[0].startswith("'teacher' of the model: in evaluation mode while")


@pytest.mark.parametrize("function", ["constant", "needs_numbers"])
def test_models_that_meta_tensors_do_not_suit(function: str) -> None:
    assert load_model(user(function)).graph.parameter_count == 4 * 4 + 4


class Written(nn.Module):
    """Writes through a view, batch normalisation, and a region without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.linear(x))
        turned = y.t()
        y[:, 1] = 0
        with torch.no_grad():
            scale = y.sum()
        total: torch.Tensor = (turned / scale).sum()
        return total


def test_a_saved_program_is_what_was_saved(tmp_path: Path) -> None:
    """Also where it writes into what it has views of, which the file does not tell."""
    program = torch.export.export(Written(), (torch.randn(3, 4),), strict=False)
    torch.export.save(program, tmp_path / "written.pt2")
    graph = load_model(str(tmp_path / "written.pt2")).graph
    assert "select_scatter" in [operator.kind for operator in graph.operators]
    assert graph == graph_of(program, "written")


def test_saved_program(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    program = torch.export.export(model, (torch.randn(2, 4),), strict=False)
    path = tmp_path / "saved.pt2"
    torch.export.save(program, path)
    graph = load_model(str(path)).graph
    assert [operator.name for operator in graph.operators] == ["0.linear", "1.relu"]
    assert graph.parameter_count == 20
    assert "has its batch built in, and --batch is 4" in sentence(str(path), batch=4)


def test_saved_graph(tmp_path: Path) -> None:
    graph = load_model("zoo:nmt/tiny").graph
    path = tmp_path / "graph.json"
    path.write_bytes(msgspec.json.encode(graph))
    assert load_model(str(path)).graph == graph
    path.write_text("{}", encoding="utf-8")
    assert "is not a saved graph: Object missing required field" in sentence(str(path))


def recurrent(source: str) -> list[str]:
    operators = load_model(source).graph.operators
    return [operator.name for operator in operators if operator.kind == "lstm"]


@pytest.mark.parametrize("steps", ["2", "each"])
def test_two_steps_of_a_language_model(steps: str) -> None:
    """Each layer and each step for itself, as FlexFlow searched exhaustively."""
    assert recurrent(f"zoo:rnnlm/tiny?steps=2&unroll={steps}") == [
        "recurrent.layers.0.lstm.step0",
        "recurrent.layers.0.lstm.step1",
        "recurrent.layers.1.lstm.step0",
        "recurrent.layers.1.lstm.step1",
    ]


def test_a_translator_of_forty_steps() -> None:
    """As FlexFlow unrolls it, with nothing but steps and what cuts and joins the sequences."""
    whole, unrolled = (load_model(f"zoo:nmt?run=40{more}").graph for more in ("", "&unroll=40"))
    assert check(unrolled) == ()
    assert unrolled.parameters == whole.parameters
    added = Counter(op.kind for op in unrolled.operators)
    added.subtract(op.kind for op in whole.operators)
    assert +added == {"lstm": 4 * 39, "split": 2, "cat": 2}


def test_a_saved_graph_unrolls(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_bytes(msgspec.json.encode(load_model("zoo:nmt/tiny?run=6").graph))
    assert len(recurrent(str(path))) == 4
    assert len(recurrent(f"{path}?unroll=3")) == 12


@pytest.mark.parametrize(("function", "nth"), [("branching", 0), ("selecting", 1)])
def test_control_flow_on_data_names_the_line(function: str, nth: int) -> None:
    line = line_of("# the line that the sentence names", nth)
    said = sentence(user(function))
    assert f" at {FILE}:{line}" in said
    assert "torch.where" in said


WRONG = {
    "wrong_shape": "model 'wrong_shape' fails on its example inputs (float32[2, 5]): RuntimeError: "
    "a and b must have same reduction dim",
    "wrong_dtype": "operator linear: linear gives int64[2, 4], not float32[2, 4]; correct the "
    "model's example inputs",
    "too_many": "Linear.forward(input: torch.Tensor) -> torch.Tensor does not take the example "
    "inputs (float32[2, 4], float32[2, 4]): too many positional arguments",
    "no_parameters": "model 'no_parameters' has no parameters; give a module that holds its",
    "vector_loss": "the loss has shape (2,), not one number; reduce it, as with .mean().",
    "number_loss": "the loss is of type 'float'; return one scalar tensor from it.",
    "only_model": "returns Linear; return (model, inputs), (model, inputs, loss) or",
    "failing": f"failing() fails at {FILE}:{line_of('raise KeyError')}: KeyError: 'nothing here'",
    "god": "there is no function 'god' in",
    "good?depth=3": "good(batch: 'int' = 2, width: 'int' = 4) -> 'Any' does not take depth=3: got "
    "an unexpected keyword argument 'depth'",
}


@pytest.mark.parametrize("function", WRONG)
def test_mistakes_in_functions(function: str) -> None:
    assert WRONG[function] in sentence(user(function))


MISTAKES = {
    "bert-large": "does not say where the model comes from; did you mean zoo:bert-large?",
    "qwen3-8b": "does not say where the model comes from; did you mean hf:qwen3-8b?",
    "resnet": "'resnet' does not say where the model comes from; give 'zoo:bert-large'",
    "zoo:bert": "there is no model 'bert' in the zoo; did you mean 'bert-large'?",
    "zoo:bert-large?layer=2": "model 'bert-large' has no size 'layer'; did you mean 'layers'?",
    "zoo:bert-large?layers=x": "Expected `int`, got `str` - at `$.layers`; write numbers as in "
    "'zoo:bert-large?vocabulary=30522'",
    "zoo:bert-large?layers": "option 'layers' in 'zoo:bert-large?layers'; write ?key=value",
    "zoo:mlp?width=2&width=3": "option 'width' stands twice",
    "nowhere/file.py:build": "there is no file 'nowhere/file.py'",
    "nowhere.module:build": "module 'nowhere.module' of 'nowhere.module:build' cannot be imported",
    "nowhere.pt2": "there is no file 'nowhere.pt2'; give the path of a saved model.",
    "nowhere.json?layers=2": "a saved model takes no options but unroll, as in",
    "zoo:rnnlm/tiny?unroll=0": "unroll=0 in 'zoo:rnnlm/tiny?unroll=0' is no number of operators; "
    "give 1 or more, or 'each' for one operator a step.",
    "zoo:rnnlm/tiny?unroll=all": "unroll=all in 'zoo:rnnlm/tiny?unroll=all' is no number",
    "zoo:rnnlm/tiny?unroll=4": "zoo:rnnlm/tiny?unroll=4: operator 'recurrent.layers.0.lstm' runs "
    "over 2 steps, which 4 operators do not share evenly; unroll it into one of 1, 2.",
    "zoo:mlp/tiny?unroll=4": "there is nothing to unroll in 'zoo:mlp/tiny?unroll=4'; leave unroll",
}


@pytest.mark.parametrize("source", MISTAKES)
def test_mistakes_in_sources(source: str) -> None:
    assert MISTAKES[source] in sentence(source)


def test_a_batch_of_nothing() -> None:
    assert sentence("zoo:mlp/tiny", batch=0) == "the batch is 0; give 1 sample or more."


def test_a_text_longer_than_the_positions() -> None:
    assert sentence("zoo:bert-large?sequence=1024") == (
        "zoo:bert-large?sequence=1024: a sequence of 1024 on 512 positions; "
        "give positions=1024 or more too."
    )


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    path = tmp_path / "broken.pt2"
    path.write_text("nothing", encoding="utf-8")
    assert "is not a program that this PyTorch can load" in sentence(str(path))


def test_missing_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert sentence("hf:BertForMaskedLM") == (
        "models of the form hf:ClassName need the library 'transformers', which is missing; "
        "install it with: pip install 'meshwright[hf]'."
    )
