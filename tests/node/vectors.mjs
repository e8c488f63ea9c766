// The worked vectors of docs/protocol.md, checked against wire.mjs.

import assert from 'node:assert/strict';
import { decode } from '@msgpack/msgpack';
import { blockKeys, fingerprint, seed } from './wire.mjs';

const bytes = (text) => Buffer.from(text, 'hex');
const range = (stop, start = 0) => Array.from({ length: stop - start }, (_, at) => start + at);
const instance = Buffer.from(range(16));

const SEEDS = [
  [{}, '3843416db55cb42494d48a6e7bc5782a9f8cd4b3e906685423d2d06f9c092642'],
  [{ salt: 'tenant' }, '9117f3abdf80220950da11991999e9fe6af9ef610d7bf0f3fe0c9add4f701aec'],
  [{ salt: '' }, '387956a9142a51c48067d73299d7f41e1d0bdf92082225ae4899eb1e2891a0ad'],
  [{ salt: '7' }, 'f801f9fed7a9bc2aa70c7e8a1e007983e5b40ad6fb23deb50a690b5dc0001bd9'],
  [{ salt: 7 }, '628ad7905a3681e4b33b6497708c537e5dde2893b28e0d5a083a66a10969693f'],
  [{ salt: 'a', loraDigest: bytes('6263') },
    '2eb938d8dceb1046c501c0fad8fb546cbaa0e21ffd5980eae242b633edabd960'],
  [{ loraDigest: Buffer.from(range(32)) },
    'c57ea1c081f81c5b629c87f1ad5c3fb71b5895e05497bf9fe4b51a58c6f9c408'],
  [{ loraNumber: 3, instance },
    '56fef0741569e42843e462421451774aef3de85ae064cd11f053b243ca2bf227'],
  [{ instance }, '5efdc68a553a3026d761f2fc655d4bc735c952ea95aba93c3c7e35ebfab51183'],
];

const media = [[0, 0xaa], [15, 0xbb], [16, 0xcc]].map(([firstToken, fill]) => ({
  firstToken, digest: Buffer.alloc(32, fill),
}));
const CHAINS = [
  [{}, 16, range(40), [], 'c568aa369d74f8a39cae3c3f0fc50663 2d4d0c33084dc6041aa1f65dd4ea3e02'],
  [{}, 32, range(70), [], '9cebabee248875707a5cab55391c3b6c e66d2ad0d66ee632db29a6f8e9885bff'],
  [{}, 16, [-1, -2147483648, 2147483647, ...Array(13).fill(0)], [],
    '1bbdb4021e68ac8727214df8d53c1e37'],
  [{ salt: 'tenant' }, 16, range(40), [],
    '48edf8ef7dac8fe06496906a606677bd 4967dffeff1724cae6ca950a1f113d8c'],
  [{}, 16, range(48), media,
    'bc268338a39d31d1356e7fa975ef08e2 9de05afed83e00986c5a2ad12aacf1f6 '
    + 'e785ceae4c9b22f6900f7dd09cd06004'],
];

const BASE = {
  model_id: 'example/model@1', host_version: '1.0.0', attention_backend: 'TRTLLM',
  weights_digest: Buffer.alloc(32, 0x22),
};
const NAMESPACES = [
  [{
    ...BASE, config_digest: Buffer.alloc(32, 0x11), kv_dtype: 'float32', kv_layout: 'NHD',
    tokens_per_block: 16, groups: [{ layers: [0, 1], page_bytes: 4096 }],
  }, '4ba1e7535e50637dd92ad41a5a7333cf'],
  [{
    ...BASE, config_digest: Buffer.alloc(0), weights_epoch: '2', kv_dtype: 'fp8',
    quantization: 'fp8', kv_layout: 'HND', overrides: { rope: 'yarn', a: 'b' },
    tokens_per_block: 32, chunk_blocks: 2, num_ranks: 2,
    groups: [
      { layers: [0, 2], page_bytes: 8192 },
      { layers: [1], page_bytes: 4096, window_tokens: 128, replicated: true },
    ],
  }, 'ea06d3e21919277e07663e5b92f50533'],
];

const ERROR_REPLY = '940a02ccc983a76d657373616765af7361792048454c4c4f20616761696e'
  + 'a9726574727961626c65c2a664657461696c80';

export function checkVectors() {
  for (const [scope, expected] of SEEDS) assert.equal(seed(scope).toString('hex'), expected);
  for (const [scope, size, tokens, items, expected] of CHAINS) {
    const keys = blockKeys(scope, size, tokens, items).map((key) => key.toString('hex'));
    assert.equal(keys.join(' '), expected);
  }
  for (const [namespace, expected] of NAMESPACES) {
    assert.equal(fingerprint(namespace).toString('hex'), expected);
  }
  assert.deepEqual(decode(bytes(ERROR_REPLY)),
    [10, 2, 201, { message: 'say HELLO again', retryable: false, detail: {} }]);
}
