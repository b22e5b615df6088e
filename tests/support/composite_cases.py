"""Composite operators as users call them. Enters: nothing. Leaves: `COMPOSITES`, by kind a function
of numbers that are learnt (y), of others (x), both [2, 3, 4], and of matrices that can be inverted
(m, [2, 4, 4]).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as f

Function = Callable[[Tensor, Tensor, Tensor], Tensor]

FLAT = torch.arange(3)


def put_under_masks(y: Tensor, x: Tensor, m: Tensor) -> Tensor:
    whole = y * 1
    whole[x > 0] = 0.5
    whole[:, x[0, :, 0] > 0] = x[0, 0]
    whole[torch.tensor([True, False])] = y[1, :, 0].mean()
    return whole


COMPOSITES: Mapping[str, Function] = {
    "absolute": lambda y, x, m: torch.absolute(y),
    "arccos": lambda y, x, m: torch.arccos(y.tanh()),
    "arccosh": lambda y, x, m: torch.arccosh(y.exp() + 1),
    "arcsin": lambda y, x, m: torch.arcsin(y.tanh()),
    "arcsinh": lambda y, x, m: torch.arcsinh(y),
    "arctan": lambda y, x, m: torch.arctan(y),
    "arctan2": lambda y, x, m: torch.arctan2(y, x),
    "arctanh": lambda y, x, m: torch.arctanh(y.tanh()),
    "atleast_1d": lambda y, x, m: torch.ops.aten.atleast_1d(y),
    "atleast_2d": lambda y, x, m: torch.ops.aten.atleast_2d(y[0, 0]),
    "atleast_3d": lambda y, x, m: torch.ops.aten.atleast_3d(y[0]),
    "broadcast_to": lambda y, x, m: y.broadcast_to(5, 2, 3, 4),
    "clip": lambda y, x, m: y.clip(-0.5, 0.5),
    "column_stack": lambda y, x, m: torch.column_stack((y[0], x[0])),
    "concat": lambda y, x, m: torch.concat((y, x), 1),
    "concatenate": lambda y, x, m: torch.concatenate((y, x), 2),
    "cosine_embedding_loss": lambda y, x, m: f.cosine_embedding_loss(y[0], x[0], x[0, :, 0].sign()),
    "cross": lambda y, x, m: torch.cross(y[..., :3], x[..., :3], dim=-1),
    "cumulative_trapezoid": lambda y, x, m: torch.cumulative_trapezoid(y, dim=1),
    "diag": lambda y, x, m: torch.diag(y[0, 0]),
    "diagflat": lambda y, x, m: torch.diagflat(y[0]),
    "divide": lambda y, x, m: torch.divide(y, x),
    "dstack": lambda y, x, m: torch.dstack((y, x)),
    "expand_as": lambda y, x, m: y[:, :1].expand_as(x),
    "fft_fft": lambda y, x, m: torch.fft.fft(y, n=6, dim=1).abs(),
    "fft_fft2": lambda y, x, m: torch.fft.fft2(y, norm="ortho").abs(),
    "fft_fftn": lambda y, x, m: torch.fft.fftn(y).real,
    "fft_fftshift": lambda y, x, m: torch.fft.fftshift(y, dim=1),
    "fft_hfft": lambda y, x, m: torch.fft.hfft(torch.complex(y, x)),
    "fft_ifft": lambda y, x, m: torch.fft.ifft(torch.complex(y, x)).imag,
    "fft_ifft2": lambda y, x, m: torch.fft.ifft2(y).real,
    "fft_ifftn": lambda y, x, m: torch.fft.ifftn(y).real,
    "fft_ifftshift": lambda y, x, m: torch.fft.ifftshift(y),
    "fft_ihfft": lambda y, x, m: torch.fft.ihfft(y).abs(),
    "fft_irfft": lambda y, x, m: torch.fft.irfft(torch.complex(y, x), n=7),
    "fft_irfft2": lambda y, x, m: torch.fft.irfft2(torch.complex(y, x)),
    "fft_irfftn": lambda y, x, m: torch.fft.irfftn(torch.complex(y, x)),
    "fft_rfft": lambda y, x, m: torch.view_as_real(torch.fft.rfft(y)),
    "fft_rfft2": lambda y, x, m: torch.fft.rfft2(y).angle(),
    "fft_rfftn": lambda y, x, m: torch.fft.rfftn(y).conj().imag,
    "fill_diagonal": lambda y, x, m: (y[0] * 1).fill_diagonal_(0.5),
    "fix": lambda y, x, m: torch.fix(y) + y,
    "fliplr": lambda y, x, m: torch.fliplr(y),
    "flipud": lambda y, x, m: torch.flipud(y),
    "ger": lambda y, x, m: torch.ger(y[0, 0], x[0, 1]),
    "greater": lambda y, x, m: torch.greater(y, x) * y,
    "greater_equal": lambda y, x, m: torch.greater_equal(y, x) * y,
    "grid_sampler": lambda y, x, m: f.grid_sample(
        y[None], x[None, ..., :2].tanh(), align_corners=True
    ),
    "hinge_embedding_loss": lambda y, x, m: f.hinge_embedding_loss(y, x.sign()),
    "hstack": lambda y, x, m: torch.hstack((y, x)),
    "imag": lambda y, x, m: torch.complex(x, y).imag,
    "index_put": put_under_masks,
    "inner": lambda y, x, m: torch.inner(y, x[0]),
    "isclose": lambda y, x, m: torch.isclose(y, x) * y,
    "kron": lambda y, x, m: torch.kron(y[0], x[1]),
    "less": lambda y, x, m: torch.less(y, x) * y,
    "less_equal": lambda y, x, m: torch.less_equal(y, x) * y,
    "linalg_matmul": lambda y, x, m: torch.linalg.matmul(y, m),
    "linalg_matrix_norm": lambda y, x, m: torch.linalg.matrix_norm(y),
    "linalg_multi_dot": lambda y, x, m: torch.linalg.multi_dot((y[0], m[0], m[1])),
    "linalg_norm": lambda y, x, m: torch.linalg.norm(y, dim=-1),
    "linalg_vander": lambda y, x, m: torch.linalg.vander(y),
    "linalg_vecdot": lambda y, x, m: torch.linalg.vecdot(y, x),
    "mT": lambda y, x, m: y.mT,
    "margin_ranking_loss": lambda y, x, m: f.margin_ranking_loss(y, x, x.sign(), margin=0.1),
    "matrix_exp": lambda y, x, m: torch.matrix_exp(m / 10),
    "matrix_power": lambda y, x, m: torch.matrix_power(m, 3),
    "meshgrid": lambda y, x, m: torch.meshgrid(y[0, 0], x[0, 1], indexing="xy")[0],
    "moveaxis": lambda y, x, m: torch.moveaxis(y, 0, 2),
    "movedim": lambda y, x, m: torch.movedim(y, (0, 1), (2, 0)),
    "msort": lambda y, x, m: torch.msort(y),
    "multiply": lambda y, x, m: torch.multiply(y, x),
    "nanmean": lambda y, x, m: y.nanmean(1),
    "nanquantile": lambda y, x, m: torch.nanquantile(y, 0.25, dim=1),
    "negative": lambda y, x, m: torch.negative(y),
    "not_equal": lambda y, x, m: torch.not_equal(y, x) * y,
    "numpy_T": lambda y, x, m: y[0].T,
    "pairwise_distance": lambda y, x, m: f.pairwise_distance(y, x),
    "poisson_nll_loss": lambda y, x, m: f.poisson_nll_loss(y, x.abs(), full=True),
    "prelu": lambda y, x, m: f.prelu(y, x[0, :, 0]),
    "quantile": lambda y, x, m: y.quantile(0.3, dim=-1),
    "ravel": lambda y, x, m: y.ravel(),
    "real": lambda y, x, m: torch.complex(y, x).real,
    "reshape_as": lambda y, x, m: y.reshape_as(x.reshape(6, 4)),
    "rnn_relu_cell": lambda y, x, m: torch.rnn_relu_cell(y[0], x[0], m[0], m[1]),
    "rnn_tanh_cell": lambda y, x, m: torch.rnn_tanh_cell(y[0], x[0], m[0], m[1]),
    "special_digamma": lambda y, x, m: torch.special.digamma(y.exp()),
    "special_erf": lambda y, x, m: torch.special.erf(y),
    "special_erfc": lambda y, x, m: torch.special.erfc(y),
    "special_erfinv": lambda y, x, m: torch.special.erfinv(y.tanh()),
    "special_exp2": lambda y, x, m: torch.special.exp2(y),
    "special_expit": lambda y, x, m: torch.special.expit(y),
    "special_expm1": lambda y, x, m: torch.special.expm1(y),
    "special_gammaln": lambda y, x, m: torch.special.gammaln(y.exp()),
    "special_i0": lambda y, x, m: torch.special.i0(y),
    "special_log1p": lambda y, x, m: torch.special.log1p(y.exp()),
    "special_log_softmax": lambda y, x, m: torch.special.log_softmax(y, -1),
    "special_logit": lambda y, x, m: torch.special.logit(y.sigmoid(), 1e-6),
    "special_logsumexp": lambda y, x, m: torch.special.logsumexp(y, -1),
    "special_multigammaln": lambda y, x, m: torch.special.multigammaln(y.exp() + 2, 2),
    "special_ndtr": lambda y, x, m: torch.special.ndtr(y),
    "special_polygamma": lambda y, x, m: torch.special.polygamma(1, y.exp()),
    "special_psi": lambda y, x, m: torch.special.psi(y.exp()),
    "special_sinc": lambda y, x, m: torch.special.sinc(y),
    "special_softmax": lambda y, x, m: torch.special.softmax(y, 1),
    "special_xlogy": lambda y, x, m: torch.special.xlogy(x, y.exp()),
    "stft": lambda y, x, m: torch.stft(
        y.reshape(2, 12), 4, 2, 3, x[0, 0, :3], center=False, return_complex=True
    ).abs(),
    "subtract": lambda y, x, m: torch.subtract(y, x, alpha=2),
    "sum_to_size": lambda y, x, m: y.sum_to_size(1, 3, 4),
    "swapaxes": lambda y, x, m: y.swapaxes(0, 2),
    "swapdims": lambda y, x, m: y.swapdims(0, 2),
    "take_along_dim": lambda y, x, m: torch.take_along_dim(y, x.argsort(-1), -1),
    "tensor_split": lambda y, x, m: torch.tensor_split(y, 3, dim=2)[1],
    "tensordot": lambda y, x, m: torch.tensordot(y, m, dims=([2], [1])),
    "tile": lambda y, x, m: torch.tile(y, (2, 1, 3)),
    "trapezoid": lambda y, x, m: torch.trapezoid(y, dim=1),
    "trapz": lambda y, x, m: torch.trapz(y, x),
    "triplet_margin_loss": lambda y, x, m: f.triplet_margin_loss(y, x, x + 1, swap=True),
    "type_as": lambda y, x, m: y.type_as(x.float()),
    "view_as": lambda y, x, m: y.view_as(x.reshape(6, 4)),
    "vstack": lambda y, x, m: torch.vstack((y, x)),
    "_weight_norm": lambda y, x, m: torch._weight_norm(y, x[:, :1, :1].exp(), 0),
    "affine_grid_generator": lambda y, x, m: f.affine_grid(
        y[:, :2, :3], [2, 1, 3, 4], align_corners=False
    ),
    "block_diag": lambda y, x, m: torch.ops.aten.block_diag((y[0], x[1])),
    "channel_shuffle": lambda y, x, m: f.channel_shuffle(y.transpose(1, 2)[..., None], 2),
    "diag_embed": lambda y, x, m: torch.diag_embed(y, offset=1),
    "glu": lambda y, x, m: f.glu(y),
    "isin": lambda y, x, m: torch.isin(x.round(), FLAT) * y,
    "multi_margin_loss": lambda y, x, m: f.multi_margin_loss(y[0], FLAT, margin=0.5),
    "pixel_shuffle": lambda y, x, m: f.pixel_shuffle(y.transpose(1, 2)[..., None], 2),
    "pixel_unshuffle": lambda y, x, m: f.pixel_unshuffle(y[:, None, :2], 2),
    "rot90": lambda y, x, m: torch.rot90(y, 1, (1, 2)),
    "soft_margin_loss": lambda y, x, m: f.soft_margin_loss(y, x.sign()),
}
