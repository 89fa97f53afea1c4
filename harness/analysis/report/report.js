"use strict";

const ORDERS = { ascending: 1, descending: -1 };

function sortKey(row, column) {
  const cell = row.cells[column];
  if (cell.classList.contains("number")) {
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  }
  const text = (cell.querySelector("a") ?? cell).textContent.trim();
  return text === "" || text === "–" ? null : text;
}

function compare(a, b) {
  return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
}

function rowsOf(body) {
  return Array.from(body.rows).filter((row) => !row.classList.contains("group"));
}

// Rows are sorted within their group, which has one framework and state. Rows without a value stay at
// the end in both directions, because what was not measured is neither the least nor the most.
function sortRows(body, column, order) {
  const keyed = rowsOf(body).map((row) => ({ row, key: sortKey(row, column) }));
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) {
      return (a.key === null) - (b.key === null);
    }
    return ORDERS[order] * compare(a.key, b.key);
  });
  body.append(...keyed.map(({ row }) => row));
}

function makeSortable(table) {
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      Array.from(table.tBodies).forEach((body) => sortRows(body, column, order));
    });
    head.append(button);
  });
}

function makeFilterable(form, table) {
  const search = form.querySelector("input");
  const choices = Array.from(form.querySelectorAll("select"));
  const bodies = Array.from(table.tBodies);
  const rows = bodies.flatMap(rowsOf).map((row) => ({
    row,
    text: `${row.dataset.group} ${row.textContent}`.toLowerCase(),
  }));

  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/);
    let shown = 0;
    for (const { row, text } of rows) {
      const fits =
        words.every((word) => text.includes(word)) &&
        choices.every((choice) => choice.value === "" || row.dataset[choice.dataset.filter] === choice.value);
      row.hidden = !fits;
      shown += fits;
    }
    for (const body of bodies) {
      body.hidden = rowsOf(body).every((row) => row.hidden);
    }
    form.querySelector("output").value = `${shown} of ${rows.length} rows`;
  };

  form.addEventListener("input", apply);
  form.addEventListener("reset", () => setTimeout(apply)); // the fields are empty only after the event
  form.addEventListener("submit", (event) => event.preventDefault());
  apply();
  form.hidden = false;
}

// A link may lead into a part that is folded, or to a row that a filter hides.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  if (target === null) {
    return;
  }
  const folded = target.closest("details");
  if (folded !== null) {
    folded.open = true;
  }
  if (target.hidden) {
    target.closest("section").querySelector(".filters").reset();
    target.hidden = false;
  }
  target.scrollIntoView({ block: "center" });
}

for (const form of document.querySelectorAll(".filters")) {
  const table = form.parentElement.querySelector("table.results");
  makeSortable(table);
  makeFilterable(form, table);
}
addEventListener("hashchange", reveal);
reveal();
