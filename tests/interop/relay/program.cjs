// The clients of Azure Relay for JavaScript, at the disposal of tests/harness/client/sdk_program.py: does what each line of standard input asks
// for, at once, and answers with a line of standard output when it is done.
const { createInterface } = require("node:readline");
const WebSocket = require("hyco-ws");
const https = require("hyco-https");

const uri = (host, path, action) => `wss://${host}/$hc/${path}?sb-hc-action=${action}`;

const operations = {
  // A listener that sends back what it gets, and closes with 4000 when asked for it.
  listenWebSocket: (_, { host, path, rule, key }, { keep }) =>
    new Promise((resolve, reject) => {
      const address = uri(host, path, "listen");
      const server = WebSocket.createRelayedServer(
        { server: address, token: () => WebSocket.createRelayToken(address, rule, key) },
        (socket) => {
          socket.on("message", (data, flags) => {
            if (data === "close") socket.close(4000, "as you wish");
            else socket.send(data, { binary: Boolean(flags.binary) });
          });
        },
      );
      server.on("listening", () => resolve(keep(server)));
      server.on("error", (error) => reject(error.error ?? error));
    }),

  // A requester's connection: sends texts, or so many bytes, and reports what comes back.
  talk: (_, { host, path, rule, key, texts, bytes }) =>
    new Promise((resolve, reject) => {
      const address = uri(host, path, "connect");
      const heard = [];
      const wanted = texts.length + (bytes ? 1 : 0);
      const socket = WebSocket.relayedConnect(address, WebSocket.createRelayToken(address, rule, key), () => {
        for (const text of texts) socket.send(text);
        if (bytes) socket.send(Buffer.alloc(bytes, 7), { binary: true });
      });
      socket.on("message", (data, flags) => {
        heard.push(flags.binary ? data.length : data);
        if (heard.length === wanted) socket.send("close");
      });
      socket.on("close", (code, reason) => resolve({ heard, code, reason: String(reason) }));
      socket.on("error", reject);
    }),

  // A listener that answers with what it was asked; "/large" is answered with 300,000 bytes, "/pieces" piece by piece.
  listenRequests: (_, { host, path, rule, key }, { keep }) =>
    new Promise((resolve, reject) => {
      const address = uri(host, path, "listen");
      const server = https.createRelayedServer(
        { server: address, token: () => https.createRelayToken(address, rule, key) },
        (request, response) => {
          const parts = [];
          request.on("data", (part) => parts.push(part));
          request.on("end", () => {
            const body = Buffer.concat(parts.map((part) => Buffer.from(part)));
            response.setHeader("X-Seen", request.headers["x-own"] ?? "none");
            if (request.url.endsWith("/large")) response.end(Buffer.alloc(300000, 7));
            else if (request.url.endsWith("/none")) {
              response.statusCode = 204;
              response.end();
            } else if (request.url.endsWith("/pieces")) {
              response.write("one,");
              response.write("two,");
              response.end("three");
            } else response.end(JSON.stringify({ method: request.method, url: request.url, bytes: body.length }));
          });
        },
      );
      server.on("listening", () => resolve(keep(server)));
      server.on("error", (error) => reject(error.error ?? error));
      server.listen();
    }),

  request: (_, { host, path, rule, key, method, bytes }) =>
    new Promise((resolve, reject) => {
      const address = `https://${host}/${path}`;
      const headers = { ServiceBusAuthorization: https.createRelayToken(address, rule, key), "X-Own": "mine" };
      const request = https.request(address, { method, headers }, (answer) => {
        const parts = [];
        answer.on("data", (part) => parts.push(part));
        answer.on("end", () => {
          const body = Buffer.concat(parts);
          const text = body.length < 10000 ? body.toString() : "";
          resolve({ status: answer.statusCode, seen: answer.headers["x-seen"] ?? null, length: body.length, text });
        });
      });
      request.on("error", reject);
      request.end(bytes ? Buffer.alloc(bytes, 7) : undefined);
    }),

  close: (server) => new Promise((resolve) => {
    server.on("close", () => resolve());
    server.close();
  }),
};

const objects = new Map();
const keep = (object) => {
  objects.set(objects.size + 1, object);
  return objects.size;
};

async function answer({ request, operation, of, arguments: options }) {
  const reply = { request };
  try {
    if (!(operation in operations)) throw new Error(`no operation ${operation}`);
    reply.result = (await operations[operation](objects.get(of), options, { keep })) ?? null;
  } catch (error) {
    reply.error = { code: String(error.code ?? error.name), message: String(error.message) };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}

console.log = console.error; // what the clients write is not for the test
const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => answer(JSON.parse(line)));
lines.on("close", () => process.exit(0));
