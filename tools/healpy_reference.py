"""Writes tests/observables/healpy_reference.npz: what healpy says of some vectors.

    pip install healpy; python -m tools.healpy_reference

healpy is under the GPL, so neither pfftjax nor its tests import it.
"""

import numpy as np

from tools.launcher import ROOT

NSIDES = (1, 2, 3, 16, 100, 1024, 4096)


def main() -> None:
    """Ask healpy, and write what it says."""
    import healpy  # pyright: ignore[reportMissingImports]

    rng = np.random.default_rng(21)
    vectors = np.concatenate(
        [
            rng.normal(size=(120, 3)),
            rng.normal(size=(40, 3)) * [1e-3, 1e-3, 1],  # near the poles
            [[0, 0, 1], [0, 0, -2], [1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -3, 0]],
        ]
    )
    theta, phi = healpy.vec2ang(vectors)
    found = {"vectors": vectors, "theta": theta, "phi": phi, "version": healpy.__version__}
    for n in NSIDES:
        found[f"ring{n}"] = healpy.vec2pix(n, *vectors.T).astype(np.int32)
        if n & (n - 1) == 0:
            found[f"nested{n}"] = healpy.vec2pix(n, *vectors.T, nest=True).astype(np.int32)
        pixels, weights = healpy.get_interp_weights(n, theta, phi)
        found[f"pixels{n}"], found[f"weights{n}"] = pixels.T.astype(np.int32), weights.T
    np.savez_compressed(ROOT / "tests" / "observables" / "healpy_reference.npz", **found)


if __name__ == "__main__":
    main()
