// The script of a report: tables sort by a click, and the trend line tells about each language.
// The page is complete without it. It reads what is on the page, and sends nothing.
"use strict";

const report = (() => {
  // Returns the value of a cell: a number, a text, or null if it is missing.
  function cellValue(text, kind) {
    const words = text.trim();
    if (words === "") return null;
    if (kind !== "number") return words.toLowerCase();
    const number = Number(words.replace(/,/g, "").replace(/^\u2212/, "-"));
    return Number.isNaN(number) ? null : number;
  }

  // Returns the positions of the values in sorted order. Equal values keep their order, and missing
  // values come last in both directions.
  function sortedPlaces(values, descending) {
    const sign = descending ? -1 : 1;
    return values.map((_, place) => place).sort((a, b) => {
      const [x, y] = [values[a], values[b]];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      if (x === y) return a - b;
      return x < y ? -sign : sign;
    });
  }

  // Returns the next direction of a column: numbers begin with the largest, texts with the first.
  function nextDirection(current, kind) {
    if (current === "descending") return "ascending";
    if (current === "ascending") return "descending";
    return kind === "number" ? "descending" : "ascending";
  }

  const signed = (number) => (number < 0 ? "\u2212" : "+") + Math.abs(number).toFixed(1);

  // Returns what the reader learns about a language, one fact a line.
  function describe(row) {
    const lines = [row.label, `${row.train_pairs.toLocaleString("en")} training pairs`];
    lines.push(`BLEU ${row.bleu.toFixed(1)}`);
    if (row.baseline_bleu !== null) lines.push(`baseline ${row.baseline_bleu.toFixed(1)}`);
    if (row.delta_bleu !== null) {
      const bounds = row.delta_ci95;
      const interval = bounds ? ` (95 %: ${signed(bounds[0])} to ${signed(bounds[1])})` : "";
      lines.push(`gain ${signed(row.delta_bleu)}${interval}`);
    }
    for (const [name, value] of row.systems || []) {
      lines.push(`${name}: ${value === null ? "no score" : `BLEU ${value.toFixed(1)}`}`);
    }
    return lines.join("\n");
  }

  // Returns the position whose x is nearest.
  function nearest(places, x) {
    let best = 0;
    places.forEach((place, number) => {
      if (Math.abs(place - x) < Math.abs(places[best] - x)) best = number;
    });
    return best;
  }

  // Returns the position after a key, or null if the key does not move.
  function afterKey(key, place, count) {
    if (key === "Home") return 0;
    if (key === "End") return count - 1;
    if (key === "ArrowRight") return Math.min(place + 1, count - 1);
    if (key === "ArrowLeft") return Math.max(place - 1, 0);
    return null;
  }

  function sortTable(document, table) {
    const body = table.querySelector("tbody");
    const rows = Array.from(body.querySelectorAll("tr"));
    const heads = Array.from(table.querySelectorAll("thead th"));
    const sort = (column) => {
      const head = heads[column];
      const direction = nextDirection(head.getAttribute("aria-sort"), head.dataset.kind);
      const values = rows.map((row) => {
        const cell = row.children[column];
        return cellValue(cell.dataset.value ?? cell.textContent, head.dataset.kind);
      });
      const places = sortedPlaces(values, direction === "descending");
      places.forEach((place) => body.appendChild(rows[place]));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", direction);
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.textContent = "";
      head.appendChild(button);
      button.addEventListener("click", () => sort(column));
    });
  }

  function explainTrend(document, chart, rows) {
    const svg = chart.querySelector("svg");
    const points = Array.from(svg.querySelectorAll("g.point"));
    const circles = points.map((point) => point.querySelector("circle"));
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    tip.setAttribute("role", "status");
    chart.appendChild(tip);
    // The browser's own hints would cover ours.
    points.forEach((point) => point.querySelector("title").remove());
    let chosen = -1;
    const choose = (place) => {
      if (chosen >= 0) points[chosen].classList.remove("chosen");
      chosen = place;
      tip.hidden = place < 0;
      if (place < 0) return;
      points[place].classList.add("chosen");
      tip.textContent = describe(rows[Number(points[place].dataset.place)]);
      const frame = chart.getBoundingClientRect();
      const spot = circles[place].getBoundingClientRect();
      const left = spot.left - frame.left + chart.scrollLeft + 14;
      const last = chart.scrollLeft + chart.clientWidth - tip.offsetWidth - 4;
      tip.style.left = `${Math.max(0, left > last ? left - tip.offsetWidth - 28 : left)}px`;
      tip.style.top = `${Math.max(0, spot.top - frame.top - tip.offsetHeight / 2)}px`;
    };
    const centers = () => circles.map((circle) => {
      const spot = circle.getBoundingClientRect();
      return spot.left + spot.width / 2;
    });
    svg.addEventListener("pointermove", (event) => choose(nearest(centers(), event.clientX)));
    svg.addEventListener("pointerleave", () => choose(-1));
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("focus", () => chosen < 0 && choose(0));
    svg.addEventListener("blur", () => choose(-1));
    svg.addEventListener("keydown", (event) => {
      const place = event.key === "Escape" ? -1 : afterKey(event.key, chosen, points.length);
      if (place === null) return;
      event.preventDefault();
      choose(place);
    });
  }

  // Opens all samples while the page is printed, because paper has no clicks.
  function openForPrint(window, document) {
    let closed = [];
    window.addEventListener("beforeprint", () => {
      closed = Array.from(document.querySelectorAll("details")).filter((part) => !part.open);
      closed.forEach((part) => { part.open = true; });
    });
    window.addEventListener("afterprint", () => closed.forEach((part) => { part.open = false; }));
  }

  function start(window, document) {
    document.querySelectorAll("table.sortable").forEach((table) => sortTable(document, table));
    const chart = document.querySelector(".chart");
    const data = document.getElementById("report-data");
    if (chart && data) explainTrend(document, chart, JSON.parse(data.textContent).languages);
    openForPrint(window, document);
  }

  return { cellValue, sortedPlaces, nextDirection, describe, nearest, afterKey, start };
})();

if (typeof document !== "undefined") report.start(window, document);
