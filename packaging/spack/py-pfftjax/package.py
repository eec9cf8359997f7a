"""A recipe for Spack, from a checkout: see packaging/spack/repo.yaml.

`tests/test_recipes.py` compares its requirements with pyproject.toml.
"""

from spack.package import depends_on, license, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyPfftjax(PythonPackage):
    """Distributed FFTs and MPI collectives inside JAX, with exact derivatives."""

    license("MIT")

    # Of a checkout: there is no release to download yet.
    version("main")

    variant("io", default=True, description="Files in HDF5, by h5py")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.24:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@1.0:", type="build")
    depends_on("py-nanobind@2.4:", type="build")

    depends_on("mpi", type=("build", "link", "run"))
    depends_on("python@3.11:", type=("build", "link", "run"))
    depends_on("py-jax@0.10.2:", type=("build", "run"))
    depends_on("py-jaxtyping@0.3.2:", type=("build", "run"))
    depends_on("py-mpi4py@4.0:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type="run", when="+io")
