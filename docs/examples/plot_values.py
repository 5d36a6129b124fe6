"""
Which labels are wrong
======================

One label in ten is moved on by one class. The label part of the sample values, within each class, finds them.
"""

import torch
from matplotlib.figure import Figure

import otdd_flash as otdd

digits = otdd.load("digits")
order = torch.randperm(digits.n, generator=torch.Generator().manual_seed(0))
pool, trusted = digits.subset(order[:600]), digits.subset(order[600:1200])

wrong = torch.arange(60)
y = pool.y.clone()
y[wrong] = (y[wrong] + 1) % 10
flipped = otdd.from_arrays(pool.x, y)

found = otdd.values(flipped, trusted)
scores = found.scores("labels", within_class=True)
is_wrong = torch.zeros(flipped.n, dtype=torch.bool)
is_wrong[wrong] = True

# %%
# The area under the ROC curve: the share of (wrong, right) pairs in which the wrong one has the larger score.

auroc = (scores[is_wrong][:, None] > scores[~is_wrong]).double().mean()
suspects = found.mislabelled(60)
print(f"AUROC {auroc:.3f}; of the 60 first suspects {int(is_wrong[suspects].sum())} are wrong")

# %%

figure = Figure(figsize=(6, 3.5), layout="constrained")
axes = figure.add_subplot()
bins = torch.linspace(float(scores.min()), float(scores.max()), 40).tolist()
axes.hist(scores[~is_wrong].tolist(), bins, label="label as given", alpha=0.8)
axes.hist(scores[is_wrong].tolist(), bins, label="label moved on", alpha=0.8)
axes.set_xlabel("label part of the value, within the class (positive is bad)")
axes.set_ylabel("samples")
axes.legend()

# %%
# The first suspects, with the labels that they carry.

figure = Figure(figsize=(7, 1.8), layout="constrained")
for place, row in enumerate(suspects[:8].tolist(), 1):
    axes = figure.add_subplot(1, 8, place)
    axes.imshow(flipped.x[row].view(8, 8), cmap="gray_r")
    axes.set_title(f"label {flipped.class_names[int(flipped.y[row])]}", fontsize=9)
    axes.set_axis_off()
