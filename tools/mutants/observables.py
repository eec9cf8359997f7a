"""Mutants of what telescopes see, and of the files of other codes."""

from ._mutant import CXX, IO, OBSERVABLES, PM, Mutant

FRIENDS = "tests/observables/test_friends.py::"
LIGHT = "tests/observables/test_light_search.py::"
SNAPSHOTS = "tests/io/test_snapshots.py::"

MUTANTS = [
    Mutant(
        "ghosts do not come from around the box",
        OBSERVABLES / "_linking.py",
        "for shift in (-side, 0.0, side)",
        "for shift in (0.0,)",
        FRIENDS + "test_the_groups_of_all_pairs",
    ),
    Mutant(
        "the lower end of an edge does not tell what stands for the other one",
        OBSERVABLES / "_linking.py",
        "        everywhere.lowered(root, high[differ], low[differ])\n",
        "",
        FRIENDS + "test_a_chain_through_all_blocks_and_around_the_box",
        4,
    ),
    Mutant(
        "parts take no short cut to what stands for them",
        OBSERVABLES / "_linking.py",
        "root[moved] = np.minimum(root[moved], of_root.send_back(answers))",
        "of_root.send_back(answers)",
        FRIENDS + "test_a_group_that_winds_through_hundreds_of_parts_takes_few_rounds",
    ),
    Mutant(
        "a group is named by the part that stands for it",
        OBSERVABLES / "_catalogue.py",
        '    for name in ("identity", "x", "v"):\n        parts[name][at[lowest]]',
        '    for name in ("x", "v"):\n        parts[name][at[lowest]]',
        FRIENDS + "test_the_groups_of_all_pairs",
    ),
    Mutant(
        "cells that wrap around the box are not linked",
        CXX / "pm" / "friends.cc",
        "      if (low < 0) {",
        "      if (low < -n) {",
        FRIENDS + "test_the_groups_of_all_pairs",
        1,
    ),
    Mutant(
        "blocks of which light passes a part are left out",
        CXX / "pm" / "light.cc",
        "const T nearest = Nearest(far_extents_, shift);",
        "const T nearest = Farthest(far_extents_, shift);",
        LIGHT + "test_both_find_all",
        1,
    ),
    Mutant(
        "a search without room goes on at the next copy",
        CXX / "pm" / "light.cc",
        "          *cursor = at;",
        "          *cursor = {at.block, at.copy + 1, 0};",
        LIGHT + "test_both_find_all",
        1,
    ),
    Mutant(
        "programs for GPUs leave out who comes from beside the sphere",
        OBSERVABLES / "_search.py",
        "jnp.minimum(far, search.within[1]) + margin",
        "jnp.minimum(far, search.within[1])",
        LIGHT + "test_both_find_all",
        1,
    ),
    Mutant(
        "the kick does not wait for what light passes",
        PM / "_motion.py",
        "checkpoint_name(_after(stage.kick, sight), KEPT)",
        "checkpoint_name(stage.kick, KEPT)",
        "tests/observables/test_light_cone.py::test_a_light_cone_makes_no_copy_of_the_particles",
        1,
    ),
    Mutant(
        "reverse mode looks again for what light passes",
        PM / "_motion.py",
        "checkpoint_name(_after(stage.kick, sight), KEPT)",
        "_after(stage.kick, sight)",
        "tests/observables/test_light_cone.py::test_a_light_cone_keeps_nothing_of_the_steps",
    ),
    Mutant(
        "rounding decides the shell of modes on an edge",
        PM / "_shells.py",
        "0.25 - self.rounding * self.square",
        "0.25",
        "tests/observables/test_spectra.py::test_modes_on_edges_are_in_the_same_shell_in_every_unit",
    ),
    Mutant(
        "Gadget's velocities are peculiar ones",
        IO / "_gadget.py",
        "rows.velocities_in(math.sqrt(header.scale_factor))",
        "rows.velocities_in(1.0)",
        SNAPSHOTS + "test_gadget_files_say_what_others_expect",
    ),
    Mutant(
        "what a snapshot of more files has left stays",
        IO / "_gadget.py",
        "if found and int(found[1]) >= files:",
        "if False:",
        SNAPSHOTS + "test_a_snapshot_takes_the_place_of_another",
    ),
    Mutant(
        "sums of bytes are of one rank",
        IO / "_bigfile.py",
        "sums = comm.allreduce(sums, MPI.SUM)",
        "sums = comm.bcast(sums)",
        SNAPSHOTS + "test_checksums_are_those_of_the_bytes",
    ),
]
