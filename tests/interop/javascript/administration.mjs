// @azure/service-bus's administration client. It speaks HTTPS whatever the connection string says.
import { ServiceBusAdministrationClient } from "@azure/service-bus";

import { present } from "./value.mjs";

const SETTINGS = {
  lock_duration: "lockDuration",
  max_delivery_count: "maxDeliveryCount",
  requires_session: "requiresSession",
  forward_to: "forwardTo",
  user_metadata: "userMetadata",
  status: "status",
};

const named = (given) =>
  present(Object.fromEntries(Object.entries(SETTINGS).map(([name, theirs]) => [theirs, given[name]])));
const described = (properties) =>
  present(Object.fromEntries(Object.entries(SETTINGS).map(([name, theirs]) => [name, properties[theirs]])));
const namesOf = async (listed) => {
  const names = [];
  for await (const { name, subscriptionName } of listed) names.push(name ?? subscriptionName);
  return names;
};
const filterOf = ({ sql, parameters, correlation }) =>
  correlation ?? present({ sqlExpression: sql, sqlParameters: parameters });

export const administration = {
  administer: (_, { connection }, { keep }) => keep(new ServiceBusAdministrationClient(connection)),

  namespace: async (client) => (await client.getNamespaceProperties()).messagingSku,

  create_queue: async (client, { name, ...settings }) => described(await client.createQueue(name, named(settings))),

  queue: async (client, { name }) => described(await client.getQueue(name)),

  queue_exists: (client, { name }) => client.queueExists(name),

  update_queue: async (client, { name, ...settings }) =>
    described(await client.updateQueue({ ...(await client.getQueue(name)), ...named(settings) })),

  queues: (client) => namesOf(client.listQueues()),

  async queue_counts(client, { name }) {
    const counts = await client.getQueueRuntimeProperties(name);
    return {
      active: counts.activeMessageCount,
      dead: counts.deadLetterMessageCount,
      scheduled: counts.scheduledMessageCount,
    };
  },

  delete_queue: async (client, { name }) => void (await client.deleteQueue(name)),

  create_topic: async (client, { name }) => (await client.createTopic(name)).name,

  topics: (client) => namesOf(client.listTopics()),

  subscription_count: async (client, { name }) => (await client.getTopicRuntimeProperties(name)).subscriptionCount,

  delete_topic: async (client, { name }) => void (await client.deleteTopic(name)),

  create_subscription: async (client, { entity, name, ...settings }) =>
    described(await client.createSubscription(entity, name, named(settings))),

  subscriptions: (client, { entity }) => namesOf(client.listSubscriptions(entity)),

  delete_subscription: async (client, { entity, name }) => void (await client.deleteSubscription(entity, name)),

  create_rule: async (client, { entity, subscription, name, action, ...filter }) =>
    (await client.createRule(entity, subscription, name, filterOf(filter), action && { sqlExpression: action })).name,

  async rule(client, { entity, subscription, name }) {
    const { filter, action } = await client.getRule(entity, subscription, name);
    const { sqlExpression: sql, sqlParameters: parameters, ...correlation } = filter;
    return present({
      sql,
      parameters: parameters && Object.keys(parameters).length > 0 ? parameters : undefined,
      correlation: sql === undefined ? present(correlation) : undefined,
      action: action?.sqlExpression,
    });
  },

  rule_names: (client, { entity, subscription }) => namesOf(client.listRules(entity, subscription)),

  delete_rule: async (client, { entity, subscription, name }) =>
    void (await client.deleteRule(entity, subscription, name)),
};
