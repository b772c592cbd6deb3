// Perfetto's trace processor on a pipe: requests on standard input, its answers on standard output.
//
//     node engine.mjs DIRECTORY
//
// DIRECTORY holds Perfetto's engine_bundle.js and the .wasm files beside it. Both streams carry the
// bytes that the Perfetto UI exchanges with its engine: a TraceProcessorRpcStream each way.
import fs from "node:fs";
import path from "node:path";

const directory = process.argv[2];

// The bundle expects a web worker. It gets what it looks for there as arguments, so that Node's own
// globals stay as they are.
class FileRequest {
  open(method, url) {
    this.file = path.join(directory, path.basename(url));
  }
  send() {
    this.response = fs.readFileSync(this.file);
  }
}
const worker = { location: new URL("http://localhost/engine_bundle.js") };
const environment = {
  self: worker,
  location: worker.location,
  WorkerGlobalScope: class {},
  XMLHttpRequest: FileRequest,
  process: undefined, // or the bundle believes itself in Node, and refuses to start
  console: { ...console, log: console.error }, // standard output belongs to the answers
};
const source = fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8");
new Function(...Object.keys(environment), source)(...Object.values(environment));

const port = { postMessage: (bytes) => process.stdout.write(bytes) };
worker.onmessage({ data: port });
process.stdin.on("data", (bytes) => port.onmessage({ data: bytes }));
