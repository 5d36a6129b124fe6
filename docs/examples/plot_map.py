"""
Labels carried by a plan
========================

A labelled set of digits, and another one without labels, taken by a scanner that has lower contrast and a shadow on
the right. The optimal plan between the two says which digit each scan is, and where each labelled digit would lie
among the scans.
"""

from dataclasses import replace

import torch
from matplotlib.figure import Figure

import otdd_flash as otdd
from otdd_flash.flows.transfer import knn_predict

digits = otdd.load("digits")
source, scans = digits.subset(range(600)), digits.subset(range(600, 1200))
shadow = torch.linspace(0, 0.5, 8).repeat(8)
target = replace(scans, x=0.5 * scans.x + shadow, levels=None)

found = otdd.dataset_distance(source, target, label_distance=None, relative_epsilon=0.03)
plan = found.plan

# %%
# Through the plan, a scan takes the label that most of its mass comes from. Or the labelled digits are moved to the
# mean of where their mass goes, the barycentric map, and nearest neighbours are looked for among these.

one_hot = torch.nn.functional.one_hot(source.y).double()
answers = {
    "labels through the plan": plan.apply_transposed(one_hot).argmax(1),
    "1-NN on the mapped digits": knn_predict(plan.map().float(), source.y, target.x, k=1),
    "1-NN on the digits as they are": knn_predict(source.x, source.y, target.x, k=1),
}
for name, labels in answers.items():
    print(f"{name:>32}: {(labels == scans.y).double().mean():.1%} of the scans right")

# %%
# One digit of each class, where the map puts it, and the scan nearest to that.

chosen = torch.stack([(source.y == c).nonzero()[0, 0] for c in range(10)])
mapped = plan.map()[chosen].float()
rows = [source.x[chosen], mapped, target.x[torch.cdist(mapped, target.x).argmin(1)]]
figure = Figure(figsize=(8, 2.6), layout="constrained")
for line, (name, pictures) in enumerate(zip(("digit", "mapped", "scan"), rows, strict=True)):
    for column, picture in enumerate(pictures):
        axes = figure.add_subplot(3, 10, 10 * line + column + 1)
        axes.imshow(picture.view(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        if column == 0:
            axes.set_ylabel(name, fontsize=9)
