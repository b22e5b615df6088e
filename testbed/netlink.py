"""What the kernel is asked for, through netlink (pyroute2). Enters: names of namespaces, edges and
token buckets. Leaves: networks laid, or a sentence with what the kernel complained of. Which edges
a cluster needs is not known here.

The network namespace of Linux belongs to a thread: what is done inside one is done by a thread that
enters it and ends there. So no program and no other process is needed.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from meshwright.base.errors import InputError
from meshwright.base.quantities import BytesPerSecond
from testbed.owners import Owner
from testbed.tree import INTERFACE, Bucket, Edge, bucket

NAMESPACES = Path("/var/run/netns")
"""Where namespaces have names, as iproute2 gives them."""

_SETTINGS = Path("/proc/sys/net")

SETTINGS: Mapping[tuple[str, str], str] = {
    # bbr probes the limits and makes concurrent groups vary by 20 %; reno's runs agree to 1 %.
    ("ipv4", "tcp_congestion_control"): "reno",
    # A window far above what is ever on its way here, and far below what a bucket holds.
    ("ipv4", "tcp_rmem"): "4096 131072 262144",
    # Nothing but what ranks send shall cross an edge.
    ("ipv6", "conf/all/disable_ipv6"): "1",
    ("ipv6", "conf/default/disable_ipv6"): "1",
}
"""What holds in every namespace of a testbed, by protocol and name."""

_NETWORK = 0x40000000
"""CLONE_NEWNET of <sched.h>; `os.setns` came with Python 3.12."""

_Result = TypeVar("_Result")


def require_available() -> None:
    """Refuse, with the reason, where no testbed can be brought up.

    The last question is put to the kernel: a namespace is made, limited and removed again.
    """
    if os.geteuid() != 0:
        raise InputError("the testbed makes network namespaces, which needs root", "start as root")
    if find_spec("pyroute2") is None:
        raise InputError(
            "the testbed needs the package 'pyroute2', which is not installed",
            'pip install "meshwright[dev]"',
        )
    name = Owner.this().name(secrets.token_hex(3), "probe")
    try:
        add_namespace(name)
        add_switches(name, ["switch0"])
        limit(name, [bucket("lo", BytesPerSecond(1e6))])
    finally:
        remove_namespace(name)


def unavailable() -> str | None:
    """Why no testbed can be brought up here, as a sentence; None if one can."""
    try:
        require_available()
    except InputError as error:
        return str(error)
    return None


def namespaces() -> Sequence[str]:
    """The names of all network namespaces of this machine."""
    return sorted(path.name for path in NAMESPACES.glob("*"))


def add_namespace(name: str) -> None:
    """Make a namespace that outlives this process, with the settings of a testbed."""
    from pyroute2 import netns

    def make() -> None:
        _system("unshare", _NETWORK)
        netns.attach(name, "thread-self")
        for (protocol, key), value in SETTINGS.items():
            # A kernel may be without IPv6.
            if (_SETTINGS / protocol).exists():
                (_SETTINGS / protocol / key).write_text(value)

    with _complaining(f"network namespace {name!r}"):
        _in_a_thread(make)


def remove_namespace(name: str) -> None:
    """Remove a namespace; one that is gone already is no mistake."""
    from pyroute2 import netns

    with _complaining(f"removal of namespace {name!r}"), suppress(FileNotFoundError):
        netns.remove(name)


def processes(name: str) -> list[int]:
    """The numbers of the processes that run in a namespace."""
    numbers: list[int] = []
    with suppress(FileNotFoundError):
        namespace = (NAMESPACES / name).stat()
        for process in Path("/proc").glob("[0-9]*"):
            # A process may end at any time.
            with suppress(OSError):
                if os.path.samestat((process / "ns" / "net").stat(), namespace):
                    numbers.append(int(process.name))
    return numbers


def enter(name: str) -> None:
    """Move this thread, and the processes and threads it will start, to a namespace."""
    namespace = os.open(NAMESPACES / name, os.O_RDONLY)
    try:
        _system("setns", namespace, _NETWORK)
    finally:
        os.close(namespace)


def add_switches(name: str, switches: Sequence[str]) -> None:
    """Make bridges that forward from the first moment on and say nothing themselves."""
    quiet = {"br_stp_state": 0, "br_forward_delay": 0, "br_mcast_snooping": 0}

    def add(route: Any) -> None:
        for switch in switches:
            route.link("add", ifname=switch, kind="bridge", **quiet)
            route.link("set", index=_index(route, switch), state="up")

    _routed("bridges", name, add)


def add_cables(name: str, cables: Sequence[Edge], leaves: Sequence[str]) -> None:
    """Make a veth pair for each edge, plugged into the switches at its ends or put into a leaf."""

    def add(route: Any) -> None:
        for edge in cables:
            leaf = {} if edge.below is not None else {"net_ns_fd": leaves[edge.instance]}
            peer = {"ifname": edge.lower, **leaf}
            route.link("add", ifname=edge.upper, kind="veth", peer=peer)
            for end, switch in edge.plugs:
                above = _index(route, switch)
                route.link("set", index=_index(route, end), master=above, state="up")

    _routed("veth pairs", name, add)


def join(name: str, address: str) -> None:
    """Give a leaf its address and set its interfaces up."""

    def add(route: Any) -> None:
        interface = _index(route, INTERFACE)
        route.addr("add", index=interface, address=address, prefixlen=24)
        for index in (_index(route, "lo"), interface):
            route.link("set", index=index, state="up")

    _routed("addresses", name, add)


def limit(name: str, buckets: Sequence[Bucket]) -> None:
    """Limit what some ends in a namespace send."""

    def add(route: Any) -> None:
        for it in buckets:
            index, rate = _index(route, it.end), round(it.rate)
            route.tc("add", "tbf", index, rate=rate, burst=it.burst, limit=it.queue)

    _routed("token buckets (tbf)", name, add)


def counted(name: str) -> dict[str, tuple[int, int]]:
    """Bytes that each interface of a namespace received and sent."""

    def read(route: Any) -> dict[str, tuple[int, int]]:
        links = [(it.get("ifname"), it.get("stats64")) for it in route.get_links()]
        return {end: (stats["rx_bytes"], stats["tx_bytes"]) for end, stats in links}

    return _routed("counters", name, read)


def _routed(what: str, name: str, work: Callable[[Any], _Result]) -> _Result:
    """What some work with rtnetlink in a namespace returns."""
    from pyroute2 import IPRoute

    def inside() -> _Result:
        enter(name)
        with IPRoute() as route:
            return work(route)

    with _complaining(f"{what} in {name!r}"):
        return _in_a_thread(inside)


def _index(route: Any, end: str) -> int:
    indices: list[int] = route.link_lookup(ifname=end)
    if not indices:
        raise OSError(f"there is no interface {end!r}")
    return indices[0]


def _in_a_thread(work: Callable[[], _Result]) -> _Result:
    with ThreadPoolExecutor(1) as one:
        return one.submit(work).result()


def _system(function: str, *arguments: int) -> None:
    """Call a function of the C library that returns 0 if all went well."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)


@contextmanager
def _complaining(what: str) -> Iterator[None]:
    """Turn what the kernel refuses into a sentence."""
    from pyroute2 import NetlinkError

    try:
        yield
    except (OSError, NetlinkError) as error:
        raise InputError(
            f"the kernel refused the testbed's {what}: {error}",
            "look whether this kernel and this container allow network namespaces, bridges, veth "
            "and tbf",
        ) from error
