// A whole life of a kvkeep client: register, store, commit, look up, retrieve, end.
//
//   node client.mjs ENDPOINT SIDE_PATH -- HELPER_COMMAND…
//
// The helper plays the side socket's part (Node.js cannot pass descriptors): it connects, offers a
// pool, maps the extents it is given, and answers questions about bytes as JSON lines. Prints one
// line per step; the exit code says whether everything held.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { createInterface } from 'node:readline';
import { Connection, OP, blockKeys, chunkKeys, fingerprint, i32, slots, u32 } from './wire.mjs';
import { checkVectors } from './vectors.mjs';

const TOKENS_PER_BLOCK = 16;
const CHUNK_BLOCKS = 2;
const NUM_PAGES = 16;
const PAGE_BYTES = [8192, 4096]; // one layer group each
const POOL_OFFSET = [0, PAGE_BYTES[0] * NUM_PAGES];
const POOL_BYTES = POOL_OFFSET[1] + PAGE_BYTES[1] * NUM_PAGES;

const NAMESPACE = {
  model_id: `node-client-${process.pid}@1`,
  config_digest: Buffer.alloc(32, 1),
  weights_digest: Buffer.alloc(32, 2),
  host_version: '1.0.0',
  kv_dtype: 'float32',
  attention_backend: 'none',
  kv_layout: 'NHD',
  overrides: { zeta: '1', alpha: '2' },
  tokens_per_block: TOKENS_PER_BLOCK,
  chunk_blocks: CHUNK_BLOCKS,
  groups: PAGE_BYTES.map((page_bytes, group) => ({ layers: [group], page_bytes })),
};

const step = (text) => console.log(text);
const hex = (bytes) => Buffer.from(bytes).toString('hex');

/** The process that holds the side connection and the mappings. */
class Helper {
  constructor([program, ...args]) {
    this.child = spawn(program, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.lines = createInterface({ input: this.child.stdout })[Symbol.asyncIterator]();
  }

  async ask(question) {
    this.child.stdin.write(`${JSON.stringify(question)}\n`);
    const { value, done } = await this.lines.next();
    assert.ok(!done, 'the helper ended');
    const answer = JSON.parse(value);
    assert.equal(answer.error, undefined, answer.error);
    return answer;
  }

  async end() {
    const ended = new Promise((resolve) => this.child.on('exit', resolve));
    this.child.stdin.end();
    assert.equal(await ended, 0);
  }
}

const fails = (code, call) => assert.rejects(call, (error) => {
  assert.equal(error.code, code, `${error.message}, expected code ${code}`);
  assert.equal(typeof error.retryable, 'boolean');
  return true;
});

/** HELLO, its refusals, PING, and what is answered to nonsense. */
async function introduce(connection, welcome, instance) {
  const hello = { token: welcome.token, instance, major: 1, minor: 0, client: 'node' };
  await fails(200, connection.call(OP.PING, {}));
  await fails(200, connection.hello({ ...hello, token: randomBytes(16) }));
  await fails(103, connection.hello({ ...hello, major: 2 }));
  const reply = await connection.hello({ ...hello, minor: 9, features: ['something-new'] });
  assert.deepEqual([reply.major, reply.minor], [1, 0]);
  assert.equal(hex(reply.epoch), hex(welcome.epoch));
  assert.equal(hex(reply.arena), hex(welcome.arena));
  assert.deepEqual(await connection.call(OP.PING, {}), {});
  await fails(102, connection.call(99, {}));
  await fails(100, connection.call(OP.PING, { unknown: 1 }));
  await fails(100, connection.raw(Buffer.from('no MessagePack array')));
  await fails(201, connection.call(OP.PING, {}, { epoch: randomBytes(16) }));
  await fails(202, connection.call(OP.PING, {}, { arena: randomBytes(16) }));
  await fails(402, connection.call(OP.PING, {}, { usefulMs: -1000 }));
  step('HELLO, PING and the refusals of both');
}

/** Offers and registers the pool, maps the extents; the session. */
async function register(connection, helper) {
  const pool = randomBytes(16);
  await helper.ask({ do: 'offer', pool: hex(pool), size_bytes: POOL_BYTES });
  const body = {
    namespace: NAMESPACE,
    rank: 0,
    memory: { type: 'memfd', pool, size_bytes: POOL_BYTES },
    pools: PAGE_BYTES.map((size, shard) => ({
      shard,
      num_pages: NUM_PAGES,
      regions: [{ offset_bytes: POOL_OFFSET[shard], size_bytes: size, stride_bytes: size }],
    })),
  };
  const short = { ...body, memory: { ...body.memory, pool: randomBytes(16) } };
  await fails(305, connection.call(OP.REGISTER_KV_CACHE, short));
  const reply = await connection.call(OP.REGISTER_KV_CACHE, body);
  assert.equal(hex(reply.fingerprint), hex(fingerprint(NAMESPACE)));
  assert.ok(reply.extents >= 2);
  const { extents } = await helper.ask({ do: 'extents', count: reply.extents });
  const { session } = reply;
  for (const { extent, ...given } of extents) {
    assert.equal(BigInt(given.session), BigInt(session));
    assert.equal(given.payload_bytes, CHUNK_BLOCKS * PAGE_BYTES[given.shard]);
    assert.equal(given.writable, false, `extent ${extent} can be written`);
  }
  const mapped = u32(...extents.map(({ extent }) => extent));
  assert.deepEqual(await connection.call(OP.MAPPED, { session, mapped }), {});
  step(`REGISTER_KV_CACHE and MAPPED of ${extents.length} extents`);
  return session;
}

/** Stores both shards of three chunks and commits; the page ids by chunk. */
async function save(connection, session, keys) {
  const pages = [[5, 2], [7, 0], [15, 9]];
  const store = (id, shard, more = {}) => connection.call(OP.STORE, {
    session, store: id, request: 1, shard, start: 0, parent: Buffer.alloc(0),
    keys: Buffer.concat(keys), pages: i32(...pages.flat()), ...more,
  });
  await fails(302, store(1, 0, { pages: i32(5, 2, 7, 0, 16, 9) }));
  await fails(302, store(2, 0, { pages: i32(5, 2, -1, 0, 15, 9) }));
  await fails(303, store(3, 0, { pages: i32(5, 2, 7, 0, 15) }));
  await fails(203, store(4, 0, { session: BigInt(session) + 1000n }));
  for (const shard of [0, 1]) {
    const id = 10 + shard;
    assert.deepEqual(await store(id, shard), { held: 0, copied: keys.length, stop: 0 });
    const commit = { session, store: id, count: keys.length };
    assert.deepEqual(await connection.call(OP.COMMIT, commit), { published: keys.length, stop: 0 });
    await fails(308, connection.call(OP.COMMIT, commit));
    assert.deepEqual(await connection.call(OP.CANCEL, { session, store: id }), {});
  }
  assert.deepEqual(await store(20, 0), { held: keys.length, copied: 0, stop: 0 });
  step('STORE and COMMIT of 3 chunks in 2 shards');
  return pages;
}

/** Finds the chunks again and compares each page with the pool's. */
async function load(connection, helper, session, keys, pages) {
  const wanted = Buffer.concat([...keys, randomBytes(16)]);
  const found = await connection.call(OP.LOOKUP, { session, request: 2, start: 0, keys: wanted });
  assert.deepEqual([found.ready, found.pending, found.final], [keys.length, 0, true]);
  const range = { session, lease: found.lease, start: 1, count: keys.length - 1 };
  const reply = await connection.call(OP.RETRIEVE, range);
  assert.equal(reply.num_shards, PAGE_BYTES.length);
  const table = slots(reply, range.count);
  for (const [at, shards] of table.entries()) {
    for (const [shard, { extent, slot, generation }] of shards.entries()) {
      const place = pages[range.start + at].map((page) => ({
        offset: POOL_OFFSET[shard] + page * PAGE_BYTES[shard], size: PAGE_BYTES[shard],
      }));
      const seen = await helper.ask({ do: 'compare', extent, slot, pool: place });
      assert.ok(seen.equal, `chunk ${range.start + at} shard ${shard} differs`);
      assert.equal(BigInt(seen.generation), generation);
    }
  }
  const release = { session, lease: found.lease };
  assert.deepEqual(await connection.call(OP.RELEASE, release), { chunks: range.count });
  assert.deepEqual(await connection.call(OP.RELEASE, release), { chunks: 0 });
  await connection.call(OP.END_SESSION, { session, request: 2 });
  await fails(307, connection.call(OP.RETRIEVE, { ...range, lease: randomBytes(16) }));
  step('LOOKUP, RETRIEVE, bytes and generations compared, RELEASE, END_SESSION');
}

/** An unretrieved lease ends with its request; another salt finds nothing. */
async function leave(connection, session, keys, tokens) {
  const ask = (request, asked) => connection.call(OP.LOOKUP, {
    session, request, start: 0, keys: Buffer.concat(asked),
  });
  const open = await ask(3, keys);
  assert.equal(open.ready, keys.length);
  await connection.call(OP.END_SESSION, { session, request: 3 });
  const again = await connection.call(OP.END_SESSION, { session, request: 3 });
  assert.deepEqual(again, { chunks: 0 });
  const range = { session, lease: open.lease, start: 0, count: 1 };
  await fails(307, connection.call(OP.RETRIEVE, range));
  const salted = chunkKeys(blockKeys({ salt: 'other' }, TOKENS_PER_BLOCK, tokens), CHUNK_BLOCKS);
  const missed = await ask(4, salted);
  assert.deepEqual([missed.ready, missed.lease.length, missed.final], [0, 0, true]);
  assert.deepEqual(await connection.call(OP.UNREGISTER, { session }), {});
  await fails(203, ask(5, keys));
  step('END_SESSION without RETRIEVE, a miss, UNREGISTER');
}

async function main() {
  const [endpoint, side, , ...command] = process.argv.slice(2);
  checkVectors();
  step('golden vectors');
  const instance = randomBytes(16);
  const helper = new Helper(command);
  const said = await helper.ask({ do: 'connect', path: side, instance: hex(instance) });
  const welcome = Object.fromEntries(
    ['token', 'epoch', 'arena'].map((name) => [name, Buffer.from(said[name], 'hex')]));
  assert.equal(said.endpoint, endpoint);
  const connection = new Connection(endpoint);
  const tokens = Array.from({ length: 3 * CHUNK_BLOCKS * TOKENS_PER_BLOCK + 5 }, (_, at) => at * 7);
  const keys = chunkKeys(blockKeys({}, TOKENS_PER_BLOCK, tokens), CHUNK_BLOCKS);
  assert.equal(keys.length, 3);

  await introduce(connection, welcome, instance);
  const session = await register(connection, helper);
  const pages = await save(connection, session, keys);
  await load(connection, helper, session, keys, pages);
  await leave(connection, session, keys, tokens);
  await connection.close();
  await helper.end();
  step('all held');
}

await main().catch((error) => {
  console.error(error);
  process.exit(1);
});
