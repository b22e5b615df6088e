"""Pages whose outputs take too long for the tests, recorded: every `text` block whose first line is
a command that has no output yet, and the gallery, a page for each of GALLERY.

python benchmarks/record_pages.py [-j PROCESSES] [-t SECONDS] docs/questions.md gallery

A block's commands run in one folder, in order. What was recorded says with which commit; to record
a block anew, delete its output. Nothing new is begun after so many seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "gallery"
BLOCK = re.compile(r"^```text\n(\$ meshwright .*?)^```$", re.MULTILINE | re.DOTALL)
WIDTH = "130"
LIMIT = 400

MIXED = "--dtype bf16 --mixed --budget 60s"
GALLERY = {
    "llama3-8b-8xh100": "zoo:llama3-8b --cluster dgx-h100 --nodes 1 --batch 16 --seq 4096",
    "llama3-8b-16xh100": "zoo:llama3-8b --cluster dgx-h100 --nodes 2 --batch 32 --seq 4096",
    "llama3-8b-32xa100": "zoo:llama3-8b --cluster dgx-a100 --nodes 4 --batch 64 --seq 4096",
    "llama3-8b-8xb200": "zoo:llama3-8b --cluster dgx-b200 --nodes 1 --batch 16 --seq 8192",
    "llama3-8b-long-32xh100": "zoo:llama3-8b --cluster dgx-h100 --nodes 4 --batch 4 --seq 65536",
    "llama3-8b-vela": "zoo:llama3-8b --cluster vela-h100 --nodes 4 --batch 64 --seq 4096",
    "llama3-70b-64xh100": "zoo:llama3-70b --cluster dgx-h100 --nodes 8 --batch 64 --seq 4096",
    "llama3-70b-128xh100": "zoo:llama3-70b --cluster dgx-h100 --nodes 16 --batch 128 --seq 4096",
    "llama3-70b-64xh200": "zoo:llama3-70b --cluster dgx-h200 --nodes 8 --batch 64 --seq 4096",
    "llama3-70b-nvl72": "zoo:llama3-70b --cluster gb200-nvl72 --resize rack=1 --batch 64",
    "gpt3-175b-256xa100": "zoo:gpt3-175b --cluster dgx-a100 --nodes 32 --batch 256",
    "gpt2-xl-8xa100": "zoo:gpt2-xl --cluster dgx-a100 --nodes 1 --batch 64",
    "mixtral-8x7b-32xh100": "zoo:mixtral-8x7b --cluster dgx-h100 --nodes 4 --batch 64",
    "bert-large-32xa100": "zoo:bert-large --cluster gcp-a100 --nodes 4 --gpus 8 --batch 512",
    "t5-large-16xa100": "zoo:t5-large --cluster dgx-a100 --nodes 2 --batch 64",
    "vit-large-16xa100": "zoo:vit-large --cluster dgx-a100 --nodes 2 --batch 1024",
    "resnet-50-32xv100": "zoo:resnet-50 --cluster gcp-v100 --nodes 4 --batch 2048",
    "inception-v3-16xp100": "zoo:inception-v3 --cluster flexflow-p100 --nodes 4 --batch 1024",
    "dlrm-16xa100": "zoo:dlrm --cluster dgx-a100 --nodes 2 --batch 4096",
    "nmt-16xp100": "zoo:nmt --cluster flexflow-p100 --nodes 4 --batch 256",
}
OLD = ("resnet-50-32xv100", "inception-v3-16xp100", "dlrm-16xa100", "nmt-16xp100")
"""Planned in float32, as they are trained."""

writing = Lock()

cores: SimpleQueue[int] = SimpleQueue()
"""Those that nobody uses: each command has one, as if the machine had no other."""


def printed(command: str, folder: str) -> str:
    """What a command prints."""
    environment = os.environ | {
        "COLUMNS": WIDTH,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    core = cores.get()
    line = command.replace("meshwright", f"taskset -c {core} {sys.executable} -m meshwright", 1)
    try:
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True,
            timeout=LIMIT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    finally:
        cores.put(core)
    # 1 is an answer too: that a configuration does not fit.
    if done.returncode > 1 or not done.stdout.strip():
        print(f"{command}: {done.stderr.strip()[-300:]}")
        return ""
    return "\n".join(row.rstrip() for row in done.stdout.splitlines()).strip("\n")


def record(page: Path, text: str, end: float) -> None:
    """Run the commands of a block and write what they print."""
    commands = [line for line in text.splitlines() if line.startswith("$ ")]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            if time.monotonic() > end:
                return
            shown = printed(command[2:], folder)
            if not shown:
                return
            lines.append(f"{command}\n{shown}\n")
    with writing:
        page.write_text(page.read_text().replace(text, "\n".join(lines)))
    print(f"{page.relative_to(ROOT)}: {commands[0]}")


def skeletons() -> list[Path]:
    """The pages of the gallery, those that are not there yet with a command alone."""
    FOLDER.mkdir(exist_ok=True)
    for name, words in GALLERY.items():
        page = FOLDER / f"{name}.md"
        if not page.exists():
            command = f"$ meshwright plan {words} {'--budget 60s' if name in OLD else MIXED}"
            page.write_text(f"# {name}\n\n```text\n{command}\n```\n\n[All](README.md)\n")
    return [FOLDER / f"{name}.md" for name in GALLERY]


def index(commit: str) -> None:
    """A table of all pages that were recorded."""
    rows = []
    for name in GALLERY:
        text = (FOLDER / f"{name}.md").read_text()
        matches = {
            key: re.search(rf"^{key}: (.*)$", text, re.MULTILINE)
            for key in ("plan", "throughput", "lower bound", "peak memory")
        }
        first = re.search(r"^(\S+ on .*?): (batch.*?);", text, re.MULTILINE)
        if first is None or any(match is None for match in matches.values()):
            rows.append(f"| [{name}]({name}.md) | not recorded yet | | | | |")
            continue
        figures = {key: match.group(1) for key, match in matches.items() if match is not None}
        gap = figures["lower bound"].rpartition("gap at most ")[2].rstrip(".")
        rate, _, use = figures["throughput"].partition(";")
        mfu = re.search(r"MFU ([\d.]+%)", use)
        held = figures["peak memory"].partition(" (")[0]
        plan = figures["plan"].rstrip(".")
        rows.append(
            f"| [{first.group(1)}]({name}.md), {first.group(2)} | {plan} | {rate} | "
            f"{mfu.group(1) if mfu else ''} | {held} | {gap if '%' in gap else 'none'} |"
        )
    head = (
        "# A gallery of plans\n\nWhat `meshwright plan` answers for models and machines that people"
        " have, each with its command. Every figure is predicted, with the rates of the catalogue."
        f" Recorded with commit {commit} by"
        " `benchmarks/record_pages.py`; a search of 60 s each.\n\n"
        "| model on machine | plan | throughput | MFU | peak memory | gap at most |\n"
        "|---|---|---|---|---|---|\n"
    )
    (FOLDER / "README.md").write_text(head + "\n".join(rows) + "\n")


def main() -> None:
    """Record what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pages", nargs="+")
    parser.add_argument("-j", type=int, default=1)
    parser.add_argument("-t", type=float, default=1e9)
    parser.add_argument("--commit", default="")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.t
    pages: list[Path] = []
    for name in arguments.pages:
        pages += skeletons() if name == "gallery" else [ROOT / name]
    blocks = [
        (page, text)
        for page in pages
        for text in BLOCK.findall(page.read_text())
        if all(line.startswith("$ ") or not line for line in text.splitlines())
    ]
    for core in sorted(os.sched_getaffinity(0))[: arguments.j]:
        cores.put(core)
    with ThreadPoolExecutor(arguments.j) as pool:
        list(pool.map(lambda block: record(block[0], block[1], end), blocks))
    if "gallery" in arguments.pages:
        index(arguments.commit or "unknown")


if __name__ == "__main__":
    main()
