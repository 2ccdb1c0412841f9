// The page: one state, two panels at most, and a request whenever something changes.
//
// Every change of a panel asks for its view at once; the server drops what waits when something
// newer of the same panel comes. Answers are numbered, so that none overtakes a newer one, and the
// old picture stays until the new one is decoded.

import { drawPicture, poster } from "./draw.js";

const $ = (selector, root = document) => root.querySelector(selector);
const page = Math.random().toString(36).slice(2, 10);

const EXPLAINED = {
  colors: "Three principal components of the patch features as red, green and blue: similar colors are similar features. A color means the same at every budget and resolution.",
  cores: "Each patch has the color of the core that reads it most, stronger where that is clearer. Cores of similar color start near each other.",
  core: "What one core reads: clear where a patch adds much to it, dark where it adds little. Point at a patch to see the core that reads it most; click to keep that core.",
  paths: "Where the cores are, layer by layer, up to the chosen layer: a ring where a core starts, a disc where it is now. The largest disc is core 0, the image feature. Point at a patch to follow the core that reads it most.",
  objects: "Each patch has the color of the core that it reads most: objects without labels. Point at a patch to name its core.",
  similarity: "Cosine of every patch with the patch that you click. Until you click, with the feature of the whole picture.",
};

const state = { view: "colors", mode: "one", opacity: null, target: 0, core: null, point: null };
let model = null;
const panels = [];

class Failure extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** An answer of the server; errors become sentences. */
async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    throw new Failure(0, "The server does not answer. Is veca explore still running?", { cause: error });
  }
  if (answer.ok) return answer.json();
  let sentence = `The server answered ${answer.status}.`;
  try {
    sentence = (await answer.json()).detail;
  } catch {
    // not JSON: the sentence above has to do
  }
  throw new Failure(answer.status, sentence);
}

function show(element, sentence) {
  element.textContent = sentence;
  element.hidden = !sentence;
}

const say = (sentence) => ($("#said").textContent = sentence);

async function pictureOf(url) {
  const image = new Image();
  image.src = url;
  await image.decode();
  return image;
}

/* Panels */

class Panel {
  constructor(number) {
    this.number = number;
    this.element = $("#panel").content.firstElementChild.cloneNode(true);
    this.values = { budget: 16, ffn: 1, size: 448, layer: 0 };
    this.source = null; // what the link remembers: sample:chelsea, or the name of a picture
    this.picture = null;
    this.asked = 0;
    this.shown = 0;
    this.hover = null;
    this.canvases = [$(".photo canvas", this.element), $(".map canvas", this.element)];
    for (const name of ["budget", "ffn", "size", "layer"]) {
      const input = $(`.${name} input`, this.element);
      input.addEventListener("input", () => {
        this.values[name] = name === "ffn" ? model.ffn_shares[input.valueAsNumber] : input.valueAsNumber;
        this.label();
        changed();
      });
    }
    for (const holder of this.element.querySelectorAll(".picture")) this.listen(holder);
  }

  /** The settings that hold for this panel: two pictures share those of the first. */
  get setting() {
    return state.mode === "pictures" ? panels[0].values : this.values;
  }

  /** Set the sliders to the values, and their ranges to the model. */
  label() {
    const { values } = this;
    const shares = model.ffn_shares;
    const last = model.layers - 1;
    const set = (name, value, text, max) => {
      const input = $(`.${name} input`, this.element);
      if (max !== undefined) input.max = max;
      input.value = value;
      input.setAttribute("aria-valuetext", text);
      $(`.${name} output`, this.element).textContent = text;
    };
    $(".budget", this.element).hidden = model.cores === null;
    $(".ffn", this.element).hidden = shares.length < 2;
    if (model.cores !== null) {
      set("budget", values.budget, values.budget === 1 ? "1 core" : `${values.budget} cores`, model.cores);
    }
    set("ffn", shares.indexOf(values.ffn), `${Math.round(100 * values.ffn)} %`, shares.length - 1);
    const grid = this.answer && this.answer.setting.size === values.size ? this.answer.grid : null;
    set("size", values.size, grid ? `${values.size} px, ${grid[1]} x ${grid[0]} patches` : `${values.size} px`);
    set("layer", values.layer, `${values.layer + 1} of ${last + 1}`, last);
    const where = state.mode === "pictures" ? ["Left", "Right"][this.number] : this.caption();
    $(".name", this.element).textContent = where;
    for (const holder of this.element.querySelectorAll(".picture")) {
      const what = holder.classList.contains("photo") ? "Photo" : $(`[name=view]:checked + span`).textContent;
      const side = state.mode === "one" ? "" : ["Left: ", "Right: "][this.number];
      holder.setAttribute("aria-label", `${side}${what}, ${this.caption()}. Arrow keys move from patch to patch, Enter marks one.`);
    }
  }

  /** The setting in words. */
  caption() {
    const { budget, ffn, size, layer } = this.setting;
    const parts = [`${size} px`, `layer ${layer + 1}`];
    if (model.cores !== null) parts.unshift(budget === 1 ? "1 core" : `${budget} cores`);
    if (ffn < 1) parts.splice(1, 0, `FFN ${Math.round(100 * ffn)} %`);
    return parts.join(", ");
  }

  fail(sentence) {
    show($(".problem", this.element), sentence);
  }

  query(extra = {}) {
    const { budget, ffn, size, layer } = this.setting;
    const query = new URLSearchParams({ size, layer, ...extra });
    if (model.cores !== null) query.set("budget", budget);
    if (ffn < 1) query.set("ffn", ffn);
    return query;
  }

  /** Ask for the view of this panel, and draw it unless a newer one is there. */
  async refresh() {
    if (!this.picture) return;
    const number = (this.asked += 1);
    const slow = setTimeout(() => say("Computing…"), 1000);
    this.element.setAttribute("aria-busy", "true");
    const query = this.query({ view: state.view, client: `${page}-${this.number}-view` });
    const other = panels[1 - this.number];
    if (state.mode === "pictures" && other.picture) query.set("beside", other.picture);
    if (state.view === "similarity" && state.point) {
      const of = panels[state.point.panel];
      query.set("point", `${state.point.x},${state.point.y}`);
      if (of.picture !== this.picture) query.set("of", of.picture);
    }
    try {
      const answer = await ask(`/api/pictures/${this.picture}/view?${query}`);
      const overlay = await pictureOf(answer.png);
      if (number <= this.shown || answer.picture !== this.picture) return;
      this.shown = number;
      Object.assign(this, { answer, overlay });
      this.fail("");
      this.label();
      this.draw();
      if (number === this.asked) this.settled();
    } catch (error) {
      if (number !== this.asked || error.status === 409) return;
      if (error.status === 503) setTimeout(() => number === this.asked && this.refresh(), 800);
      this.fail(error.status === 404 ? `${error.message} The settings are kept.` : error.message ?? String(error));
    } finally {
      clearTimeout(slow);
      if (number === this.asked) this.element.setAttribute("aria-busy", "false");
    }
  }

  /** Nothing newer is asked for: the cost by formula at once, then the measured time. */
  settled() {
    const { answer } = this;
    const full = answer.full_cost;
    this.row("gflops", answer.cost.gflops, full?.gflops, 2);
    this.row("pairs", answer.cost.pairs, full?.pairs, 0);
    const key = JSON.stringify([answer.cost, answer.setting]);
    if (key === this.timed) return;
    const times = this.element.querySelectorAll(".cost .ms td");
    for (const cell of times) cell.classList.add("old");
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const at = this.asked;
      try {
        const query = this.query({ client: `${page}-${this.number}-cost` });
        const { model: own, full: rival } = await ask(`/api/pictures/${this.picture}/cost?${query}`);
        if (at !== this.asked) return;
        this.timed = key;
        this.row("ms", own.ms, rival?.ms, own.ms < 10 ? 1 : 0, " ms");
        if (rival && rival.ms === null) times[1].textContent = "too slow to time";
      } catch (error) {
        if (error.status !== 409) times[0].textContent = "not measured";
      }
    }, 500);
  }

  /** A line of the table of costs. */
  row(name, own, rival, digits, unit = "") {
    const number = (value, after) => value.toLocaleString("en-US", { maximumFractionDigits: after });
    const ratio = rival && rival / own;
    const texts = [`${number(own, digits)}${unit}`, rival ? `${number(rival, digits)}${unit}` : "", ratio ? `${number(ratio, ratio < 10 ? 1 : 0)}x` : ""];
    this.element.querySelectorAll(`.cost .${name} td`).forEach((cell, at) => {
      cell.textContent = texts[at];
      cell.classList.remove("old");
    });
  }

  /** The core that belongs to a patch. */
  coreAt({ row, column }) {
    return this.answer?.labels ? this.answer.labels[row][column] : null;
  }

  draw() {
    if (!this.photo) return;
    const { answer } = this;
    const here = state.point && (state.mode !== "pictures" || state.point.panel === this.number);
    const mark = here ? [state.point.x / this.width, state.point.y / this.height] : null;
    const pointed = this.hover ? this.coreAt(this.hover) : null;
    const core = pointed ?? (answer?.labels ? state.core : null);
    let best = null;
    if (answer?.kind === "similarity" && state.point && !here) {
      best = [(answer.best[1] + 0.5) / answer.grid[1], (answer.best[0] + 0.5) / answer.grid[0]];
    }
    const crop = here && model.collection ? this.crop(state.point) : null;
    const look = { opacity: this.opacity / 100, core, hover: this.hover, mark, best, crop };
    drawPicture(this.canvases[0], this, { ...look, plain: true });
    drawPicture(this.canvases[1], this, look);
    this.read(core);
  }

  /** In percent; by default the photo shows through where it is not beside the view. */
  get opacity() {
    return state.opacity ?? (this.canvases[0].checkVisibility() ? 100 : 80);
  }

  /** The square that neighbors are looked up with, as the server cuts it. */
  crop({ x, y }) {
    const side = Math.max(1, Math.floor(Math.min(this.width, this.height) / 3));
    const left = Math.min(Math.max(0, x - Math.floor(side / 2)), this.width - side);
    const top = Math.min(Math.max(0, y - Math.floor(side / 2)), this.height - side);
    return [left / this.width, top / this.height, side / this.width, side / this.height];
  }

  /** The line below the picture. */
  read(core) {
    const { answer, hover } = this;
    const parts = [];
    if (hover) parts.push(`patch in row ${hover.row + 1}, column ${hover.column + 1}`);
    if (core !== null && core !== undefined && answer?.labels) parts.push(`core ${core}`);
    if (hover && answer?.cosine) parts.push(`cosine ${answer.cosine[hover.row][hover.column].toFixed(2)}`);
    else if (answer?.kind === "similarity" && state.mode === "pictures" && state.point && state.point.panel !== this.number) {
      parts.push(`most similar patch (ring): cosine ${answer.cosine[answer.best[0]][answer.best[1]].toFixed(2)}`);
    }
    if (answer?.kind === "core" && core === null) parts.push("core 0, the image feature");
    const text = parts.join(" · ");
    $(".readout", this.element).textContent = text;
    return text;
  }

  listen(holder) {
    const canvas = $("canvas", holder);
    const patch = (event) => {
      if (!this.answer) return null;
      const box = canvas.getBoundingClientRect();
      const [rows, columns] = this.answer.grid;
      const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
      const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
      return row >= 0 && column >= 0 && row < rows && column < columns ? { row, column } : null;
    };
    holder.addEventListener("pointermove", (event) => this.point(patch(event)));
    holder.addEventListener("pointerleave", () => this.point(null));
    holder.addEventListener("click", (event) => {
      const at = this.hover ?? patch(event); // clicks come without fractions of a pixel
      if (at) this.mark(at);
    });
    holder.addEventListener("focus", () => holder.matches(":focus-visible") && this.point(this.hover ?? this.middle()));
    holder.addEventListener("blur", () => this.point(null));
    holder.addEventListener("keydown", (event) => this.key(event));
  }

  middle() {
    if (!this.answer) return null;
    const [rows, columns] = this.answer.grid;
    return { row: Math.floor(rows / 2), column: Math.floor(columns / 2) };
  }

  point(at) {
    if (at?.row === this.hover?.row && at?.column === this.hover?.column) return;
    this.hover = at;
    requestAnimationFrame(() => this.draw());
  }

  key(event) {
    if (!this.answer) return;
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const [rows, columns] = this.answer.grid;
    const at = this.hover ?? this.middle();
    if (moves[event.key]) {
      const [down, across] = moves[event.key];
      this.hover = {
        row: Math.min(rows - 1, Math.max(0, at.row + down)),
        column: Math.min(columns - 1, Math.max(0, at.column + across)),
      };
      this.draw();
      say($(".readout", this.element).textContent);
    } else if (event.key === "Enter" || event.key === " ") {
      this.mark(at);
    } else if (event.key === "Escape") {
      unmark();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** Mark a patch: its core is kept, similarity and neighbors are about it. */
  mark(at) {
    const [rows, columns] = this.answer.grid;
    const x = Math.min(this.width - 1, Math.floor(((at.column + 0.5) / columns) * this.width));
    const y = Math.min(this.height - 1, Math.floor(((at.row + 0.5) / rows) * this.height));
    state.point = { panel: state.mode === "pictures" ? this.number : 0, x, y };
    state.core = this.coreAt(at) ?? state.core;
    say(`Marked: ${$(".readout", this.element).textContent}`);
    changed(state.view === "similarity");
    nearCrop();
  }
}

const active = () => panels.slice(0, state.mode === "one" ? 1 : 2);

function unmark() {
  state.point = null;
  state.core = null;
  forgetCrop();
  changed(state.view === "similarity");
}

/* Pictures */

/** Show an opened picture in a panel. */
async function place(panel, opened, source) {
  const photo = await pictureOf(`/api/pictures/${opened.picture}/image.jpg`);
  Object.assign(panel, { photo, source, picture: opened.picture, width: opened.width, height: opened.height });
  panel.answer = panel.picture === panel.answer?.picture ? panel.answer : null;
  panel.timed = null;
  panel.element.classList.remove("empty");
  panel.fail("");
}

/** Open a picture with a request, wherever pictures open now. */
async function open(request, source) {
  const panel = state.mode === "pictures" ? panels[state.target] : panels[0];
  const turn = (panel.opening = (panel.opening ?? 0) + 1);
  show($("#problem"), "");
  $("#stage").setAttribute("aria-busy", "true");
  try {
    const opened = await request();
    if (turn !== panel.opening) return;
    const remembered = source ?? opened.picture;
    await place(panel, opened, remembered);
    if (state.mode !== "pictures") await place(panels[1], opened, remembered);
    state.point = null;
    state.core = null;
    $("#save").disabled = false;
    forgetCrop();
    say("The picture is open.");
    changed();
    nearPicture();
  } catch (error) {
    show($("#problem"), error.message ?? String(error));
    if (!panel.picture) panel.source = source; // so the link keeps what it was about
  } finally {
    $("#stage").removeAttribute("aria-busy");
  }
}

const openSample = (name) => open(() => ask(`/api/samples/${name}`, { method: "POST" }), `sample:${name}`);
const openNeighbor = (path) =>
  open(() => ask(`/api/neighbors?${new URLSearchParams({ path })}`, { method: "POST" }), `near:${path}`);

function openFile(file) {
  if (!file) return;
  if (file.size > model.max_upload) {
    const limit = Math.round(model.max_upload / 1e6);
    show($("#problem"), `The file has ${Math.round(file.size / 1e6)} MB, but at most ${limit} MB are accepted; shrink the picture.`);
    return;
  }
  open(() => ask("/api/pictures", { method: "POST", body: file, headers: { "Content-Type": "application/octet-stream" } }));
}

/** What the link remembers, opened again. */
function reopen(source) {
  if (source.startsWith("sample:")) return openSample(source.slice(7));
  if (source.startsWith("near:")) return openNeighbor(source.slice(5));
  return open(() => ask(`/api/pictures/${source.replace(/[^0-9a-f]/g, "")}`), source);
}

/* Neighbors */

async function near(holder, title, extra) {
  if (!model.collection || !panels[0].picture) return;
  const panel = extra.panel ?? panels[0];
  const heading = document.createElement("h3");
  heading.textContent = title;
  const turn = (holder.turn = (holder.turn ?? 0) + 1);
  try {
    const query = new URLSearchParams({ client: `${page}-${holder.id}`, ...(extra.point ? { point: extra.point } : {}) });
    const found = await ask(`/api/pictures/${panel.picture}/neighbors?${query}`);
    if (turn !== holder.turn) return;
    const hits = document.createElement("div");
    hits.className = "hits";
    hits.append(...found.map(hit));
    holder.replaceChildren(heading, hits);
  } catch (error) {
    if (error.status === 409 || turn !== holder.turn) return;
    const sentence = document.createElement("p");
    sentence.className = "problem";
    sentence.textContent = error.message;
    holder.replaceChildren(heading, sentence);
  }
}

function hit({ path, similarity, thumbnail }) {
  const button = document.createElement("button");
  const name = path.split(/[\\/#]/).pop();
  button.type = "button";
  button.title = path;
  if (thumbnail) {
    const image = new Image();
    image.src = thumbnail;
    image.alt = `Open ${name}`;
    button.append(image);
    button.addEventListener("click", () => openNeighbor(path));
  } else {
    const gone = document.createElement("span");
    gone.className = "gone";
    gone.textContent = `${name} cannot be read`;
    button.append(gone);
    button.disabled = true;
  }
  button.append(similarity.toFixed(3));
  return button;
}

const nearPicture = () => near($("#near-picture"), "to the whole picture", {});

/** Show no neighbors of a marked part, not even those that are on their way. */
function forgetCrop() {
  const holder = $("#near-crop");
  holder.turn = (holder.turn ?? 0) + 1;
  holder.replaceChildren();
}

function nearCrop() {
  if (!state.point) return;
  const { panel, x, y } = state.point;
  near($("#near-crop"), "to the marked part (dashed square)", { point: `${x},${y}`, panel: panels[panel] });
}

/* State, link, export */

let frame = 0;

/** Something has changed: ask again (once a frame), or only draw. */
function changed(ask_again = true) {
  remember();
  arrange();
  if (!ask_again) {
    for (const panel of active()) panel.draw();
    return;
  }
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => active().forEach((panel) => panel.refresh()));
}

/** What is visible follows from the state. */
function arrange() {
  const stage = $("#stage");
  stage.className = state.mode;
  const wanted = active().map(({ element }) => element);
  if (stage.children.length !== wanted.length) stage.replaceChildren(...wanted);
  panels.forEach((panel, number) => {
    panel.element.classList.toggle("shared", state.mode === "pictures" && number === 1);
    panel.element.classList.toggle("target", state.mode === "pictures" && number === state.target);
    panel.element.classList.toggle("empty", !panel.picture);
    panel.label();
  });
  $("#target").hidden = state.mode !== "pictures";
  $("#explained").textContent = EXPLAINED[state.view];
  $("#scale").hidden = state.view !== "similarity";
  for (const name of ["view", "mode", "target"]) $(`[name=${name}][value="${state[name]}"]`).checked = true;
  $("#opacity").value = panels[0].opacity;
  for (const button of $("#samples").children) {
    const shown = active().some(({ source }) => source === `sample:${button.dataset.name}`);
    button.setAttribute("aria-pressed", String(shown));
  }
}

/** The state as the part of the address after #. */
function remember() {
  const query = new URLSearchParams({ view: state.view, mode: state.mode });
  active().forEach(({ source, values }, number) => {
    const end = number ? "2" : "";
    if (source && (number === 0 || state.mode === "pictures")) query.set(`picture${end}`, source);
    if (number && state.mode === "pictures") return;
    for (const [name, value] of Object.entries(values)) query.set(`${name}${end}`, value);
  });
  if (state.point) query.set("point", [state.point.panel, state.point.x, state.point.y].join());
  if (state.core !== null) query.set("core", state.core);
  if (state.opacity !== null) query.set("opacity", state.opacity);
  history.replaceState(null, "", `#${query}`);
}

/** The state that an address describes; what it gets wrong stays at its default. */
async function restore() {
  const query = new URLSearchParams(location.hash.slice(1));
  const whole = (name, low, high, otherwise) => {
    const value = Number(query.get(name) ?? NaN);
    return Number.isInteger(value) && value >= low && value <= high ? value : otherwise;
  };
  if (query.get("view") in EXPLAINED) state.view = query.get("view");
  if (["one", "settings", "pictures"].includes(query.get("mode"))) state.mode = query.get("mode");
  state.opacity = whole("opacity", 0, 100, null);
  panels.forEach(({ values }, number) => {
    const end = number ? "2" : "";
    values.layer = whole(`layer${end}`, 0, model.layers - 1, model.layers - 1);
    values.size = whole(`size${end}`, 128, 1024, 448);
    if (model.cores !== null) {
      values.budget = whole(`budget${end}`, 1, model.cores, Math.min(model.cores, number ? model.cores : 16));
    }
    const share = Number(query.get(`ffn${end}`));
    if (model.ffn_shares.includes(share)) values.ffn = share;
  });
  const point = (query.get("point") ?? "").match(/^([01]),(\d{1,6}),(\d{1,6})$/);
  const core = model.cores === null ? null : whole("core", 0, model.cores - 1, null);
  arrange();
  if (query.get("picture")) {
    state.target = 0;
    await reopen(query.get("picture"));
    if (state.mode === "pictures" && query.get("picture2")) {
      state.target = 1;
      await reopen(query.get("picture2"));
    }
  }
  const marked = point && panels[Number(point[1])];
  if (marked?.picture && Number(point[2]) < marked.width && Number(point[3]) < marked.height) {
    state.point = { panel: Number(point[1]), x: Number(point[2]), y: Number(point[3]) };
    nearCrop();
  }
  state.core = core;
  changed();
}

async function copyLink() {
  try {
    await navigator.clipboard.writeText(location.href);
    flash($("#link"), "Copied");
  } catch {
    flash($("#link"), "Copy it from the address bar");
  }
}

function flash(button, text) {
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  button.textContent = text;
  say(text);
  setTimeout(() => (button.textContent = before), 1800);
}

function save() {
  const shown = active().filter(({ photo }) => photo);
  const parts = shown.map((panel) => ({
    name: panel.caption(),
    canvases: state.mode === "one" ? panel.canvases : [panel.canvases[1]],
  }));
  const canvas = poster(parts, `${$(`[name=view]:checked + span`).textContent}: ${model.name}`, [EXPLAINED[state.view]]);
  canvas.toBlob((blob) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `veca-${state.view}.png`;
    link.click();
    URL.revokeObjectURL(link.href);
  }, "image/png");
}

/* Start */

async function showSamples() {
  const found = await ask("/api/samples");
  const buttons = found.map(({ name, thumbnail }) => {
    const [button, image] = [document.createElement("button"), new Image()];
    button.type = "button";
    button.dataset.name = name;
    image.src = thumbnail;
    image.alt = `Sample: ${name}`;
    button.append(image);
    button.addEventListener("click", () => openSample(name));
    return button;
  });
  $("#samples").replaceChildren(...buttons);
  return found.map(({ name }) => name);
}

function listen() {
  for (const name of ["view", "mode", "target"]) {
    for (const input of document.querySelectorAll(`[name=${name}]`)) {
      input.addEventListener("change", () => {
        state[name] = name === "target" ? Number(input.value) : input.value;
        if (name === "mode") compare();
        changed(name !== "target");
      });
    }
  }
  $("#opacity").addEventListener("input", (event) => {
    state.opacity = event.target.valueAsNumber;
    changed(false);
  });
  $("#file").addEventListener("change", (event) => {
    openFile(event.target.files[0]);
    event.target.value = "";
  });
  $("#link").addEventListener("click", copyLink);
  $("#save").addEventListener("click", save);
  addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    const at = panels.findIndex(({ element }) => element.contains(event.target));
    if (state.mode === "pictures" && at >= 0) state.target = at;
    openFile(event.dataTransfer.files[0]);
  });
  addEventListener("paste", (event) => openFile(event.clipboardData.files[0]));
  addEventListener("hashchange", () => location.reload()); // replaceState does not come here
}

/** Entering a comparison: the second panel begins with the picture of the first. */
function compare() {
  const [first, second] = panels;
  if (state.mode !== "pictures" || !second.picture) {
    const { photo, picture, source, width, height } = first;
    Object.assign(second, { photo, picture, source, width, height, answer: null });
  }
  if (state.mode === "pictures") state.target = 1;
  if (state.point?.panel === 1) state.point = null;
}

async function start() {
  try {
    model = await ask("/api/model");
  } catch (error) {
    show($("#problem"), error.message);
    return;
  }
  $("#model").textContent = model.title;
  if (!model.trained) {
    show($("#note"), "These weights are untrained: times and costs are real, but the pictures show only how the model works.");
  }
  if (model.cores === null) {
    for (const name of ["cores", "core", "paths", "objects"]) $(`[name=view][value=${name}]`).disabled = true;
  }
  $("#collection").textContent = model.collection ?? "";
  $("#neighbors").hidden = !model.collection;
  panels.push(new Panel(0), new Panel(1));
  listen();
  const names = await showSamples().catch(() => []);
  await restore();
  if (!panels[0].source && names.length) await openSample(names[0]);
  document.body.dataset.ready = "yes";
}

start();
