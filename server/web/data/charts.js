// Line charts as inline SVG: no library, no inline style, everything a reader sees also as text.
"use strict";

const Charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 176, LEFT = 4, RIGHT = 4, TOP = 18, BOTTOM = 20;

  function node(name, attributes, text) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  /** A round number not below a value, so that the axis ends at one: of tens, or of 1024 for bytes. */
  function roundUp(value, base) {
    const steps = base === 1024 ? [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] : [1, 2, 4, 5, 10];
    const power = base ** Math.floor(Math.log(value) / Math.log(base) + 1e-9);
    return power * steps.find((step) => value <= step * power * 1.0000001);
  }

  function clock(seconds, withSeconds) {
    const parts = { hour: "2-digit", minute: "2-digit", hour12: false };
    if (withSeconds) parts.second = "2-digit";
    return new Date(seconds * 1000).toLocaleTimeString([], parts);
  }

  /** Splits a series where values are missing; a single value between gaps stays a dot. */
  function pieces(rows, index) {
    const found = [];
    let piece = [];
    for (const row of rows) {
      if (row[index] === null || row[index] === undefined) {
        if (piece.length) found.push(piece);
        piece = [];
      } else piece.push(row);
    }
    if (piece.length) found.push(piece);
    return found;
  }

  /**
   * Draws a chart into a box, or draws it anew.
   *
   * @param box an element that is the chart's alone
   * @param options label: what it shows; series: names, in the order of their colours; rows:
   *   [seconds, value or null, …] in order of time; from, to: seconds; format: value to text;
   *   most: end of the axis, if it is always the same; base: 1024 for bytes
   */
  function draw(box, options) {
    const { series, rows, from, to, format } = options;
    const width = Math.max(200, box.clientWidth);
    const high = Math.max(0, ...rows.flatMap((row) => row.slice(1).filter((value) => value !== null)));
    const most = options.most || (high > 0 ? roundUp(high, options.base || 10) : 1);
    const isFlat = !options.most && !(high > 0);
    const x = (seconds) => LEFT + ((seconds - from) / (to - from)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - Math.min(value, most) / most) * (HEIGHT - TOP - BOTTOM);

    const legend = document.createElement("ul");
    legend.className = "legend";
    const picture = node("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", preserveAspectRatio: "none" });
    picture.setAttribute("aria-label", spoken(options));
    for (const share of [0, 0.5, 1]) {
      const at = y(share * most);
      picture.append(node("line", { class: share ? "grid" : "base", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
      if (share ? !isFlat : isFlat) picture.append(node("text", { x: LEFT, y: at - 4 }, format(share * most)));
    }
    const times = width < 420 ? [0, 1] : [0, 0.5, 1];
    for (const share of times) {
      const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
      const at = from + share * (to - from);
      picture.append(node("text", { x: x(at), y: HEIGHT - 4, "text-anchor": anchor }, clock(at)));
    }
    series.forEach((name, index) => line(picture, rows, index, x, y));
    const cross = node("g", { visibility: "hidden" });
    picture.append(cross);
    box.replaceChildren(legend, picture);
    tell(legend, options, latest(rows), false);
    if (rows.length) follow(box, picture, cross, legend, options, { x, y, width });
  }

  function line(picture, rows, index, x, y) {
    for (const piece of pieces(rows, index + 1)) {
      const points = piece.map((row) => `${x(row[0]).toFixed(1)},${y(row[index + 1]).toFixed(1)}`);
      if (points.length === 1) {
        const [cx, cy] = points[0].split(",");
        picture.append(node("circle", { class: `f${index}`, cx, cy, r: 2 }));
        continue;
      }
      if (index === 0) {
        const first = x(piece[0][0]).toFixed(1), last = x(piece[piece.length - 1][0]).toFixed(1);
        const path = `M${first},${y(0)}L${points.join("L")}L${last},${y(0)}Z`;
        picture.append(node("path", { class: "area f0", d: path }));
      }
      picture.append(node("path", { class: `series c${index}`, d: "M" + points.join("L") }));
    }
  }

  function latest(rows) {
    for (let index = rows.length - 1; index >= 0; index--) {
      if (rows[index].slice(1).some((value) => value !== null)) return rows[index];
    }
    return null;
  }

  function spoken(options) {
    const row = latest(options.rows);
    if (!row) return `${options.label}: nothing yet`;
    const now = options.series.map((name, index) => {
      const value = row[index + 1];
      return `${name} ${value === null ? "unknown" : options.format(value)}`;
    });
    return `${options.label}, now: ${now.join(", ")}`;
  }

  function tell(legend, options, row, isPast) {
    const items = options.series.map((name, index) => {
      const item = document.createElement("li");
      const mark = node("svg", { viewBox: "0 0 16 8", "aria-hidden": "true" });
      mark.append(node("line", { class: `c${index}`, x1: 1, x2: 15, y1: 4, y2: 4, "stroke-width": 3, "stroke-linecap": "round" }));
      const value = document.createElement("span");
      value.className = "value";
      const known = row && row[index + 1] !== null && row[index + 1] !== undefined;
      value.textContent = known ? options.format(row[index + 1]) : "–";
      item.append(mark, document.createTextNode(name), value);
      return item;
    });
    if (isPast) {
      const when = document.createElement("li");
      when.className = "when";
      when.textContent = clock(row[0], true);
      items.push(when);
    }
    legend.replaceChildren(...items);
  }

  /** A pointer over the chart shows the values of that moment in the legend. */
  function follow(box, picture, cross, legend, options, { x, y, width }) {
    const rows = options.rows;
    function show(event) {
      const bounds = picture.getBoundingClientRect();
      const at = ((event.clientX - bounds.left) / bounds.width) * width;
      let near = rows[0];
      for (const row of rows) if (Math.abs(x(row[0]) - at) < Math.abs(x(near[0]) - at)) near = row;
      const across = x(near[0]);
      cross.replaceChildren(node("line", { class: "cross", x1: across, x2: across, y1: TOP, y2: HEIGHT - BOTTOM }));
      options.series.forEach((name, index) => {
        const value = near[index + 1];
        if (value === null || value === undefined) return;
        cross.append(node("circle", { class: `dot f${index}`, cx: across, cy: y(value), r: 4 }));
      });
      cross.setAttribute("visibility", "visible");
      tell(legend, options, near, true);
    }
    picture.addEventListener("pointermove", show);
    picture.addEventListener("pointerdown", show);
    picture.addEventListener("pointerleave", () => {
      cross.setAttribute("visibility", "hidden");
      tell(legend, options, latest(rows), false);
    });
  }

  /** A bar that is full to a share; the text beside it says the same. */
  function meter(share, label) {
    const box = document.createElement("div");
    box.className = "meter";
    box.setAttribute("role", "meter");
    box.setAttribute("aria-label", label);
    box.setAttribute("aria-valuemin", "0");
    box.setAttribute("aria-valuemax", "100");
    box.setAttribute("aria-valuenow", Math.round(share * 100));
    const picture = node("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" });
    picture.append(node("rect", { class: "f0", width: Math.min(100, share * 100), height: 1 }));
    box.append(picture);
    return box;
  }

  return { draw, meter, clock };
})();
