"""The batched small solver against torch.linalg."""

from __future__ import annotations

import torch

from otdd_flash.kernels.small_solve import small_solve


def test_equals_the_library_solver() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(5, 8, 8, dtype=torch.float64, generator=generator)
    matrix = factors @ factors.mT + 1e-3 * torch.eye(8, dtype=torch.float64)
    matrix[2] = torch.diag(torch.logspace(0, -10, 8, dtype=torch.float64))
    matrix[3, 4:] = 0.0
    matrix[3, :, 4:] = 0.0
    matrix[3] += torch.diag(torch.tensor([0.0] * 4 + [1.0] * 4, dtype=torch.float64))  # empty slots
    right = torch.randn(5, 8, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(small_solve(matrix, right), torch.linalg.solve(matrix, right), rtol=1e-7, atol=1e-9)
