/* The layouts of pfftjax.PencilFFT: which rank holds which cells at each stage of a forward
 * transform, what an exchange sends, how much memory it takes, and how long the cost model of
 * benchmarks/model.py expects it to take.
 *
 * The page draws these numbers. Nothing here touches a document, so that
 * tests/fft/test_layouts_viewer.py can run this file by itself and compare it with Python:
 * `describe` with `plan.describe()`, `predict` with `benchmarks.model.predict`.
 */
"use strict";

const layouts = (() => {
  const AXES = [0, 1, 2];
  const BYTES = { float32: 4, float64: 8, complex64: 8, complex128: 16 };
  const product = (numbers) => numbers.reduce((a, b) => a * b, 1);

  /** [start, count] of one part of n cells: equal parts, and the remainder to the first ones. */
  function block(n, parts, part) {
    const size = Math.floor(n / parts);
    const rest = n % parts;
    return [part * size + Math.min(part, rest), size + (part < rest ? 1 : 0)];
  }

  /** Row and column of a rank. */
  function coordinates(rank, dims) {
    return [Math.floor(rank / dims[1]), rank % dims[1]];
  }

  /** [start, count] along a global axis of a pencil, on the rank at `coords`. */
  function rangeOf(pencil, axis, coords) {
    const d = pencil.split.indexOf(axis);
    return d < 0
      ? [0, pencil.shape[axis]]
      : block(pencil.shape[axis], pencil.dims[d], coords[d]);
  }

  /** Ranges of the rank at `coords` along axes 0, 1 and 2. */
  function cells(pencil, coords) {
    return AXES.map((axis) => rangeOf(pencil, axis, coords));
  }

  /** The pencil in which two axes change places: in memory, and in what they are split over. */
  function swapped(pencil, a, b) {
    const to = (axis) => (axis === a ? b : axis === b ? a : axis);
    return { ...pencil, split: pencil.split.map(to), axes: pencil.axes.map(to) };
  }

  /** Pencils of an array on its way to the spectrum: in each another axis, from the last to the
   * first, is whole and contiguous. */
  function stages(shape, dims) {
    const real = { shape, dims, split: [0, 1], axes: [0, 1, 2] };
    const between = swapped(real, 1, 2);
    return [real, between, swapped(between, 0, 1)];
  }

  /** Dimensions of the process grid over which data move from one pencil to another. */
  function movesOver(source, target) {
    return [0, 1].filter((d) => source.dims[d] > 1 && source.split[d] !== target.split[d]);
  }

  /** The ranks that hold a part of the block that `coords` has in one pencil, in another pencil:
   * [{coords, ranges}], itself included. */
  function shares(of, coords, among) {
    const over = movesOver(among, of);
    const [rows, columns] = [0, 1].map((d) =>
      over.includes(d) ? [...Array(of.dims[d]).keys()] : [coords[d]],
    );
    const mine = cells(of, coords);
    const found = [];
    for (const row of rows) {
      for (const column of columns) {
        const ranges = cells(among, [row, column]).map(([start, count], axis) => {
          const from = Math.max(start, mine[axis][0]);
          return [from, Math.min(start + count, mine[axis][0] + mine[axis][1]) - from];
        });
        if (ranges.every(([, count]) => count > 0)) found.push({ coords: [row, column], ranges });
      }
    }
    return found;
  }

  function nameOfMove(source, target) {
    const { dims } = source;
    const over = movesOver(source, target);
    if (over.length === 0) return "reorder";
    if (over.length === 2) return `exchange among all ${dims[0] * dims[1]} ranks`;
    return `exchange among ${dims[over[0]]} ranks of a ${["column", "row"][over[0]]}`;
  }

  /** The steps of a forward transform: {pencil, text, operation}, with `from` where data move.
   * Steps with one number are one operation on CPUs. */
  function steps({ shape, dims, real, layout }) {
    const last = real ? "rfft" : "fft";
    const spectral = real ? [shape[0], shape[1], Math.floor(shape[2] / 2) + 1] : shape;
    const [start] = stages(shape, dims);
    const way = stages(spectral, dims);
    const slabs = dims[1] === 1;
    const move = (a, b, operation) => ({ pencil: b, from: a, text: nameOfMove(a, b), operation });
    const result = [{ pencil: start, text: "", operation: 0 }];
    if (slabs) {
      const text = `${last} along axis 2, fft along axis 1`;
      result.push({ pencil: way[0], text, operation: 1 });
      result.push(move(way[0], way[2], 1));
      result.push({ pencil: way[2], text: "fft along axis 0", operation: 1 });
    } else {
      result.push({ pencil: way[0], text: `${last} along axis 2`, operation: 1 });
      result.push(move(way[0], way[1], 1));
      result.push({ pencil: way[1], text: "fft along axis 1", operation: 1 });
      result.push(move(way[1], way[2], 2));
      result.push({ pencil: way[2], text: "fft along axis 0", operation: 2 });
    }
    if (layout === "natural") {
      const back = slabs ? [way[2], way[0]] : [way[2], way[1], way[0]];
      for (let i = 1; i < back.length; i++) {
        result.push(move(back[i - 1], back[i], result[result.length - 1].operation + 1));
      }
    }
    return result;
  }

  /** What a forward transform does on one rank: the array that goes in, and what comes out of
   * each step. `dtype` is that of the array in real space. */
  function describe({ shape, dims, rank, dtype, layout }) {
    const real = dtype.startsWith("float");
    const spectral = { float32: "complex64", float64: "complex128" }[dtype] || dtype;
    const coords = coordinates(rank, dims);
    const found = steps({ shape, dims, real, layout }).map((step, i) => {
      const type = i ? spectral : dtype;
      const ranges = cells(step.pencil, coords);
      const sizes = step.pencil.axes.map((axis) => ranges[axis][1]);
      const sent = step.from
        ? shares(step.from, coords, step.pencil)
            .filter(({ coords: [row, column] }) => row !== coords[0] || column !== coords[1])
            .map((share) => product(share.ranges.map(([, count]) => count)) * BYTES[type])
        : [];
      return {
        step: step.text,
        operation: step.operation,
        pencil: step.pencil,
        from: step.from || null,
        axes: step.pencil.axes,
        shape: sizes,
        start: step.pencil.axes.map((axis) => ranges[axis][0]),
        dtype: type,
        bytes: product(sizes) * BYTES[type],
        messages: sent.length,
        messageBytes: sent.reduce((a, b) => Math.max(a, b), 0),
        sentBytes: sent.reduce((a, b) => a + b, 0),
      };
    });
    // Between two operations there is an array; within one, on CPUs, none.
    const between = [];
    for (const stage of found) between[stage.operation] = stage.bytes;
    const peaks = between.slice(1).map((bytes, i) => bytes + between[i]);
    return {
      stages: found,
      sentBytes: found.reduce((sum, stage) => sum + stage.sentBytes, 0),
      peakBytes: peaks.reduce((a, b) => Math.max(a, b), 0),
    };
  }

  /** The dimensions of a grid that is as square as it can be, with no fewer rows than columns. */
  function square(ranks) {
    let columns = Math.floor(Math.sqrt(ranks));
    while (ranks % columns) columns--;
    return [ranks / columns, columns];
  }

  // An exchange between nodes goes in pieces, and overlaps the local work of two axes, or of one.
  // That of slabs P x 1 overlaps the rest in the parts of one piece.
  const LEAST_PIECE = 2 ** 19;
  const MOST_PIECES = 8;
  const OVERLAPPED = [2 / 3, 1 / 3];

  /** In how many pieces a message goes, of so many planes. */
  function piecesOf(message, planes) {
    return Math.max(Math.min(Math.floor(message / LEAST_PIECE), MOST_PIECES, planes), 1);
  }

  /** Seconds of an exchange in rows of `ranks`, `apart` places from each other, of `volume` bytes
   * and so many planes a rank, that are not hidden: behind as many of local work as pieces overlap,
   * and `rest`, which parts do. */
  function exchange(network, ranks, apart, volume, planes, overlapped, rest) {
    const near = Math.max(Math.floor(network.ranks_a_node / apart), 1);
    const here = Math.min(ranks, near);
    const share = (network.node_bandwidth * network.efficiency) / network.ranks_a_node;
    const within =
      (here - 1) * network.latency + ((volume * (here - 1)) / ranks) / network.memory_bandwidth;
    const between =
      ((ranks - here) / here) * network.latency + ((volume * (ranks - here)) / ranks) / share;
    const message = (volume / ranks) * here;
    const pieces = piecesOf(message, planes);
    const parts = piecesOf(message / pieces, planes);
    const behind =
      overlapped * (1 - 1 / pieces) + Math.min(rest, between / pieces) * (1 - 1 / parts);
    return within + Math.max(between - behind, 0);
  }

  /** Seconds of one direction, and where they go; `exchange` is what is not hidden. A real array
   * counts as its half spectrum. */
  function predict({ shape, dims, dtype, cores, network }) {
    const total = product(shape);
    const points = total / (dims[0] * dims[1]);
    const width = BYTES[dtype];
    const local =
      points * (cores.arithmetic * Math.log2(total) * (width / 8) + cores.memory * width);
    const rows = [[dims[1], 1], [dims[0], dims[1]]].filter(([ranks]) => ranks > 1);
    const rest = dims[1] === 1 ? local * (1 - OVERLAPPED[0]) : 0;
    const planes = Math.floor(shape[0] / dims[0]);
    const exchanges = rows.reduce((sum, [ranks, apart], i) => {
      const overlapped = local * OVERLAPPED[i];
      return sum + exchange(network, ranks, apart, points * width, planes, overlapped, rest);
    }, 0);
    return { local, exchange: exchanges, total: local + exchanges };
  }

  return { block, cells, coordinates, describe, movesOver, predict, shares, square, stages };
})();
