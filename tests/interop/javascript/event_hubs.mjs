// @azure/event-hubs: producers, readers of a partition, and processors that share partitions by a store of checkpoints.
import { randomUUID } from "node:crypto";

import {
  EventHubBufferedProducerClient,
  EventHubConsumerClient,
  EventHubProducerClient,
  earliestEventPosition,
  latestEventPosition,
} from "@azure/event-hubs";

import { clientOptions, connectionString } from "./connection.mjs";
import { bodyOf } from "./service_bus.mjs";
import { decode, encode, map, pause, present } from "./value.mjs";

const toEvent = ({ body, message_id: messageId, correlation_id: correlationId, content_type: contentType, properties }) =>
  present({ body: Buffer.from(body), messageId, correlationId, contentType, properties: map(properties, decode) });

const toTold = (partition, event) =>
  present({
    partition,
    ...bodyOf(event.body),
    message_id: event.messageId,
    correlation_id: event.correlationId,
    content_type: event.contentType,
    properties: map(event.properties, encode),
    key: event.partitionKey,
    number: event.sequenceNumber,
    offset: event.offset,
    enqueued_ms: event.enqueuedTimeUtc?.getTime(),
  });

function toPosition({ earliest, latest, offset, number, enqueued_ms: enqueued, inclusive }) {
  if (earliest) return earliestEventPosition;
  if (latest) return latestEventPosition;
  return present({ offset, sequenceNumber: number, enqueuedOn: enqueued, isInclusive: inclusive });
}

// Ownership and checkpoints in memory, with compare-and-swap by etag as a shared store has it.
class Store {
  owners = new Map();
  checkpoints = new Map();

  async listOwnership() {
    return [...this.owners.values()].map((owner) => ({ ...owner }));
  }

  async claimOwnership(wanted) {
    const granted = wanted.filter((each) => {
      const standing = this.owners.get(each.partitionId);
      return standing === undefined || standing.etag === each.etag;
    });
    return granted.map((each) => {
      const made = { ...each, etag: randomUUID(), lastModifiedTimeInMs: Date.now() };
      this.owners.set(each.partitionId, made);
      return { ...made };
    });
  }

  async updateCheckpoint(checkpoint) {
    this.checkpoints.set(checkpoint.partitionId, { ...checkpoint });
  }

  async listCheckpoints() {
    return [...this.checkpoints.values()].map((checkpoint) => ({ ...checkpoint }));
  }
}

const consumerClient = ({ connection, transport, hub, group, retries }, ...store) =>
  new EventHubConsumerClient(group ?? "$Default", connectionString(connection, transport), hub, ...store, {
    ...clientOptions(transport, retries),
    loadBalancingOptions: { strategy: "greedy", updateIntervalInMs: 200, partitionOwnershipExpirationIntervalInMs: 3000 },
  });

export const eventHubs = {
  producer: (_, { connection, transport, hub, retries }, { keep }) =>
    keep(new EventHubProducerClient(connectionString(connection, transport), hub, clientOptions(transport, retries))),

  async send_events(producer, { events, partition: partitionId, key: partitionKey }) {
    const batch = await producer.createBatch(present({ partitionId, partitionKey }));
    const fitting = events.filter((event) => batch.tryAdd(toEvent(event)));
    await producer.sendBatch(batch);
    return fitting.length;
  },

  // By a buffered producer, which places keys itself.
  async send_buffered(_, { connection, transport, hub, events }) {
    const errors = [];
    const client = new EventHubBufferedProducerClient(connectionString(connection, transport), hub, {
      ...clientOptions(transport),
      maxWaitTimeInMs: 100,
      onSendEventsErrorHandler: async ({ error }) => void errors.push(String(error)),
    });
    for (const { key: partitionKey, ...event } of events) await client.enqueueEvent(toEvent(event), { partitionKey });
    await client.close({ flush: true });
    return errors;
  },

  async hub(producer) {
    const { name, partitionIds, createdOn } = await producer.getEventHubProperties();
    return { name, partitions: partitionIds, created_ms: createdOn.getTime() };
  },

  async partition(producer, { partition }) {
    const found = await producer.getPartitionProperties(partition);
    return {
      first: found.beginningSequenceNumber,
      last: found.lastEnqueuedSequenceNumber,
      last_offset: found.lastEnqueuedOffset,
      empty: found.isEmpty,
    };
  },

  store: (_, __, { keep }) => keep(new Store()),

  owners: (store) => [...store.owners.values()].filter(({ ownerId }) => ownerId).map(({ ownerId }) => ownerId),

  // Reads one partition from a position; or, with a store, processes all that fall to it and checkpoints each event.
  read(_, { partition, position, owner_level: ownerLevel, store, ...where }, { keep, found }) {
    const shared = store === undefined ? [] : [found(store)];
    const client = consumerClient(where, ...shared);
    const seen = { events: [], errors: [] };
    const handlers = {
      async processEvents(events, context) {
        for (const event of events) {
          seen.events.push(toTold(context.partitionId, event));
          if (shared.length > 0) await context.updateCheckpoint(event);
        }
      },
      processError: async ({ code, name, message }) =>
        void seen.errors.push({ code: String(code ?? name), message: String(message) }),
    };
    const options = present({
      startPosition: toPosition(position),
      ownerLevel,
      maxBatchSize: 50,
      maxWaitTimeInSeconds: 1,
      skipParsingBodyAsJson: true,
    });
    const which = partition === undefined ? [] : [partition];
    const subscription = client.subscribe(...which, handlers, options);
    return keep({
      seen,
      async close() {
        await subscription.close();
        await client.close();
      },
    });
  },

  // What was read when there are so many events, or an error if one is waited for, or at the end of the wait.
  async read_so_far({ seen }, { count, error, wait_ms: wait }) {
    const limit = Date.now() + wait;
    const enough = () => (error ? seen.errors.length > 0 : seen.events.length >= count);
    while (!enough() && Date.now() < limit) await pause(10);
    return seen;
  },
};
