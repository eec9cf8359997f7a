"""Renders the conda recipe for each of its variants, as rattler-build would before it builds.

    make recipe

Building takes the packages of conda-forge, which this does not ask for.
"""

from rattler_build import Stage0Recipe, VariantConfig

from tools.launcher import ROOT

RECIPE = ROOT / "packaging" / "conda"


def main() -> None:
    recipe = Stage0Recipe.from_file(str(RECIPE / "recipe.yaml"))
    variants = VariantConfig.from_file(str(RECIPE / "variants.yaml"))
    found = set()
    for rendered in recipe.render(variants):
        wanted = rendered.recipe.to_dict()
        (mpi,) = {"openmpi", "mpich"} & set(wanted["requirements"]["run"])
        assert mpi in wanted["requirements"]["host"]
        name = wanted["build"]["string"]
        assert name not in found, f"two variants are called {name}"
        found.add(name)
        print(name, *wanted["requirements"]["build"], sep="  ")
    expected = len(variants.get_values("mpi")) * len(variants.get_values("python"))
    assert len(found) == expected, f"{len(found)} variants, and not {expected}"
    print(f"{len(found)} variants rendered")


if __name__ == "__main__":
    main()
