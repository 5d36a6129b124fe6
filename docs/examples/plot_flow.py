"""
A set that moves
================

The digits 0, 1 and 2 flow towards the digits 5, 6 and 7 along the gradient of their distance.
"""

from matplotlib.figure import Figure

import otdd_flash as otdd
from otdd_flash import flows
from otdd_flash.distance import DistanceOptions

source = otdd.load("digits", classes=[0, 1, 2], max_samples=60)
target = otdd.load("digits", classes=[5, 6, 7], max_samples=60)
options = DistanceOptions(label_distance="gaussian_diag", label_weight=5.0, relative_epsilon=0.03)


class Keep(flows.Callback):
    """Remembers the features after some steps."""

    def __init__(self, steps):
        self.steps = steps
        self.frames = [(0, source.x)]

    def __call__(self, flow, state):
        """Called after every step."""
        if state.step in self.steps:
            self.frames.append((state.step, flow.dataset(state).x.detach().clone()))


kept = Keep([1, 2, 5, 20])
result = otdd.gradient_flow(source, target, steps=20, options=options, callbacks=[kept], projection=flows.Box())
print(f"squared distance {result.history[0]['value']:.2f} at the start, {result.value:.2f} after 20 steps")

# %%
# Nine samples, from left to right as they move: each jumps towards the class that its own is transported to, and is
# then refined.

rows = [int((source.y == c).nonzero()[i]) for c in range(3) for i in range(3)]
figure = Figure(figsize=(5, 8), layout="constrained")
for column, (step, x) in enumerate(kept.frames):
    for line, row in enumerate(rows):
        axes = figure.add_subplot(len(rows), len(kept.frames), line * len(kept.frames) + column + 1)
        axes.imshow(x[row].view(8, 8), cmap="gray_r", vmin=0, vmax=1)
        axes.set_axis_off()
        if line == 0:
            axes.set_title(f"step {step}", fontsize=9)

# %%
# Does the moved set teach about the target? A classifier trained on it, against one trained on the source.

check = flows.transfer_check(source, result.data, target, options=options)
print(check)
