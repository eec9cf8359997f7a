"""The cost model of benchmarks/model.py."""

import json
import sys

import pytest

from benchmarks.model import BYTES, Cores, Network, best_grid, fit, main, predict

CORES = Cores(arithmetic=2e-10, memory=1e-10)
NETWORK = Network(
    ranks_a_node=8, latency=1e-6, node_bandwidth=8e9, memory_bandwidth=4e9, efficiency=0.5
)


def test_the_fit_finds_what_the_figures_were_made_of(tmp_path):
    best = {}
    for case in ("64:complex64", "256:complex64", "128:float32", "128:complex128"):
        n, dtype = case.split(":")
        digits = 3 * (int(n).bit_length() - 1)
        ms = 1e3 * CORES.local(int(n) ** 3 / 4, digits, BYTES[dtype])
        best[case] = {"forward_ms": ms, "inverse_ms": ms}
    path = tmp_path / "fft.json"
    path.write_text(json.dumps({"ranks": 4, "best_ms": {"pfftjax": best}}))
    cores, fitted = fit(path)
    assert cores.arithmetic == pytest.approx(CORES.arithmetic)
    assert cores.memory == pytest.approx(CORES.memory)
    assert all(model == pytest.approx(measured) for _, measured, model in fitted)


def test_exchanges():
    volume = 1e6
    # On a node all is memory; rows that are a node apart are all network.
    assert NETWORK.exchange(8, 1, volume) == pytest.approx(7e-6 + volume * 7 / 8 / 4e9)
    share = 0.5 * 8e9 / 8
    assert NETWORK.exchange(4, 8, volume) == pytest.approx(3e-6 + volume * 3 / 4 / share)
    # On two nodes a rank sends to 7 others of its own, and one message to the other node.
    expected = 8e-6 + volume * 7 / 16 / 4e9 + volume * 8 / 16 / share
    assert NETWORK.exchange(16, 1, volume) == pytest.approx(expected)
    one = predict((64,) * 3, (1, 1), "complex64", CORES, NETWORK)
    assert one["exchange"] == 0
    slab, pencil = (predict((64,) * 3, g, "complex64", CORES, NETWORK) for g in ((4, 1), (2, 2)))
    assert slab["local"] == pencil["local"] == pytest.approx(one["local"] / 4)
    # A slab has one exchange, of 3 / 4; a pencil two, of 1 / 2 each.
    assert slab["exchange"] < pencil["exchange"]


def test_more_ranks_than_planes_need_pencils():
    grid, _ = best_grid(64, 512, "complex64", CORES, NETWORK)
    assert max(grid) <= 64
    assert grid[0] * grid[1] == 512


def test_a_network_that_was_measured_on_one_node_is_refused(tmp_path, monkeypatch, capsys):
    figures = {"ranks_a_node": 2, "latency": 1e-6, "memory_bandwidth": 4e9, "node_bandwidth": 0.0}
    path = tmp_path / "network.json"
    path.write_text(json.dumps(figures))
    monkeypatch.setattr(sys, "argv", ["model", "--network", str(path)])
    with pytest.raises(SystemExit):
        main()
    assert "measured on one node, which says nothing of a network" in capsys.readouterr().err
