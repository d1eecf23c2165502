// Grey PNG files to write, and RGB files to read: [height][width].
import zlib from "node:zlib";

function chunk(type, data) {
  const body = Buffer.concat([Buffer.from(type), data]), length = Buffer.alloc(4), sum = Buffer.alloc(4);
  length.writeUInt32BE(data.length);
  let crc = ~0;
  for (const byte of body) for (let bit = 0, x = crc ^= byte; bit < 8; ++bit) crc = x = x & 1 ? x >>> 1 ^ 0xedb88320 : x >>> 1;
  sum.writeInt32BE(~crc);
  return Buffer.concat([length, body, sum]);
}

export function grayPng(bytes, side) {
  const header = Buffer.from([0, 0, 0, side, 0, 0, 0, side, 8, 0, 0, 0, 0]);
  const rows = Buffer.concat(Array.from({length: side}, (_, r) => Buffer.concat([Buffer.from([0]), bytes.subarray(r * side, (r + 1) * side)])));
  return Buffer.concat([Buffer.from("\x89PNG\r\n\x1a\n", "latin1"), chunk("IHDR", header), chunk("IDAT", zlib.deflateSync(rows)), chunk("IEND", Buffer.alloc(0))]);
}

// {width, height, rgb}
export function readPng(file) {
  const data = [];
  let width, height;
  for (let at = 8; at < file.length;) {
    const length = file.readUInt32BE(at), type = file.toString("latin1", at + 4, at + 8), body = file.subarray(at + 8, at + 8 + length);
    if (type === "IHDR") [width, height] = [body.readUInt32BE(0), body.readUInt32BE(4)];
    if (type === "IDAT") data.push(body);
    at += 12 + length;
  }
  const raw = zlib.inflateSync(Buffer.concat(data)), stride = 3 * width, rgb = Buffer.alloc(height * stride);
  for (let y = 0; y < height; ++y) {
    const filter = raw[y * (stride + 1)];
    for (let x = 0; x < stride; ++x) {
      const left = x >= 3 ? rgb[y * stride + x - 3] : 0, up = y ? rgb[(y - 1) * stride + x] : 0, corner = x >= 3 && y ? rgb[(y - 1) * stride + x - 3] : 0;
      const near = [left, up, corner].map(v => Math.abs(left + up - corner - v));
      const paeth = near[0] <= near[1] && near[0] <= near[2] ? left : near[1] <= near[2] ? up : corner;
      rgb[y * stride + x] = raw[y * (stride + 1) + 1 + x] + [0, left, up, left + up >> 1, paeth][filter];
    }
  }
  return {width, height, rgb};
}
