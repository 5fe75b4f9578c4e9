// Azurite answers before a change is on disk: it writes its metadata every 5 s, and a kill loses what came since.
// Loaded before Azurite (node --require), this lets each change answer after it is in a journal, which is read at the next
// start and begun anew then; changes of blobs, which are few, after the whole file of metadata is written. So Azurite keeps what it has
// answered, as Azure does.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const sources = path.join(process.env.AZURITE_FOLDER, "node_modules", "azurite", "dist", "src");
const load = (file) => require(path.join(sources, file)).default.prototype;

function wrap(store, name, after) {
  const method = store[name];
  if (method === undefined) throw new Error(`Azurite has no ${name}`);
  store[name] = async function (...given) {
    const answer = await method.apply(this, given);
    await after.call(this, given, answer);
    return answer;
  };
}

// A change: the collection, what distinguishes its documents, and the document; without one, all that fit are removed.
function note(store, collection, key, document) {
  if (store.journal === undefined) return; // it is being started
  const { $loki, meta, ...rest } = document ?? {};
  fs.writeSync(store.journal, JSON.stringify([collection, key, document === undefined ? null : rest]) + "\n");
}

function save(store) {
  return new Promise((resolve, reject) => store.db.saveDatabase((error) => (error ? reject(error) : resolve())));
}

// A start takes time in proportion to what there is and what the journal holds: Loki sorts its indices again after a removal, so that
// it is given each collection once, whole.
function replay(store, keys, lines) {
  for (const [name, fields] of Object.entries(keys)) {
    const collection = store.db.getCollection(name);
    const identity = (key) => fields.filter((field) => field in key).map((field) => `${key[field]}\n`).join("");
    const kept = new Map(collection.data.map(({ $loki, meta, ...rest }) => [identity(rest), rest]));
    for (const [of, key, document] of lines) {
      if (of !== name) continue;
      const found = identity(key);
      if (document !== null) kept.set(found, document);
      else if (fields.every((field) => field in key)) kept.delete(found);
      else for (const each of [...kept.keys()].filter((each) => each.startsWith(found))) kept.delete(each);
    }
    collection.clear();
    collection.insert([...kept.values()]);
  }
}

// By collection, the fields that distinguish its documents.
function keepJournal(store, keysOf) {
  wrap(store, "init", async function () {
    const file = `${this.lokiDBPath}.journal`;
    const lines = fs.existsSync(file) ? fs.readFileSync(file, "utf8").split("\n") : [];
    if (lines.length > 1) {
      replay(this, keysOf(this), lines.slice(0, -1).map((line) => JSON.parse(line))); // the last line is empty, or half written and not answered
      await save(this);
    }
    this.journal = fs.openSync(file, "w");
  });
}

const extents = load("common/persistence/LokiExtentMetadataStore.js");
keepJournal(extents, (store) => ({ [store.EXTENTS_COLLECTION]: ["id"] }));
wrap(extents, "updateExtent", function ([{ id }]) {
  note(this, this.EXTENTS_COLLECTION, { id }, this.db.getCollection(this.EXTENTS_COLLECTION).findOne({ id }));
});

const queues = load("queue/persistence/LokiQueueMetadataStore.js");
keepJournal(queues, (store) => ({
  [store.QUEUES_COLLECTION]: ["accountName", "name"],
  [store.MESSAGES_COLLECTION]: ["accountName", "queueName", "messageId"],
}));
function noteQueue(store, accountName, name) {
  const key = { accountName, name };
  note(store, store.QUEUES_COLLECTION, key, store.db.getCollection(store.QUEUES_COLLECTION).findOne(key) ?? undefined);
}
function noteMessage(store, { accountName, queueName, messageId }) {
  const key = { accountName, queueName, messageId };
  note(store, store.MESSAGES_COLLECTION, key, store.db.getCollection(store.MESSAGES_COLLECTION).findOne(key) ?? undefined);
}
wrap(queues, "createQueue", function ([queue]) {
  noteQueue(this, queue.accountName, queue.name);
});
wrap(queues, "deleteQueue", function ([accountName, queueName]) {
  noteQueue(this, accountName, queueName);
  note(this, this.MESSAGES_COLLECTION, { accountName, queueName });
});
wrap(queues, "setQueueMetadata", function ([account, queue]) {
  noteQueue(this, account, queue);
});
wrap(queues, "insertMessage", function ([message]) {
  noteMessage(this, message);
});
wrap(queues, "updateMessage", function ([message]) {
  noteMessage(this, message);
});
wrap(queues, "deleteMessage", function ([accountName, queueName, messageId]) {
  noteMessage(this, { accountName, queueName, messageId });
});
wrap(queues, "clearMessages", function ([accountName, queueName]) {
  note(this, this.MESSAGES_COLLECTION, { accountName, queueName });
});
wrap(queues, "getMessages", function ([accountName, queueName], found) {
  for (const { messageId } of found) noteMessage(this, { accountName, queueName, messageId });
});

const blobs = load("blob/persistence/LokiBlobMetadataStore.js");
for (const name of [
  "createContainer", "deleteContainer", "setContainerMetadata", "acquireBlobLease", "renewBlobLease", "releaseBlobLease",
  "createBlob", "commitBlockList", "deleteBlob", "setBlobMetadata",
]) {
  wrap(blobs, name, function () {
    return save(this);
  });
}
