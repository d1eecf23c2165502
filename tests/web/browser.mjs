// A headless browser, driven through its debugging pipe: the commands of the Chrome DevTools protocol.
import { spawn } from "node:child_process";

export async function openBrowser(program, folder) {
  const process = spawn(program, ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
                                  `--user-data-dir=${folder}`, "about:blank"], {stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"]});
  const waiting = new Map(), listeners = new Map();
  let next = 1, text = "", session;
  process.stdio[4].on("data", bytes => {
    text += bytes;
    for (let end; (end = text.indexOf("\0")) >= 0; text = text.slice(end + 1)) {
      const message = JSON.parse(text.slice(0, end)), wait = waiting.get(message.id);
      listeners.get(message.method)?.(message.params);
      if (!wait) continue;
      waiting.delete(message.id);
      message.error ? wait.reject(new Error(message.error.message)) : wait.resolve(message.result);
    }
  });
  process.on("exit", () => waiting.forEach(wait => wait.reject(new Error("the browser ended"))));
  const send = (method, params = {}) => new Promise((resolve, reject) => {
    waiting.set(next, {resolve, reject});
    process.stdio[3].write(JSON.stringify({id: next++, method, params, sessionId: session}) + "\0");
  });
  const {targetInfos} = await send("Target.getTargets");
  const page = targetInfos.find(target => target.type === "page");
  session = (await send("Target.attachToTarget", {targetId: page.targetId, flatten: true})).sessionId;
  await send("Page.enable");

  const evaluate = async expression => {
    const {result, exceptionDetails} = await send("Runtime.evaluate", {expression, awaitPromise: true, returnByValue: true});
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  };
  return {
    send, evaluate,
    on(event, listener) { listeners.set(event, listener); },
    async open(url) {
      await send("Page.navigate", {url});
      for (let i = 0; i < 600 && await evaluate("document.readyState") !== "complete"; ++i) await new Promise(r => setTimeout(r, 50));
    },
    async until(expression, what) {
      for (let i = 0; i < 6000; ++i, await new Promise(r => setTimeout(r, 50))) if (await evaluate(expression)) return;
      throw new Error(`waited five minutes for ${what}`);
    },
    async stroke(points) {  // with the mouse, in pixels of the window
      const event = (type, [x, y], buttons) => send("Input.dispatchMouseEvent", {type, x, y, button: "left", buttons, clickCount: 1});
      await event("mousePressed", points[0], 1);
      for (const point of points.slice(1)) await event("mouseMoved", point, 1);
      await event("mouseReleased", points.at(-1), 0);
    },
    async screenshot(selector) {  // of what the selector finds
      const clip = await evaluate(`(b => ({x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height, scale: 1}))(document.querySelector("${selector}").getBoundingClientRect())`);
      return Buffer.from((await send("Page.captureScreenshot", {captureBeyondViewport: true, clip})).data, "base64");
    },
    async close() {
      const ended = new Promise(resolve => process.on("exit", resolve));
      await send("Browser.close").catch(() => {});
      await ended;
    },
  };
}
