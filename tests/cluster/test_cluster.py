"""Cluster files: the catalogue, round trips, and a sentence for every mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.base.errors import InputError
from meshwright.base.integers import divisors
from meshwright.base.quantities import Bytes, BytesPerSecond
from meshwright.cluster.catalogue import catalogue_names, catalogued
from meshwright.cluster.cluster import Cluster, Level, Link
from meshwright.cluster.overhead import Overhead
from meshwright.cluster.toml import dump_cluster, load_cluster, parse_cluster
from support.strategies import DEVICE, clusters


@pytest.mark.parametrize("name", catalogue_names())
def test_every_catalogued_cluster_has_its_source(name: str) -> None:
    cluster = catalogued(name)
    assert cluster.name == name
    assert cluster.description
    assert cluster.source
    assert parse_cluster(dump_cluster(cluster)) == cluster


def test_the_catalogue_holds_the_machines_of_the_papers() -> None:
    assert {name: catalogued(name).hierarchy for name in catalogue_names()} == {
        "alps-gh200": (16, 4),
        "aws-p4d": (4, 8),
        "aws-p4de": (4, 8),
        "aws-p5": (4, 8),
        "aws-p5e": (4, 8),
        "azure-nd-a100": (4, 8),
        "azure-nd-h100": (4, 8),
        "azure-nd-h200": (4, 8),
        "azure-ndm-a100": (4, 8),
        "dgx-a100": (4, 8),
        "dgx-b200": (4, 8),
        "dgx-b300": (4, 8),
        "dgx-h100": (4, 8),
        "dgx-h200": (4, 8),
        "epyc": (4,),
        "flexflow-k80": (16, 2, 2),
        "flexflow-p100": (4, 4),
        "gb200-nvl72": (4, 64),
        "gb300-nvl72": (4, 64),
        "gcp-a100": (4, 16),
        "gcp-a2-high": (4, 8),
        "gcp-a2-ultra": (4, 8),
        "gcp-a3-mega": (4, 8),
        "gcp-a3-ultra": (4, 8),
        "gcp-v100": (4, 8),
        "grand-teton-h100": (4, 8),
        "h200": (8,),
        "hgx-a100": (4, 8),
        "hgx-h100": (4, 8),
        "jean-zay-a100": (48, 8),
        "jean-zay-v100": (16, 4),
        "laptop": (4,),
        "machine": (8,),
        "mi300x": (4, 8),
        "pods-h100": (2, 8, 8),
        "rtx4090": (8,),
        "summit": (4, 2, 3),
        "tpu-v5p": (2, 256),
        "tpu-v6e": (2, 256),
        "tpu7x": (2, 256),
        "vela-a100": (16, 8),
        "vela-h100": (12, 8),
        "vtrain-a100": (64, 8),
    }


@given(clusters())
def test_toml_and_json_read_back(cluster: Cluster) -> None:
    assert parse_cluster(dump_cluster(cluster)) == cluster
    assert msgspec.json.decode(msgspec.json.encode(cluster), type=Cluster) == cluster


GOOD = """
name = "mine"
machine = "node"

[device]
name = "GPU"
memory = "80 GiB"
memory_bandwidth = "2 TB/s"
[device.peak]
bf16 = "312 TFLOP/s"

[[levels]]
name = "node"
cardinality = 2
[[levels.links]]
name = "nic"
per = "node"
bandwidth = "12.5 GB/s"
latency = "5 us"

[[levels]]
name = "gpu"
cardinality = 8
[[levels.links]]
name = "nvlink"
per = "gpu"
bandwidth_out = "300 GB/s"
bandwidth_in = "300 GB/s"
"""

OVERHEAD = """bf16 = "312 TFLOP/s"
[device.overhead]
context = "500 MiB"
communicator = "688 MB"
unused = 0.03
source = "NCCL issue 964"
"""

MISTAKES = [
    (
        'bf16 = "312 TFLOP/s"',
        OVERHEAD.replace("0.03", "-0.5"),
        "mine.toml: device.overhead: the allocator holds -0.5 unused bytes for each of tensors; "
        "give a share of 0 or more.",
    ),
    (
        'bf16 = "312 TFLOP/s"',
        OVERHEAD.replace("NCCL issue 964", ""),
        "mine.toml: device.overhead: the overhead has no source; say where its figures come from.",
    ),
    (
        'bf16 = "312 TFLOP/s"',
        'bf16 = "312 TFLOP/s"\n[device.toll]\nmessage = "1 us"\nbandwidth = "-1 GB/s"',
        "mine.toml: device.toll: a second of computing is worth -1e+09 B; "
        "give a bandwidth above 0.",
    ),
    (
        'bf16 = "312 TFLOP/s"',
        'bf16 = "312 TFLOP/s"\n[device.toll]\nbandwidth = "1 GB/s"',
        "mine.toml: device.toll.message is missing; expected a text with a unit.",
    ),
    (
        'per = "gpu"\nbandwidth_out = "300 GB/s"',
        'per = "node"\noutward = true\nbandwidth_out = "300 GB/s"',
        "mine.toml: link 'nvlink' of level 'gpu' is outward and shared per 'node'; "
        "name an owner at or inside level 'gpu', or leave the word out.",
    ),
    (
        'per = "gpu"\nbandwidth_out = "300 GB/s"',
        'per = "node"\nbandwidth_out = "200 GB/s"',
        "mine.toml: link 'nvlink', shared per 'node', has 2e+11 B/s out and 3e+11 B/s in; "
        "give one bandwidth: all that moves inside its owner shares it.",
    ),
    (
        "cardinality = 8",
        "cardinality = 0",
        "mine.toml: levels[1]: level 'gpu' has cardinality 0; give 1 or more.",
    ),
    (
        "cardinality = 8",
        'cardinality = "8"',
        "mine.toml: levels[1].cardinality is '8'; expected a whole number.",
    ),
    (
        '"12.5 GB/s"',
        '"-12.5 GB/s"',
        "mine.toml: levels[0].links[0]: link 'nic' has a bandwidth out of -1.25e+10 B/s; "
        "give one above 0.",
    ),
    (
        '"12.5 GB/s"',
        '"12.5 GBs"',
        "mine.toml: levels[0].links[0].bandwidth: '12.5 GBs' has the unit 'GBs'; "
        "give a bandwidth with a unit, as '12.5 GB/s'.",
    ),
    (
        '"12.5 GB/s"',
        '"12.5"',
        "mine.toml: levels[0].links[0].bandwidth: '12.5' has no unit; "
        "give a bandwidth with a unit, as '12.5 GB/s'.",
    ),
    (
        '"12.5 GB/s"',
        "12.5",
        "mine.toml: levels[0].links[0].bandwidth is 12.5; expected a text with a unit.",
    ),
    (
        '"5 us"',
        '"fast"',
        "mine.toml: levels[0].links[0].latency: 'fast' is not a time; "
        "write a number and a unit, as '5 us'.",
    ),
    (
        '[[levels.links]]\nname = "nic"\nper = "node"\nbandwidth = "12.5 GB/s"\nlatency = "5 us"',
        "",
        "mine.toml: levels[0]: level 'node' has no link; say what joins its instances in links.",
    ),
    (
        'name = "gpu"\ncardinality',
        'name = "node"\ncardinality',
        "mine.toml: the levels and blocks use the name 'node' more than once; "
        "give each its own name.",
    ),
    (
        'per = "gpu"',
        'per = "gpus"',
        "mine.toml: link 'nvlink' is shared per 'gpus'; name a level or block: did you mean "
        "'gpu'? Known: 'cluster', 'gpu', 'node'.",
    ),
    (
        "latency =",
        "latncy =",
        "mine.toml: levels[0].links[0].latncy is not a known key; did you mean 'latency'? Known: "
        "'bandwidth', 'bandwidth_in', 'bandwidth_out', 'duplex', 'hub', 'kind', 'latency', "
        "'name', 'outward', 'per'.",
    ),
    (
        "bf16 =",
        "bfloat16 =",
        "mine.toml: device: device 'GPU' has a peak for 'bfloat16'; did you mean 'bf16' or "
        "'fp16'? Known: 'bf16', 'fp16', 'fp32', 'fp4', 'fp64', 'fp8', 'int8', 'tf32'.",
    ),
    (
        'memory = "80 GiB"',
        'memroy = "80 GiB"',
        "mine.toml: device.memroy is not a known key; did you mean 'memory'? Known: 'fusing', "
        "'judged', 'memory', 'memory_bandwidth', 'name', 'overhead', 'peak', 'prices', 'rates', "
        "'software', 'toll'.",
    ),
    (
        'machine = "node"',
        'machine = "host"',
        "mine.toml: cluster 'mine' has no level 'host'; name one of its levels: known: "
        "'gpu', 'node'.",
    ),
    (
        'memory = "80 GiB"\n',
        "",
        "mine.toml: device.memory is missing; expected a text with a unit.",
    ),
    (
        'latency = "5 us"',
        'duplex = "simplex"',
        "mine.toml: levels[0].links[0].duplex is 'simplex'; expected one of 'full', 'half'.",
    ),
    (
        'name = "mine"',
        'name = "mine',
        "mine.toml: not valid TOML (Illegal character '\\n' (at line 2, column 13)); "
        "correct the line it names.",
    ),
    (
        "cardinality = 2",
        "cardinality = 2\nblocks = { half = 1 }",
        "mine.toml: level 'node' has blocks, or ring or hub links; "
        "keep them to the innermost level, 'gpu'.",
    ),
    (
        "cardinality = 8",
        "cardinality = 8\nblocks = { pair = 3 }",
        "mine.toml: levels[1]: block 'pair' of level 'gpu' has 3 members; "
        "give a divisor of its cardinality 8.",
    ),
    (
        'bandwidth_in = "300 GB/s"',
        'bandwidth_in = "200 GB/s"\nduplex = "half"',
        "mine.toml: levels[1].links[0]: half-duplex link 'nvlink' has 3e+11 B/s out, "
        "2e+11 B/s in; give one bandwidth for both directions.",
    ),
    (
        'cardinality = 8\n[[levels.links]]\nname = "nvlink"\nper = "gpu"',
        'cardinality = 8\nblocks = { pair = 2 }\n[[levels.links]]\nname = "pcie"\nper = "pair"',
        "mine.toml: no link of level 'gpu' joins its members 0 and 1; add one that is per 'gpu'.",
    ),
]

MISTAKES += [
    (
        'memory = "80 GiB"',
        'memory = "1e400 GiB"',
        "mine.toml: device.memory: '1e400 GiB' is out of range; give a size such as '8 GiB'.",
    ),
    (
        "cardinality = 8",
        f"cardinality = {'9' * 5000}",
        "mine.toml: a number has thousands of digits; give a shorter one.",
    ),
    (
        "cardinality = 8",
        f"cardinality = 8\nx = {'[' * 20_000}",
        "mine.toml: arrays or tables are nested too deep; flatten them.",
    ),
    (
        "cardinality = 8",
        f"cardinality{'.a' * 2000} = 8",
        "mine.toml: levels[1].cardinality is nested too deep to be shown; expected a whole number.",
    ),
    (
        "cardinality = 8",
        "cardinality = 1000000001",
        "mine.toml: levels[1]: level 'gpu' has cardinality 1000000001; give at most 1000000000.",
    ),
    (
        'name = "gpu"\ncardinality',
        'name = "root"\ncardinality',
        "mine.toml: levels[1]: 'root' cannot be the name of a level: it is the level above all "
        "others in programs; choose another name.",
    ),
    (
        'name = "gpu"\ncardinality',
        'name = "cluster"\ncardinality',
        "mine.toml: levels[1]: 'cluster' cannot be the name of a level: it is the owner of the "
        "links that the whole cluster shares; choose another name.",
    ),
    (
        'name = "nvlink"',
        'name = "[/bold]"',
        "mine.toml: levels[1].links[0]: '[/bold]' cannot be the name of a link; begin with a "
        "letter or digit and use only letters, digits, '_', '-' and '.'.",
    ),
    (
        "cardinality = 8",
        'cardinality = 8\nblocks = { "a b" = 2 }',
        "mine.toml: levels[1]: 'a b' cannot be the name of a block; begin with a letter or digit "
        "and use only letters, digits, '_', '-' and '.'.",
    ),
    (
        'bandwidth_in = "300 GB/s"',
        'bandwidth_in = "300 GB/s"\nbandwidth = "300 GB/s"',
        "mine.toml: levels[1].links[0].bandwidth stands beside bandwidth_in and bandwidth_out; "
        "give it or these two.",
    ),
    (
        'name = "mine"',
        'name = "mine"\nzeta = 1\nalpha = 1',
        "mine.toml: alpha is not a known key; known: 'description', 'device', 'levels', "
        "'machine', 'name', 'source'.",
    ),
]


def test_the_file_that_the_mistakes_start_from_is_right() -> None:
    assert parse_cluster(GOOD, "mine.toml").hierarchy == (2, 8)


@pytest.mark.parametrize(("right", "wrong", "sentence"), MISTAKES)
def test_a_mistake_in_a_file_gets_a_sentence(right: str, wrong: str, sentence: str) -> None:
    assert GOOD.count(right) == 1
    with pytest.raises(InputError) as caught:
        parse_cluster(GOOD.replace(right, wrong), "mine.toml")
    assert str(caught.value) == sentence


def test_what_a_framework_holds_reads_back() -> None:
    cluster = parse_cluster(GOOD.replace('bf16 = "312 TFLOP/s"', OVERHEAD), "mine.toml")
    assert cluster.device.overhead == Overhead(
        context=Bytes(500 << 20),
        communicator=Bytes(688_000_000),
        unused=0.03,
        source="NCCL issue 964",
    )
    assert parse_cluster(dump_cluster(cluster)) == cluster


def test_too_many_levels() -> None:
    level = '[[levels]]\nname = "{}"\ncardinality = 2\n[[levels.links]]\nname = "l"\nper = "{}"\n'
    text = GOOD.partition("[[levels]]")[0].replace('machine = "node"', "")
    text += "".join(level.format(name, name) + 'bandwidth = "1 GB/s"\n' for name in "abcdefg")
    with pytest.raises(InputError, match="has 7 levels; give 1 to 6"):
        parse_cluster(text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        load_cluster(tmp_path / "missing.toml")
    with pytest.raises(InputError, match="Is a directory"):
        load_cluster(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot read cluster file"):
        load_cluster(binary)


def test_an_unknown_cluster_offers_near_names() -> None:
    with pytest.raises(InputError, match="did you mean 'gcp-a100'"):
        Cluster.named("gcp-a10")


def test_resizing_names_the_levels_it_knows() -> None:
    assert Cluster.named("summit", node=32).devices == 192
    with pytest.raises(InputError, match=r"has no level 'nodes'.*did you mean 'node'"):
        Cluster.named("summit", nodes=32)


DOORS = [
    (
        lambda: Cluster.named("gcp-v100", gpu=6),
        "level 'gpu' has cardinality 6, but its blocks are cpu of 4 and pcie-switch of 2; "
        "give a multiple of 4.",
    ),
    (
        lambda: Cluster.named("gcp-v100").resized({"node": 2.0}),  # type: ignore[dict-item]
        "level 'node' has cardinality 2.0; give a whole number.",
    ),
    (
        lambda: Cluster.named("gcp-v100", node=True),
        "level 'node' has cardinality True; give a whole number.",
    ),
    (
        lambda: Cluster.named("gcp-a100", node=10**9, gpu=10**9),
        "cluster 'gcp-a100' has 1000000000000000000 devices; give at most 1000000000000.",
    ),
]


@pytest.mark.parametrize(("mistake", "sentence"), DOORS)
def test_a_wrong_size_gets_a_sentence(mistake: Callable[[], object], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        mistake()
    assert str(caught.value) == sentence


def unjoined(members: int, ports: Sequence[tuple[int, bool]], ringed: bool) -> bool:
    """Whether some two members share every block (size, hub), by looking at all of them."""
    return not all(
        (ringed and b - a in (1, members - 1))
        or any(a // size != b // size or (hub and a // size > 0) for size, hub in ports)
        for a, b in combinations(range(members), 2)
    )


@given(st.integers(1, 12), st.data())
def test_members_that_no_link_joins(members: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from(divisors(members)), max_size=3, unique=True))
    ports = [(size, data.draw(st.booleans())) for size in sizes]
    ringed = data.draw(st.booleans()) or not ports
    one = BytesPerSecond(1.0)
    links = [Link(name=f"p{s}", per=f"b{s}", out=one, into=one, hub=hub) for s, hub in ports]
    links += [Link(name="ring", per="gpu", out=one, into=one, kind="ring")] * ringed
    blocks = tuple((f"b{size}", size) for size in sizes)
    level = Level(name="gpu", cardinality=members, links=tuple(links), blocks=blocks)
    refused = False
    try:
        Cluster(name="c", levels=(level,), device=DEVICE)
    except InputError as error:
        refused = "joins its members" in str(error)
    assert refused == unjoined(members, ports, ringed)
