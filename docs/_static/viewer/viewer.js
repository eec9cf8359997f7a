/* Reads the settings, and shows what layouts.js makes of them. The settings are kept in the address,
 * so that a view can be passed on. */
"use strict";

(() => {
  const MOST_RANKS = 1e6;
  const get = (id) => document.getElementById(id);
  const model = JSON.parse(get("model").textContent);
  const NUMBERS = ["n0", "n1", "n2", "rows", "columns", "rank"];
  const CHOICES = ["dtype", "layout"];
  // Fields of the machine, and the factor from what is shown to the unit of the model.
  const MACHINE = {
    ranks_a_node: 1, node_bandwidth: 1e9 / 8, efficiency: 1e-2, memory_bandwidth: 1e9, latency: 1e-6,
  };

  /** A number with so many digits as one reads. */
  const short = (value) => Number(value.toPrecision(3)).toString();

  /** Bytes, as `describe` writes them. */
  function size(count) {
    if (count < 1024) return `${count} B`;
    let [unit, value] = [0, count];
    while (value >= 1024 && unit < 4) [unit, value] = [unit + 1, value / 1024];
    return `${value.toFixed(1)} ${["", "KiB", "MiB", "GiB", "TiB"][unit]}`;
  }

  function seconds(value) {
    if (value >= 1) return `${short(value)} s`;
    return value >= 1e-3 ? `${short(value * 1e3)} ms` : `${short(value * 1e6)} µs`;
  }

  const messages = (stage) =>
    `${stage.messages} of ${stage.messages > 1 ? "at most " : ""}${size(stage.messageBytes)}`;

  function node(name, content, attributes = {}) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...[content].flat());
    return made;
  }

  /** What the fields say, or {problem, field}. */
  function settings() {
    const found = {};
    for (const id of NUMBERS) {
      const value = Number(get(id).value);
      const least = id === "rank" ? 0 : 1;
      if (get(id).value === "" || !Number.isInteger(value) || value < least || value > MOST_RANKS) {
        const name = get(id).labels[0].firstChild.textContent.trim();
        return { problem: `${name} must be a whole number from ${least} to ${MOST_RANKS}.`, field: id };
      }
      found[id] = value;
    }
    const ranks = found.rows * found.columns;
    if (ranks > MOST_RANKS) {
      return { problem: `${found.rows} x ${found.columns} are ${ranks} ranks; take at most ${MOST_RANKS}.`, field: "rows" };
    }
    if (found.rank >= ranks) {
      return {
        problem: `There is no rank ${found.rank} on ${found.rows} x ${found.columns}: take one from 0 to ${ranks - 1}.`,
        field: "rank",
      };
    }
    const network = {};
    for (const [id, unit] of Object.entries(MACHINE)) {
      const value = Number(get(id).value);
      if (get(id).value === "" || !(value > 0 || (id === "latency" && value === 0))) {
        const name = get(id).labels[0].firstChild.textContent.trim();
        return { problem: `${name} must be a number above 0.`, field: id };
      }
      // An untouched field has the number of the model, not the digits that it shows.
      network[id] = get(id).value === shown(id) ? model.network[id] : value * unit;
    }
    return {
      shape: [found.n0, found.n1, found.n2],
      dims: [found.rows, found.columns],
      rank: found.rank,
      dtype: get("dtype").value,
      layout: get("layout").value,
      network,
    };
  }

  const shown = (id) => short(model.network[id] / MACHINE[id]);

  function tile(title, value, more) {
    return node("div", [node("dt", title), node("dd", [node("strong", value), node("span", more)])]);
  }

  function showSummary(now, description) {
    const fullest = layouts.describe({ ...now, rank: 0 });
    const time = layouts.predict({ ...now, cores: model.cores });
    const count = description.stages.reduce((sum, stage) => sum + stage.messages, 0);
    const largest = Math.max(...description.stages.map((stage) => stage.messageBytes));
    const ranks = now.dims[0] * now.dims[1];
    const natural = now.layout === "natural" && ranks > 1;
    const total = time.total + (natural ? time.exchange : 0);
    const share = (time.exchange * (natural ? 2 : 1)) / total;
    get("summary").replaceChildren(
      tile("sent by this rank", size(description.sentBytes), "in one transform"),
      tile("messages of this rank", String(count), count ? `of at most ${size(largest)}` : "nothing is sent"),
      tile("arrays of the fullest rank", size(fullest.peakBytes), "what one operation reads and writes"),
      tile("predicted time", seconds(total), `one direction, ${Math.round(100 * share)} % exchanges`),
    );
    const nodes = Math.ceil(ranks / now.network.ranks_a_node);
    get("caveat").textContent =
      `Time is the model's, not a measurement, and a bound from below: ${ranks} ` +
      `${ranks === 1 ? "rank" : "ranks"} on ${nodes} ${nodes === 1 ? "node" : "nodes"}. ` +
      "To the arrays add one that exchanges keep, and 0.45 GB for Python, JAX and compiled programs.";
  }

  /** The stages that are drawn: the array that goes in, and what each exchange makes of it. */
  function drawn(description) {
    const moved = description.stages.filter((stage) => stage.from);
    return [description.stages[0], ...moved];
  }

  function title(stage, i, all, now) {
    if (i === 0) return "Real space";
    if (i === all.length - 1) return now.layout === "natural" ? "Spectrum, natural order" : "Spectrum";
    return stage.axes[2] === 0 ? "Spectrum, transposed" : "Between";
  }

  function showStages(now, description) {
    const coords = layouts.coordinates(now.rank, now.dims);
    const all = drawn(description);
    const local = (from, to) =>
      description.stages
        .slice(description.stages.indexOf(from) + 1, to ? description.stages.indexOf(to) : undefined)
        .map((stage) => stage.step);
    const figures = all.map((stage, i) => {
      const { pencil } = stage;
      const whole = layouts.cells(pencil, coords);
      const pieces = stage.from
        ? layouts.shares(pencil, coords, stage.from)
        : [{ coords, ranges: whole }];
      const empty = stage.shape.includes(0);
      const ranges = whole.map(([start, count]) => (count ? `${start}:${start + count}` : "none"));
      const split = pencil.split.map((axis, d) =>
        now.dims[d] > 1 ? `axis ${axis} over ${now.dims[d]} ${["rows", "columns"][d]}` : `axis ${axis} whole`,
      );
      const then = local(stage, all[i + 1]).join(", ");
      const sent = stage.messages ? `: ${messages(stage).replace(" ", stage.messages > 1 ? " messages " : " message ")}` : "";
      const name = title(stage, i, all, now);
      const how = i ? `after ${stage.step}${sent}` : split.join(", ");
      const label = `${name}: ${split.join(" and ")}; rank ${now.rank} has cells ${ranges.join(", ")} of axes 0, 1, 2`;
      const owns = empty ? "holds no cell" : `[${ranges.join(", ")}]`;
      return node("figure", [
        node("figcaption", [node("strong", name), node("div", how, { class: "how" })]),
        drawing.draw({ pencil, rank: now.rank, pieces: empty ? [] : pieces, label, choose }),
        node("p", `rank ${now.rank}: ${owns}`, { class: "owned" }),
        node("p", `in memory ${stage.shape.join(" x ")}, axes\u00a0(${stage.axes.join(",\u00a0")})`),
        node("p", then ? `then ${then}` : "the result"),
      ]);
    });
    get("stages").className = figures.length === 2 ? "two" : "";
    get("stages").replaceChildren(...figures);
    const ranks = now.dims[0] * now.dims[1];
    get("key").textContent =
      ranks > drawing.MOST_BLOCKS
        ? `Of ${ranks} ranks only the block of rank ${now.rank} is drawn.`
        : "Colour says the rank: its hue the row, its lightness the column. The block of the rank shown is opaque; " +
          "after an exchange its parts have the colours of the ranks that they came from. The arrow is the axis that is " +
          "contiguous in memory.";
  }

  function showSteps(now, description) {
    const head = ["", "step", "block", "memory order", "size", "messages"];
    const rows = description.stages.map((stage) => [
      stage.operation || "",
      stage.step || "real space",
      `(${stage.shape.join(", ")}) ${stage.dtype}`,
      `(${stage.axes.join(", ")})`,
      size(stage.bytes),
      stage.messages ? messages(stage) : "",
    ]);
    get("steps").replaceChildren(
      node("thead", node("tr", head.map((text) => node("th", text, { scope: "col" })))),
      node("tbody", rows.map((row) => node("tr", row.map((text) => node("td", String(text)))))),
    );
    get("steps-rank").textContent = now.rank;
    const real = now.dtype.startsWith("float") ? ", real=True" : "";
    const natural = now.layout === "natural" ? ', layout="natural"' : "";
    get("program").textContent =
      `# mpirun -n ${now.dims[0] * now.dims[1]} python describe.py\n` +
      "import pfftjax\n\n" +
      `grid = pfftjax.ProcessGrid((${now.dims.join(", ")}))\n` +
      `plan = pfftjax.PencilFFT((${now.shape.join(", ")}), grid${real}${natural})\n` +
      `if grid.comm.rank == ${now.rank}:\n    print(plan.describe("${now.dtype}"))\n`;
  }

  function show() {
    const now = settings();
    for (const id of [...NUMBERS, ...Object.keys(MACHINE)]) {
      get(id).setAttribute("aria-invalid", String(now.field === id));
    }
    get("problem").hidden = !now.problem;
    get("problem").textContent = now.problem || "";
    if (now.problem) return;
    const description = layouts.describe(now);
    showSummary(now, description);
    showStages(now, description);
    showSteps(now, description);
    const query = new URLSearchParams([...NUMBERS, ...CHOICES].map((id) => [id, get(id).value]));
    history.replaceState(null, "", `#${query}`);
  }

  function choose(rank) {
    get("rank").value = rank;
    show();
  }

  function setGrid(dims) {
    [get("rows").value, get("columns").value] = dims;
    show();
  }

  for (const id of Object.keys(MACHINE)) get(id).value = shown(id);
  for (const [id, value] of new URLSearchParams(location.hash.slice(1))) {
    if (NUMBERS.includes(id) || CHOICES.includes(id)) get(id).value = value;
  }
  for (const id of CHOICES) {
    if (get(id).selectedIndex < 0) get(id).selectedIndex = 0;
  }
  get("settings").addEventListener("input", show);
  get("settings").addEventListener("submit", (event) => event.preventDefault());
  const ranks = () => Number(get("rows").value) * Number(get("columns").value);
  get("slabs").addEventListener("click", () => setGrid([ranks(), 1]));
  get("square").addEventListener("click", () => setGrid(layouts.square(Math.max(ranks(), 1))));
  show();
})();
