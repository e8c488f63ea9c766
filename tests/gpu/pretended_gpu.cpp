// A pretended libcuda.so.1 that two processes can share memory through: the tests' pretended driver
// (tests/protocol/device/cuda), with memory of the device in files of one folder. So the whole way
// (bindings, backend, adapter, server, copier) runs without a GPU. All work is done at once: what is
// shown is that calls and memory fit together, not their order.
//
// PRETENDED_GPU names the folder. Memory of processes that are gone does not count and cannot be
// opened.
#define cuMemAlloc_v2 plain_cuMemAlloc
#define cuMemFree_v2 plain_cuMemFree
#define cuIpcGetMemHandle plain_cuIpcGetMemHandle
#define cuIpcOpenMemHandle_v2 plain_cuIpcOpenMemHandle
#define cuIpcCloseMemHandle plain_cuIpcCloseMemHandle
#define cuMemGetInfo_v2 plain_cuMemGetInfo
#define cuDevicePrimaryCtxRetain plain_cuDevicePrimaryCtxRetain
#define cuModuleGetFunction plain_cuModuleGetFunction
#define cuLaunchKernel plain_cuLaunchKernel
#include "pretend_driver.cpp"
#undef cuMemAlloc_v2
#undef cuMemFree_v2
#undef cuIpcGetMemHandle
#undef cuIpcOpenMemHandle_v2
#undef cuIpcCloseMemHandle
#undef cuMemGetInfo_v2
#undef cuDevicePrimaryCtxRetain
#undef cuModuleGetFunction
#undef cuLaunchKernel

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Memory of a device is no ordinary memory of the process, and the list of mappings must not say so.
// x86 reads what may be written.
static const int AS_DEVICE = PROT_WRITE;
static const std::uint64_t TOTAL = 8ull << 30, CONTEXT = 256ull << 20;
static std::map<std::uint64_t, std::string> files; // of what is mapped here, by address

static std::string folder()
{
    const char* name = std::getenv("PRETENDED_GPU");
    return name ? std::string(name) + "/" : std::string();
}
static bool is_alive(const std::string& name) // names are a letter and a process id: a123-7
{
    const int pid = std::atoi(name.c_str() + 1);
    return pid > 0 && kill(pid, 0) == 0;
}
static std::uint64_t map_file(const std::string& name, std::size_t size, bool is_new)
{
    const int fd = open((folder() + name).c_str(), is_new ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    if (fd < 0) return 0;
    if (is_new && ftruncate(fd, static_cast<off_t>(size)) != 0) size = 0;
    void* place = size ? mmap(nullptr, size, AS_DEVICE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    return place == MAP_FAILED ? 0 : number(place);
}
static std::uint64_t taken()
{
    std::uint64_t sum = 0;
    DIR* entries = opendir(folder().c_str());
    if (!entries) return 0;
    while (const dirent* entry = readdir(entries)) {
        const std::string name = entry->d_name;
        struct stat facts;
        if ((name[0] == 'a' || name[0] == 'c') && is_alive(name)
            && stat((folder() + name).c_str(), &facts) == 0) {
            sum += name[0] == 'c' ? CONTEXT : static_cast<std::uint64_t>(facts.st_size);
        }
    }
    closedir(entries);
    return sum;
}

extern "C" {
int cuDevicePrimaryCtxRetain(void** context, int device)
{
    const std::string name = "c" + std::to_string(getpid());
    const int fd = open((folder() + name).c_str(), O_WRONLY | O_CREAT, 0600);
    if (fd >= 0) close(fd);
    return plain_cuDevicePrimaryCtxRetain(context, device);
}
int cuCtxGetDevice(int* device)
{
    ENTER("cuCtxGetDevice");
    *device = static_cast<int>(number(current) - 0x100);
    return 0;
}
int cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total)
{
    ENTER("cuMemGetInfo");
    const std::uint64_t used = taken();
    *total = TOTAL, *free_bytes = used < TOTAL ? TOTAL - used : 0;
    return 0;
}
int cuMemAlloc_v2(std::uint64_t* address, std::size_t size)
{
    static int last = 0;
    ENTER("cuMemAlloc", size);
    if (taken() + size > TOTAL) return 2;
    const std::string name = "a" + std::to_string(getpid()) + "-" + std::to_string(++last);
    *address = map_file(name, size, true);
    if (!*address) return 2;
    files[*address] = name;
    memories[*address] = {size, 2, 0, 1};
    return 0;
}
int cuMemFree_v2(std::uint64_t address)
{
    ENTER("cuMemFree");
    const auto found = memories.find(address);
    if (found == memories.end()) return 1;
    munmap(reinterpret_cast<void*>(address), found->second.num_bytes);
    if (files.count(address)) unlink((folder() + files[address]).c_str());
    files.erase(address);
    memories.erase(found);
    return 0;
}
int cuIpcGetMemHandle(Handle* handle, std::uint64_t base)
{
    ENTER("cuIpcGetMemHandle");
    if (!files.count(base)) return 1;
    std::memset(handle, 0, sizeof *handle);
    std::memcpy(handle->bytes, files[base].data(), files[base].size());
    return 0;
}
int cuIpcOpenMemHandle_v2(std::uint64_t* address, Handle handle, unsigned int flags)
{
    ENTER("cuIpcOpenMemHandle", flags);
    const std::string name(handle.bytes, strnlen(handle.bytes, sizeof handle.bytes));
    struct stat facts;
    if (name[0] != 'a' || !is_alive(name) || stat((folder() + name).c_str(), &facts)) return 400;
    if (std::atoi(name.c_str() + 1) == getpid()) return 201;
    *address = map_file(name, static_cast<std::size_t>(facts.st_size), false);
    if (!*address) return 1;
    memories[*address] = {static_cast<std::uint64_t>(facts.st_size), 2, 0, 0};
    return 0;
}
int cuIpcCloseMemHandle(std::uint64_t address)
{
    ENTER("cuIpcCloseMemHandle");
    const auto found = memories.find(address);
    if (found == memories.end()) return 1;
    munmap(reinterpret_cast<void*>(address), found->second.num_bytes);
    memories.erase(found);
    return 0;
}
int cuMemAllocManaged(std::uint64_t* address, std::size_t size, unsigned int flags)
{
    ENTER("cuMemAllocManaged", size, flags);
    *address = number(
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    memories[*address] = {size, 2, 1, 0};
    return 0;
}
int cuMemAddressReserve(std::uint64_t* address, std::size_t size, std::size_t, std::uint64_t,
    std::uint64_t)
{
    ENTER("cuMemAddressReserve", size);
    *address = number(mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    return 0;
}
int cuMemCreate(std::uint64_t* handle, std::size_t size, const void*, std::uint64_t)
{
    ENTER("cuMemCreate", size);
    *handle = size;
    return 0;
}
int cuMemMap(std::uint64_t address, std::size_t size, std::size_t, std::uint64_t handle, std::uint64_t)
{
    ENTER("cuMemMap", size);
    memories[address] = {size, 2, 0, 0};
    return handle == size ? 0 : 1;
}
int cuMemSetAccess(std::uint64_t address, std::size_t size, const void*, std::size_t)
{
    ENTER("cuMemSetAccess", size);
    return mprotect(reinterpret_cast<void*>(address), size, AS_DEVICE) ? 1 : 0;
}
int cuMemUnmap(std::uint64_t address, std::size_t)
{
    ENTER("cuMemUnmap");
    return memories.erase(address) ? 0 : 1;
}
int cuCtxSynchronize() { ENTER("cuCtxSynchronize"); return 0; }
int cuMemRelease(std::uint64_t) { ENTER("cuMemRelease"); return 0; }
int cuMemAddressFree(std::uint64_t address, std::size_t size)
{
    ENTER("cuMemAddressFree", size);
    return munmap(reinterpret_cast<void*>(address), size) ? 1 : 0;
}
static void nothing() {}
int cuModuleGetFunction(void** function, void* module, const char* name)
{
    if (!std::strcmp(name, "copy_pieces")) return plain_cuModuleGetFunction(function, module, name);
    ENTER("cuModuleGetFunction");
    *function = reinterpret_cast<void*>(&nothing); // kernels of the test's own: they only take time
    return 0;
}
int cuLaunchKernel(void* function, unsigned int blocks, unsigned int by, unsigned int bz,
    unsigned int threads, unsigned int ty, unsigned int tz, unsigned int shared, void* stream,
    void** parameters, void** extra)
{
    if (function == reinterpret_cast<void*>(&nothing)) {
        ENTER("cuLaunchKernel", blocks, threads);
        return blocks && by && bz && threads && ty && tz ? 0 : 1;
    }
    return plain_cuLaunchKernel(
        function, blocks, by, bz, threads, ty, tz, shared, stream, parameters, extra);
}
}
