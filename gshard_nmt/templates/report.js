// The script of a report: tables sort by a click, and samples are open on paper.
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
    openForPrint(window, document);
  }

  return { cellValue, sortedPlaces, start };
})();

if (typeof document !== "undefined") report.start(window, document);
