// The Azure SDKs for JavaScript, and rhea, at the disposal of tests/harness/client/sdk_program.py: does what each line of standard input asks
// for, at once, and answers with a line of standard output when it is done.
import { createInterface } from "node:readline";

import { administration } from "./administration.mjs";
import { eventHubs } from "./event_hubs.mjs";
import { serviceBus } from "./service_bus.mjs";
import { transactions } from "./transactions.mjs";

const operations = { ...serviceBus, ...administration, ...eventHubs, ...transactions };

const objects = new Map(); // clients, senders, receivers and messages, by the number that the test knows them by
const keep = (object) => {
  objects.set(objects.size + 1, object);
  return objects.size;
};

async function answer({ request, operation, of, arguments: options }) {
  const reply = { request };
  try {
    if (!(operation in operations)) throw new Error(`no operation ${operation}`);
    const found = (number) => objects.get(number);
    reply.result = (await operations[operation](found(of), options, { keep, found })) ?? null;
  } catch (error) {
    reply.error = { code: String(error.code ?? error.statusCode ?? error.name), message: String(error.message) };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}

for await (const line of createInterface({ input: process.stdin })) answer(JSON.parse(line));
process.exit(0);
