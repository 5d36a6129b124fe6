"""Where a kernel gets its scores: what every launcher takes first."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class ScoreSource:
    """``P_ij = 2^(scale S_ij + table_scale table[l_i, l_j] + u_i + v_j)``.

    Args:
        rows: the operand for row blocks: a tensor, or a tensor descriptor where the configuration says ``tma``.
        cols: the operand for column blocks, likewise.
        width: operand columns, a multiple of the K step.
        main: columns that ``fp16x3`` sweeps three times; the rest is packed (see ``primitives``).
        half: operand rows from a high half to its low half (``fp16x3``).
        scale: ``log2(e) / eps`` per unit of ``S``, the dot product, or of the stored score where ``tiles`` is given.
        labels: ``(rows,)`` int32 classes of the operand rows, or ``None``.
        table: ``(c, c)`` float32, or ``None``.
        table_scale: ``-log2(e) / eps``.
        tiles: stored scores, which hold the table, or ``None``.
    """

    rows: object
    cols: object
    width: int
    main: int
    half: int
    scale: float
    labels: Tensor | None = None
    table: Tensor | None = None
    table_scale: float = 0.0
    tiles: Tensor | None = None

    def arguments(self, spare: Tensor) -> tuple[object, ...]:
        """``rows, cols, tiles, labels, table, width, main, half, classes, scale, table_scale``; ``spare`` stands in."""
        tiles, labels, table = (spare if t is None else t for t in (self.tiles, self.labels, self.table))
        classes = 0 if self.table is None else self.table.shape[0]
        return (
            self.rows, self.cols, tiles, labels, table, self.width, self.main, self.half, classes, self.scale,
            self.table_scale,
        )  # fmt: skip

    @property
    def labelled(self) -> bool:
        """Whether the kernel has to add the table."""
        return self.labels is not None and self.tiles is None
