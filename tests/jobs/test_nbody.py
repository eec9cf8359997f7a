"""The flagship runs as its documentation says, and its numbers are those of a right code."""

import csv
import json

import numpy as np
import pytest

from tests.jobs.job import assert_succeeds, compiling_once, run

pytestmark = pytest.mark.timeout(300)


SCRIPT = "import runpy\nrunpy.run_path('examples/nbody_pm.py', run_name='__main__')\n"


def _simulate(tmp_path, ranks, *arguments):
    out = tmp_path / f"{ranks}"
    options = {"limit": 200, "arguments": [*arguments, "--out", str(out)]}
    ended = assert_succeeds(
        SCRIPT, ranks=ranks, **options, **compiling_once(tmp_path / "programs")
    )
    return ended.output, json.loads((out / "summary.json").read_text()), out


def test_files_and_numbers_on_any_ranks(tmp_path):
    fields, summaries = {}, {}
    for ranks, grid in ((1, "1x1"), (4, "2x2")):
        output, summary, out = _simulate(
            tmp_path,
            ranks,
            *("--mesh", "24", "--box", "500", "--steps", "5", "--seed", "3", "--grid", grid),
            *("--dtype", "float64", "--gradient", "--save-fields"),
        )
        assert "density.png" in output
        for name in ("density.png", "power_spectrum.png", "gradient.png"):
            assert (out / name).stat().st_size > 10_000, name
        with np.load(out / "fields.npz") as saved:
            fields[ranks] = dict(saved)
        summaries[ranks] = summary
        assert summary["ranks"] == ranks
        assert summary["grid"] == [int(d) for d in grid.split("x")]
        expected = {"mesh": 24, "box": 500.0, "steps": 5, "seed": 3, "dtype": "float64"}
        assert {key: summary[key] for key in expected} == expected
        assert summary["wall_seconds"] > summary["seconds_per_step"] > 0
        assert abs(summary["growth"] - 1) < 0.1
        assert summary["mass_error"] < 1e-12
        assert summary["momentum"] < 1e-12
        with (out / "power_spectrum.csv").open() as file:
            head, *rows = csv.reader(file)
        assert head == ["k [h/Mpc]", "P [(Mpc/h)^3]", "modes"]
        assert len(rows) == 12
        assert int(rows[0][2]) == 18

    assert set(fields[1]) == {"white_noise", "delta_initial", "delta_final"}
    np.testing.assert_array_equal(fields[1]["white_noise"], fields[4]["white_noise"])
    for name, tolerance in (("delta_initial", 1e-12), ("delta_final", 1e-10)):
        one, four = fields[1][name], fields[4][name]
        assert one.shape == (24, 24, 24)
        assert np.abs(one - four).max() <= tolerance * np.abs(one).max(), name
    assert abs(summaries[1]["loss"] / summaries[4]["loss"] - 1) < 1e-10
    assert abs(summaries[1]["gradient_norm"] / summaries[4]["gradient_norm"] - 1) < 1e-8

    # The growth in the summary is that of the fields that were saved.
    initial, final = (np.fft.fftn(fields[4][name]) for name in ("delta_initial", "delta_final"))
    m = np.fft.fftfreq(24, 1 / 24)
    radius = np.sqrt(m[:, None, None] ** 2 + m[:, None] ** 2 + m**2)
    shell = (radius >= 0.5) & (radius < 1.5)
    growth = (final * initial.conj()).real[shell].sum() / (np.abs(initial) ** 2)[shell].sum()
    assert abs(growth - summaries[4]["growth"]) < 1e-10


def test_force_mesh_finer_than_the_particles_in_float32(tmp_path):
    _, summary, _ = _simulate(
        tmp_path,
        2,
        *("--mesh", "20", "--box", "400", "--steps", "3", "--finer", "2", "--kernel", "tsc"),
    )
    assert abs(summary["growth"] - 1) < 0.1
    assert summary["mass_error"] < 1e-6
    assert summary["momentum"] < 1e-5


def test_too_small_a_capacity_names_one_that_would_do(tmp_path):
    arguments = ["--mesh", "16", "--box", "50", "--steps", "2", "--capacity", "1400"]
    arguments += ["--out", str(tmp_path)]
    ended = run(SCRIPT, ranks=3, arguments=arguments, **compiling_once(tmp_path / "programs"))
    assert ended.status != 0
    assert "particles arrive here, where capacity is 1400" in ended.output
    assert "is enough on every rank" in ended.output


def test_a_table_without_its_cosmology_is_refused(tmp_path):
    table = tmp_path / "table.txt"
    table.write_text("# h=0.7\n0.01 100\n0.1 10\n1 1\n")
    ended = run(SCRIPT, ranks=1, preamble="", arguments=["--linear-power", str(table)])
    assert ended.status != 0
    assert "the header must name Omega_m, Omega_b, n_s, sigma8_linear_z0" in ended.output


def test_reconstruction_finds_the_initial_conditions(tmp_path):
    script = (
        "import runpy, sys\nsys.path.insert(0, 'examples')\n"
        "runpy.run_path('examples/reconstruct.py', run_name='__main__')\n"
    )
    arguments = ["--mesh", "16", "--box", "200", "--steps", "2", "--iterations", "60"]
    arguments += ["--out", str(tmp_path)]
    how = compiling_once(tmp_path / "programs")
    assert_succeeds(script, ranks=2, limit=200, arguments=arguments, **how)
    found = json.loads((tmp_path / "reconstruction.json").read_text())
    assert found["loss_last"] < found["loss_first"] / 5
    # Better than the observed field as it is, which is what there would be without descent.
    assert min(found["r"][:3]) > 0.98
    assert sum(found["r"][:6]) > sum(found["r_observed"][:6]) + 0.2


def test_inference_goes_on_with_the_same_chain_on_other_ranks(tmp_path):
    """And its posterior has the truth where it says."""
    script = (
        "import runpy, sys\nsys.path.insert(0, 'examples')\n"
        "runpy.run_path('examples/infer.py', run_name='__main__')\n"
    )
    how = compiling_once(tmp_path / "programs")
    settings = ["--mesh", "12", "--box", "240", "--tuning", "60", "--dtype", "float64"]
    settings += ["--every", "40"]

    def infer(folder, samples, ranks):
        arguments = [*settings, "--samples", str(samples), "--out", str(tmp_path / folder)]
        assert_succeeds(script, ranks=ranks, limit=200, arguments=arguments, **how)
        return json.loads((tmp_path / folder / "infer.json").read_text())

    begun = infer("restarted", 40, 2)
    restarted, whole = infer("restarted", 80, 1), infer("whole", 80, 1)
    assert (begun["samples_before"], restarted["samples_before"]) == (0, 40)
    np.testing.assert_allclose(restarted["trace_of_bias"], whole["trace_of_bias"], rtol=1e-8)
    np.testing.assert_allclose(restarted["r_mean"], whole["r_mean"], rtol=1e-7)
    assert 0.6 < whole["truth_over_deviation"] < 1.6
    assert min(whole["r_mean"][:2]) > max(0.8, min(whole["r_observed"][:2]) - 0.05)
