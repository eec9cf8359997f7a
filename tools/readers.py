"""Files for other codes, read by these: python -m tools.readers

yt, the package bigfile and Dorian are installed into an environment of their own, which is removed
at the end (or kept and used again: --environment). Snapshots of Gadget-4 and of bigfile that 1 and
3 ranks write must be to yt and bigfile the particles that they are, in km/s and in Mpc/h; and a
bigfile that the package writes must be so to pfftjax. Dorian traces rays through the shells of a
light cone, and its convergence by Born's approximation must be ours.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from tools import launcher

# Runs under MPI, in this environment.
WRITE = """
import pathlib, sys
import jax, jax_cosmo, numpy as np
import jax.numpy as jnp
import pfftjax
from pfftjax import pm
folder, comm = pathlib.Path(sys.argv[1]), pfftjax.ProcessGrid().comm
mesh = pfftjax.PencilFFT((12, 10, 9), pfftjax.ProcessGrid(), real=True).input
rng, total, side, a = np.random.default_rng(0), 500, 25.0, 0.25
position, velocity = rng.uniform(0, side, (total, 3)), rng.normal(0, 300, (total, 3))
cell = np.stack(np.unravel_index(rng.permutation(1080)[:total], mesh.global_shape), 1)
identity = np.ravel_multi_index(cell.T, mesh.global_shape)
mine = np.arange(total) % comm.size == comm.rank
particles = pm.Particles(
    jnp.asarray(cell[mine], "int32"),
    jnp.asarray((position / side * mesh.global_shape - cell)[mine]),
    jnp.asarray((velocity * a / 100)[mine]),
    jnp.int32(mine.sum()), total, mesh.global_shape, scale_factor=a, box_size=(side,) * 3,
)
planck, n = jax_cosmo.Planck15(), comm.size
for layout in ("shared", "per_rank"):
    path = folder / f"{layout}{n}_000.hdf5"
    pfftjax.io.save_gadget(path, particles, mesh, cosmology=planck, layout=layout)
for files in (None, 1, 5):
    path = folder / f"bigfile-{n}-{files}"
    pfftjax.io.save_bigfile(path, particles, mesh, cosmology=planck, files=files)
mass = 2.77536627e11 * planck.Omega_m * side**3 / total
if comm.rank == 0:
    np.savez(folder / "expected.npz", identity=identity, position=position, velocity=velocity,
             mass=mass)
"""

# Runs in the environment of the others.
READ = """
import pathlib, sys
import bigfile, numpy as np, yt
yt.set_log_level(50)
folder = pathlib.Path(sys.argv[1])
expected = np.load(folder / "expected.npz")
by, side = np.argsort(expected["identity"]), 25.0

def check(name, identity, position, velocity, mass):
    order = np.argsort(identity)
    assert (identity[order] == expected["identity"][by]).all(), name
    apart = position[order] - expected["position"][by]
    apart = np.abs(apart - side * np.round(apart / side)).max()
    faster = np.abs(velocity[order] - expected["velocity"][by]).max()
    heavier = abs(mass / float(expected["mass"]) - 1)
    assert apart < 1e-10 and faster < 1e-9 and heavier < 1e-9, (name, apart, faster, heavier)
    print(f"{name}: identities, and to {apart:.0e} Mpc/h, {faster:.0e} km/s and {heavier:.0e} of "
          "the mass")

for path in sorted(folder.glob("*_000*.hdf5")):
    if path.name.startswith("per_rank") and ".0." not in path.name:
        continue
    data = yt.load(str(path)).all_data()
    field = lambda name, unit: data["PartType1", name].to(unit).v
    check(f"yt, {path.name}", data["PartType1", "ParticleIDs"].v.astype("i8"),
          field("Coordinates", "Mpccm/h"), field("particle_velocity", "km/s"),
          field("Masses", "Msun/h")[0])
for path in sorted(folder.glob("bigfile-*")):
    file = bigfile.File(str(path))
    header = file["Header"].attrs
    assert header["UsePeculiarVelocity"] == 1
    assert header["TotNumPart"].tolist() == [0, len(by), 0, 0, 0, 0]
    check(f"bigfile, {path.name}", file["1/ID"][:].astype("i8").ravel(), file["1/Position"][:],
          file["1/Velocity"][:], 1e10 * header["MassTable"][1])
theirs = bigfile.File(str(folder / "theirs"), create=True)
tables = {"Position": "position", "Velocity": "velocity", "ID": "identity"}
for name, ours in tables.items():
    with theirs.create_from_array(f"1/{name}", expected[ours], Nfile=3):
        pass
with theirs.create("Header") as header:
    header.attrs["BoxSize"], header.attrs["Time"] = side, 0.25
    header.attrs["UnitLength_in_cm"], header.attrs["UsePeculiarVelocity"] = 3.085678e24, 1
"""

READ_BACK = """
import pathlib, sys
import numpy as np
import pfftjax
from pfftjax.pm.internal import identities_of
folder, comm = pathlib.Path(sys.argv[1]), pfftjax.ProcessGrid().comm
expected = np.load(folder / "expected.npz")
mesh = pfftjax.PencilFFT((12, 10, 9), pfftjax.ProcessGrid(), real=True).input
there = pfftjax.io.load_bigfile(folder / "theirs", mesh)
used = int(there.used)
found = identities_of(np.asarray(there.cell)[:used], mesh.global_shape)
row = np.argsort(expected["identity"])[np.searchsorted(np.sort(expected["identity"]), found)]
apart = np.asarray(there.coordinates())[:used] - expected["position"][row]
assert np.abs(apart - 25 * np.round(apart / 25)).max(initial=0) < 1e-10
faster = np.asarray(there.velocities())[:used] - expected["velocity"][row]
assert np.abs(faster).max(initial=0) < 1e-9
assert comm.allreduce(used) == len(expected["identity"])
print("pfftjax, what the package bigfile writes: as it is")
"""

# docs/light_cones.md shows these two.
SHELLS = """
import pathlib, sys
import jax, jax_cosmo, numpy as np
import pfftjax
from pfftjax import observables, pm
folder, grid = pathlib.Path(sys.argv[1]), pfftjax.ProcessGrid()
plan = pfftjax.PencilFFT((32, 32, 32), grid, real=True)
cosmology = jax_cosmo.Planck15()
simulation = pm.Simulation(plan, 320.0, cosmology, np.linspace(0.6, 1.0, 4))
edges = np.linspace(100, 1200, 23)
noise = jax.jit(lambda: pm.nested_noise(jax.random.key(0), plan, "float32"))()

@jax.jit
def observe(noise):
    _, shells = simulation.run(noise, light_cone=observables.LightCone(edges, nside=64))
    return shells.counts, observables.convergence(shells, cosmology, redshift=0.45)

counts, kappa = observe(noise)
middles = [float(pm.scale_factor_at(cosmology, d)) for d in (edges[1:] + edges[:-1]) / 2]
pixels = 4 * np.pi / 3 * np.diff(edges**3) / counts.shape[1]        # (Mpc/h)^3
if grid.comm.rank == 0:
    np.savez(folder / "shells.npz", kappa=kappa, density=counts / pixels[:, None],
             widths=np.diff(edges), redshifts=1 / np.array(middles) - 1, omega_m=cosmology.Omega_m)
"""

TRACE = """
import pathlib, sys
import numpy as np
from dorian.lensing import raytrace_from_density
shells = np.load(pathlib.Path(sys.argv[1]) / "shells.npz")
traced = raytrace_from_density(
    list(shells["density"]), shells["redshifts"], 0.45, box_size=320.0, n_particles=32**3,
    omega_m=float(shells["omega_m"]), h=0.6774, nside=64, shell_widths=shells["widths"],
)
ours = shells["kappa"] - shells["kappa"].mean()
for name, least in ("convergence_born", 0.9995), ("convergence_raytraced", 0.99):
    theirs = traced[name] - traced[name].mean()
    correlation, amplitude = np.corrcoef(ours, theirs)[0, 1], (ours @ theirs) / (ours @ ours)
    assert correlation > least and abs(amplitude - 1) < 0.02, (name, correlation, amplitude)
    print(f"Dorian, {name}: {correlation:.5f} of ours, amplitude {amplitude:.4f}")
"""


def main() -> None:
    """Write with this environment, read with the other one, and back."""
    parser = argparse.ArgumentParser(prog="python -m tools.readers")
    parser.add_argument("--environment", type=pathlib.Path, help="of the readers; kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        environment = arguments.environment or folder / "environment"
        python = environment / "bin" / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "yt", "h5py", "bigfile", "dorian-raytrace-mpi"], check=True)
        for ranks in (1, 3):
            _run(launcher.command(ranks, "-c", WRITE, str(folder)))
        _run([str(python), "-c", READ, str(folder)])
        _run(launcher.command(2, "-c", READ_BACK, str(folder)))
        _run(launcher.command(2, "-c", SHELLS, str(folder)))
        _run([str(python), "-c", TRACE, str(folder)])


def _run(command: list[str]) -> None:
    subprocess.run(command, env=launcher.environment(), check=True, cwd=launcher.ROOT)


if __name__ == "__main__":
    main()
