// How a client reaches the namespace. Over TLS it trusts the authority that NODE_EXTRA_CA_CERTS names.
import WebSocket from "ws";

export const connectionString = (text, transport) =>
  transport === "tcp" ? text : text.replace(";UseDevelopmentEmulator=true", "");

export const clientOptions = (transport, retries) => ({
  retryOptions: { maxRetries: retries ?? 0, retryDelayInMs: 200, timeoutInMs: 20000 },
  ...(transport === "websocket" ? { webSocketOptions: { webSocket: WebSocket } } : {}),
});
