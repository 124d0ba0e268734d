/* The pipeline cache on disk. The file is ours: a mark, the length and a hash of what follows, then
 * what the driver gave. Drivers must check their data themselves, but not all survive damaged ones,
 * so a file that is not as it was written, or was written for another device, does not reach them.
 */
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "kernels/gpu/vulkan.h"

#define CACHE_BYTES_MAX ((size_t)256 << 20)
#define DRIVER_HEAD     32u /* of a driver's data: VkPipelineCacheHeaderVersionOne */

typedef struct cache_head {
    char mark[8];
    uint64_t bytes, hash;
} cache_head;

static const char mark[8] = {'r', 'g', 'p', 'i', 'p', 'e', '0', '1'};

/* Whether the driver's data are of this device and this build of its driver. */
static bool is_own(const rg_gpu *gpu, const uint8_t *data) {
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    uint32_t words[4]; /* bytes of the head, its version, vendor, device */
    gpu->instance.vk.GetPhysicalDeviceProperties2(gpu->physical, &p);
    memcpy(words, data, sizeof words);
    return words[0] >= DRIVER_HEAD && words[1] == VK_PIPELINE_CACHE_HEADER_VERSION_ONE &&
           words[2] == p.properties.vendorID && words[3] == p.properties.deviceID &&
           memcmp(data + 16, p.properties.pipelineCacheUUID, VK_UUID_SIZE) == 0;
}

static rg_gpu_cache judge(const rg_gpu *gpu, const uint8_t *file, size_t bytes) {
    cache_head head;
    if (bytes < sizeof head + DRIVER_HEAD) return RG_GPU_CACHE_DAMAGED;
    memcpy(&head, file, sizeof head);
    const uint8_t *data = file + sizeof head;
    if (memcmp(head.mark, mark, sizeof mark) != 0 || head.bytes != bytes - sizeof head ||
        head.hash != XXH3_64bits(data, bytes - sizeof head))
        return RG_GPU_CACHE_DAMAGED;
    return is_own(gpu, data) ? RG_GPU_CACHE_USED : RG_GPU_CACHE_FOREIGN;
}

void rg_vk_cache_open(rg_gpu *gpu) {
    char *file = NULL;
    size_t bytes = 0;
    gpu->cache_found = RG_GPU_CACHE_NONE;
    if (gpu->cache_path &&
        rg_file_slurp(&file, &bytes, gpu->cache_path, CACHE_BYTES_MAX, NULL) == RG_OK)
        gpu->cache_found = judge(gpu, (const uint8_t *)file, bytes);
    const bool used = gpu->cache_found == RG_GPU_CACHE_USED;
    VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                      .initialDataSize = used ? bytes - sizeof(cache_head) : 0,
                                      .pInitialData = used ? file + sizeof(cache_head) : NULL};
    const rg_vk *vk = &gpu->instance.vk;
    if (vk->CreatePipelineCache(gpu->device, &info, NULL, &gpu->cache) != VK_SUCCESS) {
        info.initialDataSize = 0;
        if (vk->CreatePipelineCache(gpu->device, &info, NULL, &gpu->cache) != VK_SUCCESS)
            gpu->cache = VK_NULL_HANDLE;
    }
    rg_free(file);
}

rg_gpu_cache rg_gpu_cache_found(const rg_gpu *gpu) {
    return gpu->cache_found;
}

/* Written beside, then moved: a reader never sees half a cache. */
static void write_file(const rg_gpu *gpu, const uint8_t *file, size_t bytes) {
    char path[4096];
    const int n = snprintf(path, sizeof path, "%s.new", gpu->cache_path);
    if (n < 0 || (size_t)n >= sizeof path) return;
    FILE *f = fopen(path, "wb");
    if (!f) return;
    const bool written = fwrite(file, 1, bytes, f) == bytes;
    const bool closed = fclose(f) == 0;
    if (!written || !closed || rename(path, gpu->cache_path) != 0) remove(path);
}

void rg_vk_cache_save(const rg_gpu *gpu) {
    const rg_vk *vk = &gpu->instance.vk;
    size_t bytes = 0;
    if (!gpu->cache || !gpu->cache_path) return;
    if (vk->GetPipelineCacheData(gpu->device, gpu->cache, &bytes, NULL) != VK_SUCCESS) return;
    if (bytes < DRIVER_HEAD || bytes > CACHE_BYTES_MAX - sizeof(cache_head)) return;
    uint8_t *file = rg_alloc(1, sizeof(cache_head) + bytes, NULL);
    if (!file) return;
    uint8_t *data = file + sizeof(cache_head);
    if (vk->GetPipelineCacheData(gpu->device, gpu->cache, &bytes, data) == VK_SUCCESS) {
        cache_head head = {.bytes = bytes, .hash = XXH3_64bits(data, bytes)};
        memcpy(head.mark, mark, sizeof mark);
        memcpy(file, &head, sizeof head);
        write_file(gpu, file, sizeof head + bytes);
    }
    rg_free(file);
}
