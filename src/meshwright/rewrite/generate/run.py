"""Rule generator driver: enumerate, fingerprint, connect and prove, size by size. Enters:
operators, a size, a prover. Leaves: rules, in a fixed order.

Sizes follow each other: all graphs of a size are enumerated (in several processes, chunk by chunk),
then equal ones are connected by rules, and these rules prune the next size. A chunk is a function
of its job, so the number of processes changes nothing, and a chunk found in the folder is not
computed again.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.files import write_atomically
from meshwright.base.processes import ignore_interrupts
from meshwright.graph.notation import Definition
from meshwright.rewrite.generate.catalogue import Catalogue
from meshwright.rewrite.generate.explore import ExploredChunk, ExploreJob, explore, nothing
from meshwright.rewrite.generate.graph_terms import graph_of
from meshwright.rewrite.generate.operator_templates import Templates
from meshwright.rewrite.generate.pairs import Connector, Tally, lesser
from meshwright.rewrite.generate.values import Store
from meshwright.rewrite.generate.verdicts import Prove, Verdicts
from meshwright.rewrite.language.definitions import DEFINITIONS
from meshwright.rewrite.language.terms import Rule, variables

Progress = Callable[[str, int, int], None]
"""Told what is done, how much of it, and of how much."""

CHUNK = 64
"""Graphs that a job extends: enough that it outweighs starting it, few that progress shows."""


class GeneratedRules(msgspec.Struct, frozen=True):
    """Rules, what each size cost and gave, and the graphs they connect."""

    rules: tuple[Rule, ...]
    tallies: tuple[Tally, ...]
    catalogue: Catalogue
    stopped: Literal["complete", "interrupted"] = "complete"

    def gives(self, rule: Rule) -> bool:
        """Whether the rules found lead from one side of a rule to the other."""
        names = {
            variable.name: n for n, variable in enumerate(variables((*rule.source, *rule.target)))
        }
        ends: list[int] = []
        for terms in (rule.source, rule.target):
            graph = graph_of(terms, names, self.catalogue.templates)
            element = None if graph is None else self.catalogue.element(graph)
            if element is None:
                return False
            ends.append(self.catalogue.root(element))
        return ends[0] == ends[1]


def generate(
    templates: Templates,
    size: int,
    prove: Prove,
    *,
    known: Mapping[str, Definition] = DEFINITIONS,
    processes: int = 1,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> GeneratedRules:
    """All rules between graphs of up to `size` operators that smaller rules do not give.

    An interrupt ends it with the rules so far.

    >>> from meshwright.rewrite.generate.operator_templates import defined
    >>> generated = generate((defined("add"),), 2, lambda rule: True)
    >>> print(generated.rules[0])
    g0001: add(b, add(a, c)) => add(c, add(a, b)) if rank(a) = 2 and rank(c) = 2 and rank(b) = 2
    """
    if size < 1 or not templates:
        raise InputError(
            f"graphs of {size} of {len(templates)} operators",
            "give a size of 1 or more and at least one operator",
        )
    report = progress or _nobody
    catalogue, store = Catalogue(templates), Store(templates, known)
    verdicts = Verdicts(prove, folder)
    connector = Connector(catalogue, store, verdicts, known)
    tallies: list[Tally] = []
    chunks = [nothing()]
    catalogue.add(chunks)
    stopped: Literal["complete", "interrupted"] = "complete"
    try:
        for operators in range(1, size + 1):
            question = ExploreJob(
                templates=templates,
                parents=(),
                remaining=size - operators,
                lesser=tuple(lesser(catalogue, store)),
                definitions=_lines(templates, known),
            )
            jobs = list(_jobs(question, chunks))
            chunks = []
            with closing(_chunks(jobs, processes, folder)) as explored:
                for chunk in explored:
                    chunks.append(chunk)
                    report(f"graphs of {operators}", len(chunks), len(jobs))
            catalogue.add(chunks)
            tallies.append(connector.connect(operators, partial(report, f"rules of {operators}")))
    except KeyboardInterrupt:
        stopped = "interrupted"
    verdicts.save()
    return GeneratedRules(tuple(connector.rules), tuple(tallies), catalogue, stopped)


def _nobody(what: str, done: int, total: int) -> None:
    """Is told of progress and says nothing."""


def _lines(templates: Templates, known: Mapping[str, Definition]) -> tuple[str, ...]:
    """What defines the operators of a set, and nothing else, so that chunks outlive the rest."""
    used = {template.operator for template in templates}
    return tuple(definition.line for name, definition in sorted(known.items()) if name in used)


def _jobs(question: ExploreJob, chunks: list[ExploredChunk]) -> Iterator[ExploreJob]:
    """The question asked of all graphs that can be extended."""
    parents = tuple(parent for chunk in chunks for parent in chunk.parents)
    for at in range(0, len(parents), CHUNK):
        yield msgspec.structs.replace(question, parents=parents[at : at + CHUNK])


def _chunks(
    jobs: list[ExploreJob], processes: int, folder: Path | None
) -> Generator[ExploredChunk]:
    """What the jobs give, in their order; from the folder what is there."""
    kept = [_kept(job, folder) for job in jobs]
    missing = [job for job, chunk in zip(jobs, kept, strict=True) if chunk is None]
    with closing(_explored(missing, processes)) as explored:
        for job, chunk in zip(jobs, kept, strict=True):
            if chunk is None:
                chunk = next(explored)
                if folder is not None:
                    write_atomically(_path(job, folder), msgspec.msgpack.encode(chunk))
            yield chunk


def _explored(jobs: list[ExploreJob], processes: int) -> Generator[ExploredChunk]:
    """What the jobs give, in several processes if there are several jobs."""
    if processes == 1 or len(jobs) < 2:
        yield from map(explore, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, ignore_interrupts) as pool:
        try:
            yield from pool.map(explore, jobs)
        finally:
            pool.shutdown(cancel_futures=True)


def _path(job: ExploreJob, folder: Path) -> Path:
    return folder / f"{job.stamp}.chunk"


def _kept(job: ExploreJob, folder: Path | None) -> ExploredChunk | None:
    """What an earlier run has found for this very job."""
    if folder is None or not _path(job, folder).exists():
        return None
    path = _path(job, folder)
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=ExploredChunk)
    except (msgspec.DecodeError, msgspec.ValidationError):
        raise InputError(
            f"{str(path)!r} is not a chunk of a generator", "remove it, or name another folder"
        ) from None
