// Azurite answers before what it was told is on disk: it writes its metadata every 5 s, and a kill loses what came since.
// Loaded before Azurite (node --require), this lets each change answer after it stands in a journal, which is read at the next
// start; changes of blobs, which are few, after the whole file of metadata is written. So Azurite keeps what it has answered, as Azure does.
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

// A change: the collection, what tells its documents apart, and the document; without one, all that fit are removed.
function note(store, collection, key, document) {
  if (store.journal === undefined) return; // it is being started
  const { $loki, meta, ...rest } = document ?? {};
  fs.writeSync(store.journal, JSON.stringify([collection, key, document === undefined ? null : rest]) + "\n");
}

function keepJournal(store) {
  wrap(store, "init", function () {
    const file = `${this.lokiDBPath}.journal`;
    const lines = fs.existsSync(file) ? fs.readFileSync(file, "utf8").split("\n") : [];
    for (const line of lines.slice(0, -1)) {
      const [name, key, document] = JSON.parse(line);
      const collection = this.db.getCollection(name);
      collection.findAndRemove(key);
      if (document !== null) collection.insert(document);
    }
    this.journal = fs.openSync(file, "a");
  });
}

const extents = load("common/persistence/LokiExtentMetadataStore.js");
keepJournal(extents);
wrap(extents, "updateExtent", function ([{ id }]) {
  note(this, this.EXTENTS_COLLECTION, { id }, this.db.getCollection(this.EXTENTS_COLLECTION).findOne({ id }));
});

const queues = load("queue/persistence/LokiQueueMetadataStore.js");
keepJournal(queues);
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
    return new Promise((resolve, reject) => this.db.saveDatabase((error) => (error ? reject(error) : resolve())));
  });
}
