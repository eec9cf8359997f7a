"""Draws nbody.png: what `make demo` leaves in its folder, side by side.

python docs/pictures/nbody.py demo
"""

import pathlib
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

names = ("density.png", "power_spectrum.png")
figure, panels = plt.subplots(1, 2, figsize=(14, 6), layout="constrained")
for panel, name in zip(panels, names, strict=True):
    panel.imshow(plt.imread(pathlib.Path(sys.argv[1]) / name))
    panel.axis("off")
figure.savefig(pathlib.Path(__file__).with_suffix(".png"), dpi=80)
