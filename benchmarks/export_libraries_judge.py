"""Reads exports by JAX, DeepSpeed, Accelerate and Transformers; runs in an environment of theirs.

    PYTHON export_libraries_judge.py jax | deepspeed | accelerate FOLDER

Imports nothing of Meshwright. Prints a JSON line a plan.
"""

# mypy: ignore-errors
from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from pathlib import Path

MOST = 8
"""Devices."""


def jax_mesh(place: Path, said: dict) -> int:
    """Parameters of the shapes that the plan's boxes make up, put on CPU devices."""
    import jax
    import numpy as np

    spec = importlib.util.spec_from_file_location("mesh_plan", place / "mesh_plan.py")
    plan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plan)
    devices = jax.devices()[: said["devices"]]
    number = {device: n for n, device in enumerate(devices)}
    shardings = plan.shardings(plan.build_mesh(devices))
    missing = set(said["held"]) - set(shardings)
    assert not missing, f"no PartitionSpec for {sorted(missing)[:3]}"
    for name, boxes in said["held"].items():
        shape = [max(box[dim][1] for box in boxes) for dim in range(len(boxes[0]))]
        if len({tuple(b - a for a, b in box) for box in boxes}) > 1:
            # JAX cuts equal pieces only; the export says that these stay whole.
            assert name in said["lost"], f"{name} is not cut, and nothing was said of it"
            boxes = [[[0, size] for size in shape]] * len(boxes)
        array = jax.device_put(np.arange(math.prod(shape)).reshape(shape), shardings[name])
        whole = np.asarray(array)
        for shard in array.addressable_shards:
            box = boxes[number[shard.device]]
            ends = [s.indices(size)[:2] for s, size in zip(shard.index, shape, strict=True)]
            inside = all(a <= c and d <= b for (a, b), (c, d) in zip(box, ends, strict=True))
            assert inside, f"{name}: device {number[shard.device]} has {ends}, the plan {box}"
            assert (np.asarray(shard.data) == whole[shard.index]).all()
            if said["zero"] < 3:
                assert [list(span) for span in ends] == box, f"{name}: {ends}, the plan has {box}"
        if said["zero"] == 3 and said["degrees"]["data"] > 1:
            _covers(name, array, boxes, number, said["degrees"]["data"])
    return len(said["held"])


def _covers(name, array, boxes, number, data: int) -> None:
    """Shards of the devices with one box make it up, and are 1 / data of it where a dim divides."""
    together = {}
    for shard in array.addressable_shards:
        box = json.dumps(boxes[number[shard.device]])
        together.setdefault(box, set()).update(shard.data.reshape(-1).tolist())
    for text, elements in together.items():
        box = json.loads(text)
        size = math.prod(b - a for a, b in box)
        assert len(elements) == size, f"{name}: {len(elements)} of {size} elements are held"
        whole = [b - a for a, b in box]
        cut = {shard.data.size for shard in array.addressable_shards}
        spec = array.sharding.spec
        if "data" in spec:
            assert cut == {size // data}, f"{name}: shards of {cut}, {size} elements on {data}"
        else:
            axes = (*spec, *[None] * (len(whole) - len(spec)))
            free = [n for n, axis in zip(whole, axes, strict=True) if axis is None]
            assert all(n % data for n in free), f"{name}: not sharded, and {free} divides"


def deepspeed(place: Path, said: dict) -> int:
    """The library's own checks of batch sizes and of zero_optimization."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig(str(place / "ds_config.json"), mpu=_Ranks(said["devices"]))
    assert config.world_size == said["devices"]
    assert config.zero_optimization_stage == said["zero"], config.zero_optimization_stage
    assert config.train_batch_size == said["batch"]
    assert config.gradient_accumulation_steps == said["micro_batches"]
    return 0


class _Backend:
    """The first of some ranks, without any communication."""

    def is_initialized(self) -> bool:
        return True

    def get_rank(self, group=None) -> int:
        return 0

    def get_world_size(self, group=None) -> int:
        return MOST


class _Ranks:
    def __init__(self, count: int) -> None:
        self._count = count

    def get_data_parallel_world_size(self) -> int:
        return self._count


def trainer_arguments(place: Path, said: dict) -> None:
    """What Transformers' Trainer is told, by its own checks."""
    spec = importlib.util.spec_from_file_location("arguments", place / "training_arguments.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = module.training_arguments(output_dir=str(place / "out"), use_cpu=True)
    samples = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
    assert samples * said["degrees"]["data"] == said["batch"], samples
    if said["zero"]:
        parallelism = arguments.parallelism_config
        assert parallelism.total_size == said["devices"], parallelism.total_size
        assert arguments.fsdp_config["reshard_after_forward"] == (said["zero"] == 3)
        assert arguments.fsdp_config["version"] == 2


def accelerate(place: Path, said: dict) -> int:
    """What 'accelerate launch' reads, and what it tells its ranks."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env

    file = str(place / "accelerate.yaml")
    words = ["--config_file", file, "train.py"]
    args, *_ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert args.num_processes == said["devices"]
    environment = prepare_multi_gpu_env(args)
    kept = dict(os.environ)
    os.environ.update({name: str(value) for name, value in environment.items()})
    try:
        if said["zero"] == 0:
            assert args.multi_gpu, "not started as several processes"
            return 0
        from accelerate.parallelism_config import ParallelismConfig

        plugin = FullyShardedDataParallelPlugin()
        assert plugin.fsdp_version == 2
        assert bool(plugin.reshard_after_forward) == (said["zero"] == 3)
        parallelism = ParallelismConfig()
        sizes = (parallelism.dp_shard_size, parallelism.tp_size, parallelism.cp_size)
        degrees = said["degrees"]
        meant = (degrees["data"], degrees["tensor"], degrees["context"])
        assert sizes == meant, f"{sizes}, {meant} are meant"
        assert parallelism.total_size == said["devices"], parallelism.total_size
    finally:
        os.environ.clear()
        os.environ.update(kept)
        trainer_arguments(place, said)
    return 0


JUDGES = {"jax": jax_mesh, "deepspeed": deepspeed, "accelerate": accelerate}


def prepared(target: str) -> None:
    """Devices for JAX, ranks for DeepSpeed."""
    if target == "jax":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={MOST}"
        os.environ["JAX_PLATFORMS"] = "cpu"
    if target == "deepspeed":
        # Its own backend would compile a library for shared memory first.
        from deepspeed.comm import comm

        comm.cdb = _Backend()


def main() -> None:
    target, folder = sys.argv[1:]
    prepared(target)
    for place in sorted(Path(folder).glob(f"*/{target}")):
        said, parameters = json.loads((place / "said.json").read_text()), 0
        try:
            parameters = JUDGES[target](place, said)
            words = "accepted"
        except (Exception, SystemExit) as error:
            words = f"{said['model']} {said['degrees']} ZeRO {said['zero']}: "
            words += f"{type(error).__name__}: {error}"[:300]
        print(
            json.dumps({"plan": place.parent.name, "said": words, "parameters": parameters}),
            flush=True,
        )


if __name__ == "__main__":
    main()
