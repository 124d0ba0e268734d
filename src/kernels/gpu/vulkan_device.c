/* Opening a device; buffers, staging, submissions, timelines. */
#include <stdio.h>
#include <string.h>

#include "kernels/gpu/vulkan.h"

#define STAGING_BYTES ((size_t)16 << 20)

rg_code rg_vk_fail(rg_gpu *gpu, VkResult r, const char *what, rg_status *st) {
    if (r == VK_ERROR_DEVICE_LOST) atomic_store(&gpu->lost, true);
    if (r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY) {
        return rg_fail(st, RG_NOMEM, "%s: %s: out of memory", gpu->info.name, what);
    }
    if (atomic_load(&gpu->lost))
        return rg_fail(st, RG_IO, "%s: the device was lost", gpu->info.name);
    return rg_fail(st, RG_IO, "%s: %s: error %d", gpu->info.name, what, (int)r);
}

/* ---- opening -------------------------------------------------------------------------------- */

static uint32_t rank_of(const rg_gpu_info *info) {
    if (!info->usable) return 0;
    if (strcmp(info->kind, "discrete") == 0) return 4;
    if (strcmp(info->kind, "integrated") == 0) return 3;
    return strcmp(info->kind, "software") == 0 ? 1 : 2;
}

uint32_t rg_gpu_choose(const rg_gpu_info *info, uint32_t n, int32_t wanted) {
    uint32_t best = 0;
    if (wanted >= 0) return (uint32_t)wanted;
    for (uint32_t i = 1; i < n; i++) {
        if (rank_of(&info[i]) > rank_of(&info[best])) best = i;
    }
    return best;
}

static rg_code pick_device(rg_gpu *gpu, int32_t wanted, rg_status *st) {
    VkPhysicalDevice devices[RG_GPU_DEVICES_MAX];
    rg_gpu_info info[RG_GPU_DEVICES_MAX];
    uint32_t n = 0;
    if (gpu->instance.library) {
        n = RG_GPU_DEVICES_MAX;
        const VkResult r =
            gpu->instance.vk.EnumeratePhysicalDevices(gpu->instance.handle, &n, devices);
        if (r != VK_SUCCESS && r != VK_INCOMPLETE) n = 0;
    }
    if (n == 0) return rg_fail(st, RG_UNSUPPORTED, "no Vulkan device: loader or driver is missing");
    for (uint32_t i = 0; i < n; i++)
        rg_vk_describe(&gpu->instance, devices[i], &info[i]);
    const uint32_t best = rg_gpu_choose(info, n, wanted);
    if (best >= n) {
        return rg_fail(st, RG_UNSUPPORTED, "device %d is wanted, there are %u", (int)wanted, n);
    }
    if (!info[best].usable) {
        return rg_fail(st, RG_UNSUPPORTED, "device %u, %s, lacks %s", best, info[best].name,
                       info[best].missing);
    }
    gpu->physical = devices[best];
    gpu->info = info[best];
    gpu->instance.vk.GetPhysicalDeviceMemoryProperties(gpu->physical, &gpu->memory);
    return RG_OK;
}

static rg_code pick_queues(rg_gpu *gpu, rg_status *st) {
    gpu->queues = rg_vk_queues_of(&gpu->instance.vk, gpu->physical);
    if (gpu->queues.family == UINT32_MAX) {
        return rg_fail(st, RG_UNSUPPORTED, "%s has no compute queue", gpu->info.name);
    }
    if (gpu->queues.stamp_bits == 0) gpu->info.stamp_ns = 0.0;
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                   .pNext = &f12};
    gpu->instance.vk.GetPhysicalDeviceFeatures2(gpu->physical, &f);
    if (!f12.hostQueryReset) gpu->queues.transfer_bits = 0;
    gpu->can_import = rg_vk_has_extension(&gpu->instance.vk, gpu->physical,
                                          VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    return RG_OK;
}

static rg_code create_device(rg_gpu *gpu, rg_status *st) {
    static const float priority[2] = {1.0f, 1.0f};
    const bool apart = gpu->queues.transfer_family != gpu->queues.family;
    const VkDeviceQueueCreateInfo queues[2] = {
        {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
         .queueFamilyIndex = gpu->queues.family,
         .queueCount = apart ? 1 : gpu->queues.transfer_index + 1,
         .pQueuePriorities = priority},
        {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
         .queueFamilyIndex = gpu->queues.transfer_family,
         .queueCount = 1,
         .pQueuePriorities = priority}};
    const char *names[4];
    uint32_t n_name = 0;
    if (gpu->can_import) names[n_name++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
    if (gpu->info.dot) names[n_name++] = VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME;
    if (gpu->info.matrix) { /* only beside dot: has_matrix */
        names[n_name++] = VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME;
        names[n_name++] = VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME;
    }
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT whole = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT,
        .computeFullSubgroups = VK_TRUE};
    VkPhysicalDeviceCooperativeMatrixFeaturesNV matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV,
        .pNext = &whole,
        .cooperativeMatrix = VK_TRUE};
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR,
        .pNext = gpu->info.matrix ? &matrix : NULL,
        .shaderIntegerDotProduct = VK_TRUE};
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .pNext = gpu->info.dot ? &dot : NULL,
        .storageBuffer8BitAccess = VK_TRUE,
        .shaderInt8 = VK_TRUE,
        .scalarBlockLayout = VK_TRUE,
        .vulkanMemoryModel = gpu->info.matrix,
        .vulkanMemoryModelDeviceScope = gpu->info.matrix,
        .hostQueryReset = gpu->queues.transfer_bits > 0,
        .timelineSemaphore = VK_TRUE,
        .bufferDeviceAddress = VK_TRUE};
    VkPhysicalDeviceVulkan11Features f11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .pNext = &f12,
        .storageBuffer16BitAccess = VK_TRUE};
    const VkPhysicalDeviceFeatures2 f = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
        .pNext = &f11,
        .features = {.shaderInt64 = VK_TRUE, .shaderInt16 = VK_TRUE}};
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .pNext = &f,
                                     .queueCreateInfoCount = apart ? 2 : 1,
                                     .pQueueCreateInfos = queues,
                                     .enabledExtensionCount = n_name,
                                     .ppEnabledExtensionNames = names};
    const VkResult r = gpu->instance.vk.CreateDevice(gpu->physical, &info, NULL, &gpu->device);
    if (r != VK_SUCCESS) return rg_vk_fail(gpu, r, "opening", st);
    rg_vk *vk = &gpu->instance.vk;
#define RG_VK_LOAD(name) vk->name = (PFN_vk##name)vk->GetDeviceProcAddr(gpu->device, "vk" #name);
    RG_VK_DEVICE(RG_VK_LOAD)
#undef RG_VK_LOAD
    vk->GetDeviceQueue(gpu->device, gpu->queues.family, 0, &gpu->queue);
    vk->GetDeviceQueue(gpu->device, gpu->queues.transfer_family, gpu->queues.transfer_index,
                       &gpu->transfer_queue);
    return RG_OK;
}

static rg_code create_timeline(rg_gpu *gpu, VkSemaphore *out, rg_status *st) {
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO,
                                        .pNext = &type};
    const VkResult r = gpu->instance.vk.CreateSemaphore(gpu->device, &info, NULL, out);
    return r == VK_SUCCESS ? RG_OK : rg_vk_fail(gpu, r, "timeline", st);
}

static rg_code create_layout(rg_gpu *gpu, rg_status *st) {
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                       .size = RG_GPU_PUSH_BYTES_MAX};
    const VkPipelineLayoutCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                             .pushConstantRangeCount = 1,
                                             .pPushConstantRanges = &range};
    const VkResult r =
        gpu->instance.vk.CreatePipelineLayout(gpu->device, &info, NULL, &gpu->layout);
    return r == VK_SUCCESS ? RG_OK : rg_vk_fail(gpu, r, "pipeline layout", st);
}

rg_code rg_gpu_open(rg_gpu **out, const rg_gpu_options *opt, rg_status *st) {
    *out = NULL;
    rg_code rc = RG_OK;
    rg_gpu *gpu = rg_alloc(1, sizeof *gpu, st);
    if (!gpu) return RG_NOMEM;
    RG_GO(rg_vk_instance_open(&gpu->instance, opt->validate, st));
    RG_GO(pick_device(gpu, opt->device, st));
    RG_GO(pick_queues(gpu, st));
    RG_GO(create_device(gpu, st));
    RG_GO(create_layout(gpu, st));
    RG_GO(create_timeline(gpu, &gpu->host_timeline, st));
    RG_GO(create_timeline(gpu, &gpu->device_timeline, st));
    RG_GO(create_timeline(gpu, &gpu->transfer_timeline, st));
    if (pthread_mutex_init(&gpu->queue_lock, NULL) != 0)
        RG_GO(rg_fail(st, RG_NOMEM, "cannot make the lock of the queues"));
    gpu->has_queue_lock = true;
    gpu->modules = rg_alloc(rg_gpu_program_count, sizeof *gpu->modules, st);
    if (!gpu->modules) RG_GO(RG_NOMEM);
    if (opt->cache_path) {
        gpu->cache_path = rg_strndup(opt->cache_path, strlen(opt->cache_path), st);
        if (!gpu->cache_path) RG_GO(RG_NOMEM);
    }
    rg_vk_cache_open(gpu);
    *out = gpu;
    return RG_OK;
cleanup:
    rg_gpu_close(gpu);
    return rc;
}

void rg_gpu_close(rg_gpu *gpu) {
    if (!gpu) return;
    const rg_vk *vk = &gpu->instance.vk;
    if (gpu->device) {
        vk->DeviceWaitIdle(gpu->device);
        rg_gpu_list_destroy(gpu->staging_list);
        rg_gpu_buffer_destroy(gpu, &gpu->staging_up);
        rg_gpu_buffer_destroy(gpu, &gpu->staging_down);
        rg_vk_pipelines_close(gpu);
        vk->DestroySemaphore(gpu->device, gpu->host_timeline, NULL);
        vk->DestroySemaphore(gpu->device, gpu->device_timeline, NULL);
        vk->DestroySemaphore(gpu->device, gpu->transfer_timeline, NULL);
        vk->DestroyPipelineLayout(gpu->device, gpu->layout, NULL);
        vk->DestroyDevice(gpu->device, NULL);
    }
    if (gpu->has_queue_lock) pthread_mutex_destroy(&gpu->queue_lock);
    rg_vk_instance_close(&gpu->instance);
    rg_free(gpu->modules);
    rg_free(gpu->pipelines);
    rg_free(gpu->cache_path);
    rg_free(gpu);
}

const rg_gpu_info *rg_gpu_get_info(const rg_gpu *gpu) {
    return &gpu->info;
}

uint64_t rg_gpu_complaints(const rg_gpu *gpu, const char **first) {
    if (first) *first = gpu->instance.first_complaint;
    return atomic_load(&gpu->instance.complaints);
}

bool rg_gpu_validated(const rg_gpu *gpu) {
    return gpu->instance.validated;
}

uint32_t rg_gpu_kernels(const rg_gpu *gpu) {
    return gpu->n_pipeline;
}

uint64_t rg_gpu_bytes(const rg_gpu *gpu) {
    return gpu->bytes;
}

/* ---- buffers -------------------------------------------------------------------------------- */

/* The first memory type of `types` with all of `must` and none of `avoid`; UINT32_MAX: none. */
static uint32_t find_type(const rg_gpu *gpu, uint32_t types, VkMemoryPropertyFlags must,
                          VkMemoryPropertyFlags avoid) {
    for (uint32_t i = 0; i < gpu->memory.memoryTypeCount; i++) {
        const VkMemoryPropertyFlags flags = gpu->memory.memoryTypes[i].propertyFlags;
        if ((types >> i & 1) && (flags & must) == must && !(flags & avoid)) return i;
    }
    return UINT32_MAX;
}

static uint32_t memory_type(const rg_gpu *gpu, uint32_t types, rg_gpu_place place) {
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    const VkMemoryPropertyFlags seen =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkMemoryPropertyFlags cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    const struct {
        VkMemoryPropertyFlags must, avoid;
    } ways[5][4] = {
        [RG_GPU_DEVICE] = {{gpu->info.mappable ? local | seen : local, 0}, {local, 0}, {0, 0}},
        [RG_GPU_SHARED] = {{local | seen, 0}, {seen, 0}},
        [RG_GPU_READBACK] = {{seen | cached, local}, {seen | cached, 0}, {seen, local}, {seen, 0}},
        [RG_GPU_UNSEEN] = {{local, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT}, {local, 0}},
        [RG_GPU_STAGING] = {{seen | cached, local}, {seen | cached, 0}, {seen, local}, {seen, 0}}};
    for (uint32_t i = 0; i < 4; i++) {
        if (i && !ways[place][i].must && !ways[place][i].avoid && place != RG_GPU_DEVICE) break;
        const uint32_t type = find_type(gpu, types, ways[place][i].must, ways[place][i].avoid);
        if (type != UINT32_MAX) return type;
    }
    return UINT32_MAX;
}

static VkResult allocate(rg_gpu *gpu, rg_gpu_buffer *b, rg_gpu_place place) {
    const rg_vk *vk = &gpu->instance.vk;
    VkMemoryRequirements need;
    vk->GetBufferMemoryRequirements(gpu->device, (VkBuffer)b->handle, &need);
    const uint32_t type = memory_type(gpu, need.memoryTypeBits, place);
    if (type == UINT32_MAX) return VK_ERROR_FEATURE_NOT_PRESENT;
    const uint32_t heap = gpu->memory.memoryTypes[type].heapIndex;
    if (need.size > gpu->memory.memoryHeaps[heap].size) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = &flags,
                                       .allocationSize = need.size,
                                       .memoryTypeIndex = type};
    VkDeviceMemory memory = VK_NULL_HANDLE;
    VkResult r = vk->AllocateMemory(gpu->device, &info, NULL, &memory);
    if (r != VK_SUCCESS) return r;
    b->memory = memory;
    r = vk->BindBufferMemory(gpu->device, (VkBuffer)b->handle, memory, 0);
    const bool visible =
        gpu->memory.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
    const bool coherent =
        gpu->memory.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    b->uncached =
        !(gpu->memory.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
    if (r != VK_SUCCESS || !visible || !coherent || place == RG_GPU_UNSEEN) return r;
    return vk->MapMemory(gpu->device, memory, 0, VK_WHOLE_SIZE, 0, &b->mapped);
}

static rg_code fill_zero(rg_gpu *gpu, const rg_gpu_buffer *b, rg_status *st);

rg_code rg_gpu_buffer_create(rg_gpu *gpu, rg_gpu_buffer *out, size_t bytes, rg_gpu_place place,
                             rg_status *st) {
    const rg_vk *vk = &gpu->instance.vk;
    *out = (rg_gpu_buffer){.bytes = (bytes + 15) / 16 * 16};
    if (out->bytes == 0) out->bytes = 16;
    /* What both families use is shared between them: handing a slot over and back by barriers on
     * both sides would take a submission to the computing queue for every copy, and drivers do
     * nothing for a buffer that is shared. */
    const uint32_t families[2] = {gpu->queues.family, gpu->queues.transfer_family};
    const bool both = place >= RG_GPU_UNSEEN && families[0] != families[1];
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = out->bytes,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                 VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT,
        .sharingMode = both ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
        .queueFamilyIndexCount = both ? 2 : 0,
        .pQueueFamilyIndices = families};
    VkBuffer handle = VK_NULL_HANDLE;
    VkResult r = vk->CreateBuffer(gpu->device, &info, NULL, &handle);
    out->handle = handle;
    if (r == VK_SUCCESS) r = allocate(gpu, out, place);
    if (r != VK_SUCCESS) {
        const size_t mib = out->bytes >> 20;
        rg_gpu_buffer_destroy(gpu, out);
        rg_vk_fail(gpu, r, "memory", st);
        return rg_context(st, RG_NOMEM, "%zu MiB", mib);
    }
    gpu->bytes += out->bytes;
    const VkBufferDeviceAddressInfo at = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                          .buffer = handle};
    out->address = vk->GetBufferDeviceAddress(gpu->device, &at);
    const rg_code rc = fill_zero(gpu, out, st);
    if (rc != RG_OK) rg_gpu_buffer_destroy(gpu, out);
    return rc;
}

void rg_gpu_buffer_destroy(rg_gpu *gpu, rg_gpu_buffer *b) {
    if (!gpu || !gpu->device) return;
    const rg_vk *vk = &gpu->instance.vk;
    if (b->address) gpu->bytes -= b->bytes;
    if (b->handle) vk->DestroyBuffer(gpu->device, (VkBuffer)b->handle, NULL);
    if (b->memory) vk->FreeMemory(gpu->device, (VkDeviceMemory)b->memory, NULL);
    *b = (rg_gpu_buffer){0};
}

/* ---- staging -------------------------------------------------------------------------------- */

static rg_code open_staging(rg_gpu *gpu, rg_status *st) {
    if (!gpu->staging_list) RG_TRY(rg_gpu_list_create(&gpu->staging_list, gpu, st));
    if (!gpu->staging_up.handle)
        RG_TRY(rg_gpu_buffer_create(gpu, &gpu->staging_up, STAGING_BYTES, RG_GPU_SHARED, st));
    if (!gpu->staging_down.handle)
        RG_TRY(rg_gpu_buffer_create(gpu, &gpu->staging_down, STAGING_BYTES, RG_GPU_READBACK, st));
    return RG_OK;
}

static rg_code fill_zero(rg_gpu *gpu, const rg_gpu_buffer *b, rg_status *st) {
    if (b->mapped) {
        memset(b->mapped, 0, b->bytes);
        return RG_OK;
    }
    if (!gpu->staging_list) RG_TRY(rg_gpu_list_create(&gpu->staging_list, gpu, st));
    rg_gpu_list_begin(gpu->staging_list, false);
    gpu->instance.vk.CmdFillBuffer(gpu->staging_list->buffer, (VkBuffer)b->handle, 0, VK_WHOLE_SIZE,
                                   0);
    RG_TRY(rg_gpu_list_end(gpu->staging_list, st));
    return rg_gpu_run(gpu, gpu->staging_list, st);
}

static rg_code stage(rg_gpu *gpu, const rg_gpu_buffer *dst, size_t dst_offset,
                     const rg_gpu_buffer *src, size_t src_offset, size_t bytes, rg_status *st) {
    rg_gpu_list_begin(gpu->staging_list, false);
    rg_gpu_copy(gpu->staging_list, dst, dst_offset, src, src_offset, bytes);
    RG_TRY(rg_gpu_list_end(gpu->staging_list, st));
    return rg_gpu_run(gpu, gpu->staging_list, st);
}

rg_code rg_gpu_write(rg_gpu *gpu, const rg_gpu_buffer *b, size_t offset, const void *src,
                     size_t bytes, rg_status *st) {
    RG_ASSERT(offset <= b->bytes && bytes <= b->bytes - offset);
    if (b->mapped) {
        memcpy((uint8_t *)b->mapped + offset, src, bytes);
        return RG_OK;
    }
    RG_TRY(open_staging(gpu, st));
    for (size_t done = 0; done < bytes;) {
        const size_t n = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        RG_ASSERT(gpu->staging_up.mapped);
        memcpy(gpu->staging_up.mapped, (const uint8_t *)src + done, n);
        RG_TRY(stage(gpu, b, offset + done, &gpu->staging_up, 0, n, st));
        done += n;
    }
    return RG_OK;
}

rg_code rg_gpu_read(rg_gpu *gpu, const rg_gpu_buffer *b, size_t offset, void *dst, size_t bytes,
                    rg_status *st) {
    RG_ASSERT(offset <= b->bytes && bytes <= b->bytes - offset);
    if (b->mapped && !b->uncached) {
        memcpy(dst, (const uint8_t *)b->mapped + offset, bytes);
        return RG_OK;
    }
    RG_TRY(open_staging(gpu, st));
    for (size_t done = 0; done < bytes;) {
        const size_t n = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        RG_TRY(stage(gpu, &gpu->staging_down, 0, b, offset + done, n, st));
        memcpy((uint8_t *)dst + done, gpu->staging_down.mapped, n);
        done += n;
    }
    return RG_OK;
}

/* ---- running -------------------------------------------------------------------------------- */

uint64_t rg_gpu_next(rg_gpu *gpu) {
    return ++gpu->device_value;
}

uint64_t rg_gpu_next_host(rg_gpu *gpu) {
    return ++gpu->host_value;
}

VkResult rg_vk_submit(rg_gpu *gpu, VkQueue queue, uint32_t n, const VkSubmitInfo *submits) {
    pthread_mutex_lock(&gpu->queue_lock);
    const VkResult r = gpu->instance.vk.QueueSubmit(queue, n, submits, VK_NULL_HANDLE);
    pthread_mutex_unlock(&gpu->queue_lock);
    return r;
}

/* What a part waits for. A wait holds back all later submissions of the queue too, so that of the
 * transfers' values only those beyond the largest so far are waited for. */
typedef struct part_waits {
    VkSemaphore on[2];
    uint64_t values[2];
    uint32_t n;
} part_waits;

static part_waits waits_of(rg_gpu *gpu, const rg_gpu_part *p) {
    part_waits w = {.n = 0};
    if (p->wait_host) {
        w.on[w.n] = gpu->host_timeline;
        w.values[w.n++] = p->wait_host;
    }
    if (p->wait_transfer > gpu->transfer_awaited) {
        gpu->transfer_awaited = p->wait_transfer;
        w.on[w.n] = gpu->transfer_timeline;
        w.values[w.n++] = p->wait_transfer;
    }
    return w;
}

rg_code rg_gpu_submit(rg_gpu *gpu, const rg_gpu_part *parts, uint32_t n, rg_status *st) {
    static const VkPipelineStageFlags stage_masks[2] = {VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                                        VK_PIPELINE_STAGE_ALL_COMMANDS_BIT};
    RG_ASSERT(n <= RG_GPU_LISTS_MAX);
    if (atomic_load(&gpu->lost))
        return rg_fail(st, RG_IO, "%s: the device was lost", gpu->info.name);
    VkSubmitInfo submits[64];
    VkTimelineSemaphoreSubmitInfo values[64];
    part_waits waits[64];
    for (uint32_t first = 0; first < n; first += RG_ARRAY_LEN(submits)) {
        uint32_t m = n - first < RG_ARRAY_LEN(submits) ? n - first : RG_ARRAY_LEN(submits);
        for (uint32_t i = 0; i < m; i++) {
            const rg_gpu_part *p = &parts[first + i];
            waits[i] = waits_of(gpu, p);
            values[i] = (VkTimelineSemaphoreSubmitInfo){
                .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                .waitSemaphoreValueCount = waits[i].n,
                .pWaitSemaphoreValues = waits[i].values,
                .signalSemaphoreValueCount = p->signal ? 1 : 0,
                .pSignalSemaphoreValues = &p->signal};
            submits[i] = (VkSubmitInfo){.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                        .pNext = &values[i],
                                        .waitSemaphoreCount = waits[i].n,
                                        .pWaitSemaphores = waits[i].on,
                                        .pWaitDstStageMask = stage_masks,
                                        .commandBufferCount = 1,
                                        .pCommandBuffers = &p->list->buffer,
                                        .signalSemaphoreCount = p->signal ? 1 : 0,
                                        .pSignalSemaphores = &gpu->device_timeline};
        }
        const VkResult r = rg_vk_submit(gpu, gpu->queue, m, submits);
        if (r != VK_SUCCESS) return rg_vk_fail(gpu, r, "submission", st);
    }
    return RG_OK;
}

rg_code rg_gpu_signal(rg_gpu *gpu, uint64_t value, rg_status *st) {
    const VkSemaphoreSignalInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                        .semaphore = gpu->host_timeline,
                                        .value = value};
    const VkResult r = gpu->instance.vk.SignalSemaphore(gpu->device, &info);
    return r == VK_SUCCESS ? RG_OK : rg_vk_fail(gpu, r, "signal", st);
}

#define POLL_NS 4000000u /* longer waits are not worth a core */

/* Sleeping and waking cost a hand-shake about 50 us, looking costs a few. A software device needs
 * the cores itself. */
static bool polled(rg_gpu *gpu, uint64_t value) {
    if (strcmp(gpu->info.kind, "software") == 0) return false;
    const uint64_t begin = rg_now_ns();
    do {
        uint64_t now = 0;
        const VkResult r =
            gpu->instance.vk.GetSemaphoreCounterValue(gpu->device, gpu->device_timeline, &now);
        if (r != VK_SUCCESS) return false; /* the wait says why */
        if (now >= value) return true;
    } while (rg_now_ns() - begin < POLL_NS);
    return false;
}

rg_code rg_vk_wait(rg_gpu *gpu, VkSemaphore timeline, uint64_t value, uint64_t timeout_ns,
                   rg_status *st) {
    const VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                      .semaphoreCount = 1,
                                      .pSemaphores = &timeline,
                                      .pValues = &value};
    const VkResult r = gpu->instance.vk.WaitSemaphores(gpu->device, &info, timeout_ns);
    if (r == VK_SUCCESS) return RG_OK;
    if (r == VK_TIMEOUT) {
        return rg_fail(st, RG_TIMEOUT, "%s: no answer for %llu s", gpu->info.name,
                       (unsigned long long)(timeout_ns / 1000000000u));
    }
    return rg_vk_fail(gpu, r, "wait", st);
}

rg_code rg_gpu_wait(rg_gpu *gpu, uint64_t value, uint64_t timeout_ns, rg_status *st) {
    if (polled(gpu, value)) return RG_OK;
    return rg_vk_wait(gpu, gpu->device_timeline, value, timeout_ns, st);
}

/* No other thread may hand anything over meanwhile. */
void rg_gpu_drain(rg_gpu *gpu) {
    pthread_mutex_lock(&gpu->queue_lock);
    const VkResult r = gpu->instance.vk.DeviceWaitIdle(gpu->device);
    pthread_mutex_unlock(&gpu->queue_lock);
    if (r == VK_ERROR_DEVICE_LOST) atomic_store(&gpu->lost, true);
}

void rg_gpu_lose(rg_gpu *gpu) {
    atomic_store(&gpu->lost, true);
}

rg_code rg_gpu_run(rg_gpu *gpu, rg_gpu_list *list, rg_status *st) {
    const rg_gpu_part part = {.list = list, .signal = rg_gpu_next(gpu)};
    RG_TRY(rg_gpu_submit(gpu, &part, 1, st));
    return rg_gpu_wait(gpu, part.signal, (uint64_t)600 * 1000000000u, st);
}
