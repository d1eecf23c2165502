// node check.mjs PAGE PROGRAM [PICTURES]: opens the page in Chromium as a user does, and compares what it draws with
// `runnel mnist complete`. PICTURES: a folder for screenshots. Exit status 1: something is wrong, and it says what.
import assert from "node:assert";
import { execFileSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { openBrowser } from "./browser.mjs";
import { grayPng, readPng } from "./png.mjs";

const [page, program, pictures] = process.argv.slice(2).map(name => path.resolve(name));
const work = fs.mkdtempSync(path.join(os.tmpdir(), "runnel-web-"));
const browser = await openBrowser("chromium", path.join(work, "profile"));
const {evaluate, until} = browser;
const text = id => evaluate(`$("${id}").textContent`);
const open = async folder => { await browser.open(`file://${folder}/index.html`); await evaluate("ready"); };
const picture = async (name, of) => { if (pictures) fs.writeFileSync(path.join(pictures, name), await browser.screenshot(of)); };
const window_ = (width, height, mobile) => browser.send("Emulation.setDeviceMetricsOverride", {width, height, mobile, deviceScaleFactor: 1});
// Points of the drawing area, in pixels of the model's picture -> of the window.
async function place(points) {
  const {left, top, width} = await evaluate('(b => ({left: b.left, top: b.top, width: b.width}))($("draw").getBoundingClientRect())');
  return points.map(([x, y]) => [left + x / 28 * width, top + y / 28 * width]);
}
const seven = [[8, 6.4], [11, 6.1], [14, 6.1], [17, 6.1], [19.3, 6.5], [18.8, 8.5], [17.8, 11]];
const drawn = () => until('/a second/.test($("drawn").textContent)', "a completion");

async function check(name, f) {
  try { await f(); console.log(`passed: ${name}`); } catch (error) { console.log(`failed: ${name}: ${error.message}`); process.exitCode = 1; }
}

try {
  const requests = [];
  browser.on("Network.requestWillBeSent", ({request}) => requests.push(request.url));
  await browser.send("Network.enable");
  await window_(1000, 1750, false);

  await check("the page takes at most 2 MB, and opens as a file without network", async () => {
    const size = ["index.html", "runnel.js", "files.js"].map(name => fs.statSync(path.join(page, name)).size).reduce((a, b) => a + b);
    console.log(`  ${(size / 1e6).toFixed(2)} MB`);
    assert(size <= 2e6, `${size} bytes`);
    await open(page);
    assert.equal(await evaluate('$("error").hidden'), true, await text("error"));
    assert.deepEqual(requests.filter(url => !/^(file|data|blob):/.test(url)), []);
  });

  await check("a stroke of the mouse is completed in eight ways, and its class is guessed", async () => {
    await browser.stroke(await place(seven));
    await drawn();
    console.log(`  ${await text("drawn")}`);
    console.log(`  ${((await evaluate("engine.HEAPU8.length")) / 1e6).toFixed(1)} MB of memory`);
    assert.match(await text("drawn"), /^8 x 476 pixels in .* The rows look like \d \(\d+%\)/);
    const ways = await evaluate("[...Array(WAYS)].map((_, w) => completed.pictures.subarray(w * 784, (w + 1) * 784).join())");
    assert(new Set(ways).size > 1, "all completions are the same");
    await evaluate('$("label").value = 7; complete()');
    await drawn();
    await picture("web-draw.png", "section");
  });

  await check("completions are the same bytes as the program's", async () => {
    await evaluate('$("label").value = 7; $("temperature").value = 1; $("rows").value = 14; seed = 3; showDrawing(); complete()');
    await drawn();
    const bytes = Uint8Array.from(await evaluate("[...drawing]")), found = Buffer.from(await evaluate("[...completed.pictures]"));
    fs.writeFileSync(path.join(work, "drawn.png"), grayPng(Buffer.from(bytes), 28));
    const model = new URL("../../apps/web/digits.safetensors", import.meta.url).pathname;
    execFileSync(program, ["mnist", "complete", "--model", model, "--image", path.join(work, "drawn.png"), "--class", "7", "--ways", "8",
                           "--keep", String(14 * 28), "--temperature", "1", "--seed", "3", "--precision", "int8", "--out", path.join(work, "sheet.png")],
                 {env: {...process.env, RUNNEL_INSTRUCTION_SET: "baseline"}, stdio: "ignore"});
    const sheet = readPng(fs.readFileSync(path.join(work, "sheet.png"))), zoom = (sheet.width - 2) / 10 - 2;
    let different = 0;
    for (let way = 0; way < 8; ++way)
      for (let i = 0; i < 784; ++i) {
        const x = 2 + (way + 1) * (zoom + 2) + (i % 28) * zoom / 28, y = 2 + Math.floor(i / 28) * zoom / 28;
        different += sheet.rgb[3 * (y * sheet.width + x)] !== found[way * 784 + i];
      }
    assert.equal(different, 0, `${different} of ${8 * 784} bytes differ`);
  });

  await check("one digit of a class, and eight of them, are drawn", async () => {
    const drawn = await evaluate('[1, 8, 1, 8].map(ways => { withBytes(drawing, at => call("complete", at, 1, 7, ways, 1, 1)); const begin = performance.now(); while (call("step") < 784); return ((performance.now() - begin) / 1000).toFixed(2); })');
    console.log(`  784 pixels: one in ${drawn[0]} s, eight in ${drawn[1]} s, again ${drawn[2]} s and ${drawn[3]} s`);
    await evaluate("complete()");
    await until("completed", "a completion");
  });

  await check("the state is shown after each pixel, of each layer and completion", async () => {
    const heads = () => evaluate('[...$("heads").children].map(c => c.toDataURL()).join()');
    await evaluate('$("read").value = 300; showState()');
    const shown = new Set([await heads()]);
    for (const change of ['$("read").value = 301; showState()', '$("layer").value = 1; showState()', '$("read").value = 700; choose(5)']) {
      await evaluate(change);
      shown.add(await heads());
    }
    assert.equal(shown.size, 4);
    assert.equal(await text("readout"), "699 of 784");
    await evaluate('$("read").value = 770; $("play").click()');
    await until('!playing.runs', "the end of the picture");
    assert.equal(await text("readout"), "783 of 784");
  });

  await check("a text goes on from what is typed, and its state does not grow", async () => {
    await evaluate('$("prompt").value = "JULIET:\\n"; $("write").click()');
    await until('!writing.runs', "a text");
    console.log(`  ${await text("written")}`);
    assert.match(await text("written"), /^2007 bytes read, .* the state has (\d+) KB, a cache would have 3763 KB$/);
    assert.match(await text("story"), /^JULIET:\n[\x20-\x7e\n]{1900}/);
    const state = await evaluate("floats(3)[1]");
    await evaluate('$("write").click()');
    await until('/^\\d+ bytes/.test($("written").textContent)', "another text");
    await evaluate('$("write").click()');
    assert.equal(await evaluate("floats(3)[1]"), state);
  });

  await check("the copy task is learned in the page", async () => {
    await evaluate('$("learn").click()');
    await until('!learning.runs', "learning");
    console.log(`  ${await text("learned")}`);
    assert(Number(/loss ([\d.]+)/.exec(await text("learned"))[1]) < 0.2, await text("learned"));
    await evaluate('$("temperature").value = 0.9; $("rows").value = 11; seed = 1; showDrawing(); complete()');
    await drawn();
    await evaluate('$("read").value = 420; showState()');
    await picture("web-page.png", "body");
  });

  await check("drawing with the keyboard", async () => {
    await evaluate('$("clear").click(); $("draw").focus()');
    for (const key of [" ", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", " ", "Enter"])
      await browser.send("Input.dispatchKeyEvent", {type: "keyDown", key, text: key === " " ? " " : undefined});
    assert.deepEqual(await evaluate("[0, 5].map(x => drawing[7 * 28 + 14 + x] > 200)"), [true, true]);
    await drawn();
  });

  await check("a finger on a phone: nothing is wider than the screen", async () => {
    await window_(390, 800, true);
    await browser.send("Emulation.setTouchEmulationEnabled", {enabled: true});
    await open(page);
    assert(await evaluate("document.documentElement.scrollWidth") <= 390, "the page is wider than the screen");
    const points = await place(seven), touch = (type, at) => browser.send("Input.dispatchTouchEvent", {type, touchPoints: at});
    await touch("touchStart", [{x: points[0][0], y: points[0][1]}]);
    for (const [x, y] of points.slice(1)) await touch("touchMove", [{x, y}]);
    await touch("touchEnd", []);
    await drawn();
    assert(await evaluate("drawing.filter(v => v > 200).length") > 15);
    await picture("web-phone.png", "body");
    await window_(1000, 1750, false);
  });

  await check("damaged, foreign and missing files are a sentence on the page, which goes on", async () => {
    await open(page);
    const refused = [['b => (b[b.length >> 1] ^= 1, b)', "digits", "x.safetensors", /^x.safetensors is damaged: its contents do not have its checksum/],
                     ["b => b", "text", "x.safetensors", /^x.safetensors is not a model of gray, square pictures/],
                     ["b => b.slice(0, 5)", "digits", "a/b", /^a_b is damaged: it has 5 bytes/]];
    for (const [change, name, file, sentence] of refused) {
      await evaluate(`unpacked("${name}").then(b => act(() => load("${file}", (${change})(b))))`);
      assert.equal(await evaluate('$("error").hidden'), false);
      assert.match(await text("error"), sentence);
    }
    await evaluate("drawing[100] = 255; act(complete)");
    await drawn();
    assert.equal(await evaluate('$("error").hidden'), true);
    const broken = path.join(work, "broken"), copy = change => {
      fs.rmSync(broken, {recursive: true, force: true});
      fs.cpSync(page, broken, {recursive: true});
      change();
    };
    const opened = async (change, sentence) => { copy(change); await open(broken); assert.match(await text("error"), sentence); };
    const files = path.join(broken, "files.js"), whole = fs.readFileSync(path.join(page, "files.js"), "latin1");
    await opened(() => fs.rmSync(files), /^runnel.js and files.js are not beside this page/);
    for (const name of ["program", "digits", "text"])
      await opened(() => fs.writeFileSync(files, whole.replace(new RegExp(`${name}: ".{400}`), `${name}: "`)), /^files.js beside this page is damaged/);
  });
} finally {
  await browser.close();
  fs.rmSync(work, {recursive: true, force: true, maxRetries: 5});
}
