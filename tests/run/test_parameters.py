"""The memory of parameters that are sharded."""

from __future__ import annotations

import torch

from meshwright.run.exec.parameters import ParameterPiece, Sharing


def test_memory_that_is_there_stays_where_it_is() -> None:
    """It may be on its way to another rank."""
    piece = ParameterPiece("w", ((0, 4),), torch.arange(4.0), None, trained=True)
    before = piece.data.data_ptr()
    piece.show()
    assert piece.data.data_ptr() == before
    assert piece.data.tolist() == [0, 1, 2, 3]


def test_a_hidden_piece_has_no_memory_until_it_is_shown() -> None:
    piece = ParameterPiece(
        "w", ((0, 4),), torch.arange(4.0), Sharing(((0, 2), (2, 4)), 1), trained=True
    )
    piece.hide()
    assert piece.data.untyped_storage().nbytes() == 0
    assert piece.seen.tolist() == [2, 3]
    piece.show()
    assert piece.data.untyped_storage().nbytes() == piece.data.nbytes
