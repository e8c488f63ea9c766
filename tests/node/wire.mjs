// Encoding, envelope, keys and fingerprint of the kvkeep protocol, from docs/protocol.md alone.
//
// Knows no socket but the DEALER it is given an address for, and no operation's meaning.

import { createHash } from 'node:crypto';
import { decode, encode } from '@msgpack/msgpack';
import { Dealer } from 'zeromq';

export const OP = {
  HELLO: 1, REGISTER_KV_CACHE: 2, MAPPED: 3, UNREGISTER: 4, HEARTBEAT: 5, PING: 6, LOOKUP: 10,
  RETRIEVE: 12, RELEASE: 13, END_SESSION: 14, STORE: 20, COMMIT: 21, CANCEL: 22,
};

const MAP64 = { useBigInt64: true };
const EMPTY = new Uint8Array(0);

/** An answer whose code is not 0. */
export class ServerError extends Error {
  constructor(code, body) {
    super(`${code}: ${body.message}`);
    this.code = code;
    this.retryable = body.retryable;
    this.detail = body.detail;
  }
}

/** One ZMQ connection: numbers requests, stamps epoch, arena and deadline, matches replies. */
export class Connection {
  constructor(endpoint) {
    this.socket = new Dealer({ immediate: true, linger: 0 });
    this.socket.connect(endpoint);
    this.waiting = new Map();
    this.nextSeq = 1;
    this.epoch = EMPTY;
    this.arena = EMPTY;
    this.offsetNs = null;
    this.reading = this.read();
  }

  async read() {
    try {
      for await (const frames of this.socket) {
        if (frames.length !== 1) throw new Error(`a reply of ${frames.length} frames`);
        const [op, seq, code, body] = decode(frames[0], MAP64);
        const waiter = this.waiting.get(seq);
        if (waiter === undefined) continue;
        this.waiting.delete(seq);
        if (code !== 0) waiter.reject(new ServerError(code, body));
        else if (op !== waiter.op) waiter.reject(new Error(`op ${op} answers op ${waiter.op}`));
        else waiter.resolve(body);
      }
    } catch (error) {
      for (const waiter of this.waiting.values()) waiter.reject(error);
    }
  }

  /** Sends one request; resolves to the reply's body, rejects with ServerError or a time-out. */
  async call(op, body, { usefulMs = 20000, epoch = this.epoch, arena = this.arena } = {}) {
    const timeoutMs = Math.max(usefulMs, 20000);
    const seq = this.nextSeq++;
    const deadline = this.offsetNs === null
      ? 0
      : process.hrtime.bigint() + BigInt(usefulMs) * 1000000n + this.offsetNs;
    const answer = new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.waiting.delete(seq);
        reject(new Error(`no answer to op ${op} within ${timeoutMs} ms`));
      }, timeoutMs);
      const settle = (act) => (value) => { clearTimeout(timer); act(value); };
      this.waiting.set(seq, { op, resolve: settle(resolve), reject: settle(reject) });
    });
    await this.socket.send(encode([op, seq, epoch, arena, deadline, body], MAP64));
    return answer;
  }

  /** Sends raw bytes as a frame; resolves to the raw reply that carries seq 0. */
  async raw(frame) {
    const answer = new Promise((resolve, reject) => {
      this.waiting.set(0, { op: 0, resolve, reject });
    });
    await this.socket.send(frame);
    return answer;
  }

  async hello(body) {
    const reply = await this.call(OP.HELLO, body, { epoch: EMPTY, arena: EMPTY });
    this.epoch = reply.epoch;
    this.arena = reply.arena;
    this.offsetNs = BigInt(reply.now_ns) - process.hrtime.bigint();
    return reply;
  }

  async close() {
    this.socket.close();
    await this.reading;
  }
}

export const sha256 = (...parts) => {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return hash.digest();
};

const integers = (size, write) => (...values) => {
  const out = Buffer.alloc(size * values.length);
  values.forEach((value, at) => write(out, value, at * size));
  return out;
};
export const u32 = integers(4, (out, value, at) => out.writeUInt32LE(value, at));
export const i32 = integers(4, (out, value, at) => out.writeInt32LE(value, at));
export const u64 = integers(8, (out, value, at) => out.writeBigUInt64LE(BigInt(value), at));

export const tagged = (tag, value) =>
  Buffer.concat([Buffer.from([tag]), u32(value.length), value]);

/** h0 of a reuse scope: {salt: text | integer, loraDigest, loraNumber, instance}, all optional. */
export function seed({ salt, loraDigest, loraNumber, instance } = {}) {
  const fields = [tagged(0, Buffer.from('kvkeep scope 1'))];
  if (typeof salt === 'string') fields.push(tagged(1, Buffer.from(salt)));
  else if (salt !== undefined) fields.push(tagged(2, Buffer.from(String(salt))));
  if (loraDigest !== undefined) fields.push(tagged(3, loraDigest));
  if (loraNumber !== undefined) fields.push(tagged(4, Buffer.from(String(loraNumber))));
  if (instance !== undefined) fields.push(tagged(5, instance));
  return sha256(...fields);
}

/** Keys of the full blocks: [{firstToken, digest}] are the media. */
export function blockKeys(scope, tokensPerBlock, tokens, media = []) {
  let state = seed(scope);
  const keys = [];
  for (let first = 0; first + tokensPerBlock <= tokens.length; first += tokensPerBlock) {
    const own = media.filter(
      ({ firstToken }) => first <= firstToken && firstToken < first + tokensPerBlock,
    );
    state = sha256(
      state,
      i32(...tokens.slice(first, first + tokensPerBlock)),
      ...own.map(({ firstToken, digest }) =>
        tagged(16, Buffer.concat([u32(firstToken - first), digest]))),
    );
    keys.push(state.subarray(0, 16));
  }
  return keys;
}

/** Keys of whole chunks: each is called by its last block's key. */
export const chunkKeys = (keys, chunkBlocks) =>
  keys.filter((_, block) => block % chunkBlocks === chunkBlocks - 1);

export function fingerprint(namespace) {
  const ns = { weights_epoch: '', quantization: '', overrides: {}, chunk_blocks: 1, num_ranks: 1,
    ...namespace };
  const texts = ['kvkeep namespace 1', ns.model_id, ns.weights_epoch, ns.host_version, ns.kv_dtype,
    ns.quantization, ns.attention_backend, ns.kv_layout];
  const fields = texts.map((text) => tagged(0, Buffer.from(text)));
  fields.push(tagged(1, ns.config_digest), tagged(1, ns.weights_digest));
  const overrides = Object.entries(ns.overrides)
    .map((pair) => pair.map((text) => Buffer.from(text)))
    .sort(([one], [other]) => Buffer.compare(one, other));
  for (const text of overrides.flat()) fields.push(tagged(2, text));
  const numbers = [1, ns.tokens_per_block, ns.chunk_blocks, ns.num_ranks, ns.groups.length];
  for (const number of numbers) fields.push(tagged(3, u64(number)));
  for (const group of ns.groups) {
    const { page_bytes: page, window_tokens: window = 0, replicated = false } = group;
    fields.push(tagged(4, u64(page, window, replicated ? 1 : 0)));
    fields.push(tagged(5, u32(...group.layers)));
  }
  return sha256(...fields).subarray(0, 16);
}

/** Slot descriptors of a RETRIEVE reply, [chunk][shard]. */
export function slots(reply, numChunks) {
  const blob = Buffer.from(reply.slots);
  const shards = reply.num_shards;
  if (blob.length !== 16 * numChunks * shards) throw new Error(`${blob.length} bytes of slots`);
  return Array.from({ length: numChunks }, (_, chunk) =>
    Array.from({ length: shards }, (_, shard) => {
      const at = 16 * (chunk * shards + shard);
      return {
        extent: blob.readUInt32LE(at),
        slot: blob.readUInt32LE(at + 4),
        generation: blob.readBigUInt64LE(at + 8),
      };
    }));
}
