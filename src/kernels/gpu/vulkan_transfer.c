/* The queues of a device; transfers: lists of copies on a queue of their own.
 *
 * A device with engines for copies shows them as a queue family that neither computes nor draws.
 * Where there is none, a second queue of the family that computes will do, and where there is one
 * queue alone, that one: copies then run between the lists.
 */
#include <string.h>

#include "kernels/gpu/vulkan.h"

#define FAMILIES_MAX 32u

/* ---- queues --------------------------------------------------------------------------------- */

static bool computes(const VkQueueFamilyProperties *q) {
    return q->queueFlags & VK_QUEUE_COMPUTE_BIT;
}

/* One that does not draw, where there is a choice. */
static uint32_t computing_family(const VkQueueFamilyProperties *q, uint32_t n) {
    uint32_t found = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (!computes(&q[i])) continue;
        const bool pure = !(q[i].queueFlags & VK_QUEUE_GRAPHICS_BIT);
        if (found == UINT32_MAX || pure) found = i;
        if (pure) break;
    }
    return found;
}

/* The one that can do the least beside copies: others are behind engines for video. */
static uint32_t copying_family(const VkQueueFamilyProperties *q, uint32_t n) {
    uint32_t found = UINT32_MAX;
    int least = 64;
    for (uint32_t i = 0; i < n; i++) {
        const int able = __builtin_popcount(q[i].queueFlags);
        if (!(q[i].queueFlags & VK_QUEUE_TRANSFER_BIT) || computes(&q[i])) continue;
        if ((q[i].queueFlags & VK_QUEUE_GRAPHICS_BIT) || able >= least) continue;
        found = i;
        least = able;
    }
    return found;
}

rg_vk_queues rg_vk_queues_of(const rg_vk *vk, VkPhysicalDevice device) {
    VkQueueFamilyProperties q[FAMILIES_MAX];
    uint32_t n = RG_ARRAY_LEN(q);
    vk->GetPhysicalDeviceQueueFamilyProperties(device, &n, q);
    rg_vk_queues out = {.family = computing_family(q, n)};
    if (out.family == UINT32_MAX) return out;
    const uint32_t copies = copying_family(q, n);
    out.stamp_bits = q[out.family].timestampValidBits;
    out.transfer_family = copies == UINT32_MAX ? out.family : copies;
    out.transfer_index = copies == UINT32_MAX && q[out.family].queueCount > 1 ? 1 : 0;
    out.transfer_bits = q[out.transfer_family].timestampValidBits;
    return out;
}

bool rg_vk_queues_apart(const rg_vk_queues *q) {
    return q->transfer_family != q->family || q->transfer_index != 0;
}

/* ---- memory of the host ---------------------------------------------------------------------- */

/* Large enough for every device known, and what the caller's memory is aligned to at least. */
static bool import_fits(const rg_gpu *gpu, const void *memory, size_t bytes) {
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &host};
    gpu->instance.vk.GetPhysicalDeviceProperties2(gpu->physical, &p);
    const uint64_t align = host.minImportedHostPointerAlignment;
    return align && (uintptr_t)memory % align == 0 && bytes % align == 0;
}

/* The memory type that a buffer on the caller's memory gets; UINT32_MAX: none will do. */
static uint32_t import_type(const rg_gpu *gpu, const void *memory, uint32_t types) {
    const PFN_vkGetMemoryHostPointerPropertiesEXT properties_of =
        (PFN_vkGetMemoryHostPointerPropertiesEXT)gpu->instance.vk.GetDeviceProcAddr(
            gpu->device, "vkGetMemoryHostPointerPropertiesEXT");
    VkMemoryHostPointerPropertiesEXT can = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    if (!properties_of ||
        properties_of(gpu->device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, memory,
                      &can) != VK_SUCCESS)
        return UINT32_MAX;
    const VkMemoryPropertyFlags want =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (uint32_t i = 0; i < gpu->memory.memoryTypeCount; i++) {
        if (!((types & can.memoryTypeBits) >> i & 1)) continue;
        if ((gpu->memory.memoryTypes[i].propertyFlags & want) == want) return i;
    }
    return UINT32_MAX;
}

static VkResult import_memory(rg_gpu *gpu, rg_gpu_buffer *b, void *memory) {
    const rg_vk *vk = &gpu->instance.vk;
    VkMemoryRequirements need;
    vk->GetBufferMemoryRequirements(gpu->device, (VkBuffer)b->handle, &need);
    const uint32_t type = import_type(gpu, memory, need.memoryTypeBits);
    if (type == UINT32_MAX || need.size > b->bytes) return VK_ERROR_FEATURE_NOT_PRESENT;
    VkImportMemoryHostPointerInfoEXT from = {
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
        .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
        .pHostPointer = memory};
    const VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = &from,
                                       .allocationSize = b->bytes,
                                       .memoryTypeIndex = type};
    VkDeviceMemory own = VK_NULL_HANDLE;
    const VkResult r = vk->AllocateMemory(gpu->device, &info, NULL, &own);
    if (r != VK_SUCCESS) return r;
    b->memory = own;
    return vk->BindBufferMemory(gpu->device, (VkBuffer)b->handle, own, 0);
}

rg_code rg_gpu_buffer_import(rg_gpu *gpu, rg_gpu_buffer *out, void *memory, size_t bytes,
                             rg_status *st) {
    *out = (rg_gpu_buffer){.bytes = bytes};
    if (!gpu->can_import || !import_fits(gpu, memory, bytes))
        return rg_fail(st, RG_UNSUPPORTED, "%s takes no memory of the host", gpu->info.name);
    const uint32_t families[2] = {gpu->queues.family, gpu->queues.transfer_family};
    const bool both = families[0] != families[1];
    VkExternalMemoryBufferCreateInfo outside = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
        .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT};
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = &outside,
        .size = bytes,
        .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        .sharingMode = both ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
        .queueFamilyIndexCount = both ? 2 : 0,
        .pQueueFamilyIndices = families};
    VkBuffer handle = VK_NULL_HANDLE;
    VkResult r = gpu->instance.vk.CreateBuffer(gpu->device, &info, NULL, &handle);
    out->handle = handle;
    if (r == VK_SUCCESS) r = import_memory(gpu, out, memory);
    if (r != VK_SUCCESS) {
        rg_gpu_buffer_destroy(gpu, out);
        return rg_fail(st, RG_UNSUPPORTED, "%s does not take memory of the host: error %d",
                       gpu->info.name, (int)r);
    }
    out->mapped = memory;
    return RG_OK;
}

/* ---- lists ---------------------------------------------------------------------------------- */

bool rg_gpu_transfer_timed(const rg_gpu *gpu) {
    return gpu->queues.transfer_bits && gpu->info.stamp_ns > 0.0;
}

rg_code rg_gpu_transfer_create(rg_gpu_list **out, rg_gpu *gpu, rg_status *st) {
    RG_TRY(rg_vk_list_create(out, gpu, gpu->queues.transfer_family, st));
    rg_gpu_list *list = *out;
    list->transfer = true;
    if (!rg_gpu_transfer_timed(gpu)) return RG_OK;
    const VkQueryPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                        .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                        .queryCount = 2};
    const VkResult r = gpu->instance.vk.CreateQueryPool(gpu->device, &info, NULL, &list->queries);
    if (r == VK_SUCCESS) return RG_OK;
    rg_gpu_list_destroy(list);
    *out = NULL;
    return rg_vk_fail(gpu, r, "time stamps", st);
}

static void stamp(const rg_gpu_list *list, VkPipelineStageFlagBits stage, uint32_t query) {
    if (!list->stamps) return;
    list->gpu->instance.vk.CmdWriteTimestamp(list->buffer, stage, list->queries, query);
}

/* No barrier: what the host wrote before the submission is seen, and what a copy overwrites has
 * been done with, as the host knows from the timelines. The host resets the time stamps, since a
 * queue for copies cannot. */
void rg_vk_transfer_begin(rg_gpu_list *list, bool stamps) {
    const rg_gpu *gpu = list->gpu;
    list->stamps = stamps && list->queries;
    if (list->stamps) gpu->instance.vk.ResetQueryPool(gpu->device, list->queries, 0, 2);
    stamp(list, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, 0);
}

void rg_vk_transfer_end(const rg_gpu_list *list) {
    stamp(list, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, 1);
}

uint64_t rg_gpu_transfer_ns(const rg_gpu_list *list) {
    const rg_gpu *gpu = list->gpu;
    uint64_t ticks[2];
    if (!list->stamps ||
        gpu->instance.vk.GetQueryPoolResults(gpu->device, list->queries, 0, 2, sizeof ticks, ticks,
                                             sizeof ticks[0], VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
        return 0;
    const uint32_t bits = gpu->queues.transfer_bits;
    const uint64_t counted = bits < 64 ? ((uint64_t)1 << bits) - 1 : UINT64_MAX;
    return (uint64_t)((double)((ticks[1] - ticks[0]) & counted) * gpu->info.stamp_ns);
}

/* ---- running -------------------------------------------------------------------------------- */

rg_code rg_gpu_transfer_submit(rg_gpu *gpu, rg_gpu_list *list, uint64_t *value, rg_status *st) {
    RG_ASSERT(list->transfer);
    if (atomic_load(&gpu->lost))
        return rg_fail(st, RG_IO, "%s: the device was lost", gpu->info.name);
    const uint64_t behind = gpu->transfer_value + 1;
    const VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &behind};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &values,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &list->buffer,
                                 .signalSemaphoreCount = 1,
                                 .pSignalSemaphores = &gpu->transfer_timeline};
    const VkResult r = rg_vk_submit(gpu, gpu->transfer_queue, 1, &submit);
    if (r != VK_SUCCESS) return rg_vk_fail(gpu, r, "transfer", st);
    *value = gpu->transfer_value = behind;
    return RG_OK;
}

uint64_t rg_gpu_transfer_passed(rg_gpu *gpu) {
    uint64_t now = 0;
    const VkResult r =
        gpu->instance.vk.GetSemaphoreCounterValue(gpu->device, gpu->transfer_timeline, &now);
    return r == VK_SUCCESS ? now : UINT64_MAX;
}

rg_code rg_gpu_transfer_wait(rg_gpu *gpu, uint64_t value, uint64_t timeout_ns, rg_status *st) {
    return rg_vk_wait(gpu, gpu->transfer_timeline, value, timeout_ns, st);
}
