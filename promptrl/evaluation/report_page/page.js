"use strict";
// Everything that comes from models or data becomes a text node; no string is ever parsed as HTML.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const PAGE = 500; // rows drawn at a time

  // ---- small helpers -------------------------------------------------------------------------------------------

  function make(tag, options = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(options)) {
      if (value === undefined || value === null || value === false) continue;
      if (name === "class") node.className = value;
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }

  // Characters that cannot be seen, that turn the direction of writing, or that are half of a pair: shown as escapes.
  const ODD =
    /([\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff])/;

  function shown(text) {
    const fragment = document.createDocumentFragment();
    String(text).split(ODD).forEach((part, index) => {
      if (index % 2 === 0) {
        if (part) fragment.append(part);
      } else {
        const code = "\\u" + part.charCodeAt(0).toString(16).padStart(4, "0");
        fragment.append(make("span", { class: "odd", title: "a character that cannot be shown" }, code));
      }
    });
    return fragment;
  }

  const plain = (text) => shown(text).textContent;
  const count = (n, one, many = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
  // Only what is whole is 100.
  const percent = (rate) => (rate === null ? "–" : `${rate < 1 ? Math.min(rate * 100, 99.9).toFixed(1) : 100} %`);
  const signed = (value) =>
    value === null ? "–" : (value < 0 ? "−" : "") + Math.abs(value).toFixed(2).replace(/\.?0+$/, "");
  const text = (index) => (index === null || index === undefined ? null : data.texts[index]);
  const SOLVED = {
    yes: ["✓", "solved"],
    misled: ["≈", "reward tests only"],
    no: ["✗", "failed"],
    unfinished: ["…", "unfinished"],
  };
  const solvedMark = (solved) =>
    make("span", { class: `mark ${solved}` }, make("span", { "aria-hidden": "true" }, SOLVED[solved][0]), ` ${SOLVED[solved][1]}`);

  // Runs of equal items: [[item, how many], ...]
  function runs(items) {
    const result = [];
    for (const item of items) {
      if (result.length && result[result.length - 1][0] === item) result[result.length - 1][1] += 1;
      else result.push([item, 1]);
    }
    return result;
  }

  const distinct = (items) => [...new Set(items.filter((item) => item !== null && item !== undefined))];

  // ---- the diff of two prompts, word by word ---------------------------------------------------------------------

  const words = (value) => value.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

  function common(a, b) {
    // Longest common subsequence of two word lists, as [kind, word] with the kinds same, old and new. Where a line is
    // broken makes no difference, as long as no empty line comes or goes.
    const plainBlank = (word) => (/^[^\S\n]*\n?[^\S\n]*$/.test(word) ? " " : word);
    const before = a.map(plainBlank);
    const after = b.map(plainBlank);
    let start = 0;
    while (start < a.length && start < b.length && before[start] === after[start]) start += 1;
    let end = 0;
    while (end < Math.min(a.length, b.length) - start && before[a.length - 1 - end] === after[b.length - 1 - end]) end += 1;
    const old = before.slice(start, a.length - end);
    const fresh = after.slice(start, b.length - end);
    const middle = [];
    const width = fresh.length + 1;
    if (old.length * fresh.length > 4e6) {
      for (let i = 0; i < old.length; i += 1) middle.push(["old", a[start + i]]);
      for (let j = 0; j < fresh.length; j += 1) middle.push(["new", b[start + j]]);
    } else {
      const longest = new Uint32Array((old.length + 1) * width);
      for (let i = old.length - 1; i >= 0; i -= 1) {
        for (let j = fresh.length - 1; j >= 0; j -= 1) {
          longest[i * width + j] =
            old[i] === fresh[j]
              ? longest[(i + 1) * width + j + 1] + 1
              : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
        }
      }
      let i = 0;
      let j = 0;
      while (i < old.length || j < fresh.length) {
        if (i < old.length && j < fresh.length && old[i] === fresh[j]) {
          middle.push(["same", b[start + j]]);
          i += 1;
          j += 1;
        } else if (j >= fresh.length || (i < old.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
          middle.push(["old", a[start + i]]);
          i += 1;
        } else {
          middle.push(["new", b[start + j]]);
          j += 1;
        }
      }
    }
    const same = (word) => ["same", word];
    return [...b.slice(0, start).map(same), ...middle, ...b.slice(b.length - end).map(same)];
  }

  function diff(before, after) {
    // Pieces [kind, text]; a blank between two changed words belongs to the change, so that phrases stay together.
    const pieces = [];
    let removed = "";
    let added = "";
    const flush = () => {
      if (removed) pieces.push(["old", removed]);
      if (added) pieces.push(["new", added]);
      removed = added = "";
    };
    const steps = common(words(before), words(after));
    steps.forEach(([kind, word], index) => {
      if (kind === "old") removed += word;
      else if (kind === "new") added += word;
      else {
        const next = steps[index + 1];
        if (removed && added && /^[^\S\n]+$/.test(word) && next && next[0] !== "same") {
          removed += word;
          added += word;
        } else {
          flush();
          pieces.push(["same", word]);
        }
      }
    });
    flush();
    return pieces;
  }

  function drawDiff(before, after) {
    const tags = { same: "span", old: "del", new: "ins" };
    const box = make("pre", { class: "prompt", tabindex: "0", role: "group", "aria-label": "Prompt" });
    for (const [kind, piece] of diff(before, after)) box.append(make(tags[kind], {}, shown(piece)));
    return box;
  }

  // ---- one episode ------------------------------------------------------------------------------------------------

  const block = (kind, label, value) =>
    make("pre", { class: kind, tabindex: "0", role: "group", "aria-label": label }, shown(value));

  const folded = (title, build) => {
    const details = make("details", {}, make("summary", {}, title));
    details.addEventListener("toggle", () => details.childElementCount === 1 && details.append(build()), { once: true });
    return details;
  };

  function drawTests(step) {
    const list = make("ul", { class: "tests" });
    let first = 1;
    for (const [outcome, size, name, detail] of step.tests) {
      const which = name ? shown(name) : size === 1 ? `test ${first}` : `tests ${first}–${first + size - 1}`;
      const sign = outcome === "passed" ? "✓" : outcome === "not_run" ? "–" : "✗";
      list.append(
        make("li", { class: `outcome ${outcome === "passed" ? "passed" : outcome === "not_run" ? "left" : "failed"}` },
          make("span", { "aria-hidden": "true" }, `${sign} `), `${which} `, shown(outcome.replace("_", " ")),
          detail ? `: ${shown(detail)}` : ""),
      );
      first += size;
    }
    return list;
  }

  function drawPrompt(episode, number) {
    const step = episode.steps[number];
    const now = text(step.prompt);
    const before = number ? text(episode.steps[number - 1].prompt) : text(episode.original);
    const whose = number ? "the step before" : "the task's own";
    if (before === null || (number === 0 && before === now)) {
      return [make("h4", {}, before === null ? "Prompt" : "Prompt, the task's own"), block("prompt", "Prompt", now)];
    }
    if (before === now) {
      return [make("h4", {}, "Prompt, unchanged"), folded("show it", () => block("prompt", "Prompt", now))];
    }
    return [make("h4", {}, `Prompt, against ${whose}`), drawDiff(before, now)];
  }

  function drawStep(episode, number, level) {
    const step = episode.steps[number];
    const total = step.tests.reduce((sum, [, size]) => sum + size, 0);
    const passed = step.tests.reduce((sum, [outcome, size]) => sum + (outcome === "passed" ? size : 0), 0);
    const facts = [
      ["reward", signed(step.reward)],
      ["tests", total ? `${passed} of ${total}` : percent(step.rate)],
      step.report !== null && step.report !== step.rate ? ["report tests", percent(step.report)] : null,
      ["status", step.status],
      step.draw === null ? null : ["draw", step.draw === 0 ? "0 (greedy)" : String(step.draw)],
      ["tokens", `${step.in.toLocaleString("en")} in, ${step.out.toLocaleString("en")} out`],
      step.calls ? ["model calls", step.cached ? `${step.calls} (${step.cached} from the cache)` : String(step.calls)] : null,
    ].filter((fact) => fact !== null && fact[1] !== null);
    const list = make("dl", { class: "facts" });
    for (const [name, value] of facts) list.append(make("div", {}, make("dt", {}, name), make("dd", {}, shown(value))));
    const code = text(step.code);
    const answer = text(step.answer);
    return make("section", { class: "step" },
      make(level, {}, `Step ${step.step + 1}: `, make("span", { class: "action" }, shown(step.action)),
        episode.steps.length > 1 && step.step === episode.answer ? make("span", { class: "picked" }, "the answer") : null),
      list,
      step.note ? make("p", { class: "note" }, "Note: ", shown(step.note)) : null,
      step.error ? make("p", { class: "error" }, "Error: ", shown(step.error)) : null,
      step.cut ? make("p", { class: "note" }, "The answer was cut off at the limit of tokens.") : null,
      episode.capped && number === episode.steps.length - 1
        ? make("p", { class: "note" }, "Ended here by the budget's cap on ", shown(episode.capped), ".") : null,
      make("div", { class: "columns" },
        make("div", {}, ...drawPrompt(episode, number)),
        make("div", {}, make("h4", {}, code === null ? "No code found" : "Code"),
          code === null ? null : block("code", "Code", code),
          answer === null || answer.trim() === (code || "").trim() ? null
            : folded("the model's whole answer", () => block("code", "Answer", answer)))),
      step.tests.length ? make("div", {}, make("h4", {}, "Tests"), drawTests(step)) : null);
  }

  function drawEpisode(episode, level = "h3") {
    return make("div", { class: "steps" }, ...episode.steps.map((_, number) => drawStep(episode, number, level)));
  }

  // ---- a table whose rows open -------------------------------------------------------------------------------------

  // Columns: {name, value, cell, number, hint}. Rows open by click, Enter or Space; arrows go from row to row.
  function openingTable(table, columns, draw, hash) {
    let rows = [];
    let limit = PAGE;
    let sorted = null;
    const made = new Map();
    const open = new Map();
    const head = make("tr");
    const body = make("tbody");
    const heads = columns.map((column) => {
      const button = make("button", { type: "button", title: column.hint, onclick: () => sortBy(column) }, column.name);
      const cell = make("th", { scope: "col", class: column.number ? "number" : null }, button);
      head.append(cell);
      return cell;
    });
    table.replaceChildren(make("thead", {}, head), body);

    function sortBy(column) {
      const same = sorted && sorted.column === column;
      sorted = { column, sign: same ? -sorted.sign : column.number ? -1 : 1 };
      heads.forEach((cell, index) => {
        if (columns[index] === column) cell.setAttribute("aria-sort", sorted.sign > 0 ? "ascending" : "descending");
        else cell.removeAttribute("aria-sort");
      });
      show(rows);
    }

    const collator = new Intl.Collator("en", { numeric: true });
    function ordered() {
      if (!sorted) return rows;
      const { column, sign } = sorted;
      const keys = new Map(rows.map((row) => [row, column.value(row)]));
      return [...rows].sort((first, second) => {
        const [a, b] = [keys.get(first), keys.get(second)];
        if (a === null || a === undefined) return b === null || b === undefined ? 0 : 1; // without a value: last
        if (b === null || b === undefined) return -1;
        return sign * (typeof a === "number" ? a - b : collator.compare(a, b));
      });
    }

    function rowOf(item) {
      if (!made.has(item)) {
        const row = make("tr", { class: "row" });
        columns.forEach((column, index) => {
          const content = column.cell ? column.cell(item) : shown(column.value(item) ?? "–");
          if (index > 0) row.append(make("td", { class: column.number ? "number" : null }, content));
          else {
            const button = make("button", { type: "button", class: "open", "aria-expanded": "false" }, content);
            row.append(make("th", { scope: "row" }, button));
          }
        });
        row.addEventListener("click", (event) => {
          if (event.target.closest("button.open") || !String(window.getSelection())) toggle(item);
        });
        made.set(item, row);
      }
      return made.get(item);
    }

    function toggle(item, wanted = !open.has(item)) {
      const row = rowOf(item);
      row.querySelector("button.open").setAttribute("aria-expanded", String(wanted));
      row.classList.toggle("opened", wanted);
      if (wanted && !open.has(item)) {
        const close = make("button", { type: "button", class: "close", onclick: () => shut(item) }, "Close");
        open.set(item, make("tr", { class: "detail" },
          make("td", { colspan: columns.length }, make("div", { class: "held" }, draw(item), close))));
        row.after(open.get(item));
      } else if (!wanted && open.has(item)) {
        open.get(item).remove();
        open.delete(item);
      }
      if (hash) {
        try {
          history.replaceState(null, "", wanted ? hash(item) : "#");
        } catch { /* some viewers keep their address to themselves */ }
      }
    }

    function shut(item) {
      toggle(item, false);
      rowOf(item).querySelector("button.open").focus();
    }

    body.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        const place = event.target.closest("tr");
        for (const [item, detail] of open) if (detail === place || rowOf(item) === place) { shut(item); return; }
        return;
      }
      const moves = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
      if (!event.target.matches("button.open") || !(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
      const buttons = [...body.querySelectorAll("button.open")];
      const index = buttons.indexOf(event.target) + moves[event.key];
      buttons[Math.min(Math.max(index, 0), buttons.length - 1)].focus();
      event.preventDefault();
    });

    function show(items, most = limit) {
      rows = items;
      limit = most;
      const drawn = ordered().slice(0, limit);
      body.replaceChildren(...drawn.flatMap((item) => (open.has(item) ? [rowOf(item), open.get(item)] : [rowOf(item)])));
      return drawn.length;
    }

    return { show, toggle, rowOf, rank: (item) => ordered().indexOf(item), limit: () => limit };
  }

  // ---- episodes ----------------------------------------------------------------------------------------------------

  const episodes = data.episodes;
  episodes.forEach((episode, index) => {
    episode.index = index;
    episode.actions = runs(episode.steps.map((step) => step.action))
      .map(([action, size]) => (size > 1 ? `${action} ×${size}` : action)).join(", ");
    episode.series = JSON.stringify([episode.run, episode.method, episode.seed]);
  });
  const several = (key) => distinct(episodes.map((episode) => episode[key])).length > 1;
  const columns = [
    { name: "task", value: (e) => e.task },
    several("run") ? { name: "run", value: (e) => e.run } : null,
    { name: "method", value: (e) => e.method },
    several("benchmark") ? { name: "benchmark", value: (e) => e.benchmark } : null,
    several("seed") ? { name: "seed", value: (e) => e.seed, number: true } : null,
    { name: "solved", value: (e) => SOLVED[e.solved][1], cell: (e) => solvedMark(e.solved), hint: "whether the answer passes all report tests" },
    { name: "steps", value: (e) => e.steps.length, number: true },
    { name: "pass rate", value: (e) => e.rate, cell: (e) => percent(e.rate), number: true, hint: "of the answer, on the report tests" },
    { name: "reward", value: (e) => e.reward, cell: (e) => signed(e.reward), number: true, hint: "the sum over the steps" },
    { name: "actions", value: (e) => e.actions },
    { name: "tokens", value: (e) => e.tokens, cell: (e) => e.tokens.toLocaleString("en"), number: true, hint: "in and out, rewriting included" },
  ].filter((column) => column !== null);

  const table = openingTable(byId("table"), columns, (e) => drawEpisode(e), (e) => `#episode-${e.index}`);
  const filters = { solved: "", action: "", benchmark: "", method: "", run: "", text: "" };
  const controls = {};

  function select(name, label, options) {
    const control = make("select", { id: `filter-${name}` });
    control.append(make("option", { value: "" }, "all"));
    for (const [value, shownAs] of options) control.append(make("option", { value }, plain(shownAs)));
    control.addEventListener("change", () => { filters[name] = control.value; refresh(); });
    controls[name] = control;
    byId("filters").append(make("label", {}, `${label} `, control));
  }

  function haystack(episode) {
    if (episode.haystack === undefined) {
      const parts = [episode.task, episode.method];
      for (const step of episode.steps) {
        parts.push(text(step.prompt), text(step.code), text(step.answer), step.error, step.note, step.status);
      }
      episode.haystack = parts.filter((part) => part).join("\n").toLowerCase();
    }
    return episode.haystack;
  }

  function matches(episode) {
    return (
      (!filters.solved || episode.solved === filters.solved) &&
      (!filters.method || episode.method === filters.method) &&
      (!filters.run || episode.run === filters.run) &&
      (!filters.benchmark || episode.benchmark === filters.benchmark) &&
      (!filters.action || episode.steps.some((step) => step.action === filters.action)) &&
      (!filters.text || haystack(episode).includes(filters.text))
    );
  }

  function refresh(most = PAGE) {
    const found = episodes.filter(matches);
    const drawn = table.show(found, most);
    byId("count").textContent =
      found.length === episodes.length ? count(episodes.length, "episode") : `${found.length} of ${count(episodes.length, "episode")}`;
    const rest = found.length - drawn;
    byId("more").hidden = rest <= 0;
    byId("more").textContent = `Show ${Math.min(rest, PAGE)} more of ${rest}`;
    byId("more").onclick = () => refresh(most + PAGE);
  }

  const present = distinct(episodes.map((episode) => episode.solved));
  select("solved", "outcome", Object.keys(SOLVED).filter((key) => present.includes(key)).map((key) => [key, SOLVED[key][1]]));
  for (const [name, label, values] of [
    ["action", "action", distinct(episodes.flatMap((episode) => episode.steps.map((step) => step.action)))],
    ["method", "method", distinct(episodes.map((episode) => episode.method))],
    ["run", "run", distinct(episodes.map((episode) => episode.run))],
    ["benchmark", "benchmark", distinct(episodes.map((episode) => episode.benchmark))],
  ]) {
    if (values.length > 1) select(name, label, values.map((value) => [value, value]));
  }
  const search = make("input", { type: "search", id: "filter-text", autocomplete: "off", spellcheck: "false" });
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { filters.text = search.value.toLowerCase(); refresh(); }, 150);
  });
  byId("filters").append(make("label", {}, "text ", search));
  for (const form of ["filters", "sides"]) byId(form).addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !event.target.closest("input, select, textarea") && !byId("episodes").hidden) {
      search.focus();
      search.select();
      event.preventDefault();
    }
  });

  // ---- head: totals, the series, the runs --------------------------------------------------------------------------

  const series = new Map();
  for (const episode of episodes) {
    if (!series.has(episode.series)) series.set(episode.series, []);
    series.get(episode.series).push(episode);
  }
  function seriesName(key) {
    const { run, method, seed } = series.get(key)[0];
    return [several("run") ? run : null, method, several("seed") ? `seed ${seed}` : null].filter((part) => part !== null).join(", ");
  }

  byId("totals").textContent = [
    count(episodes.length, "episode"),
    count(distinct(episodes.map((episode) => JSON.stringify([episode.benchmark, episode.task]))).length, "task"),
    count(episodes.reduce((sum, episode) => sum + episode.steps.length, 0), "step"),
  ].join(", ");
  if (series.size > 1 || episodes.length > 1) {
    const rows = [...series].map(([key, group]) => {
      const solved = group.filter((episode) => episode.solved === "yes").length;
      const steps = group.reduce((sum, episode) => sum + episode.steps.length, 0);
      const tokens = group.reduce((sum, episode) => sum + episode.tokens, 0);
      const cells = [group.length, `${solved} (${percent(solved / group.length)})`, (steps / group.length).toFixed(2), tokens.toLocaleString("en")];
      return make("tr", {}, make("th", { scope: "row" }, shown(seriesName(key))),
        ...cells.map((cell) => make("td", { class: "number" }, String(cell))));
    });
    const names = ["", "episodes", "solved", "steps per episode", "tokens"];
    const head = names.map((name, index) => make("th", { scope: "col", class: index ? "number" : null }, name));
    byId("series").append(make("div", { class: "scroll" },
      make("table", { class: "small" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))));
  }
  if (data.runs.some((run) => run.facts.length)) {
    byId("runs").hidden = false;
    for (const run of data.runs) {
      const list = make("dl", { class: "facts" });
      for (const [name, value] of run.facts) list.append(make("div", {}, make("dt", {}, shown(name)), make("dd", {}, shown(value))));
      byId("runs").lastElementChild.append(make("h3", {}, shown(run.label)), list);
    }
  }

  // ---- two runs (or methods, or seeds) task by task ----------------------------------------------------------------

  const comparable = [...series.keys()].filter((key) => !series.get(key)[0].training);
  const CHANGES = { gained: "▲ gained", lost: "▼ lost", other: "◆ other pass rate", same: "same", only: "in one only" };

  function startComparing() {
    const sides = ["A", "B"].map((name, index) => {
      const control = make("select", { id: `side-${name}` });
      for (const key of comparable) control.append(make("option", { value: key }, plain(seriesName(key))));
      // Two runs of one method say more than two methods of one run.
      const first = series.get(comparable[0])[0];
      const twin = comparable.find((key) => series.get(key)[0].run !== first.run && series.get(key)[0].method === first.method);
      control.value = index ? twin || comparable[1] : comparable[0];
      byId("sides").append(make("label", {}, `${name} `, control));
      return control;
    });
    const which = make("select", { id: "filter-change" });
    for (const [value, label] of [["changed", "tasks that changed"], ["", "all tasks"], ...Object.entries(CHANGES)]) {
      which.append(make("option", { value }, label));
    }
    byId("sides").append(make("label", {}, "show ", which));
    const state = (episode) => (episode ? solvedMark(episode.solved) : "–");
    const kind = (a, b) => {
      if (!a || !b) return "only";
      if ((a.solved === "yes") !== (b.solved === "yes")) return b.solved === "yes" ? "gained" : "lost";
      return a.rate === b.rate ? "same" : "other";
    };
    const pairColumns = [
      { name: "task", value: (p) => p.task },
      several("benchmark") ? { name: "benchmark", value: (p) => p.benchmark } : null,
      { name: "change", value: (p) => CHANGES[p.change], cell: (p) => make("span", { class: `change ${p.change}` }, CHANGES[p.change]), hint: "from A to B" },
      { name: "A", value: (p) => p.a && SOLVED[p.a.solved][1], cell: (p) => state(p.a) },
      { name: "B", value: (p) => p.b && SOLVED[p.b.solved][1], cell: (p) => state(p.b) },
      { name: "pass rate A", value: (p) => p.a && p.a.rate, cell: (p) => percent(p.a ? p.a.rate : null), number: true },
      { name: "pass rate B", value: (p) => p.b && p.b.rate, cell: (p) => percent(p.b ? p.b.rate : null), number: true },
      { name: "steps A", value: (p) => p.a && p.a.steps.length, number: true },
      { name: "steps B", value: (p) => p.b && p.b.steps.length, number: true },
    ].filter((column) => column !== null);
    const side = (name, episode) =>
      make("div", {}, make("h3", {}, `${name}: `, episode ? shown(seriesName(episode.series)) : "not run"), episode ? drawEpisode(episode, "h4") : null);
    const pairs = openingTable(byId("pairs"), pairColumns, (p) => make("div", { class: "sides" }, side("A", p.a), side("B", p.b)));

    function compare() {
      const found = new Map();
      sides.forEach((control, index) => {
        for (const episode of series.get(control.value)) {
          const key = JSON.stringify([episode.benchmark, episode.task]);
          if (!found.has(key)) found.set(key, { task: episode.task, benchmark: episode.benchmark, a: null, b: null });
          found.get(key)[index ? "b" : "a"] = episode;
        }
      });
      const all = [...found.values()].map((pair) => ({ ...pair, change: kind(pair.a, pair.b) }));
      const number = (change) => all.filter((pair) => pair.change === change).length;
      byId("changes").textContent = [
        count(all.length, "task"),
        `${number("gained")} gained by B`,
        `${number("lost")} lost by B`,
        `${number("other")} with another pass rate`,
        `${number("same")} the same`,
        number("only") ? `${number("only")} in one only` : null,
      ].filter((part) => part !== null).join(", ");
      pairs.show(all.filter((pair) =>
        which.value === "changed" ? ["gained", "lost", "other"].includes(pair.change) : !which.value || pair.change === which.value), Infinity);
    }
    [...sides, which].forEach((control) => control.addEventListener("change", compare));
    compare();
  }

  const views = ["episodes", "compare"];
  let started = false;
  function view(name, focus = false) {
    for (const other of views) {
      byId(other).hidden = other !== name;
      const tab = byId(`tab-${other}`);
      tab.setAttribute("aria-selected", String(other === name));
      tab.tabIndex = other === name ? 0 : -1;
      if (focus && other === name) tab.focus();
    }
    if (name === "compare" && !started) {
      started = true;
      startComparing();
    }
  }
  for (const name of views) byId(`tab-${name}`).addEventListener("click", () => view(name));
  byId("tabs").addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") view(byId("episodes").hidden ? "episodes" : "compare", true);
  });
  byId("tabs").hidden = comparable.length < 2;

  // ---- start -------------------------------------------------------------------------------------------------------

  refresh();
  function follow() {
    const wanted = /^#episode-(\d+)$/.exec(location.hash);
    const episode = wanted && episodes[Number(wanted[1])];
    if (!episode) return;
    view("episodes");
    const rank = table.rank(episode);
    if (rank < 0) return;
    if (rank >= table.limit()) refresh((Math.floor(rank / PAGE) + 1) * PAGE);
    table.toggle(episode, true);
    table.rowOf(episode).scrollIntoView();
    table.rowOf(episode).querySelector("button.open").focus({ preventScroll: true });
  }
  window.addEventListener("hashchange", follow);
  follow();
  if (episodes.length === 1) table.toggle(episodes[0], true);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
})();
