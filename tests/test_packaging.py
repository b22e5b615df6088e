"""The package as it is installed: a wheel with all that is needed, which works without PyTorch.

The wheel is unpacked by pip without its dependencies, and runs with those of this environment, of
which PyTorch and what belongs to it are hidden: nothing is fetched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HIDDEN = ("torch", "transformers", "functorch", "meshwright", "__editable__", "_virtualenv")

GRAPH = """graph tiny
input x: float32[n=8, k=8]
parameter w: float32[o=8, k=8]
operator y: y: float32[n=8, o=8] = linear(x, w)
output y"""

SAVE = f"""
from meshwright import Cluster, save_plan
from meshwright.graph.text import parse_graph
from meshwright.baselines.data import data_parallel
save_plan(data_parallel(parse_graph('''{GRAPH}'''), Cluster.named("laptop")), "plan.json")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def path(built: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where Python finds the installed package and what it depends on, but no PyTorch."""
    target, rest = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("rest")
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    done = subprocess.run(
        [*pip, "--target", str(target), str(wheel)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(HIDDEN):
            (rest / entry.name).symlink_to(entry)
    return os.pathsep.join((str(target), str(rest)))


def python(path: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without -S the packages of the environment would be found beside those of the path. Compiling
    # for a package that is thrown away would take longer than running it as it is.
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "110", "NUMBA_DISABLE_JIT": "1"}
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_wheel_holds_all_data_and_no_tests(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    package = ROOT / "src" / "meshwright"
    wanted = {
        f"meshwright/{file.relative_to(package).as_posix()}"
        for file in package.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert wanted <= held
    assert {"meshwright/py.typed", "meshwright/cluster/catalogue/laptop.toml"} <= held
    assert all(name.startswith(("meshwright/", "meshwright-")) for name in held)


def test_source_distribution_holds_what_builds_it(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/meshwright/__init__.py"} <= held


def test_there_is_no_torch(path: str, tmp_path: Path) -> None:
    code = (
        "import meshwright, importlib.util as u; print(meshwright.__file__, u.find_spec('torch'))"
    )
    file, spec = python(path, tmp_path, "-c", code).stdout.split()
    assert file.startswith(path.partition(os.pathsep)[0])
    assert spec == "None"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["--help"], "Usage: meshwright"),
        (["clusters"], "gcp-a100"),
        (["models"], "llama3-8b"),
        (["place", "--nodes", "2", "--axes", "data=32", "--reduce", "data"], "[[2 16]]"),
        (["reduce", "--nodes", "2", "--axes", "data=32", "--reduce", "data"], "AllReduce"),
        (["rules", "list", "linear-cut-*"], "linear-cut-k"),
    ],
)
def test_verbs_that_need_no_torch(
    words: list[str], printed: str, path: str, tmp_path: Path
) -> None:
    done = python(path, tmp_path, "-m", "meshwright", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert printed in done.stdout


def test_a_saved_plan_is_simulated_without_torch(path: str, tmp_path: Path) -> None:
    saved = python(path, tmp_path, "-c", SAVE)
    assert saved.returncode == 0, saved.stderr
    done = python(path, tmp_path, "-m", "meshwright", "simulate", "plan.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tiny on laptop (4 process): data parallel;")


@pytest.mark.parametrize(
    "words",
    [
        ["capture", "zoo:lenet"],
        ["plan", "zoo:lenet", "--cluster", "laptop"],
        ["calibrate", "zoo:lenet", "--out", "prices.jsonl"],
    ],
)
def test_verbs_that_need_torch_say_how_to_get_it(
    words: list[str], path: str, tmp_path: Path
) -> None:
    done = python(path, tmp_path, "-m", "meshwright", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "meshwright: this verb needs PyTorch, which is not installed; "
        'install it with: pip install "meshwright[torch]".\n'
    )


def test_names_that_need_torch_say_how_to_get_it(path: str, tmp_path: Path) -> None:
    done = python(path, tmp_path, "-c", "from meshwright import parallelize")
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: meshwright.parallelize needs PyTorch, which is not installed; "
        'install it with: pip install "meshwright[torch]".'
    )
