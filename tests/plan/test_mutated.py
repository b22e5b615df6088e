"""Plans whose graph has one mistake in it: a sentence, or a plan that can be carried out."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meshwright.base.errors import InputError
from meshwright.graph.text import parse_graph
from meshwright.graph.validation import check
from meshwright.lower.script import Script
from meshwright.plan.file import parse_plan
from replay.golden import FOLDER

FILES = sorted((FOLDER / "plans").glob("*.json"))
EACH = 60
"""Mutations of each plan."""

NUMBERS = (0, -1, 1, 2, 3, 7, 10**6, None)

Content = dict[str, Any]
Mutation = Callable[[Content, Content, random.Random], None]


def extra_input(graph: Content, operator: Content, rng: random.Random) -> None:
    operator["inputs"].append(rng.choice([name for name in operator["inputs"] if name] or ["x"]))


def missing_input(graph: Content, operator: Content, rng: random.Random) -> None:
    place = rng.randrange(len(operator["inputs"]))
    operator["inputs"][place : place + 1] = rng.choice(([], [None]))


def other_number(graph: Content, operator: Content, rng: random.Random) -> None:
    attribute = rng.choice(operator["attributes"])
    if isinstance(attribute[1], list) and attribute[1]:
        attribute[1][rng.randrange(len(attribute[1]))] = rng.choice(NUMBERS)
    else:
        attribute[1] = rng.choice(NUMBERS)


def missing_attribute(graph: Content, operator: Content, rng: random.Random) -> None:
    operator["attributes"].pop(rng.randrange(len(operator["attributes"])))


def missing_dim(graph: Content, operator: Content, rng: random.Random) -> None:
    every = [*operator["outputs"], *graph["inputs"]]
    every += [parameter["tensor"] for parameter in graph["parameters"]]
    dims = rng.choice([spec for spec in every if spec["dims"]])["dims"]
    dims.pop(rng.randrange(len(dims)))


MUTATIONS: tuple[Mutation, ...] = (
    extra_input,
    missing_input,
    other_number,
    missing_attribute,
    missing_dim,
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutator: mutator.__name__)
def test_what_is_loaded_can_be_carried_out(path: Path, mutation: Mutation) -> None:
    whole, rng = json.loads(path.read_bytes()), random.Random(0)
    refused = 0
    for _ in range(EACH):
        content = copy.deepcopy(whole)
        graph = content["graph"]
        operators = [
            candidate
            for candidate in graph["operators"]
            if candidate["inputs"] and candidate["attributes"]
        ]
        mutation(graph, rng.choice(operators), rng)
        try:
            Script(parse_plan(json.dumps(content).encode()))
        except InputError:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("operator", "problem"),
    [
        ("y: float32[n=2, c=1, h=4, w=4] = max_pool2d(x) {kernel_size=2, stride=0}", "max_pool2d"),
        ("y: float32[n=2, c=1, h=4, w=4] = chunk(x) {chunks=0, dim=1}", "chunk"),
        ("y: float32[n=2, c=1, h=4, w=4] = linear(x, w, v, v)", "of which it takes 3"),
    ],
)
def test_what_a_family_cannot_take_is_said(operator: str, problem: str) -> None:
    inputs = (
        "input x: float32[n=2, c=1, h=4, w=4]\ninput w: float32[o=4, w=4]\ninput v: float32[o=4]"
    )
    (message,) = check(parse_graph(f"graph one\n{inputs}\noperator own: {operator}\noutput y"))
    assert problem in message
