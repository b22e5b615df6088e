"""Parallel map of a function over tasks, in local processes or on a Ray cluster. Enters: tasks and
a function. Leaves: their results in the order of the tasks, whatever ran where.

Tasks run in processes on this machine or on a Ray cluster, as many at once as there are cores. What
goes wrong with one task is its result, as a sentence; the others go on. What a task is about is not
known here: it has a text form, and can be sent to another process, as can the function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from meshwright.base.errors import InputError, nearest
from meshwright.base.processes import spread

Task = TypeVar("Task")
Result = TypeVar("Result")

Where = Literal["local", "ray"]
WHERE: tuple[Where, ...] = get_args(Where)

Stopped = Literal["complete", "interrupted", "lost"]


class Failed(NamedTuple):
    """What went wrong with a task."""

    task: str
    sentence: str


class Swept(NamedTuple, Generic[Task, Result]):
    """Finished tasks with their results, in the order in which the tasks were given."""

    results: tuple[tuple[Task, Result | Failed], ...]
    stopped: Stopped
    """Lost: a worker has ended before its work was done, most likely for want of memory."""


def sweep(
    tasks: Sequence[Task],
    work: Callable[[Task], Result],
    *,
    where: Where = "local",
    cores: int | None = None,
    progress: Callable[[Task, Result | Failed], None] = lambda task, result: None,
) -> Swept[Task, Result]:
    """What the work makes of every task.

    `cores` are the processes at work at once; without it all cores of the machine, or of the Ray
    cluster. `progress` is told of results as they come; a KeyboardInterrupt ends the sweep with
    those there are.

    >>> sweep([4.0, -1.0], __import__("math").sqrt, cores=1).results
    ((4.0, 2.0), (-1.0, Failed(task='-1.0', sentence='ValueError: math domain error')))
    """
    results: dict[int, Result | Failed] = {}
    stopped: Stopped = "complete"
    try:
        with closing(_runner(where)(work, tasks, cores)) as finished:
            for number, result in finished:
                results[number] = result
                progress(tasks[number], result)
    except KeyboardInterrupt:
        stopped = "interrupted"
    except ChildProcessError:
        stopped = "lost"
    return Swept(tuple((tasks[n], results[n]) for n in sorted(results)), stopped)


Work = Callable[[Any], Any]
Numbered = Generator[tuple[int, Any]]
"""Numbers of tasks with their results, in no order."""


def _runner(where: str) -> Callable[[Work, Sequence[Any], int | None], Numbered]:
    match where:
        case "local":
            return _local
        case "ray":
            return _on_ray
        case _:
            raise InputError(f"the place to run is {where!r}", nearest(where, WHERE))


def _done(
    work: Callable[[Task], Result], numbered: tuple[int, Task]
) -> tuple[int, Result | Failed]:
    number, task = numbered
    try:
        return number, work(task)
    except InputError as error:
        return number, Failed(str(task), str(error))
    except Exception as error:  # One task that is our mistake must not cost the others.
        return number, Failed(str(task), f"{type(error).__name__}: {error}")


def _local(work: Work, tasks: Sequence[Any], cores: int | None) -> Numbered:
    processes = min(cores or os.cpu_count() or 1, len(tasks))
    if processes <= 1:
        yield from map(partial(_done, work), enumerate(tasks))
    else:
        yield from spread(partial(_done, work), enumerate(tasks), processes)


def _on_ray(work: Work, tasks: Sequence[Any], cores: int | None) -> Numbered:
    """On the cluster that RAY_ADDRESS names or that is joined already, else on one of this machine.

    Only so many tasks are handed over at once as may run: what waits in no queue needs no ending.
    """
    ray = _ray()
    ours = not ray.is_initialized()
    if ours:
        address = os.environ.get("RAY_ADDRESS")
        size = {} if address else {"num_cpus": cores}
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False,
            **size,
        )
    try:
        done = ray.remote(num_cpus=1, max_retries=0)(_done)
        many = cores or max(1, int(ray.cluster_resources().get("CPU", 1)))
        yield from _waited(
            ray, (done.remote(work, numbered) for numbered in enumerate(tasks)), many
        )
    finally:
        if ours:
            ray.shutdown()


def _waited(ray: Any, handed: Iterable[Any], many: int) -> Numbered:
    """Results of what is handed over one by one, so many at a time."""
    waiting = iter(handed)
    busy = [one for _, one in zip(range(many), waiting, strict=False)]
    try:
        while busy:
            (done, *_), busy = ray.wait(busy, num_returns=1)
            try:
                yield ray.get(done)
            except ray.exceptions.RayError as error:
                raise ChildProcessError(f"a Ray task has ended: {error}") from None
            busy += [one for _, one in zip(range(1), waiting, strict=False)]
    finally:
        for one in busy:
            ray.cancel(one, force=True)


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError:
        raise InputError(
            "Ray, which is to run the sweep, is not installed",
            "install it with: pip install 'meshwright[ray]', or run it locally",
        ) from None
    return ray
