"""The commands of iproute2. Enters: words and the text for their input. Leaves: what they print,
or a sentence with what they complained of. Which networks are made of them is not known here.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence

from meshwright.foundation.errors import InputError
from testbed.owners import Owner

SETTINGS = (
    # bbr probes the limits and makes concurrent groups vary by 20 %; reno's runs agree to 1 %.
    "net.ipv4.tcp_congestion_control=reno",
    # A window far above what is ever on its way here, and far below what a bucket holds.
    "net.ipv4.tcp_rmem=4096 131072 262144",
    # Nothing but what ranks send shall cross an edge.
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
)
"""What holds in every namespace of a testbed."""


def command(*words: str, given: str = "") -> str:
    """What a command prints."""
    done = subprocess.run(words, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(
            f"the testbed's command {' '.join(words)!r} failed: {done.stderr.strip()}",
            "look whether this kernel and this container allow network namespaces, veth and tbf",
        )
    return done.stdout


def require_available() -> None:
    """Refuse, with the reason, where no testbed can be brought up.

    The last question is put to the kernel: a namespace is made, limited and removed again.
    """
    if os.geteuid() != 0:
        raise InputError("the testbed makes network namespaces, which needs root", "start as root")
    for tool in ("ip", "tc", "sysctl"):
        if shutil.which(tool) is None:
            raise InputError(
                f"the testbed needs {tool!r}, which is not installed", "install iproute2 and procps"
            )
    name = Owner.this().name(secrets.token_hex(3), "probe")
    command("ip", "netns", "add", name)
    try:
        limits(name, "qdisc add dev lo root tbf rate 1mbit burst 131072 latency 20ms\n")
        settle(name)
    finally:
        command("ip", "netns", "delete", name)


def unavailable() -> str | None:
    """Why no testbed can be brought up here, as a sentence; None if one can."""
    try:
        require_available()
    except InputError as error:
        return str(error)
    return None


def namespaces() -> Sequence[str]:
    """The names of all network namespaces of this machine."""
    return [line.split()[0] for line in command("ip", "netns", "list").splitlines() if line]


def links(namespace: str, text: str) -> None:
    """Have `ip` do these lines in a namespace."""
    command("ip", "-n", namespace, "-batch", "-", given=text)


def limits(namespace: str, text: str) -> None:
    """Have `tc` do these lines in a namespace."""
    command("tc", "-n", namespace, "-batch", "-", given=text)


def settle(namespace: str) -> None:
    """Apply the settings of a testbed to a namespace."""
    command("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", *SETTINGS)
