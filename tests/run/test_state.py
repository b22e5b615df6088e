"""State in and out, to the bit: of plain modules, of checkpoints, of weights that are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from meshwright.base.quantities import Bytes
from meshwright.plan.options import Options
from meshwright.plan.plan import Plan
from meshwright.run.launch.ranks import run_ranks
from meshwright.run.state.initial_weights import drawn
from support.executed import Arrays, tensors
from support.state_bodies import (
    Saved,
    Subject,
    alone,
    fails_to_save,
    goes_on,
    initial,
    initial_refused,
    loads_a_file,
    plain_reads,
    plain_writes,
    random_plan,
    refused,
    round_trips,
    subject,
    trains_and_saves,
)

pytestmark = pytest.mark.ranks


def same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[k], other[k]) for k in one)


def error(one: Arrays, other: Arrays) -> float:
    """The largest error of a tensor, relative to its largest number, as of gradients elsewhere.

    What is small beside all others is rounding: the gradient of a bias of keys is zero.
    """
    assert one.keys() == other.keys()
    largest = {key: float(np.abs(array).max(initial=0.0)) for key, array in other.items()}
    least = 1e-6 * max(largest.values())
    return max(
        float(np.abs(one[key] - other[key]).max(initial=0.0)) / max(largest[key], least)
        for key in one
    )


def plan_of(model: Subject, ranks: int, seed: int) -> Plan:
    return random_plan(
        model, ranks, seed, Options(zero=seed % 4, bucket=Bytes((0, 10**6)[seed % 2]))
    )


@pytest.mark.parametrize(
    ("name", "ranks", "seeds"),
    [
        ("bert-large", 4, range(8)),
        ("resnext-50", 4, range(1, 5)),
        ("llama3-8b", 4, range(4)),
        ("dlrm", 3, range(4)),
        ("rnnlm", 2, range(4)),
    ],
)
def test_a_state_comes_back_as_it_went_in(name: str, ranks: int, seeds: range) -> None:
    model = subject(name)
    plans = [plan_of(model, ranks, seed) for seed in seeds]
    assert run_ranks(round_trips, plans, model, ranks=ranks) == [[[]] * len(plans)] * ranks


def test_a_state_is_taken_from_a_file_that_is_not_read_as_a_whole(tmp_path: Path) -> None:
    model = subject("mlp")
    torch.save(tensors(model.state), tmp_path / "state.pt")
    plan = plan_of(model, 4, 6)
    assert run_ranks(loads_a_file, plan, model, str(tmp_path / "state.pt"), ranks=4) == [[]] * 4


@pytest.mark.parametrize(
    ("name", "kind", "seeds"), [("bert-large", "adam", (2, 3)), ("resnext-50", "sgd", (1, 5))]
)
def test_training_goes_on_under_any_plan(
    name: str, kind: str, seeds: tuple[int, int], tmp_path: Path
) -> None:
    model = subject(name)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    four, two = plan_of(model, 4, seeds[0]), plan_of(model, 2, seeds[1])
    results = run_ranks(trains_and_saves, four, model, first, kind, ranks=4)
    before, after = cast(tuple[Saved, Saved], results[0])
    assert before.steps == 2
    for loaded, later in (
        run_on(four, model, first, kind, 4),
        run_on(two, model, first, kind, 2, second),
        run_on(four, model, second, kind, 4),
    ):
        assert same(loaded.state, before.state)
        assert same(loaded.optimizer, before.optimizer)
        assert (loaded.steps, later.steps) == (2, 3)
    assert same(later.state, after.state), "as if it had never been interrupted"
    assert same(later.optimizer, after.optimizer)
    plain = cast(Saved, run_ranks(plain_reads, name, second, kind, ranks=1)[0])
    assert same(plain.state, before.state)
    assert same(plain.optimizer, before.optimizer)


@pytest.mark.parametrize(("name", "seeds"), [("bert-large", (2, 3)), ("resnext-50", (1, 5))])
def test_training_under_two_plans_in_turn_is_that_of_one_device(
    name: str, seeds: tuple[int, int], tmp_path: Path
) -> None:
    model, path = subject(name), str(tmp_path / "last")
    run_ranks(trains_and_saves, plan_of(model, 4, seeds[0]), model, path, "sgd", ranks=4)
    saves = run_on(plan_of(model, 2, seeds[1]), model, path, "sgd", 2)
    (single,) = run_ranks(
        trains_and_saves, alone(model), model, str(tmp_path / "one"), "sgd", ranks=1
    )
    for mine, expected in zip(saves, cast(tuple[Saved, Saved], single), strict=True):
        assert error(mine.state, expected.state) < 1e-9
        assert error(mine.optimizer, expected.optimizer) < 1e-9


def run_on(
    plan: Plan, model: Subject, path: str, kind: str, ranks: int, again: str = ""
) -> tuple[Saved, Saved]:
    results = run_ranks(goes_on, plan, model, path, kind, again, ranks=ranks)
    return cast(tuple[Saved, Saved], results[0])


def test_a_checkpoint_of_a_plain_script_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "plain")
    written = cast(Saved, run_ranks(plain_writes, "bert-large", path, "adam", ranks=1)[0])
    model = subject("bert-large")
    loaded, _ = run_on(plan_of(model, 4, 3), model, path, "adam", 4)
    assert same(loaded.state, written.state)
    assert same(loaded.optimizer, written.optimizer)


def test_a_checkpoint_takes_the_place_of_an_older_one_or_leaves_it(tmp_path: Path) -> None:
    model, path = subject("mlp"), tmp_path / "last"
    plan = plan_of(model, 2, 2)
    (tmp_path / ".last.part").mkdir()
    (tmp_path / ".last.part" / "rubbish").write_text("of a run that was killed")
    for _ in range(2):
        run_ranks(trains_and_saves, plan, model, str(path), ranks=2)
        assert [entry.name for entry in tmp_path.iterdir()] == ["last"]
    contents = {entry.name: entry.read_bytes() for entry in path.iterdir()}
    said = run_ranks(fails_to_save, plan, model, str(path), ranks=2)
    assert said[0] == said[1]
    assert str(said[0]).startswith(f"cannot write {str(path)!r}: rank 1 failed with")
    assert {entry.name: entry.read_bytes() for entry in path.iterdir()} == contents


def test_a_state_of_another_module_is_a_sentence() -> None:
    model = subject("bert-large")
    plan, state = plan_of(model, 2, 0), model.state
    keys = list(state)
    cases = [
        {key: state[key] for key in keys[2:]},
        {**state, "more.weight": state[keys[0]]},
        {**state, keys[1]: state[keys[1]][1:]},
        {**state, keys[1]: state[keys[1]].astype(np.float32)},
    ]
    said = [run_ranks(refused, plan, model, "state", case, ranks=2) for case in cases]
    assert all(one == other for one, other in said)
    name, shape = keys[1], list(state[keys[1]].shape)
    remedy = "give the state_dict of the module that was captured"
    assert [one for one, _ in said] == [
        f"the state has no {keys[0]!r} (and 1 other), which graph 'bert-large' needs; {remedy}, "
        "and a tensor that its forward makes by itself as one of 'constants'.",
        f"the state has 'more.weight', which graph 'bert-large' does not know; {remedy}.",
        f"{name!r} in the state is float64{[shape[0] - 1, *shape[1:]]}, in graph 'bert-large' "
        f"float64{shape}; {remedy}.",
        f"{name!r} in the state is float32{shape}, in graph 'bert-large' float64{shape}; "
        "convert it to float64.",
    ]


def test_a_folder_that_is_no_checkpoint_is_a_sentence(tmp_path: Path) -> None:
    model = subject("mlp")
    plan, folder = plan_of(model, 2, 0), str(tmp_path)
    for action, sentence in (
        ("load", f"there is no checkpoint in {folder!r}; name a folder that "
         "torch.distributed.checkpoint has written."),
        ("save", f"{folder!r} is there and is no checkpoint; name another folder."),
        ("compute", "aten.add.Tensor was called on a tensor that is in pieces on several ranks; "
         "gather the state with full_state, or hand it to torch.distributed.checkpoint."),
    ):  # fmt: skip
        assert run_ranks(refused, plan, model, action, folder, ranks=2) == [sentence] * 2


def test_another_kind_of_optimizer_is_a_sentence(tmp_path: Path) -> None:
    model, path = subject("mlp"), str(tmp_path / "of adam")
    plan = plan_of(model, 2, 1)
    run_ranks(trains_and_saves, plan, model, path, "adam", ranks=2)
    said = run_ranks(refused, plan, model, "load optimizer", path, "sgd", ranks=2)
    sentence = (
        f"checkpoint {path!r} has no 'momentum' of parameter group 0 of a SGD; "
        "give an optimizer of the kind that was saved, with the same groups."
    )
    assert said == [sentence] * 2


@pytest.mark.parametrize("name", ["bert-large", "inception-v3", "dlrm", "nmt"])
def test_weights_drawn_in_pieces_are_those_of_construction(name: str) -> None:
    model = subject(name, 2, "float32")
    plans = [plan_of(model, 2, seed) for seed in range(1, 4)]
    assert run_ranks(initial, plans, model, name, 11, ranks=2) == [[[]] * 3] * 2


def test_weights_that_are_drawn_otherwise_are_a_sentence() -> None:
    model = subject("vit-large", 2, "float32")
    (said,) = run_ranks(initial_refused, alone(model), model, "vit-large", ranks=1)
    assert said == (
        "module '' of type Vit has parameters and no reset_parameters; load a checkpoint, or "
        "build the module on a real device and load its state_dict."
    )


def test_a_module_that_leaves_something_out_is_a_sentence() -> None:
    class Half(torch.nn.Linear):
        def reset_parameters(self) -> None:
            torch.nn.init.zeros_(self.weight)

    with pytest.raises(ValueError, match="reset_parameters leaves 'bias' without a value"):
        list(drawn(Half(2, 2, device="meta"), 1))
