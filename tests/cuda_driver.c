/* A CUDA driver whose GPU is host memory, with the functions that the project calls.
 *
 * It checks the order of the calls. A function returns 201 (an invalid context) where no context
 * is current in the thread. A copy returns 1 (an invalid value) where its part on the host lies
 * outside of all pinned memory, or its part on the GPU leaves memory of this driver. Other memory
 * counts as arrays of a framework. `live` counts what was made and not given back. `moved_bytes`
 * counts what all transfers have moved.
 */
#include <stdlib.h>
#include <string.h>

typedef unsigned long long CUdeviceptr;

int live = 0;
size_t moved_bytes = 0;
static int context;
static _Thread_local int current = 0;

#define RANGES 64
static struct range { char *start; size_t bytes; } pinned[RANGES], on_gpu[RANGES];

static int has_room(struct range *ranges, char *start, size_t bytes) {
    for (int i = 0; i < RANGES; i++)
        if (ranges[i].start && start >= ranges[i].start &&
            start + bytes <= ranges[i].start + ranges[i].bytes)
            return 1;
    return 0;
}

static int begins_in(struct range *ranges, char *start) { return has_room(ranges, start, 1); }

static int keep(struct range *ranges, void *start, size_t bytes) {
    for (int i = 0; i < RANGES; i++)
        if (!ranges[i].start) {
            ranges[i] = (struct range){start, bytes};
            live++;
            return 0;
        }
    return 2;
}

static int drop(struct range *ranges, void *start) {
    if (!current) return 201;
    for (int i = 0; i < RANGES; i++)
        if (start && ranges[i].start == start) {
            ranges[i].start = NULL;
            live--;
            return 0;
        }
    return 1;
}

int cuInit(unsigned flags) { return flags != 0; }

int cuGetErrorString(int error, const char **words) {
    *words = error == 201 ? "invalid device context" : "invalid argument";
    return 0;
}

int cuDeviceGet(int *gpu, int ordinal) {
    *gpu = ordinal;
    return ordinal == 0 ? 0 : 1;
}

int cuDevicePrimaryCtxRetain(void **made, int gpu) {
    *made = &context;
    live++;
    return gpu;
}

int cuDevicePrimaryCtxRelease_v2(int gpu) {
    live--;
    return gpu;
}

int cuCtxPushCurrent_v2(void *pushed) {
    current += pushed == &context;
    return pushed != &context;
}

int cuCtxPopCurrent_v2(void **popped) {
    *popped = &context;
    current--;
    return 0;
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    if (!current) return 201;
    *memory = malloc(bytes);
    return keep(pinned, *memory, bytes);
}

int cuMemFreeHost(void *memory) {
    int result = drop(pinned, memory);
    if (!result) free(memory);
    return result;
}

int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
    if (!current) return 201;
    return begins_in(pinned, memory) ? 712 : keep(pinned, memory, bytes);
}

int cuMemHostUnregister(void *memory) { return drop(pinned, memory); }

int cuMemAlloc_v2(CUdeviceptr *memory, size_t bytes) {
    if (!current) return 201;
    *memory = (CUdeviceptr)malloc(bytes);
    return keep(on_gpu, (void *)*memory, bytes);
}

int cuMemFree_v2(CUdeviceptr memory) {
    int result = drop(on_gpu, (void *)memory);
    if (!result) free((void *)memory);
    return result;
}

static int made(void **handle) {
    if (!current) return 201;
    *handle = malloc(1);
    live++;
    return 0;
}

static int given_back(void *handle) {
    if (!current) return 201;
    free(handle);
    live--;
    return 0;
}

int cuStreamCreate(void **stream, unsigned flags) { return made(stream); }
int cuStreamSynchronize(void *stream) { return current ? 0 : 201; }
int cuStreamDestroy_v2(void *stream) { return given_back(stream); }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return current ? 0 : 201; }
int cuEventCreate(void **event, unsigned flags) { return made(event); }
int cuEventRecord(void *event, void *stream) { return current ? 0 : 201; }
int cuEventSynchronize(void *event) { return current ? 0 : 201; }
int cuEventDestroy_v2(void *event) { return given_back(event); }

static int copy(char *to, char *from, char *host, char *gpu, size_t bytes) {
    if (!current) return 201;
    if (!has_room(pinned, host, bytes)) return 1;
    if (begins_in(on_gpu, gpu) && !has_room(on_gpu, gpu, bytes)) return 1;
    memcpy(to, from, bytes);
    moved_bytes += bytes;
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) {
    return copy(to, (char *)from, to, (char *)from, bytes);
}

int cuMemcpyHtoDAsync_v2(CUdeviceptr to, void *from, size_t bytes, void *stream) {
    return copy((char *)to, from, from, (char *)to, bytes);
}
