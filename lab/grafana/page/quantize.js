// A picture in 256 colours, for the documentation: a dashboard has few, and its file is a quarter of the size then.

/** {width, height, palette, pixels} of a PNG in base64; palette and pixels in base64 too, three bytes and one byte each. */
export async function quantize(png) {
  const image = await createImageBitmap(new Blob([bytes(png)], { type: "image/png" }));
  const { width, height } = image;
  const ctx = new OffscreenCanvas(width, height).getContext("2d");
  ctx.drawImage(image, 0, 0);
  const data = new Uint32Array(ctx.getImageData(0, 0, width, height).data.buffer);
  const counts = new Map();
  for (const color of data) counts.set(color, (counts.get(color) ?? 0) + 1);
  const palette = spread([...counts].sort((a, b) => b[1] - a[1]).map(([color]) => color));
  const indexes = new Map(palette.map((color, index) => [color, index]));
  const pixels = Uint8Array.from(data, (color) => indexes.get(color) ?? indexes.set(color, nearest(color, palette)).get(color));
  return { width, height, palette: text(Uint8Array.from(palette.flatMap(channels))), pixels: text(pixels) };
}

/** The most frequent colors, without those that can hardly be distinguished from one of them. */
function spread(colors) {
  for (const least of [8, 12, 20, 32]) {
    const chosen = [];
    for (const color of colors) {
      if (chosen.length < 256 && (chosen.length < 16 || distance(color, chosen[nearest(color, chosen)]) >= least)) chosen.push(color);
    }
    if (chosen.length < 256) return chosen;
  }
  return colors.slice(0, 256);
}

const channels = (color) => [color & 255, (color >> 8) & 255, (color >> 16) & 255];

function distance(a, b) {
  return Math.abs((a & 255) - (b & 255)) + Math.abs(((a >> 8) & 255) - ((b >> 8) & 255)) + Math.abs(((a >> 16) & 255) - ((b >> 16) & 255));
}

function nearest(color, palette) {
  let best = 0;
  for (let index = 1; index < palette.length; index += 1) if (distance(color, palette[index]) < distance(color, palette[best])) best = index;
  return best;
}

const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

function text(array) {
  let letters = "";
  for (let start = 0; start < array.length; start += 32768) letters += String.fromCharCode(...array.subarray(start, start + 32768));
  return btoa(letters);
}
