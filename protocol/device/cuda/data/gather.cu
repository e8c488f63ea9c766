// Copies many small pieces between memory of the device and page-locked host memory, either way.
// The copy engine takes a fixed time for each copy; below some size that is more than the bytes take.
//
// One warp copies one piece and then the next, 16 bytes a lane where both ends allow it. The pieces
// come by value with the launch, so nothing has to outlive it. The host sees to it that pieces do not
// overlap, lie in memory the device may touch, and are at most MAX_PIECE_BYTES long: indices below
// are 32 bits wide and may run 4 * LANES past an end.
//
// Must stay free of barriers and of exchanges between lanes: the tests compile this file as C++ and
// run one lane after the other.

#define LANES 32u
#define PIECES 200u
#define MAX_PIECE_BYTES (1u << 30)

struct Pieces {
    unsigned long long targets[PIECES];
    unsigned long long sources[PIECES];
    unsigned int sizes[PIECES];
    unsigned int count;
};

template <typename Word>
__device__ void copy_words(
    unsigned long long target, unsigned long long source, unsigned int count, unsigned int lane)
{
    Word* to = reinterpret_cast<Word*>(target);
    const Word* from = reinterpret_cast<const Word*>(source);
    unsigned int at = lane;
    // Four loads on their way at once: a read of host memory takes about a microsecond.
    for (; at + 3u * LANES < count; at += 4u * LANES) {
        const Word first = from[at];
        const Word second = from[at + LANES];
        const Word third = from[at + 2u * LANES];
        const Word fourth = from[at + 3u * LANES];
        to[at] = first;
        to[at + LANES] = second;
        to[at + 2u * LANES] = third;
        to[at + 3u * LANES] = fourth;
    }
    for (; at < count; at += LANES) {
        to[at] = from[at];
    }
}

extern "C" __global__ void copy_pieces(const __grid_constant__ Pieces pieces)
{
    const unsigned int thread = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned int lane = thread % LANES;
    const unsigned int warps = gridDim.x * blockDim.x / LANES;
    for (unsigned int piece = thread / LANES; piece < pieces.count; piece += warps) {
        const unsigned long long target = pieces.targets[piece];
        const unsigned long long source = pieces.sources[piece];
        const unsigned int size = pieces.sizes[piece];
        const unsigned long long bits = target | source;
        unsigned int done = 0u;
        if (bits % sizeof(uint4) == 0u) {
            done = size - size % sizeof(uint4);
            copy_words<uint4>(target, source, done / sizeof(uint4), lane);
        } else if (bits % sizeof(unsigned int) == 0u) {
            done = size - size % sizeof(unsigned int);
            copy_words<unsigned int>(target, source, done / sizeof(unsigned int), lane);
        }
        copy_words<unsigned char>(target + done, source + done, size - done, lane);
    }
}
