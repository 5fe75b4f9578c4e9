// rhea, a client that knows AMQP 1.0 and nothing of Service Bus: transactions (part 4 of the specification).
//
// rhea has links, deliveries and outcomes, but no coordinator: what part 4 adds to them is written here.
import rhea from "rhea";

import { present } from "./value.mjs";

const { types } = rhea;
const DECLARE = Buffer.from([0x00, 0x53, 0x77, 0x00, 0x53, 0x31, 0x45]);
const COORDINATOR = 0x30;
const DECLARED = 0x33;
const TRANSACTIONAL_STATE = 0x34;
const OUTCOMES = { accepted: 0x24, rejected: 0x25, released: 0x26, modified: 0x27 };
const STATE_OF_A_TRANSFER = 7; // the place of the field, which rhea has no setter for
const LIMIT_MS = 20_000;

const described = (code, fields) => ({ toRheaTyped: () => types.wrap_described(fields, code) });
const within = (transaction, outcome) =>
  described(TRANSACTIONAL_STATE, [Buffer.from(transaction, "hex"), ...(outcome ? [outcome] : [])]).toRheaTyped();

function dischargeOf(transaction, fails) {
  const id = Buffer.from(transaction, "hex");
  const fields = Buffer.concat([Buffer.from([0xa0, id.length]), id, Buffer.from([fails ? 0x41 : 0x42])]);
  return Buffer.concat([Buffer.from([0x00, 0x53, 0x77, 0x00, 0x53, 0x32, 0xc0, fields.length + 1, 2]), fields]);
}

// The next event of that name; an error where one of the others comes first, or none in time.
function event(emitter, name, errors) {
  return new Promise((resolve, reject) => {
    const end = (how) => {
      clearTimeout(timer);
      emitter.removeListener(name, good);
      for (const each of errors) emitter.removeListener(each, bad);
      how();
    };
    const good = (context) => end(() => resolve(context));
    const bad = ({ sender, receiver, connection }) => {
      const error = (sender ?? receiver ?? connection).error ?? {};
      end(() => reject(Object.assign(new Error(error.description ?? `no ${name}`), { code: error.condition })));
    };
    const timer = setTimeout(() => end(() => reject(new Error(`no ${name} in time`))), LIMIT_MS);
    emitter.on(name, good);
    for (const each of errors) emitter.on(each, bad);
  });
}

// What a settled delivery's state says: the outcome, its condition, and that of the transaction that it is part of.
function outcomeOf(state) {
  if (state === undefined) return {};
  if (state.descriptor?.value === TRANSACTIONAL_STATE) {
    const [id, outcome] = state.value;
    return { transaction: id.value.toString("hex"), ...(outcome ? outcomeOf(outcome) : {}) };
  }
  if (state.descriptor?.value === DECLARED) return { transaction: state.value[0].value.toString("hex") };
  const code = state.descriptor?.value;
  const outcome = state.constructor.composite_type ?? Object.keys(OUTCOMES).find((name) => OUTCOMES[name] === code);
  return present({ outcome, condition: state.error?.condition });
}

async function settled(sender, payload) {
  const delivery = sender.send(payload, undefined, 0);
  for (;;) {
    const context = await event(sender, "settled", ["sender_error", "disconnected"]);
    if (context.delivery === delivery) return outcomeOf(delivery.remote_state);
  }
}

// Transfers of a session bear the state of the transaction that is set on their link.
function stateTransfers(session) {
  const output = session.output.bind(session);
  session.output = (frame, payload) => {
    const sender = payload && Object.values(session.links).find((link) => link.local.handle === frame.handle);
    if (sender?.transaction) frame.value[STATE_OF_A_TRANSFER] = within(sender.transaction);
    return output(frame, payload);
  };
}

export const transactions = {
  async amqp_connect(_, { port, username, password }, { keep }) {
    const container = rhea.create_container();
    const connection = container.connect({ host: "127.0.0.1", port, username, password, reconnect: false });
    await event(connection, "connection_open", ["connection_error", "disconnected"]);
    const session = connection.create_session();
    session.open();
    stateTransfers(session);
    return keep({ connection, session, close: () => connection.close() });
  },

  async amqp_coordinator({ session }, _, { keep }) {
    const sender = session.open_sender({ autosettle: true });
    sender.local.attach.target = described(COORDINATOR, []).toRheaTyped();
    await event(sender, "sendable", ["sender_error", "disconnected"]);
    return keep(sender);
  },

  amqp_declare: async (coordinator) => (await settled(coordinator, DECLARE)).transaction,

  amqp_discharge: (coordinator, { transaction, fails }) => settled(coordinator, dischargeOf(transaction, fails)),

  async amqp_sender({ session }, { entity, onward }, { keep }) {
    const properties = onward && { "com.microsoft:transfer-destination-address": onward };
    const sender = session.open_sender(present({ target: entity, properties }));
    await event(sender, "sendable", ["sender_error", "disconnected"]);
    return keep(sender);
  },

  amqp_send(sender, { body, session_id, transaction }) {
    sender.transaction = transaction;
    const made = present({ message_id: body, group_id: session_id, body: rhea.message.data_section(Buffer.from(body)) });
    return settled(sender, rhea.message.encode(made));
  },

  async amqp_receiver({ session }, { entity, session_id }, { keep }) {
    const filter = session_id === undefined ? undefined : { "com.microsoft:session-filter": session_id };
    const receiver = session.open_receiver({ source: present({ address: entity, filter }), credit_window: 0, autoaccept: false });
    await event(receiver, "receiver_open", ["receiver_error", "disconnected"]);
    return keep(receiver);
  },

  amqp_receive(receiver, { count }, { keep }) {
    const found = [];
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${found.length} of ${count} messages in time`)), LIMIT_MS);
      const take = ({ delivery, message }) => {
        const body = message.body.content.toString();
        found.push({ handle: keep(delivery), body, delivery_count: message.delivery_count ?? 0 });
        if (found.length < count) return;
        clearTimeout(timer);
        receiver.removeListener("message", take);
        resolve(found);
      };
      receiver.on("message", take);
      receiver.add_credit(count);
    });
  },

  // In a transaction: settles a delivery early, or says how it is to end and leaves the settling to the discharge.
  async amqp_settle_in(_, { message, transaction, outcome, early }, { found }) {
    found(message).update(early, within(transaction, described(OUTCOMES[outcome], [])));
  },

  async amqp_settle(receiver, { message, outcome }, { found }) {
    const delivery = found(message);
    delivery.update(false, described(OUTCOMES[outcome], []).toRheaTyped());
    while (!delivery.remote_settled) await event(receiver, "settled", ["receiver_error", "disconnected"]);
    delivery.update(true);
  },
};
