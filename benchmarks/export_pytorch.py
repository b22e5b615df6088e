"""Exported PyTorch scripts, run on gloo or NCCL ranks and compared with one device.

    python benchmarks/export_pytorch.py --run [--only WORD] [--seconds 600] [--processes 1]
                                                        measures what misses, on gloo ranks
    python benchmarks/export_pytorch.py --run --backend nccl      on NCCL ranks of one GPU
    python benchmarks/export_pytorch.py                           prints the rows kept

Each case is a plan (found by a short search, or a configuration as people write it) of a tiny
model, written by `export --to pytorch`, imported by every rank and trained for two steps of SGD in
float64. Rank 0 trains the plain model alone (`run.single_device`) from the same weights; losses and
all parameters are compared. Rows are in export_pytorch.jsonl, with the commit since there is one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

ROWS = Path(__file__).with_suffix(".jsonl")
STEPS, RATE = 2, 0.1
EQUAL = 1e-6
"""Relative; Transformers computes losses in float32 whatever the model's dtype."""

NOTHING = 1e-9
"""Of the largest parameter: smaller ones are compared with this share of it."""

TRANSFORMERS = {
    "zoo:llama3-8b/tiny": "",
    "zoo:bert-large/tiny?dropout=0": "tied",
    "zoo:gpt2-xl/tiny?dropout=0": "tied",
    "zoo:vit-large/tiny": "",
    "zoo:mixtral-8x7b/tiny": "",
    "hf:LlamaForCausalLM/tiny": "",
    "hf:MistralForCausalLM/tiny": "",
    "hf:Qwen3ForCausalLM/tiny": "",
    "hf:BertForMaskedLM/tiny": "tied",
    "hf:GPT2LMHeadModel/tiny": "tied",
}
OTHERS = ("zoo:mlp/tiny", "zoo:lenet/tiny", "zoo:candle-uno/tiny", "zoo:dlrm/tiny", "zoo:xdl/tiny")
CONFIGS: dict[int, tuple[str, ...]] = {
    2: (
        "tensor=2",
        "pipeline=2,micro_batches=2",
        "data=2,zero=3,recompute=True",
        "data=2,zero=2 compiled",
    ),
    4: (
        "data=2,tensor=2,zero=3,micro_batches=2",
        "data=2,pipeline=2,zero=2,micro_batches=2",
        "data=4,zero=0",
        "data=4,zero=3 stepped",
    ),
    8: (
        "data=4,tensor=2,zero=0",
        "data=2,tensor=2,pipeline=2,zero=2,micro_batches=2,recompute=True",
        "data=4,pipeline=2,zero=3,micro_batches=2",
    ),
}


class Case(NamedTuple):
    """A plan of a model on so many ranks."""

    model: str
    ranks: int
    plan: str
    """"found", "zero N", or a configuration."""
    backend: str = "gloo"

    @property
    def name(self) -> str:
        """Of the row."""
        more = "" if self.backend == "gloo" else f" {self.backend}"
        return f"{self.model} {self.ranks} {self.plan}{more}"


def cases(backend: str) -> Iterator[Case]:
    """Of NCCL ranks, which share a GPU, those with 2 and 4."""
    for case in every_case():
        if backend == "gloo" or case.ranks < 8:
            yield case._replace(backend=backend)


def every_case() -> Iterator[Case]:
    for model in (*TRANSFORMERS, *OTHERS):
        for ranks, configs in CONFIGS.items():
            yield Case(model, ranks, "found")
            if model in OTHERS:
                yield Case(model, ranks, "zero 3" if ranks == 4 else "data parallel")
                continue
            for config in configs:
                if "pipeline" not in config or TRANSFORMERS[model] != "tied":
                    yield Case(model, ranks, config)


def chains(over: tuple[int, ...]) -> Iterator[Any]:
    """Gradients are summed inside nodes first, parameters gathered across nodes first."""
    from meshwright.plan.plan import PlannedChain

    inside, across = over[1:], over[:1]
    for kind, steps in (("ReduceScatter", (inside, across)), ("AllGather", (across, inside))):
        yield PlannedChain(collective=kind, over=over, bytes=1e6, steps=steps)


def in_child(work: Callable[[], None]) -> int:
    """Run something in a process of its own, which begins with everything imported."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        traceback.print_exception(error)
        sys.stderr.flush()
    os._exit(code)


def ended(children: list[int], seconds: float) -> bool:
    """Whether all ended well in time; those that did not are killed."""
    deadline, left, good = time.monotonic() + seconds, set(children), True
    while left and time.monotonic() < deadline and good:
        for child in list(left):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                left.discard(child)
                good = good and status == 0
        time.sleep(0.05)
    for child in left:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return good and not left


def make(case: Case, folder: Path) -> None:
    """Write the script, and what the export says of itself."""
    from msgspec.structs import replace

    from meshwright.base.errors import InputError
    from meshwright.baselines.data import data_parallel, zero
    from meshwright.baselines.degrees.configured import configured
    from meshwright.baselines.degrees.parallel_config import ParallelConfig
    from meshwright.capture.load import load_model
    from meshwright.cluster.cluster import Cluster
    from meshwright.export.write import exported
    from meshwright.search.budget import Budget
    from meshwright.search.joint.planner import best_plan
    from meshwright.search.joint.request.question import PlanRequest

    batch = 16
    graph = load_model(case.model, batch).graph
    cluster = Cluster.named("laptop", process=case.ranks)
    said: dict[str, Any]
    try:
        match case.plan.split():
            case ["found"]:
                question = PlanRequest(graph=graph, cluster=cluster, memory=cluster.device.memory)
                plan = best_plan(question, Budget.parse("200"), cores=1).best.plan
            case ["zero", stage]:
                plan = zero(int(stage))(graph, cluster)
            case ["data", "parallel"]:
                plan = data_parallel(graph, cluster)
            case _:
                pairs = (part.split("=") for part in case.plan.split()[0].split(","))
                values = {name: json.loads(text.lower()) for name, text in pairs}
                if case.plan.endswith("stepped"):
                    cluster = Cluster.named("dgx-h100", node=2, gpu=case.ranks // 2)
                plan = configured(graph, cluster, ParallelConfig(**values))
                if case.plan.endswith("stepped"):
                    plan = replace(plan, chains=tuple(chains(tuple(range(len(plan.factors))))))
        export = exported(replace(plan, model=case.model, batch=batch), graph, "pytorch")
        for name, text in export.files:
            (folder / name).write_text(text)
            assert "meshwright." not in text, f"{name} imports Meshwright"
        said = {
            "configuration": str(export.config), "lost": list(export.lost),
            "planned_s": export.planned.step, "written_s": export.written.step,
        }  # fmt: skip
    except InputError as error:
        said = {"refused": str(error)}
    (folder / "said.json").write_text(json.dumps(said))


def train(case: Case, folder: Path, rank: int) -> None:
    """One rank: the script's training; the first rank compares."""
    torch.set_num_threads(1)
    from meshwright.capture.source.example import Example
    from meshwright.run.single_device import train_on_one_device

    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("train_plan", folder / "train_plan.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    store = dist.FileStore(  # type: ignore[attr-defined]
        str(folder / "store"), case.ranks
    )
    device = torch.device("cpu" if case.backend == "gloo" else "cuda:0")
    if case.backend == "nccl":
        # Ranks of one GPU look like nodes of their own (shared/reference/runtime_speed.md 7).
        os.environ |= {
            "NCCL_HOSTID": f"h{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        torch.cuda.set_device(device)
    dist.init_process_group(case.backend, store=store, rank=rank, world_size=case.ranks)
    with script.computing(device) if hasattr(script, "computing") else nullcontext():
        more = {"compiled": "aot_eager"} if case.plan.endswith("compiled") else {}
        training = script.Training(device, dtype=torch.float64, **more)
        parameters = [
            parameter for group in training.optimizer.param_groups for parameter in group["params"]
        ]
        training.optimizer = torch.optim.SGD(parameters, lr=RATE)
        inputs, named, targets = double(training.batch)
        losses = [training.step((inputs, named, targets)) for _ in range(STEPS)]
        parts = getattr(training, "parts", None)
        models = [training.model] if parts is None else [part.model for part in parts]
        values = {
            plain(name): whole(own)
            for model in models
            for name, own in model.named_parameters()
            if parts is None or own.grad is not None
        }
    every: list[Any] = [None] * case.ranks
    dist.all_gather_object(every, values)
    if rank == 0:
        torch.manual_seed(0)
        model, *_, loss, _targets = script.build()
        inputs, named, targets = on(device, (tuple(inputs), named, tuple(targets)))
        example = Example(
            model=model.double().to(device), inputs=inputs, named=named, loss=loss, targets=targets
        )
        leaves = torch.utils._pytree.tree_leaves((inputs, dict(named), targets))
        batch = tuple(leaf for leaf in leaves if torch.is_tensor(leaf))
        alone = train_on_one_device(
            example, [batch] * STEPS, lambda weights: torch.optim.SGD(weights, lr=RATE), device
        )
        (folder / "row.json").write_text(json.dumps(compared(every, losses, alone)))
    dist.barrier()
    dist.destroy_process_group()


def compared(every: list[dict[str, Any]], losses: list[float], alone: Any) -> dict[str, Any]:
    """How far the ranks' losses and parameters are from one device's."""
    known = {name: parameter.cpu() for name, parameter in alone.parameters.items()}
    missing = set(known) - {name for values in every for name in values}
    still = {name for name in missing if not alone.gradients[name].abs().max()}
    # Biases of keys have no gradient but rounding: what is nothing beside the model is no error.
    floor = NOTHING * max(parameter.abs().max().item() for parameter in known.values())
    errors = [
        ((tensor - known[name]).abs().max() / known[name].abs().max().clamp_min(floor)).item()
        for values in every
        for name, tensor in values.items()
    ]
    loss = max(abs(a - b) / abs(b) for a, b in zip(losses, alone.losses, strict=True))
    worst = max(errors)
    equal = loss <= EQUAL and worst <= EQUAL and missing == still
    return {
        "loss": losses,
        "loss_error": loss,
        "parameter_error": worst,
        "compared": len(known) - len(missing),
        "missing": sorted(missing),
        "equal": equal,
    }


def plain(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "")


def whole(tensor: Any) -> torch.Tensor:
    held: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return held.detach().cpu().clone()


def on(device: torch.device, batch: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.to(device) if torch.is_tensor(t) else t, batch)


def double(batch: Any) -> Any:
    move = torch.utils._pytree.tree_map
    return move(lambda t: t.double() if torch.is_tensor(t) and t.is_floating_point() else t, batch)


def run(case: Case, seconds: float) -> dict[str, Any]:
    """The row of a case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not ended([in_child(lambda: make(case, folder))], seconds):
            return {"case": case._asdict(), "commit": commit(), "failed": "export"}
        said = json.loads((folder / "said.json").read_text())
        if "refused" not in said:
            ranks = [in_child(lambda n=n: train(case, folder, n)) for n in range(case.ranks)]  # type: ignore[misc]
            good = ended(ranks, seconds)
            said |= (
                json.loads((folder / "row.json").read_text()) if good else {"failed": "training"}
            )
    return {"case": case._asdict(), "commit": commit(), **said}


def commit() -> str:
    """Of the tree that wrote the script."""
    asked = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, cwd=ROWS.parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def kept() -> dict[str, dict[str, Any]]:
    if not ROWS.exists():
        return {}
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    return {Case(**row["case"]).name: row for row in rows}


def show() -> None:
    rows = kept()
    for name, row in rows.items():
        if "equal" in row:
            words = f"{'equal' if row['equal'] else 'NOT EQUAL'}: loss {row['loss_error']:.1e}, "
            words += f"parameters {row['parameter_error']:.1e} ({row['configuration']})"
        else:
            words = row.get("refused") or f"FAILED: {row['failed']}"
        print(f"{name}: {words}")
    ran = [row for row in rows.values() if "equal" in row]
    models = {row["case"]["model"] for row in ran if row["equal"]}
    zoo = sum(name.startswith("zoo:") for name in models)
    print(
        f"{len(ran)} run, {sum(row['equal'] for row in ran)} equal to one device: {zoo} models of "
        f"the zoo, {len(models) - zoo} of Transformers; refused "
        f"{sum('refused' in row for row in rows.values())}, failed "
        f"{sum('failed' in row for row in rows.values())}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--case", help="measures a case of that name alone")
    asked = parser.parse_args()
    # Whoever asks whether there is a GPU must not start CUDA before ranks are forked.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if asked.run and asked.processes > 1:
        in_processes(asked)
    elif asked.run:
        import meshwright.capture.load
        import meshwright.export.write
        import meshwright.search.joint.planner  # noqa: F401 loaded before ranks are forked

        begun = time.monotonic()
        for case in cases(asked.backend):
            wanted = case.name == asked.case if asked.case else asked.only in case.name
            if not wanted or case.name in kept():
                continue
            if time.monotonic() - begun > asked.seconds:
                break
            row = run(case, 180.0)
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(case.name, row.get("equal", row.get("refused", row.get("failed"))), flush=True)
        if asked.case:
            return
    show()


def in_processes(asked: argparse.Namespace) -> None:
    """Several cases at a time, each in a process of its own."""
    begun, names = time.monotonic(), [case.name for case in cases(asked.backend)]
    have = kept()

    def one(name: str) -> None:
        if time.monotonic() - begun < asked.seconds:
            words = [sys.executable, __file__, "--run", "--case", name, "--backend", asked.backend]
            subprocess.run(words, check=False, timeout=400)

    with ThreadPoolExecutor(asked.processes) as pool:
        list(pool.map(one, (name for name in names if asked.only in name and name not in have)))


if __name__ == "__main__":
    main()
