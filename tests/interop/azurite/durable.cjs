// Azurite answers before what it was told is on disk: it writes its metadata every 5 s, and a kill loses what came since.
// Loaded before Azurite (node --require), this lets each change answer after its metadata is written, as Azure does.
// Changes that come while the file is written are written together.
"use strict";
const path = require("node:path");

const sources = path.join(process.env.AZURITE_FOLDER, "node_modules", "azurite", "dist", "src");
const stores = {
  "common/persistence/LokiExtentMetadataStore.js": ["updateExtent"],
  "queue/persistence/LokiQueueMetadataStore.js": [
    "createQueue", "deleteQueue", "setQueueMetadata", "insertMessage", "getMessages", "deleteMessage", "updateMessage", "clearMessages",
  ],
  "blob/persistence/LokiBlobMetadataStore.js": [
    "createContainer", "deleteContainer", "setContainerMetadata", "acquireBlobLease", "renewBlobLease", "releaseBlobLease",
    "createBlob", "commitBlockList", "deleteBlob", "setBlobMetadata",
  ],
};

for (const [file, methods] of Object.entries(stores)) {
  const store = require(path.join(sources, file)).default.prototype;
  for (const name of methods) {
    const method = store[name];
    if (method === undefined) throw new Error(`${file} has no ${name}`);
    store[name] = async function (...given) {
      const answer = await method.apply(this, given);
      await new Promise((resolve, reject) => this.db.saveDatabase((error) => (error ? reject(error) : resolve())));
      return answer;
    };
  }
}
