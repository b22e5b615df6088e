"""The stages that `model_coverage` takes a model through, each where it cannot harm the next.

A model is captured and planned in a process of its own, which is ended if it takes too long; it is
forked from a server that has imported PyTorch and Transformers and has made a plan already, so that
neither import nor compiled code is paid for more than once.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

import msgspec

from meshwright.base.errors import InputError
from meshwright.base.quantities import Seconds
from meshwright.plan.plan import Measurement

RANKS, BATCH, STEPS, BUDGET = 4, 8, 2, "2s"
MACHINE = Path(__file__).parent / "coverage_models" / "slow_machine.toml"
LONGEST = 400
"""Letters of a reason."""

Kind = Literal["sentence", "traceback", "hang"]


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model stopped, and why."""

    stage: str
    kind: Kind
    said: str


def fork_server(*, planning: bool) -> None:
    """Have processes forked from one that has imported what they all need, and has planned."""
    # The server looks for modules where any Python does, not beside this one.
    places = (str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    context = multiprocessing.get_context("forkserver")
    last = "coverage_warm" if planning else "meshwright.capture.load"
    context.set_forkserver_preload(["meshwright.run.launch.quiet", "torch", "transformers", last])


def captured(source: str, out: Path) -> dict[str, object]:
    """Capture a model, as the first half of `plan` does."""
    from meshwright.capture.load import load_model

    graph = load_model(source, BATCH).graph
    return {"operators": len(graph.operators), "loss": graph.loss is not None}


def planned(source: str, out: Path) -> dict[str, object]:
    """Plan a model by the command line, and say how much of the plan is split."""
    from meshwright.cli.main import command
    from meshwright.plan.file import load_plan

    words = f"plan {source} --cluster {MACHINE} --batch {BATCH} --budget {BUDGET} --no-explain"
    command()(
        [*words.split(), "--cores", "1", "--save", str(out), "--json"],
        prog_name="meshwright",
        standalone_mode=False,
    )
    layouts = [text for _, text in load_plan(out).layouts]
    return {"split": sum(set(text.split()) - {"idle", "replica"} != set() for text in layouts)}


def ran(source: str, out: Path, limit: float) -> dict[str, object] | Failure:
    """Run a plan on ranks of this machine, and compare with one device."""
    from meshwright.plan.file import load_plan
    from meshwright.run.launch.ranks import RankError, run_ranks
    from meshwright.run.single_device import refuse_incomparable
    from meshwright.run.training import TrainingTask, train

    try:
        task = TrainingTask(plan=load_plan(out), model=source, steps=STEPS, one_device=True)
        try:
            refuse_incomparable(task.plan)
        except InputError:
            # It draws random numbers: others on several devices than on one.
            task = task._replace(one_device=False)
        measured = run_ranks(train, task, ranks=RANKS, timeout=Seconds(limit))[0]
    except (RankError, InputError) as error:
        text = str(error).strip()
        kind: Kind = "traceback" if "Traceback" in text else "sentence"
        said = text.splitlines()[-1] if kind == "traceback" else " ".join(text.split())
        return Failure(stage="run", kind=kind, said=said[:LONGEST])
    assert isinstance(measured, Measurement)
    one = measured.one_device
    if one is None:
        return {}
    errors = {
        "loss": one.loss_error,
        "gradient": one.gradient_error,
        "parameter": one.parameter_error,
    }
    return {"equal": one.equal, "dtype": one.dtype, "errors": errors}


STAGES: dict[str, Callable[[str, Path], dict[str, object]]] = {
    "capture": captured,
    "plan": planned,
}


def tried(stage: str, source: str, out: Path, limit: float) -> dict[str, object] | Failure:
    """A stage in a process of its own, or on ranks."""
    if stage == "run":
        return ran(source, out, limit)
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, stage, source, out))
    process.start()
    sender.close()
    try:
        answer = receiver.recv() if receiver.poll(limit) else _hang(stage, limit)
    except EOFError:
        answer = Failure(stage=stage, kind="traceback", said="the process died")
    process.kill()
    process.join()
    assert isinstance(answer, dict | Failure)
    return answer


def _hang(stage: str, limit: float) -> Failure:
    return Failure(stage=stage, kind="hang", said=f"no answer in {limit:g} s")


def _child(answer: Connection, stage: str, source: str, out: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            answer.send(STAGES[stage](source, out))
    except InputError as error:
        answer.send(_failure(stage, "sentence", str(error)))
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        answer.send(_failure(stage, "traceback", f"{type(error).__name__} at {place}: {error}"))


def _failure(stage: str, kind: Kind, said: str) -> Failure:
    return Failure(stage=stage, kind=kind, said=" ".join(said.split())[:LONGEST])
