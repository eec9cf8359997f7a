/* Draws the blocks of a pencil as boxes in isometric projection. */
"use strict";

const drawing = (() => {
  const NAMESPACE = "http://www.w3.org/2000/svg";
  const MOST_BLOCKS = 1024;
  const COS = Math.cos(Math.PI / 6);

  function element(name, attributes, ...children) {
    const node = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  }

  /** A place in the picture. Axis 0 goes down to the right, axis 1 down to the left, axis 2 up. */
  const project = ([x, y, z]) => [(x - y) * COS, (x + y) / 2 - z];
  const points = (corners) =>
    corners.map((c) => project(c).map((v) => v.toFixed(4)).join(",")).join(" ");

  /** The hue says the row, the lightness the column: the ranks of a row have one hue. */
  function colour([row, column], dims, shade) {
    const hue = (215 + (360 * row) / dims[0]) % 360;
    const spread = dims[1] > 1 ? column / (dims[1] - 1) : 0.5;
    return `hsl(${hue.toFixed(1)} 58% ${(38 + 34 * spread + shade).toFixed(1)}%)`;
  }

  /** The three faces of a box that can be seen. */
  function box([[x0, x1], [y0, y1], [z0, z1]], coords, dims) {
    const faces = [
      [[x0, y1, z0], [x1, y1, z0], [x1, y1, z1], [x0, y1, z1]],
      [[x1, y0, z0], [x1, y1, z0], [x1, y1, z1], [x1, y0, z1]],
      [[x0, y0, z1], [x1, y0, z1], [x1, y1, z1], [x0, y1, z1]],
    ];
    return faces.map((face, i) =>
      element("polygon", { points: points(face), fill: colour(coords, dims, [-7, 0, 8][i]) }),
    );
  }

  /** Sides of the whole array in the picture: in proportion, but none so thin that nothing shows. */
  function sidesOf(shape) {
    const longest = Math.max(...shape);
    return shape.map((n) => Math.max(n / longest, 0.24));
  }

  /** Where a cell's index along an axis lies: blocks stand a little apart. */
  function placed(pencil, sides, axis, index, part) {
    const d = pencil.split.indexOf(axis);
    const parts = d < 0 ? 1 : pencil.dims[d];
    const gap = parts > 1 ? Math.min(0.05, 0.3 / parts) : 0;
    return (index / pencil.shape[axis]) * sides[axis] + part * gap;
  }

  function placedRanges(pencil, sides, ranges, coords) {
    return ranges.map(([start, count], axis) => {
      const d = pencil.split.indexOf(axis);
      const part = d < 0 ? 0 : coords[d];
      return [start, start + count].map((i) => placed(pencil, sides, axis, i, part));
    });
  }

  function arrow(from, to) {
    const [a, b] = [project(from), project(to)];
    const length = Math.hypot(b[0] - a[0], b[1] - a[1]);
    const [ux, uy] = [(b[0] - a[0]) / length, (b[1] - a[1]) / length];
    const back = [b[0] - 0.07 * ux, b[1] - 0.07 * uy];
    const tip = [b, [back[0] - 0.03 * uy, back[1] + 0.03 * ux], [back[0] + 0.03 * uy, back[1] - 0.03 * ux]];
    return [
      element("line", {
        class: "whole", x1: a[0], y1: a[1], x2: back[0], y2: back[1],
        "vector-effect": "non-scaling-stroke",
      }),
      element("polygon", { class: "tip", points: tip.map((p) => p.join(",")).join(" ") }),
    ];
  }

  /** The picture of a stage.
   *
   * `pieces` are the parts of the block of the rank that is shown, by the ranks that they come from:
   * [{coords, ranges}]. `choose(rank)` is called for a block that is clicked. */
  function draw({ pencil, rank, pieces, label, choose }) {
    const { dims, shape } = pencil;
    const sides = sidesOf(shape);
    const mine = layouts.coordinates(rank, dims);
    const ends = shape.map((n, axis) => {
      const d = pencil.split.indexOf(axis);
      return placed(pencil, sides, axis, n, d < 0 ? 0 : dims[d] - 1);
    });
    const margin = 0.34;
    const corners = [[ends[0], 0, 0], [0, ends[1], 0], [0, 0, ends[2]], [ends[0], ends[1], 0]];
    const [xs, ys] = [0, 1].map((i) => corners.map((c) => project(c)[i]));
    const view = [Math.min(...xs) - margin, Math.min(...ys) - margin / 2];
    view.push(Math.max(...xs) + margin - view[0], Math.max(...ys) + margin - view[1]);
    // Pictures of thin arrays are as wide as others, so that their text is no larger.
    const wider = Math.max(2.2 - view[2], 0);
    view[0] -= wider / 2;
    view[2] += wider;
    const svg = element("svg", {
      viewBox: view.map((v) => v.toFixed(4)).join(" "), role: "img", "aria-label": label,
    });

    // Far blocks first. Those nearer than the chosen one are drawn over it, and let it through.
    const all = dims[0] * dims[1] <= MOST_BLOCKS;
    const ranks = all ? [...Array(dims[0] * dims[1]).keys()] : [rank];
    const blocks = ranks
      .map((r) => ({ r, coords: layouts.coordinates(r, dims) }))
      .map((b) => ({ ...b, ranges: layouts.cells(pencil, b.coords) }))
      .filter((b) => b.ranges.every(([, count]) => count > 0));
    const order = (a, b) =>
      a.ranges[0][0] - b.ranges[0][0] || a.ranges[1][0] - b.ranges[1][0] || a.ranges[2][0] - b.ranges[2][0];
    blocks.sort(order);
    let opacity = 0.42;
    if (!all) {
      const hull = shape.map((_, axis) => [0, ends[axis]]);
      const faces = box(hull, mine, dims);
      for (const face of faces) face.setAttribute("fill", "none");
      svg.append(element("g", { class: "hull mine" }, ...faces));
    }
    for (const { r, coords, ranges } of blocks) {
      const group = element("g", { class: r === rank ? "block mine" : "block", "data-rank": r });
      if (r === rank) {
        opacity = 0.16;
        for (const piece of [...pieces].sort(order)) {
          group.append(...box(placedRanges(pencil, sides, piece.ranges, coords), piece.coords, dims));
        }
      } else {
        group.append(...box(placedRanges(pencil, sides, ranges, coords), coords, dims));
        group.setAttribute("opacity", opacity);
      }
      const sizes = ranges.map(([, count]) => count).join(" x ");
      const title = element("title", {});
      title.textContent = `rank ${r}: row ${coords[0]}, column ${coords[1]}; ${sizes} cells`;
      group.append(title);
      group.addEventListener("click", () => choose(r));
      svg.append(group);
    }
    for (const polygon of svg.querySelectorAll("polygon")) {
      polygon.setAttribute("vector-effect", "non-scaling-stroke");
    }

    // Names of the axes, and an arrow along the one that is whole and contiguous.
    const out = 0.11;
    const edges = [
      { from: [0, ends[1] + out, 0], to: [ends[0], ends[1] + out, 0], anchor: "end", shift: [-0.02, 0.09] },
      { from: [ends[0] + out, 0, 0], to: [ends[0] + out, ends[1], 0], anchor: "start", shift: [0.02, 0.09] },
      { from: [-out / 2, ends[1] + out / 2, 0], to: [-out / 2, ends[1] + out / 2, ends[2]], anchor: "middle" },
    ];
    edges.forEach(({ from, to, anchor, shift }, axis) => {
      const contiguous = pencil.axes[2] === axis;
      if (contiguous) svg.append(...arrow(from, to));
      const [a, b] = [project(from), project(to)];
      const at = shift ? [0, 1].map((i) => (a[i] + b[i]) / 2 + shift[i]) : [b[0], b[1] - 0.04];
      const text = element("text", {
        x: at[0].toFixed(4),
        y: at[1].toFixed(4),
        "text-anchor": anchor,
        style: `font-size: 0.1px; font-weight: ${contiguous ? 600 : 400}`,
      });
      text.textContent = `${axis}: ${shape[axis]}`;
      svg.append(text);
    });
    return svg;
  }

  return { draw, MOST_BLOCKS };
})();
