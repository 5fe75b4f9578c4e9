// @azure/service-bus: clients, senders, receivers, sessions, processors, and the manager of a subscription's rules.
import { createHash } from "node:crypto";

import { ServiceBusClient } from "@azure/service-bus";
import Long from "long";

import { clientOptions, connectionString } from "./connection.mjs";
import { decode, encode, map, pause, present } from "./value.mjs";

const LARGE = 100_000; // bytes of a body from which on its digest is given instead

function toMessage(given) {
  return present({
    body: given.json ?? (given.size === undefined ? Buffer.from(given.body) : Buffer.alloc(given.size, given.body)),
    messageId: given.message_id,
    sessionId: given.session_id,
    correlationId: given.correlation_id,
    subject: given.subject,
    contentType: given.content_type,
    to: given.to,
    replyTo: given.reply_to,
    replyToSessionId: given.reply_to_session_id,
    partitionKey: given.partition_key,
    timeToLive: given.time_to_live_ms,
    applicationProperties: map(given.properties, decode),
  });
}

export function bodyOf(body) {
  if (!Buffer.isBuffer(body)) return { value: body };
  return body.length < LARGE
    ? { body: body.toString() }
    : { size: body.length, sha256: createHash("sha256").update(body).digest("hex") };
}

const toTold = (keep) => (message) =>
  present({
    handle: keep(message),
    ...bodyOf(message.body),
    message_id: message.messageId,
    session_id: message.sessionId,
    correlation_id: message.correlationId,
    subject: message.subject,
    content_type: message.contentType,
    to: message.to,
    reply_to: message.replyTo,
    reply_to_session_id: message.replyToSessionId,
    partition_key: message.partitionKey,
    time_to_live_ms: message.timeToLive,
    properties: map(message.applicationProperties, encode),
    number: message.sequenceNumber?.toNumber(),
    delivery_count: message.deliveryCount,
    state: message.state,
    enqueued_ms: message.enqueuedTimeUtc?.getTime(),
    locked_until_ms: message.lockedUntilUtc?.getTime(),
    dead_letter_reason: message.deadLetterReason,
    dead_letter_description: message.deadLetterErrorDescription,
    dead_letter_source: message.deadLetterSource,
  });

// Collects up to `count` messages: one call of the SDK returns soon after the first.
async function collect(receiver, count, waitMs) {
  const found = [];
  while (found.length < count) {
    const more = await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs: waitMs });
    if (more.length === 0) break;
    found.push(...more);
  }
  return found;
}

const receiveMode = (options) => (options.delete ? "receiveAndDelete" : "peekLock");
const path = ({ entity, subscription }) => (subscription === undefined ? [entity] : [entity, subscription]);

export const serviceBus = {
  connect: (_, { connection, transport, retries }, { keep }) =>
    keep(new ServiceBusClient(connectionString(connection, transport), clientOptions(transport, retries))),

  sender: (client, { entity }, { keep }) => keep(client.createSender(entity)),

  receiver: (client, options, { keep }) =>
    keep(
      client.createReceiver(...path(options), {
        receiveMode: receiveMode(options),
        skipParsingBodyAsJson: !options.json,
        skipConvertingDate: true,
        ...(options.dead_letter ? { subQueueType: "deadLetter" } : {}),
        ...(options.renew_ms === undefined ? {} : { maxAutoLockRenewalDurationInMs: options.renew_ms }),
      }),
    ),

  async session(client, options, { keep }) {
    const settings = {
      receiveMode: receiveMode(options),
      skipParsingBodyAsJson: true,
      maxAutoLockRenewalDurationInMs: options.renew_ms ?? 0,
    };
    const receiver =
      options.session_id === undefined
        ? await client.acceptNextSession(...path(options), settings)
        : await client.acceptSession(...path(options), options.session_id, settings);
    return { handle: keep(receiver), session_id: receiver.sessionId, locked_until_ms: +receiver.sessionLockedUntilUtc };
  },

  async send(sender, { messages, how }) {
    const made = messages.map(toMessage);
    if (how === "batch") {
      const batch = await sender.createMessageBatch();
      const fitting = made.filter((message) => batch.tryAddMessage(message));
      await sender.sendMessages(batch);
      return fitting.length;
    }
    if (how === "array") await sender.sendMessages(made);
    else for (const message of made) await sender.sendMessages(message);
    return made.length;
  },

  async schedule(sender, { messages, at_ms: at }) {
    return (await sender.scheduleMessages(messages.map(toMessage), new Date(at))).map((number) => number.toNumber());
  },

  cancel: (sender, { numbers }) => sender.cancelScheduledMessages(numbers.map((number) => Long.fromNumber(number))),

  async receive(receiver, { count, wait_ms: wait }, { keep }) {
    return (await collect(receiver, count, wait)).map(toTold(keep));
  },

  async deferred(receiver, { numbers }, { keep }) {
    const found = await receiver.receiveDeferredMessages(numbers.map((number) => Long.fromNumber(number)));
    return found.map(toTold(keep));
  },

  async peek(receiver, { count, from }, { keep }) {
    const options = from === undefined ? {} : { fromSequenceNumber: Long.fromNumber(from) };
    return (await receiver.peekMessages(count, options)).map(toTold(keep));
  },

  complete: (receiver, { message }, { found }) => receiver.completeMessage(found(message)),

  abandon: (receiver, { message, properties }, { found }) =>
    receiver.abandonMessage(found(message), map(properties, decode)),

  defer: (receiver, { message, properties }, { found }) =>
    receiver.deferMessage(found(message), map(properties, decode)),

  dead_letter: (receiver, { message, reason, description, properties }, { found }) =>
    receiver.deadLetterMessage(found(message), {
      deadLetterReason: reason,
      deadLetterErrorDescription: description,
      ...map(properties, decode),
    }),

  renew: async (receiver, { message }, { found }) => (await receiver.renewMessageLock(found(message))).getTime(),

  renew_session: async (receiver) => (await receiver.renewSessionLock()).getTime(),

  state: async (receiver) => (await receiver.getSessionState())?.toString(),

  set_state: (receiver, { state }) => receiver.setSessionState(state === undefined ? null : Buffer.from(state)),

  // A processor that completes what it is done with, and fails once at each message whose body says so.
  subscribe(receiver, { concurrent, busy_ms: busy }, { keep }) {
    const seen = { processed: [], failed: [], most: 0, errors: [] };
    let active = 0;
    const processor = receiver.subscribe(
      {
        async processMessage(message) {
          seen.most = Math.max(seen.most, ++active);
          await pause(busy ?? 0);
          active--;
          const body = message.body.toString();
          if (body.startsWith("fail") && message.deliveryCount === 0) {
            seen.failed.push(body);
            throw new Error(`failed at ${body}`);
          }
          seen.processed.push(body);
        },
        async processError({ error, errorSource }) {
          seen.errors.push(`${errorSource}: ${error.message}`);
        },
      },
      { autoCompleteMessages: true, maxConcurrentCalls: concurrent },
    );
    return keep({ close: () => processor.close(), seen });
  },

  async processed({ seen }, { count, wait_ms: wait }) {
    const limit = Date.now() + wait;
    while (seen.processed.length < count && Date.now() < limit) await pause(10);
    return seen;
  },

  rule_manager: (client, { entity, subscription }, { keep }) => keep(client.createRuleManager(entity, subscription)),

  add_rule: (manager, { name, sql, correlation, action }) =>
    manager.createRule(name, correlation ?? { sqlExpression: sql }, action && { sqlExpression: action }),

  remove_rule: (manager, { name }) => manager.deleteRule(name),

  async rules(manager) {
    const found = [];
    for await (const { name, filter, action } of manager.listRules()) found.push({ name, filter: present(filter), action });
    return found;
  },

  close: (object) => object.close(),
};
