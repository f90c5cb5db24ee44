"use strict";
/* Canvas of the agent timeline. Only visible rows are drawn; where several agents share a pixel, their colours mix. */
const canvas = (() => {
  const SHARED_BELOW = 1.5;
  const LABELS_APART = 15;
  let sums = null;

  /** `shot` is what to draw: agents, rows, rowHeight, top (scrolled by), width, height, xScale, stages, stageRows,
   * selected, selectedRow, colors. */
  function draw(target, shot) {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(shot.width * ratio), Math.round(shot.height * ratio)];
    if (target.width !== width || target.height !== height) Object.assign(target, { width, height });
    const pen = target.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = shot.colors.card;
    pen.fillRect(0, 0, shot.width, shot.height);
    gridLines(pen, shot);
    pen.save();
    pen.beginPath();
    pen.rect(shot.xScale.left, 0, shot.xScale.plot, shot.height);
    pen.clip();
    if (shot.rowHeight < SHARED_BELOW) mixed(pen, shot);
    else separate(pen, shot);
    stageLines(pen, shot);
    pen.restore();
    labels(pen, shot);
  }

  function gridLines(pen, { xScale, height, colors }) {
    pen.fillStyle = colors.line;
    for (const time of span.ticks(xScale.plot, 90).found) pen.fillRect(Math.round(xScale.x(time)), 0, 1, height);
  }

  const firstRow = ({ top, rowHeight }) => Math.max(0, Math.floor(top / rowHeight));
  const lastRow = ({ top, height, rowHeight, rows }) => Math.min(rows.length, Math.ceil((top + height) / rowHeight));

  /** Rows at least one pixel high: each agent is drawn by itself. */
  function separate(pen, shot) {
    const { agents, rows, rowHeight, top, xScale, colors } = shot;
    const gap = rowHeight >= 9 ? 2 : rowHeight >= 4 ? 1 : 0;
    const y = (row) => Math.round(row * rowHeight - top);
    const thick = (row) => y(row + 1) - y(row) - gap; // whole pixels: fractions would make the colours pale
    const [first, last] = [firstRow(shot), lastRow(shot)];
    const scale = xScale.plot / (span.to - span.from);
    const zero = xScale.left - span.from * scale;
    const x = (hundredths) => zero + (hundredths / 100) * scale;
    const [least, most] = [span.from * 100, span.to * 100];
    const layers = [
      [null, colors.waiting],
      [1, colors.generating],
      [2, colors.tools],
    ];
    for (const [kind, color] of layers) {
      pen.fillStyle = color;
      for (let row = first; row < last; row++) {
        const agent = rows[row];
        if (agents.end[agent] < least || agents.start[agent] > most) continue;
        if (kind === null)
          pen.fillRect(
            x(agents.start[agent]),
            y(row),
            Math.max(1, x(agents.end[agent]) - x(agents.start[agent])),
            thick(row),
          );
        else
          for (let at = agents.first[agent]; at < agents.first[agent + 1]; at++) {
            if (agents.kind[at] === kind && agents.to[at] >= least && agents.from[at] <= most) {
              pen.fillRect(
                x(agents.from[at]),
                y(row),
                Math.max(0.5, x(agents.to[at]) - x(agents.from[at])),
                thick(row),
              );
            }
          }
      }
    }
    for (let row = first; row < last; row++) endMark(pen, shot, rows[row], y(row), thick(row), x);
  }

  /** A failed agent ends in a cross (or a block, where a cross would be too small); one in progress in an arrow. */
  function endMark(pen, { agents, colors, selected, xScale }, agent, y, thick, x) {
    const end = x(agents.end[agent]);
    if (agents.ok[agent] === 0) {
      pen.fillStyle = colors.failed;
      if (thick < 7) pen.fillRect(end - 1, y, 4, thick);
      else cross(pen, end + 6, y + thick / 2, colors.failed);
    } else if (agents.ok[agent] === 2 && thick >= 7) {
      pen.fillStyle = colors.muted;
      pen.beginPath();
      pen.moveTo(end + 2, y + 1);
      pen.lineTo(end + 2 + thick / 2, y + thick / 2);
      pen.lineTo(end + 2, y + thick - 1);
      pen.fill();
    }
    if (agent === selected) {
      pen.strokeStyle = colors.text;
      pen.lineWidth = 1.5;
      pen.strokeRect(
        Math.max(xScale.left, x(agents.start[agent])) - 0.5,
        y - 0.5,
        Math.max(3, Math.min(xScale.right, end) - Math.max(xScale.left, x(agents.start[agent]))) + 1,
        thick + 1,
      );
    }
  }

  function cross(pen, x, y, color) {
    pen.strokeStyle = color;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(x - 3, y - 3);
    pen.lineTo(x + 3, y + 3);
    pen.moveTo(x + 3, y - 3);
    pen.lineTo(x - 3, y + 3);
    pen.stroke();
  }

  /** Several agents per row of pixels: each pixel is coloured by the time its agents spend in each state. */
  function mixed(pen, shot) {
    const { agents, rows, rowHeight, top, xScale, colors } = shot;
    const width = Math.max(1, Math.round(xScale.plot));
    const height = Math.max(1, Math.round(shot.height));
    const sums = cleared(width, height);
    const scale = width / (span.to - span.from) / 100;
    const zero = -span.from * 100 * scale;
    const failures = [];
    const last = lastRow(shot);
    for (let row = firstRow(shot); row < last; row++) {
      const agent = rows[row];
      const y = Math.min(height - 1, Math.max(0, Math.floor(row * rowHeight - top)));
      const from = zero + agents.start[agent] * scale;
      const to = zero + agents.end[agent] * scale;
      sums.sharing[y] += 1;
      if (agents.ok[agent] === 0 && to >= 0 && to <= width) failures.push(Math.floor(to), y);
      if (to < 0 || from > width) continue;
      const base = y * (width + 2);
      cover(sums.alive, base, from, Math.max(to, from + 1), width);
      for (let at = agents.first[agent]; at < agents.first[agent + 1]; at++) {
        const kind = agents.kind[at];
        if (kind !== 0)
          cover(
            kind === 1 ? sums.generating : sums.tools,
            base,
            zero + agents.from[at] * scale,
            zero + agents.to[at] * scale,
            width,
          );
      }
    }
    const image = blended(sums, colors.rgb);
    for (let at = 0; at < failures.length; at += 2) stamp(image, failures[at], failures[at + 1], colors.rgb.failed);
    if (shot.selectedRow !== null) frame(image, Math.floor(shot.selectedRow * rowHeight - top), colors.rgb.text);
    const sheet = sheetOf(width, height);
    sheet.getContext("2d").putImageData(image, 0, 0);
    pen.drawImage(sheet, 0, 0, width, height, xScale.left, 0, xScale.plot, shot.height);
  }

  function cleared(width, height) {
    const size = (width + 2) * height;
    if (sums?.width !== width || sums?.height !== height) {
      const [alive, generating, tools] = [1, 2, 3].map(() => new Float32Array(size));
      sums = {
        width,
        height,
        alive,
        generating,
        tools,
        sharing: new Uint32Array(height),
        image: new ImageData(width, height),
      };
    } else for (const name of ["alive", "generating", "tools", "sharing"]) sums[name].fill(0);
    sums.image.data.fill(0);
    return sums;
  }

  /** Adds one from `from` to `to`, exact to fractions of a pixel, as differences that `blended` sums along the row. */
  function cover(counts, base, from, to, width) {
    const first = from > 0 ? from : 0;
    const last = to < width ? to : width;
    if (last <= first) return;
    const a = Math.floor(first);
    const b = Math.floor(last);
    counts[base + a] += a + 1 - first;
    counts[base + a + 1] += first - a;
    counts[base + b] -= b + 1 - last;
    counts[base + b + 1] -= last - b;
  }

  /** Colours weighted by the square of each state's time: a plain mean of three colours would be grey-brown. */
  function blended({ width, height, alive, generating, tools, sharing, image }, rgb) {
    const pixels = image.data;
    const [wr, wg, wb] = rgb.waiting;
    const [gr, gg, gb] = rgb.generating;
    const [tr, tg, tb] = rgb.tools;
    for (let y = 0; y < height; y++) {
      let all = 0;
      let busy = 0;
      let calling = 0;
      const agents = sharing[y] || 1;
      for (let x = 0, at = y * (width + 2), pixel = y * width * 4; x < width; x++, at++, pixel += 4) {
        all += alive[at];
        busy += generating[at];
        calling += tools[at];
        if (all < 0.001) continue;
        const idle = all - busy - calling;
        const w = idle > 0 ? idle * idle : 0;
        const g = busy * busy;
        const t = calling * calling;
        const sum = w + g + t || 1;
        pixels[pixel] = (w * wr + g * gr + t * tr) / sum;
        pixels[pixel + 1] = (w * wg + g * gg + t * tg) / sum;
        pixels[pixel + 2] = (w * wb + g * gb + t * tb) / sum;
        pixels[pixel + 3] = 255 * Math.min(1, 0.25 + (0.75 * all) / agents);
      }
    }
    return image;
  }

  function stamp(image, x, y, color) {
    for (let at = Math.max(0, x - 1); at <= Math.min(image.width - 1, x + 1); at++) {
      const pixel = (y * image.width + at) * 4;
      image.data.set(color, pixel);
      image.data[pixel + 3] = 255;
    }
  }

  /** A line above and one below the row: one pixel alone would be hard to see. */
  function frame(image, row, color) {
    for (const y of [row - 1, row + 1])
      if (y >= 0 && y < image.height) for (let x = 1; x < image.width; x += 3) stamp(image, x, y, color);
  }

  let sheet = null;
  function sheetOf(width, height) {
    sheet ??= document.createElement("canvas");
    if (sheet.width !== width || sheet.height !== height) Object.assign(sheet, { width, height });
    return sheet;
  }

  function stageLines(pen, shot) {
    const { agents, rows, rowHeight, top, xScale, stages, colors, height } = shot;
    if (stages.length < 2) return;
    pen.font = "600 11px system-ui, sans-serif";
    for (const [stage, row] of shot.stageRows) {
      const y = row * rowHeight - top;
      if (y < -1 || y > height || rows.length === 0) continue;
      pen.fillStyle = colors.strong;
      pen.fillRect(xScale.left, Math.round(y), xScale.plot, 1);
      const name = stages[agents.stage[rows[row]]]?.name || `stage ${stage + 1}`;
      const width = pen.measureText(name).width;
      pen.globalAlpha = 0.85;
      pen.fillStyle = colors.card;
      pen.fillRect(xScale.right - width - 10, Math.round(y) + 1, width + 10, 16);
      pen.globalAlpha = 1;
      pen.fillStyle = colors.text;
      pen.textAlign = "right";
      pen.fillText(name, xScale.right - 5, y + 13);
    }
  }

  function labels(pen, shot) {
    const { agents, rows, rowHeight, top, xScale, colors, height } = shot;
    const every = roundUp(LABELS_APART / rowHeight);
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = colors.muted;
    pen.textAlign = "right";
    for (let row = Math.ceil(firstRow(shot) / every) * every; row < lastRow(shot); row += every) {
      const y = row * rowHeight - top + Math.min(rowHeight, LABELS_APART) / 2 + 3.5;
      if (y < 8 || y > height - 1) continue;
      const name = agents.hasSamples ? runModel.nameOf(agents, rows[row]) : String(agents.index[rows[row]]);
      pen.fillText(name.length > 7 ? "…" : name, xScale.left - 6, y);
    }
  }

  function roundUp(value) {
    const power = 10 ** Math.max(0, Math.floor(Math.log10(value)));
    return power * [1, 2, 5, 10].find((step) => step * power >= value);
  }

  return { draw, SHARED_BELOW };
})();
