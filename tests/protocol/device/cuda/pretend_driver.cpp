// A pretended libcuda.so.1 for tests: NVIDIA's own bindings find it in place of the driver, so that
// what kvkeep passes to them goes through their conversions and arrives as C. Memory is the host's,
// all work is done at once, and every call is written down. The kernel is the real one, compiled as
// C++ and run one lane after the other.
//
// The declarations follow cuda.h of CUDA 13; the tests compare what can be compared with the
// bindings (names of calls, numbers of attributes).
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

// --- what gather.cu needs of CUDA's C++ ---------------------------------------------------------
struct uint4 {
    unsigned int x, y, z, w;
};
struct Index {
    unsigned int x;
};
static thread_local Index blockIdx, blockDim, threadIdx, gridDim;
#define __global__
#define __device__ static
#define __grid_constant__
#include "gather.cu"

extern "C" void pretend_run(const Pieces* pieces, unsigned int num_blocks, unsigned int num_threads)
{
    gridDim.x = num_blocks;
    blockDim.x = num_threads;
    for (blockIdx.x = 0; blockIdx.x < num_blocks; ++blockIdx.x) {
        for (threadIdx.x = 0; threadIdx.x < num_threads; ++threadIdx.x) {
            copy_pieces(*pieces);
        }
    }
}

extern "C" unsigned int pretend_pieces() { return PIECES; }
extern "C" unsigned int pretend_parameter_bytes() { return sizeof(Pieces); }

// --- what the tests tell and ask ----------------------------------------------------------------
static std::mutex lock;
static std::string written;
static std::map<std::string, int> failures; // name of a call -> what it answers from now on
static std::map<std::string, int> delays; // name of a call -> ms
static std::map<int, int> attributes = {{75, 9}, {76, 0}, {91, 1}, {113, 1}};
struct Memory {
    std::uint64_t num_bytes;
    int type, is_managed, is_exportable;
};
static std::map<std::uint64_t, Memory> memories;
static int num_opened, pending_events;

extern "C" const char* pretend_log() { return written.c_str(); }
extern "C" void pretend_clear() { written.clear(); }
extern "C" void pretend_fail(const char* name, int code) { failures[name] = code; }
extern "C" void pretend_delay(const char* name, int ms) { delays[name] = ms; }
extern "C" void pretend_attribute(int which, int value) { attributes[which] = value; }
extern "C" void pretend_memory(std::uint64_t base, std::uint64_t size, int managed, int exportable)
{
    memories[base] = {size, 2, managed, exportable};
}
extern "C" void pretend_pending(int count) { pending_events = count; }
extern "C" int pretend_opened() { return num_opened; }

static thread_local void* current;
static thread_local std::vector<void*> before;
extern "C" int pretend_current() { return static_cast<int>(reinterpret_cast<std::uint64_t>(current)); }

template <typename... Numbers> static int enter(bool asks_context, const char* name, Numbers... numbers)
{
    const std::lock_guard<std::mutex> hold(lock);
    if (delays.count(name)) std::this_thread::sleep_for(std::chrono::milliseconds(delays[name]));
    written += name;
    ((written += ' ', written += std::to_string(static_cast<std::uint64_t>(numbers))), ...);
    written += '\n';
    const auto failure = failures.find(name);
    if (failure != failures.end() && failure->second) return failure->second;
    return asks_context && !current ? 201 : 0;
}
static std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
static auto find(std::uint64_t address)
{
    auto next = memories.upper_bound(address);
    if (next == memories.begin()) return memories.end();
    const auto found = std::prev(next);
    return address < found->first + found->second.num_bytes ? found : memories.end();
}

#define ENTER(name, ...) if (const int code = enter(true, name, ##__VA_ARGS__)) return code
#define ENTER_FREELY(name, ...) if (const int code = enter(false, name, ##__VA_ARGS__)) return code

extern "C" {
int cuGetProcAddress_v2(const char* symbol, void** place, int version, std::uint64_t, int* status)
{
    static void* self = [] {
        Dl_info info;
        dladdr(reinterpret_cast<void*>(&pretend_run), &info);
        return dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    }();
    const bool is_older = version < 13000 && !std::strcmp(symbol, "cuMemcpyBatchAsync");
    *place = dlsym(self, is_older ? "pretend_older_batch" : symbol);
    if (!*place) *place = dlsym(self, (std::string(symbol) + "_v2").c_str());
    if (status) *status = *place ? 0 : 1;
    return *place ? 0 : 500;
}
int cuGetProcAddress(const char* symbol, void** place, int version, std::uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, place, version, flags, nullptr);
}
// NVRTC asks the driver for a table of private calls, and goes on without it.
int cuGetExportTable(const void** table, const void*) { *table = nullptr; return 500; }
int cuInit(unsigned int) { ENTER_FREELY("cuInit"); return 0; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { ENTER_FREELY("cuDeviceGetCount"); *count = 2; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetUuid_v2(char* uuid, int device)
{
    std::memcpy(uuid, "PRETENDED-GPU-0", 15);
    uuid[15] = static_cast<char>('0' + device);
    return 0;
}
int cuDeviceGetName(char* name, int length, int device)
{
    std::snprintf(name, length, "pretended GPU %d", device);
    return 0;
}
int cuDeviceGetAttribute(int* value, int which, int)
{
    *value = attributes.count(which) ? attributes[which] : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device)
{
    ENTER_FREELY("cuDevicePrimaryCtxRetain", device);
    *context = reinterpret_cast<void*>(std::uint64_t(0x100 + device));
    return 0;
}
int cuCtxSetCurrent(void* context)
{
    ENTER_FREELY("cuCtxSetCurrent", number(context));
    current = context;
    return 0;
}
int cuCtxPushCurrent_v2(void* context)
{
    ENTER_FREELY("cuCtxPushCurrent", number(context));
    before.push_back(current);
    current = context;
    return 0;
}
int cuCtxPopCurrent_v2(void** context)
{
    ENTER("cuCtxPopCurrent");
    if (before.empty()) return 201;
    *context = current;
    current = before.back();
    before.pop_back();
    return 0;
}
int cuDeviceGetPCIBusId(char* text, int length, int device)
{
    std::snprintf(text, length, "FFFF:0%d:00.0", device);
    return 0;
}
int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total)
{
    ENTER("cuMemGetInfo");
    *free_bytes = 3 << 20, *total = 4 << 20;
    return 0;
}
int cuStreamCreate(void** stream, unsigned int flags)
{
    static std::uint64_t last = 0x1000;
    ENTER("cuStreamCreate", flags);
    *stream = reinterpret_cast<void*>(++last);
    return 0;
}
int cuEventCreate(void** event, unsigned int flags)
{
    static std::uint64_t last = 0x2000;
    ENTER("cuEventCreate", flags);
    *event = reinterpret_cast<void*>(++last);
    return 0;
}
int cuEventRecord(void* event, void* stream)
{
    ENTER("cuEventRecord", number(event), number(stream));
    return 0;
}
int cuEventQuery(void* event)
{
    ENTER("cuEventQuery", number(event));
    return pending_events > 0 ? (--pending_events, 600) : 0;
}
int cuStreamWaitEvent(void* stream, void* event, unsigned int flags)
{
    ENTER("cuStreamWaitEvent", number(stream), number(event), flags);
    return 0;
}
int cuPointerGetAttributes(unsigned int count, int* which, void** places, std::uint64_t address)
{
    ENTER_FREELY("cuPointerGetAttributes", count);
    const auto found = find(address);
    for (unsigned int index = 0; index < count; ++index) {
        std::uint64_t value = 0;
        std::size_t length = 4;
        const bool is_known = found != memories.end();
        switch (which[index]) {
        case 2: value = is_known ? found->second.type : 0; break;
        case 8: value = is_known && found->second.is_managed; length = 1; break;
        case 9: value = 0; break;
        case 10: value = is_known && found->second.is_exportable; length = 1; break;
        case 11: value = is_known ? found->first : 0; length = 8; break;
        case 12: value = is_known ? found->second.num_bytes : 0; length = 8; break;
        default: return 1;
        }
        std::memcpy(places[index], &value, length);
    }
    return 0;
}
int cuMemGetAddressRange_v2(std::uint64_t* base, std::size_t* size, std::uint64_t address)
{
    ENTER("cuMemGetAddressRange");
    const auto found = find(address);
    if (found == memories.end()) return 1;
    *base = found->first, *size = found->second.num_bytes;
    return 0;
}
struct Handle {
    char bytes[64];
};
int cuIpcGetMemHandle(Handle* handle, std::uint64_t base)
{
    ENTER("cuIpcGetMemHandle");
    for (unsigned int at = 0; at < sizeof *handle; ++at) handle->bytes[at] = static_cast<char>(at);
    std::memcpy(handle->bytes, &base, sizeof base);
    return 0;
}
int cuIpcOpenMemHandle_v2(std::uint64_t* address, Handle handle, unsigned int flags)
{
    ENTER("cuIpcOpenMemHandle", flags);
    if (handle.bytes[63] != 63) return 1;
    std::memcpy(address, handle.bytes, sizeof *address);
    ++num_opened;
    return 0;
}
int cuIpcCloseMemHandle(std::uint64_t) { ENTER("cuIpcCloseMemHandle"); --num_opened; return 0; }
int cuMemAlloc_v2(std::uint64_t* address, std::size_t size)
{
    ENTER("cuMemAlloc", size);
    *address = number(std::aligned_alloc(4096, (size + 4095) / 4096 * 4096));
    memories[*address] = {size, 2, 0, 1};
    return 0;
}
int cuMemFree_v2(std::uint64_t address)
{
    ENTER("cuMemFree");
    memories.erase(address);
    std::free(reinterpret_cast<void*>(address));
    return 0;
}
int cuMemHostRegister_v2(void* address, std::size_t size, unsigned int flags)
{
    ENTER("cuMemHostRegister", size, flags);
    if ((flags & 8) && !attributes[113]) return 801;
    memories[number(address)] = {size, 1, 0, 0};
    return 0;
}
int cuMemHostUnregister(void* address)
{
    ENTER("cuMemHostUnregister");
    return memories.erase(number(address)) ? 0 : 713;
}
int cuMemHostAlloc(void** place, std::size_t size, unsigned int flags)
{
    ENTER("cuMemHostAlloc", size, flags);
    *place = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    memories[number(*place)] = {size, 1, 0, 0};
    return 0;
}
int cuMemFreeHost(void* address)
{
    ENTER("cuMemFreeHost");
    memories.erase(number(address));
    std::free(address);
    return 0;
}
static void move(std::uint64_t target, std::uint64_t source, std::size_t size)
{
    std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<void*>(source), size);
}
int cuMemcpyAsync(std::uint64_t target, std::uint64_t source, std::size_t size, void* stream)
{
    ENTER("cuMemcpyAsync", size, number(stream));
    move(target, source, size);
    return 0;
}
struct Attributes {
    unsigned int order;
    int source_hint[2], target_hint[2];
    unsigned int flags;
};
int cuMemcpyBatchAsync_v2(std::uint64_t* targets, std::uint64_t* sources, std::size_t* sizes,
    std::size_t count, Attributes* asked, std::size_t* firsts, std::size_t num_asked, void* stream)
{
    ENTER("cuMemcpyBatchAsync", count, asked->order, asked->flags, number(stream));
    if (num_asked != 1 || firsts[0] != 0 || number(stream) < 2) return 1;
    for (std::size_t index = count; index-- > 0;) move(targets[index], sources[index], sizes[index]);
    return 0;
}
int pretend_older_batch(std::uint64_t* targets, std::uint64_t* sources, std::size_t* sizes,
    std::size_t count, Attributes* asked, std::size_t* firsts, std::size_t num_asked,
    std::size_t* failed, void* stream) // as in CUDA 12.8 and 12.9
{
    *failed = ~std::size_t(0);
    return cuMemcpyBatchAsync_v2(targets, sources, sizes, count, asked, firsts, num_asked, stream);
}
int cuModuleLoadData(void** module, const void* image)
{
    ENTER("cuModuleLoadData");
    *module = reinterpret_cast<void*>(0x3000);
    return std::memcmp(image, "\x7f" "ELF", 4) ? 200 : 0;
}
int cuModuleGetFunction(void** function, void*, const char* name)
{
    ENTER("cuModuleGetFunction");
    *function = reinterpret_cast<void*>(&pretend_run);
    return std::strcmp(name, "copy_pieces") ? 500 : 0;
}
int cuLaunchKernel(void* function, unsigned int blocks, unsigned int by, unsigned int bz,
    unsigned int threads, unsigned int ty, unsigned int tz, unsigned int shared, void* stream,
    void** parameters, void** extra)
{
    ENTER("cuLaunchKernel", blocks, threads, number(stream));
    if (by != 1 || bz != 1 || ty != 1 || tz != 1 || shared || extra) return 1;
    if (function != reinterpret_cast<void*>(&pretend_run)) return 400;
    pretend_run(static_cast<const Pieces*>(parameters[0]), blocks, threads);
    return 0;
}
}
