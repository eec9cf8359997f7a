"""Friends of friends against SciPy's trees, and their time: python -m benchmarks.friends

A simulation of 256^3 particles is run once, and its groups are found on 1, 2 and 4 ranks and, in
one process, by SciPy: pairs of a k-d tree and connected components, slab by slab. The status is
not zero if a single particle is in another group, or if catalogues of different numbers of ranks
differ by more than rounding.

    mpirun -n 2 python -m benchmarks.friends --job groups --folder there    # one number of ranks
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "friends.json"
# Groups of a pair and more are compared; particles that are alone have no group.
SMALLEST = 2
LINKING_LENGTH = 0.2
# Mpc/h for each particle along a side.
SPACING = 1.0


def mesh_of(size):
    """The transforms of a mesh with a cell for each particle."""
    import pfftjax

    return pfftjax.PencilFFT((size,) * 3, pfftjax.ProcessGrid(), real=True)


def simulate(folder, size):
    """Particles today, of a universe that has clustered, in a file."""
    import jax
    import jax_cosmo

    import pfftjax
    from pfftjax import pm

    plan, box, planck = mesh_of(size), SPACING * size, jax_cosmo.Planck15()

    def today():
        noise = pm.white_noise(jax.random.key(0), plan.input, "float32")
        delta = pm.linear_field(noise, plan, box, pm.eisenstein_hu(planck))
        start = pm.lpt(delta, plan, box, planck, 0.1)
        capacity = 2 * start.rows
        return pm.simulate(start, plan, box, planck, np.linspace(0.1, 1, 9), capacity=capacity)

    particles = jax.jit(today)()
    pfftjax.io.save_particles(folder / "particles.h5", particles, plan.input, mode="w")


def groups(folder, size):
    """Find them on the ranks of this job; rank 0 keeps the catalogue, all ranks their members."""
    import pfftjax
    from benchmarks.protocol import COMM
    from pfftjax import observables
    from pfftjax.pm.internal import identities_of

    plan = mesh_of(size)
    particles = pfftjax.io.load_particles(folder / "particles.h5", plan.input)
    particles.offset.block_until_ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    COMM.Barrier()
    begin, cores = time.perf_counter(), time.process_time()
    catalogue, group = observables.friends_of_friends(
        particles, plan.input, linking_length=LINKING_LENGTH, smallest=SMALLEST
    )
    seconds = COMM.allreduce(time.perf_counter() - begin, max)
    cores = COMM.allreduce(time.process_time() - cores)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    whole = catalogue.whole(plan.input.grid)
    used = int(particles.used)
    place = np.asarray(group)[:used]
    names = np.append(whole.identity, np.uint64(2**64 - 1))[place]
    identity = identities_of(np.asarray(particles.cell)[:used], particles.mesh_shape)
    np.save(folder / f"members-{COMM.size}-{COMM.rank}.npy", np.stack([identity, names]))
    more = COMM.allreduce(after - before)
    COMM.Barrier()
    if COMM.rank == 0:
        columns = ("identity", "length", "position", "velocity", "dispersion")
        np.savez(folder / f"catalogue-{COMM.size}.npz", **{n: getattr(whole, n) for n in columns})
        figures = {
            "ranks": COMM.size,
            "seconds": round(seconds, 2),
            "core_seconds": round(cores, 2),
            "more_bytes_a_particle": round(1024 * more / particles.total),
            "groups": len(whole),
            "largest": int(whole.length[0]),
        }
        print(json.dumps(figures), flush=True)


def by_scipy(folder, size):
    """The name of each particle's group, in the order of identities, and seconds of a core."""
    import h5py
    import scipy.spatial
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    with h5py.File(folder / "particles.h5") as file:
        cell, offset = file["cell"][:], file["offset"][:].astype(np.float64)
    side = SPACING * size
    identity = np.ravel_multi_index(cell.T, (size,) * 3)
    position = np.empty((len(cell), 3))
    position[identity] = np.mod(cell + offset, size) * SPACING
    position[position >= side] = 0
    begin = time.process_time()
    length = LINKING_LENGTH * SPACING
    total = len(position)
    order = np.argsort(position[:, 0], kind="stable")
    x = position[order, 0]
    edges = []
    width = max(4.0, side / 128)
    for low in np.arange(0, side, width):
        # Those of the slab, and those within a linking length beyond it, around the box as well.
        high = min(low + width, side)
        rows = order[np.searchsorted(x, low) : np.searchsorted(x, high + length, side="right")]
        if high + length > side:
            around = np.searchsorted(x, high + length - side, side="right")
            rows = np.concatenate([rows, order[:around]])
        rows = np.unique(rows)
        tree = scipy.spatial.cKDTree(position[rows], boxsize=side)
        pairs = tree.query_pairs(length, output_type="ndarray")
        ones = np.ones(len(pairs), bool)
        graph = coo_matrix((ones, (pairs[:, 0], pairs[:, 1])), shape=(len(rows),) * 2)
        label = connected_components(graph, directed=False)[1]
        first = np.unique(label, return_index=True)[1]
        edges.append(np.stack([rows, rows[first[label]]]))
    joined = np.concatenate(edges, 1)
    joined = joined[:, joined[0] != joined[1]]
    graph = coo_matrix((np.ones(joined.shape[1], bool), tuple(joined)), shape=(total, total))
    label = connected_components(graph, directed=False)[1]
    seconds = time.process_time() - begin
    counts = np.bincount(label)
    lowest = np.full(len(counts), total)
    np.minimum.at(lowest, label, np.arange(total))
    names = lowest[label].astype(np.uint64)
    names[counts[label] < SMALLEST] = 2**64 - 1
    return names, seconds


def differences(folder, ranks, size, names):
    """How many particles are in another group than by SciPy, and how far the catalogue is from
    that of one rank, relative to the box and to the fastest group."""
    mine = np.concatenate(
        [np.load(folder / f"members-{ranks}-{rank}.npy") for rank in range(ranks)], 1
    )
    assert mine.shape[1] == size**3
    members = int(np.sum(names[mine[0].astype(np.int64)] != mine[1]))
    first, this = (np.load(folder / f"catalogue-{n}.npz") for n in (1, ranks))
    if any(not np.array_equal(first[name], this[name]) for name in ("identity", "length")):
        return members, np.inf
    side = SPACING * size
    apart = np.abs(first["position"] - this["position"])
    largest = [np.minimum(apart, side - apart).max(initial=0) / side]
    for name in ("velocity", "dispersion"):
        scale = np.abs(first["velocity"]).max(initial=1)
        largest.append(np.abs(first[name] - this[name]).max(initial=0) / scale)
    return members, float(max(largest))


def launched(job, folder, size, ranks):
    """The output of a job on so many ranks."""
    from tools import launcher

    arguments = ["-m", "benchmarks.friends", "--job", job, "--folder", str(folder)]
    environment = launcher.environment(JAX_ENABLE_X64="0")
    ended = subprocess.run(
        launcher.command(ranks, *arguments, "--size", str(size)),
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return ended.stdout


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.friends")
    parser.add_argument("--size", type=int, default=256, help="particles along each side")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--folder", type=pathlib.Path, help="keeps the particles there")
    parser.add_argument("--job", choices=["simulate", "groups"])
    parser.add_argument("--keep", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    size = arguments.size
    if arguments.job:
        {"simulate": simulate, "groups": groups}[arguments.job](arguments.folder, size)
        return True
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "particles.h5").exists():
            launched("simulate", folder, size, 2)
        runs = [
            json.loads(launched("groups", folder, size, ranks).splitlines()[-1])
            for ranks in sorted({1, *arguments.ranks})
        ]
        names, seconds = by_scipy(folder, size)
        for run in runs:
            members, rounding = differences(folder, run["ranks"], size, names)
            run |= {"particles_elsewhere": members, "catalogue_differs_by": rounding}
            print(json.dumps(run), flush=True)
    print(f"by SciPy in {seconds:.1f} s of a core")
    if arguments.keep:
        result = {"size": size, "scipy_core_seconds": round(seconds, 1), "runs": runs}
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return all(
        run["particles_elsewhere"] == 0 and run["catalogue_differs_by"] < 1e-9 for run in runs
    )


if __name__ == "__main__":
    sys.exit(not main())
