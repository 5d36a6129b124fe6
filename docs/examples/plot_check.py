"""
Has the batch drifted
=====================

Noise of growing strength on a batch of 200 pictures, against a reference of 200: when does the test see it?
"""

from dataclasses import replace

import torch
from matplotlib.figure import Figure

import otdd_flash as otdd

digits = otdd.load("digits")
order = torch.randperm(digits.n, generator=torch.Generator().manual_seed(0))
reference, batch = digits.subset(order[:200]), digits.subset(order[200:400])
noise = torch.randn(batch.x.shape, generator=torch.Generator().manual_seed(1))

strengths = [0.0, 0.05, 0.1, 0.15, 0.2, 0.3]
watch = otdd.DriftCheck(reference, permutations=199)
results = []
for sigma in strengths:
    watch.reset()
    watch.update(replace(batch, x=batch.x + sigma * noise, levels=None))
    results.append(watch.compute())
    print(f"noise {sigma:4.2f}: {results[-1].summary()}")

# %%
# The dots are the batch's divergence, the band is where 95 % of the permuted ones lie: the null hypothesis.

figure = Figure(figsize=(6, 3.5), layout="constrained")
axes = figure.add_subplot()
axes.fill_between(strengths, 0, [r.null["q95"] for r in results], alpha=0.3, label="95 % of the permutations")
axes.plot(strengths, [r.value for r in results], marker="o", label="the batch")
axes.set_xlabel("deviation of the noise")
axes.set_ylabel("squared divergence")
axes.set_ylim(bottom=0)
axes.legend()
