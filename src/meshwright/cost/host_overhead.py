"""A pass that a host hands to a device, kernel by kernel. Enters: what the device needs for all of
its kernels, and what the host needs to hand them over. Leaves: seconds.

The host runs ahead of the device, so that the slower of the two sets the pace of a whole pass, not
of each kernel. Where both need about as long, neither hides the other wholly:
    time = (device^n + host^n)^(1/n),   n = SHARPNESS                                   `together`
which lies between the longer of the two and 2^(1/n), a fifth, above it.
"""

from __future__ import annotations

from meshwright.base.units import Seconds

SHARPNESS = 4
"""Chosen by errors on the rows that `validate.step_fit` fits: 6 and a sharp maximum were worse; 3
was no different where all-reduces are added, and was not tried where they take part."""


def together(device: float, host: float) -> Seconds:
    """Seconds of the pass.

    >>> together(3.0, 0.0), round(together(1.0, 1.0), 3)
    (3.0, 1.189)
    """
    longer, shorter = max(device, host), min(device, host)
    if not longer:
        return Seconds(0.0)
    return Seconds(longer * (1 + (shorter / longer) ** SHARPNESS) ** (1 / SHARPNESS))
