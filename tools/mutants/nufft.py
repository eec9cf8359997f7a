"""Mutants of non-uniform transforms."""

from ._mutant import CXX, NUFFT, Mutant

MUTANTS = [
    Mutant(
        "a mode at -n / 2 stands for n / 2, too",
        NUFFT / "_transforms.py",
        "forward_steps(meshes.modes, meshes.fine.shape, one_sign=True)",
        "forward_steps(meshes.modes, meshes.fine.shape)",
        "tests/nufft/test_values.py::test_modes_at_the_nyquist_frequency_have_one_sign",
        1,
    ),
    Mutant(
        "slopes are in units of mesh cells of the modes",
        NUFFT / "_transforms.py",
        "for axis, cells in enumerate(self.fine.shape)\n        )\n        return [",
        "for axis, cells in enumerate(self.modes.shape)\n        )\n        return [",
        "tests/nufft/test_derivatives.py::test_slopes_have_the_tolerance_of_values",
        1,
    ),
    Mutant(
        "what is spread beyond the block is lost",
        NUFFT / "_transforms.py",
        "mesh = halo_reduce(padded, meshes.fine.input, Assignment(meshes.width).width)",
        "a, (m, n, _) = Assignment(meshes.width).before, meshes.fine.input.local_shape; "
        "mesh = padded[:, a : a + m, a : a + n]",
        "tests/nufft/test_values.py::test_each_type_is_the_adjoint_of_the_other",
    ),
    Mutant(
        "all components are read from the first",
        CXX / "nufft" / "spreading.cc",
        "tile.CopyFrom(blocks + component * volume, at);",
        "tile.CopyFrom(blocks + 0 * component * volume, at);",
        "tests/nufft/test_values.py::test_components_and_batches",
        2,
    ),
    Mutant(
        "neighbouring columns of tiles are spread at the same time",
        CXX / "nufft" / "tiles.h",
        "const std::int64_t side = width <= 9 ? 8 : 16;",
        "const std::int64_t side = 1;",
        "tests/jobs/test_nufft.py",
        0,
    ),
]
