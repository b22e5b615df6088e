"""Ranks on GPUs: what they need, with GPUs that are only played; and the service that joins those
that share one, played by a program that notes its calls.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from meshwright.base.errors import InputError
from meshwright.cli.verbs.run import _ranks_per_gpu
from meshwright.run.launch.gpus import MPS, MPS_FOLDER, gpus_for, mps_service
from meshwright.run.launch.ranks import Home, Meeting
from meshwright.run.launch.torchrun import joined


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the service was told."""
    note, program = tmp_path / "note", tmp_path / MPS
    program.write_text(
        f"#!/bin/sh\necho $@ ${{{MPS_FOLDER}:+x}} >> {note}\n[ $# = 0 ] && cat >> {note}\ntrue\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv(MPS_FOLDER, raising=False)
    return note


def test_the_service_runs_as_long_as_ranks_do(noted: Path) -> None:
    with mps_service():
        assert Path(os.environ[MPS_FOLDER]).is_dir()
        assert noted.read_text().split() == ["-d", "x"]
    assert MPS_FOLDER not in os.environ
    assert noted.read_text().split() == ["-d", "x", "x", "quit"]


def test_a_service_that_runs_already_is_left_alone(
    noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MPS_FOLDER, "/somewhere")
    with mps_service():
        assert os.environ[MPS_FOLDER] == "/somewhere"
    assert not noted.exists()


class Machine:
    """What PyTorch finds on a machine; four GPUs and an NCCL that is new enough."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gpus, self.nccl, self.version = 4, True, (2, 28, 9)
        self.groups: list[tuple[str, object]] = []
        """Backend and device of each process group that was made."""
        monkeypatch.setattr(torch.cuda, "is_available", lambda: self.gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: self.gpus)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        monkeypatch.setattr(torch.cuda.nccl, "version", lambda: self.version)
        monkeypatch.setattr(dist, "is_nccl_available", lambda: self.nccl)
        monkeypatch.setattr(dist, "init_process_group", self._made)
        for name in ("barrier", "destroy_process_group"):
            monkeypatch.setattr(dist, name, lambda: None)

    def _made(self, backend: str, **options: Any) -> None:
        self.groups.append((backend, options["device_id"]))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with four GPUs and four ranks, of which this is the last."""
    monkeypatch.setattr(os, "environ", os.environ | {"LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4"})
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("gpus", "given", "chosen"),
    [(4, None, "nccl"), (4, "nccl", "nccl"), (4, "gloo", "gloo"), (2, "gloo", "gloo"),
     (0, None, "gloo"), (0, "gloo", "gloo")],
)  # fmt: skip
def test_ranks_of_torchrun_use_nccl_where_each_has_a_gpu(
    machine: Machine, gpus: int, given: str | None, chosen: str
) -> None:
    machine.gpus = gpus
    on_gpu = torch.device("cuda", 3) if chosen == "nccl" else None
    with joined(given) as device:
        assert device == (on_gpu or torch.device("cpu"))
    assert machine.groups == [(chosen, on_gpu)]


@pytest.mark.parametrize("given", [None, "nccl"])
def test_fewer_gpus_than_ranks_are_a_sentence(machine: Machine, given: str | None) -> None:
    machine.gpus = 2
    said = (
        "4 ranks of this machine need a GPU each, and PyTorch sees 2 GPUs; start 2 on it (torchrun "
        "--nproc-per-node 2), or hide the GPUs to run on CPUs with gloo (CUDA_VISIBLE_DEVICES= "
        "torchrun ...)."
    )
    with pytest.raises(InputError, match=re.escape(said)), joined(given):
        pass
    assert not machine.groups


def test_an_unknown_backend_is_a_sentence(machine: Machine) -> None:
    said = "the backend of ranks is 'foo'; give gloo or nccl."
    with pytest.raises(InputError, match=said), joined("foo"):
        pass


MISSING: list[tuple[dict[str, Any], str]] = [
    (
        {"gpus": 0},
        "there is no GPU on this machine that PyTorch can use; run on CPUs with gloo: leave "
        "--backend nccl or --ranks-per-gpu out.",
    ),
    (
        {"nccl": False},
        f"PyTorch {torch.__version__} comes without NCCL; install a build with CUDA and NCCL.",
    ),
    (
        {"version": (2, 9, 9)},
        f"PyTorch {torch.__version__} runs NCCL 2.9.9, which is too old; install a build with NCCL "
        "2.10 or newer (2.28.9 was tried).",
    ),
]


@pytest.mark.parametrize(("there", "said"), MISSING)
def test_what_nccl_lacks_is_a_sentence(machine: Machine, there: dict[str, Any], said: str) -> None:
    vars(machine).update(there)
    with pytest.raises(InputError, match=re.escape(said)), joined("nccl"):
        pass
    with pytest.raises(InputError, match=re.escape(said)):
        gpus_for(4, 1)
    assert not machine.groups


def test_ranks_that_find_no_room_are_told_how_many_a_gpu_takes(machine: Machine) -> None:
    assert gpus_for(8, 2) == 4
    assert gpus_for(7, 2) == 4
    said = "9 ranks with 2 on a GPU need 5 GPUs, and this machine has 4; give --ranks-per-gpu 3."
    with pytest.raises(InputError, match=said):
        gpus_for(9, 2)


@pytest.mark.parametrize(
    ("backend", "given", "found"),
    [(None, None, None), (None, 4, 4), ("gloo", None, None), ("nccl", None, 1), ("nccl", 4, 4)],
)
def test_without_torchrun_the_backend_says_where_ranks_run(
    backend: str | None, given: int | None, found: int | None
) -> None:
    assert _ranks_per_gpu(backend, given) == found


def test_backends_that_do_not_go_together_are_a_sentence() -> None:
    with pytest.raises(InputError, match="--ranks-per-gpu 2 runs on GPUs with nccl, and --backend"):
        _ranks_per_gpu("gloo", 2)
    with pytest.raises(InputError, match="--backend is 'foo'; give gloo or nccl"):
        _ranks_per_gpu("foo", None)


@pytest.mark.parametrize(
    ("gpus", "interface", "apart"), [(8, "lo", False), (4, "lo", True), (8, "eth0", True)]
)
def test_ranks_look_like_machines_only_where_they_must(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, gpus: int, interface: str, apart: bool
) -> None:
    def store(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(torch._C._distributed_c10d, "TCPStore", store)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    Meeting(Home(interface=interface, gpus=gpus), 8, 1).join(6)
    assert machine.groups == [("nccl", torch.device("cuda", 6 * gpus // 8))]
    variables = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    pretended = {"NCCL_HOSTID": "meshwright-rank-6", "NCCL_NET": "Socket"} if apart else {}
    assert variables == {"NCCL_SOCKET_IFNAME": interface} | pretended
