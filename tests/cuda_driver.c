/* A CUDA driver whose GPU is host memory: the functions that harness/worker/device_link.py calls.
 *
 * It checks the order of the calls. A function returns 201 (an invalid context) where no context
 * is current, and 1 (an invalid value) for memory that it did not hand out or for a transfer that
 * leaves it. `live` counts what was made and not given back. `moved_bytes` counts what all
 * transfers have moved.
 */
#include <stdlib.h>
#include <string.h>

typedef unsigned long long CUdeviceptr;

int live = 0;
size_t moved_bytes = 0;
static int current = 0;
static char *host, *device;
static size_t host_bytes, device_bytes;

int cuInit(unsigned flags) { return flags != 0; }

int cuGetErrorString(int error, const char **words) {
    *words = error == 201 ? "invalid device context" : "invalid argument";
    return 0;
}

int cuDeviceGet(int *gpu, int ordinal) {
    *gpu = ordinal;
    return ordinal == 0 ? 0 : 1;
}

int cuDevicePrimaryCtxRetain(void **context, int gpu) {
    *context = &current;
    live++;
    return gpu;
}

int cuDevicePrimaryCtxRelease_v2(int gpu) {
    live--;
    return gpu;
}

int cuCtxPushCurrent_v2(void *context) {
    current = context == &current;
    return !current;
}

int cuCtxPopCurrent_v2(void **context) {
    *context = &current;
    current = 0;
    return 0;
}

static int made(void *memory) {
    live++;
    return memory == NULL;
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
    if (!current) return 201;
    *memory = host = malloc(host_bytes = bytes);
    return made(host);
}

int cuMemAlloc_v2(CUdeviceptr *memory, size_t bytes) {
    if (!current) return 201;
    device = malloc(device_bytes = bytes);
    *memory = (CUdeviceptr)device;
    return made(device);
}

int cuStreamCreate(void **stream, unsigned flags) {
    if (!current) return 201;
    *stream = malloc(1);
    return made(*stream);
}

static int copy(char *to, char *from, size_t bytes) {
    if (!current) return 201;
    if (bytes > host_bytes || bytes > device_bytes) return 1;
    memcpy(to, from, bytes);
    moved_bytes += bytes;
    return 0;
}

int cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) {
    if (to != host || (char *)from != device) return 1;
    return copy(to, (char *)from, bytes);
}

int cuMemcpyHtoDAsync_v2(CUdeviceptr to, void *from, size_t bytes, void *stream) {
    if (from != host || (char *)to != device) return 1;
    return copy((char *)to, from, bytes);
}

int cuStreamSynchronize(void *stream) { return current ? 0 : 201; }

static int given_back(void *memory) {
    if (!current) return 201;
    free(memory);
    live--;
    return 0;
}

int cuStreamDestroy_v2(void *stream) { return given_back(stream); }
int cuMemFree_v2(CUdeviceptr memory) { return given_back((void *)memory); }
int cuMemFreeHost(void *memory) { return given_back(memory); }
