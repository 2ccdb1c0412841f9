// Drawing on the two canvases of a panel. Places on a picture run from 0 to 1, x then y.

const LONG_SIDE = 1120;

/** Give a canvas the proportions of a picture; its content is lost, so draw in the same task. */
function fit(canvas, width, height) {
  const scale = LONG_SIDE / Math.max(width, height);
  const size = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== size[0]) canvas.width = size[0];
  if (canvas.height !== size[1]) canvas.height = size[1];
}

const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

/** Draw the photo and, unless `plain`, the view over it. */
export function drawPicture(canvas, panel, { plain, opacity, core, hover, mark, best, crop }) {
  fit(canvas, panel.width, panel.height);
  const context = canvas.getContext("2d");
  const { width, height } = canvas;
  const unit = Math.max(width, height) / 560;
  context.globalAlpha = 1;
  context.clearRect(0, 0, width, height);
  context.drawImage(panel.photo, 0, 0, width, height);
  const { answer, overlay } = panel;
  if (!plain && answer) {
    const [rows, columns] = answer.grid;
    context.globalAlpha = opacity;
    if (answer.kind === "paths") {
      context.fillStyle = "rgb(12 16 38 / .45)";
      context.fillRect(0, 0, width, height);
    } else {
      context.imageSmoothingEnabled = false;
      const top = answer.kind === "core" ? Math.min(core ?? 0, answer.colors.length - 1) * rows : 0;
      context.drawImage(overlay, 0, top, columns, rows, 0, 0, width, height);
      context.imageSmoothingEnabled = true;
    }
    context.globalAlpha = 1;
    if (answer.kind === "paths") drawPaths(context, answer, core, unit);
    if (answer.kind === "core") drawPath(context, answer, Math.min(core ?? 0, answer.colors.length - 1), unit);
  }
  if (hover && answer) outline(context, hover, answer.grid, unit);
  if (crop) {
    context.setLineDash([6 * unit, 4 * unit]);
    stroked(context, unit, () => context.strokeRect(crop[0] * width, crop[1] * height, crop[2] * width, crop[3] * height));
    context.setLineDash([]);
  }
  if (mark) cross(context, mark, unit);
  if (best && !plain) ring(context, best, unit);
}

/** All paths; the one of the chosen core stands out. */
function drawPaths(context, answer, chosen, unit) {
  for (let core = answer.points.length - 1; core >= 0; core -= 1) {
    context.globalAlpha = chosen === null || chosen === core ? 1 : 0.2;
    drawPath(context, answer, core, unit);
  }
  context.globalAlpha = 1;
  if (chosen !== null && chosen < answer.points.length) drawPath(context, answer, chosen, unit);
}

/** One core's path: white below its color, a ring at the start, a disc at the end. */
function drawPath(context, answer, core, unit) {
  const { width, height } = context.canvas;
  const places = answer.points[core].map(([x, y]) => [x * width, y * height]);
  const line = new Path2D();
  places.forEach(([x, y], at) => (at ? line.lineTo(x, y) : line.moveTo(x, y)));
  context.lineJoin = "round";
  for (const [color, thick] of [["#fff", 3.8], [css(answer.colors[core]), 2.2]]) {
    context.strokeStyle = color;
    context.lineWidth = thick * unit;
    context.stroke(line);
  }
  const radius = (core === 0 ? 8 : 4.8) * unit;
  const [start, end] = [places[0], places[places.length - 1]];
  context.strokeStyle = "#fff";
  context.lineWidth = 1.4 * unit;
  if (places.length > 1) circle(context, start, 0.7 * radius).stroke();
  context.fillStyle = css(answer.colors[core]);
  circle(context, end, radius).fill();
  context.stroke();
}

function circle(context, [x, y], radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  return context;
}

/** Black under white, which shows on any picture. */
function stroked(context, unit, stroke) {
  for (const [color, thick] of [["rgb(0 0 0 / .8)", 3.6], ["#fff", 1.6]]) {
    context.strokeStyle = color;
    context.lineWidth = thick * unit;
    stroke();
  }
}

function outline(context, { row, column }, [rows, columns], unit) {
  const { width, height } = context.canvas;
  const box = [(column * width) / columns, (row * height) / rows, width / columns, height / rows];
  stroked(context, unit, () => context.strokeRect(...box));
}

function cross(context, [x, y], unit) {
  const { width, height } = context.canvas;
  const [left, top, inner, outer] = [x * width, y * height, 5 * unit, 14 * unit];
  stroked(context, unit, () => {
    context.beginPath();
    for (const [across, down] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
      context.moveTo(left + across * inner, top + down * inner);
      context.lineTo(left + across * outer, top + down * outer);
    }
    context.stroke();
  });
}

function ring(context, [x, y], unit) {
  const { width, height } = context.canvas;
  stroked(context, unit, () => circle(context, [x * width, y * height], 12 * unit).stroke());
}

/** One picture of all panels with their titles, for export; returns a canvas. */
export function poster(panels, title, lines) {
  const gap = 28;
  const canvases = panels.flatMap(({ canvases: all }) => all);
  const high = Math.max(...canvases.map((canvas) => canvas.height));
  const canvas = document.createElement("canvas");
  canvas.width = gap + canvases.reduce((sum, { width }) => sum + width + gap, 0);
  canvas.height = high + 132 + 30 * Math.max(lines.length, 0);
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = "#1b2430";
  context.font = "600 30px system-ui, sans-serif";
  context.fillText(title, gap, 46, canvas.width - 2 * gap);
  context.font = "22px system-ui, sans-serif";
  let left = gap;
  for (const { name, canvases: own } of panels) {
    context.fillText(name, left, 84, own.reduce((sum, { width }) => sum + width, 0));
    for (const one of own) {
      context.drawImage(one, left, 100);
      left += one.width + gap;
    }
  }
  context.fillStyle = "#5d6b7a";
  lines.forEach((line, at) => context.fillText(line, gap, high + 134 + 30 * at, canvas.width - 2 * gap));
  return canvas;
}
