"""
Two sets, one number
====================

Digits 0 to 4 against digits 5 to 9: the distance with its certificate, which classes are alike, and which class is
transported to which.
"""

import otdd_flash as otdd
from otdd_flash import plots

source = otdd.load("digits", classes=[0, 1, 2, 3, 4])
target = otdd.load("digits", classes=[5, 6, 7, 8, 9])
result = otdd.dataset_distance(source, target)

print(f"root {result.root:.3f}, squared {result.value:.3f} +- {result.error:.4f}")
print(f"converged: {result.converged}, marginal error {result.marginal_error:.1e}")

# %%
# The squared distances between the classes are part of the cost, and of the result.

for name, row in zip(source.class_names, result.label_distances.source_target, strict=True):
    print(name, " ".join(f"{entry:5.2f}" for entry in row))

# %%
# The plan says where the mass of each class goes.

sent = result.plan.class_coupling(source.y, target.y)
figure = plots.class_coupling(sent, source.class_names, target.class_names)

# %%
# Epsilon decides how fine the comparison is. The divergence settles as it falls; the entropic value without
# debiasing is far from settled.

from matplotlib.figure import Figure

fractions = [0.3, 0.1, 0.03, 0.01, 0.003]
debiased = [otdd.dataset_distance(source, target, relative_epsilon=e).value for e in fractions]
entropic = [otdd.dataset_distance(source, target, relative_epsilon=e, debiased=False).value for e in fractions]

figure = Figure(figsize=(6, 3.5), layout="constrained")
axes = figure.add_subplot()
axes.semilogx(fractions, debiased, marker="o", label="divergence (debiased)")
axes.semilogx(fractions, entropic, marker="s", label="entropic value")
axes.set_xlabel("epsilon / mean cost")
axes.set_ylabel("squared distance")
axes.set_ylim(bottom=0)
axes.legend()
