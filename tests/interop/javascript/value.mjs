// Values as JSON that contains their type: {"string": "a"}, {"number": 1}, {"boolean": true}, {"date": 0}, {"null": true}.

export function decode(tagged) {
  const [[type, value]] = Object.entries(tagged);
  if (type === "date") return new Date(value);
  return type === "null" ? null : value;
}

export function encode(value) {
  if (value === null) return { null: true };
  if (value instanceof Date) return { date: value.getTime() };
  if (value instanceof Uint8Array) return { bytes: Buffer.from(value).toString("hex") };
  return { [typeof value]: value };
}

export const map = (object, change) =>
  object && Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value)]));

// Without what is not there, so that tests name what they expect and no more.
export const present = (object) =>
  Object.fromEntries(Object.entries(object).filter(([, value]) => value !== undefined && value !== null));

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
