"""Tables of pages on many ranks and nodes, which benchmarks/tables.py writes."""

import json

from benchmarks import markdown, model_of_gpus


def _model() -> dict:
    return json.loads((markdown.ROOT / "benchmarks" / "results" / "model.json").read_text())


def scaling() -> str:
    """What the cost model predicts for many ranks."""
    rows = [
        (
            f"{row['n']}^3",
            str(row["ranks"]),
            " x ".join(map(str, row["grid"])),
            f"{row['total']:.3g}",
            f"{100 * row['exchange'] / row['total']:.0f} %",
        )
        for row in _model()["predicted"]
    ]
    return markdown.table(("n^3", "ranks", "grid", "seconds", "exchanges"), *rows)


def between_nodes() -> str:
    """The model beside transforms between nodes on limited links."""
    rows = []
    for row in _model()["between_nodes"]:
        nodes = row["nodes"].split(",")
        error = 100 * (row["model_ms"] / row["measured_ms"] - 1)
        rows.append(
            (
                {"openmpi": "Open MPI", "mpich": "MPICH"}[row["mpi"]],
                f"{row['n']}^3",
                " + ".join(str(nodes.count(node)) for node in dict.fromkeys(nodes)),
                f"{row['gbit']:.2f}",
                f"{row['measured_ms']:.1f}",
                f"{row['model_ms']:.1f} ({'fitted' if row['is_fitted'] else f'{error:+.0f} %'})",
            )
        )
    header = ("MPI", "n^3", "ranks of nodes", "Gbit/s", "measured, ms", "model, ms")
    return markdown.table(header, *rows)


def gpus() -> str:
    """The model beside published transforms on GPUs."""
    rows = []
    for row in model_of_gpus.checked():
        error = 100 * (row["model_ms"] / row["published_ms"] - 1)
        per_node = min(row["gpus"], row["gpus_a_node"])
        rows.append(
            (
                row["library"],
                f"{row['n']}^3",
                row["dtype"],
                f"{row['gpus'] // per_node} x {per_node}",
                f"{row['published_ms']:.1f}",
                f"{row['model_ms']:.1f} ({'fitted' if row['is_fitted'] else f'{error:+.0f} %'})",
            )
        )
    header = ("library", "n^3", "dtype", "nodes x GPUs", "published, ms", "model, ms")
    return markdown.table(header, *rows)


def _on_the_clock(name: str) -> dict:
    path = markdown.ROOT / "benchmarks" / "results" / "simulated" / f"{name}.json"
    return json.loads(path.read_text())


def _exchange_of(entry: dict) -> str:
    """Its name, size and ranks."""
    ranks = f"{entry['nodes']} x {entry['ranks_per_node']}"
    if entry["exchange"] != "transpose":
        how = "" if entry["method"] == "PLAIN" else f", {entry['method']}"
        return f"{entry['exchange']}, {markdown.size(entry['size'])}, {ranks} ranks{how}"
    where = f"grid {entry['grid'].replace('x', ' x ')}, axis {entry['axis']}"
    return f"{entry['size']}^3, {ranks} ranks, {where}, {entry['method']}"


def clock() -> str:
    """What exchanges cost by the clock of the simulated MPI: its numbers, times, and the model."""
    machines = {name: _on_the_clock(name) for name in ("slingshot", "ethernet")}
    numbers = [
        (f"`{term}`", *(f"{found['machine'][term]:g}" for found in machines.values()))
        for term in machines["slingshot"]["machine"]
        if term != "congestion"
    ]
    first, second = (found["exchanges"] for found in machines.values())
    times = [
        (
            _exchange_of(one),
            *(
                f"{1e3 * of['seconds']:.3g} ({1e3 * of['wire_seconds']:.3g})"
                for of in (one, other)
            ),
            str(one["messages_between_nodes"]),
        )
        for one, other in zip(first, second, strict=True)
    ]
    ratios = [
        (
            _exchange_of(row),
            *(f"{1e3 * row[key]:.3g}" for key in ("seconds", "model_seconds")),
            f"{row['ratio']:.2f}",
        )
        for row in _on_the_clock("model")["slingshot"]
    ]
    return "\n".join(
        (
            markdown.table(("number (ns, bytes, bytes/ns)", *machines), *numbers),
            markdown.table(
                ("ms (on the links alone)", *machines, "messages between nodes"), *times
            ),
            markdown.table(("Slingshot", "clock, ms", "model, ms", "ratio"), *ratios),
        )
    )


def model_of_the_viewer() -> dict:
    """Constants of the cost model: those of cores, and of the network that it predicts for."""
    found = _model()
    return {key: found[key] for key in ("cores", "network")}


def viewer() -> str:
    """The constants as the layout viewer reads them."""
    text = json.dumps(model_of_the_viewer(), indent=1)
    return f'<script type="application/json" id="model">\n{text}\n</script>\n'


def memory() -> str:
    """What simulations and their gradients take, as a function of particles N and ranks P."""
    particles = markdown.results("adjoint")["sizes"]["128"]["bytes_a_particle"]
    few, many = (particles["stored"][steps] for steps in ("5", "40"))
    each = (many - few) / 35
    measured = markdown.results("step-memory")
    step, run, of_run = (
        measured[name]["bytes_a_particle"] for name in ("step", "run", "gradient")
    )
    # The peak of the smaller size is that of Python, JAX and compiled programs.
    fixed = {
        name: 1e6 * measured[name]["peak_mb"][0] / measured["ranks"]
        for name in ("step", "run", "gradient")
    }
    gradient = particles["reversible"]["40"]
    rows = [
        ("a step of `pm.step`, on as many cells as particles", "step", step, f"{step:.0f}"),
        (
            "value and gradient of any number of such steps",
            "gradient",
            gradient,
            f"{gradient:.0f}",
        ),
        (
            'of n such steps with `adjoint="stored"`, and of 10',
            "gradient",
            few + 5 * each,
            f"({few - 5 * each:.0f} + {each:.0f} n)",
        ),
        ("a run of `pm.Simulation`, on eight cells for each particle", "run", run, f"{run:.0f}"),
        ("value and gradient of such a run", "gradient", of_run, f"{of_run:.0f}"),
    ]
    header = ("float32, all included", "bytes on each rank")
    return markdown.table(
        (*header, "1024^3 particles on 2 nodes of 128 ranks", "programs on each rank"),
        *(
            (
                what,
                f"{formula} N / P",
                f"{(128 * fixed[kind] + bytes_of_one * 2**29) / 1e9:.0f} GB a node",
                f"{fixed[kind] / 1e9:.2f} GB",
            )
            for what, kind, bytes_of_one, formula in rows
        ),
    )


def faults() -> str:
    """What faults did to a run on two nodes, and what became of it."""
    rows = []
    for found in markdown.results("faults")["faults"]:
        saw = found["saw"] if found["saw"] == "nothing" else f"`{found['saw']}`"
        same, other = found["same_grid_differs_by"], found["other_grid_differs_by"]
        who = "ranks end" if found.get("launcher_waits") else "ends"
        end = f"{who} after {found['seconds']:.1f} s, status {found['status']}"
        after = "the same bits" if same == 0 else f"within {same or 0:.0e}"
        if found["goes_on"]:
            end = f"goes on after {found['seconds']:.1f} s"
        elif same is None:
            after = "not tried"
        else:
            after += f"; on another grid within {other:.0e}"
        rows.append((found["fault"], saw, end, after))
    header = ("fault", "what the user sees", "the job", "the run, or its restarts")
    return markdown.table(header, *rows)


def endurance() -> str:
    """What a rank of a long run on two nodes holds."""
    found = markdown.results("endurance")
    early, late, grown = (found[name] for name in ("after_first_third", "at_the_end", "grown"))
    names = {
        "mebibytes": "memory of rank 0, MiB",
        "malloc_mebibytes": "which malloc has given away",
        "files": "open files",
        "threads": "threads",
        "shared_bytes": "shared memory of its node, bytes",
    }
    rows = [
        (text, f"{early[name]:g}", f"{late[name]:g}", f"{grown[name]:+.3g}")
        for name, text in names.items()
    ]
    run = f"{found['rounds']} rounds, {found['minutes']:.0f} minutes"
    grown_of_any = "last third beyond the second, the rank with most"
    return markdown.table((run, "after a third", "at the end", grown_of_any), *rows)


def methods() -> str:
    """Methods of exchange on several nodes, beside the link alone."""
    lines = []
    for case, found in markdown.results("methods").items():
        beside = [
            f"{found[name]['ms']:.0f} ({found[name]['of_messages']:.2f})"
            for name in ("HIERARCHICAL", "ALLTOALL")
        ]
        link = found["link"]
        size, _, where = case.partition(" on nodes ")
        nodes = where.partition(", rate ")[0].split(",")
        lines.append(
            (
                size,
                " + ".join(str(nodes.count(node)) for node in dict.fromkeys(nodes)),
                f"{link['gbit']:.2f}",
                f"{link['ms']:.0f}",
                f"{found['MESSAGES']['ms']:.0f}",
                *beside,
            )
        )
    header = ("complex64", "ranks of nodes", "Gbit/s", "the link alone, ms", "`MESSAGES`, ms")
    return markdown.table((*header, "`HIERARCHICAL` (of `MESSAGES`)", "`ALLTOALL`"), *lines)


def threads() -> str:
    """The same cores in fewer ranks."""
    cases = markdown.results("threads")["cases"]
    splits = list(next(iter(cases.values())))
    rows = [
        (
            case,
            f"{of[splits[0]]['ms']:.1f} ms",
            *(
                f"{of[split]['ms']:.1f} ms ({of[split]['of_one_core']:.2f})"
                for split in splits[1:]
            ),
        )
        for case, of in cases.items()
    ]
    return markdown.table(("ranks x cores of each", *splits), *rows)
