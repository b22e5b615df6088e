"""Pointwise operators by name: special functions, complex numbers.

All are `Elementwise`; what differs is the dtype that comes out and what the backward pass keeps.
That the names are those of PyTorch's own tag for pointwise operators is a test.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.graph.families.elementwise import Elementwise
from meshwright.graph.family import Family

FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan", "log10",
    "erfc", "erfinv", "digamma", "lgamma", "i0", "sinc", "logit", "polygamma", "mvlgamma",
    "logaddexp", "logaddexp2", "xlogy", "hypot", "copysign", "nextafter", "deg2rad", "rad2deg",
    "special_entr", "special_erfcx", "special_i0e", "special_i1", "special_i1e",
    "special_log_ndtr", "special_ndtri", "special_xlog1py",
)  # fmt: skip
"""Real results; the backward pass reads the operands."""

WITHOUT_GRADIENT = (
    "igamma", "igammac", "special_airy_ai", "special_bessel_j0", "special_bessel_j1",
    "special_bessel_y0", "special_bessel_y1", "special_chebyshev_polynomial_t",
    "special_chebyshev_polynomial_u", "special_chebyshev_polynomial_v",
    "special_chebyshev_polynomial_w", "special_hermite_polynomial_h",
    "special_hermite_polynomial_he", "special_laguerre_polynomial_l",
    "special_legendre_polynomial_p", "special_modified_bessel_i0", "special_modified_bessel_i1",
    "special_modified_bessel_k0", "special_modified_bessel_k1",
    "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
    "special_shifted_chebyshev_polynomial_t", "special_shifted_chebyshev_polynomial_u",
    "special_shifted_chebyshev_polynomial_v", "special_shifted_chebyshev_polynomial_w",
    "special_spherical_bessel_j0", "special_zeta",
)  # fmt: skip
"""Real results of which PyTorch has no derivative, or not by every operand."""

ACTIVATIONS = (
    "celu", "hardshrink", "softshrink", "_prelu_kernel", "sgn", "frac", "nan_to_num", "lerp",
    "fake_quantize_per_tensor_affine",
)  # fmt: skip
"""Results in the dtype of the operands, which the backward pass reads."""

WHOLE_NUMBERS = (
    "gcd", "lcm", "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__",
    "heaviside", "ldexp",
)  # fmt: skip
FLAGS = ("isneginf", "isposinf", "signbit")

_FLOPS = 10
"""Of a special function: a polynomial of about five terms."""

KINDS: Mapping[str, Family] = {
    **{kind: Elementwise(keeps="inputs", result="real", flops=_FLOPS) for kind in FUNCTIONS},
    **{
        kind: Elementwise(keeps="inputs", result="real", flops=_FLOPS, numbers=())
        for kind in WITHOUT_GRADIENT
    },
    **{kind: Elementwise(keeps="inputs", flops=2) for kind in ACTIVATIONS},
    **{kind: Elementwise(differentiable=False) for kind in WHOLE_NUMBERS},
    **{kind: Elementwise(result="bool", differentiable=False) for kind in FLAGS},
    "exp2": Elementwise(keeps="output", result="real", flops=_FLOPS),
    "float_power": Elementwise(keeps="inputs", result="wide", flops=_FLOPS),
    "angle": Elementwise(keeps="inputs", result="magnitude", flops=_FLOPS),
    "complex": Elementwise(result="complex", flops=0),
    "polar": Elementwise(keeps="inputs", result="complex", flops=_FLOPS),
    "_conj": Elementwise(),
    "conj_physical": Elementwise(),
}
