"""
A matrix of sets
================

Eight variants of one set of pictures: as they are, noisy, rotated, and with classes left out. One epsilon for all
pairs, work on each set once.
"""

from dataclasses import replace

import torch

import otdd_flash as otdd
from otdd_flash import plots

digits = otdd.load("digits")
order = torch.randperm(digits.n, generator=torch.Generator().manual_seed(0))


def part(k):
    """The k-th of eight disjoint random samples."""
    return digits.subset(order[200 * k : 200 * (k + 1)])


def noisy(data, sigma):
    """With Gaussian noise on the pixels."""
    noise = torch.randn(data.x.shape, generator=torch.Generator().manual_seed(1))
    return replace(data, x=data.x + sigma * noise, levels=None)


def rotated(data, quarters):
    """With every picture turned."""
    return replace(data, x=torch.rot90(data.x.view(-1, 8, 8), quarters, (1, 2)).flatten(1))


def only(data, classes):
    """Some of the classes."""
    return data.subset(torch.isin(data.y, torch.tensor(classes)).nonzero()[:, 0])


sets = {
    "digits": part(0),
    "more digits": part(1),
    "noise 0.1": noisy(part(2), 0.1),
    "noise 0.3": noisy(part(3), 0.3),
    "turned by 90": rotated(part(4), 1),
    "turned by 180": rotated(part(5), 2),
    "classes 0-4": only(part(6), [0, 1, 2, 3, 4]),
    "classes 5-9": only(part(7), [5, 6, 7, 8, 9]),
}
matrix = otdd.pairwise(sets, relative_epsilon=0.03)
print(f"{len(matrix)} sets, converged: {matrix.converged}, negative share {matrix.negative_share:.1%}")

# %%
# Sets in the order of the tree's leaves; numbers are roots.

figure = plots.heat_map(matrix)

# %%

figure = plots.dendrogram(matrix)

# %%
# A map of the plane that keeps the distances as well as a plane can; its stress says how well.

figure = plots.set_map(matrix)
