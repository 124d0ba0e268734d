/* Pipelines, command lists and time stamps. */
#include <stdio.h>
#include <string.h>

#include "kernels/gpu/vulkan.h"

#define STAMPS_MAX 8192u /* two a dispatch */

/* ---- pipelines ------------------------------------------------------------------------------ */

void rg_vk_pipelines_close(rg_gpu *gpu) {
    const rg_vk *vk = &gpu->instance.vk;
    if (gpu->n_pipeline) rg_vk_cache_save(gpu);
    for (uint32_t i = 0; i < gpu->n_pipeline; i++)
        vk->DestroyPipeline(gpu->device, gpu->pipelines[i].handle, NULL);
    for (size_t i = 0; gpu->modules && i < rg_gpu_program_count; i++)
        vk->DestroyShaderModule(gpu->device, gpu->modules[i], NULL);
    vk->DestroyPipelineCache(gpu->device, gpu->cache, NULL);
    gpu->n_pipeline = 0;
}

static bool name_is(size_t i, const char *name) {
    return strcmp(rg_gpu_programs[i].name, name) == 0;
}

/* Index of the closest of a program's variants; the count when there is none. */
static size_t find_program(const rg_gpu *gpu, const rg_gpu_kernel *k) {
    char typed[64], typed_dot[72], dot[64];
    size_t best = rg_gpu_program_count;
    int rank = 0;
    snprintf(typed, sizeof typed, "%s_t%u", k->program, k->spec[0]);
    snprintf(typed_dot, sizeof typed_dot, "%s_dot", typed);
    snprintf(dot, sizeof dot, "%s_dot", k->program);
    for (size_t i = 0; i < rg_gpu_program_count; i++) {
        const int own = gpu->info.dot && name_is(i, typed_dot) ? 4
                        : name_is(i, typed)                    ? 3
                        : gpu->info.dot && name_is(i, dot)     ? 2
                        : name_is(i, k->program)               ? 1
                                                               : 0;
        if (own <= rank) continue;
        rank = own;
        best = i;
    }
    return best;
}

static VkShaderModule module_of(rg_gpu *gpu, const rg_gpu_kernel *k, rg_status *st) {
    const size_t i = find_program(gpu, k);
    if (i < rg_gpu_program_count) {
        const rg_gpu_program *p = &rg_gpu_programs[i];
        if (gpu->modules[i]) return gpu->modules[i];
        const VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                               .codeSize = p->n_word * sizeof(uint32_t),
                                               .pCode = p->words};
        const VkResult r =
            gpu->instance.vk.CreateShaderModule(gpu->device, &info, NULL, &gpu->modules[i]);
        if (r == VK_SUCCESS) return gpu->modules[i];
        gpu->modules[i] = VK_NULL_HANDLE;
        rg_vk_fail(gpu, r, k->program, st);
        return VK_NULL_HANDLE;
    }
    rg_fail(st, RG_BUG, "there is no GPU program %s", k->program);
    return VK_NULL_HANDLE;
}

/* Also from several threads at once: the cache guards itself. */
static VkResult compile(const rg_gpu *gpu, const rg_gpu_kernel *k, VkShaderModule module,
                        VkPipeline *out) {
    VkSpecializationMapEntry entries[RG_GPU_SPEC_MAX];
    for (uint32_t i = 0; i < k->n_spec; i++) {
        entries[i] = (VkSpecializationMapEntry){
            .constantID = i, .offset = i * (uint32_t)sizeof(uint32_t), .size = sizeof(uint32_t)};
    }
    const VkSpecializationInfo spec = {.mapEntryCount = k->n_spec,
                                       .pMapEntries = entries,
                                       .dataSize = k->n_spec * sizeof(uint32_t),
                                       .pData = k->spec};
    const bool whole = strcmp(k->program, "mul_mat") == 0; /* a matrix is a whole subgroup's */
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .flags =
                      whole ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT_EXT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &spec},
        .layout = gpu->layout};
    return gpu->instance.vk.CreateComputePipelines(gpu->device, gpu->cache, 1, &info, NULL, out);
}

static rg_code build_pipeline(rg_gpu *gpu, const rg_gpu_kernel *k, VkPipeline *out, rg_status *st) {
    const VkShaderModule module = module_of(gpu, k, st);
    if (!module) return RG_IO;
    const VkResult r = compile(gpu, k, module, out);
    return r == VK_SUCCESS ? RG_OK : rg_vk_fail(gpu, r, k->program, st);
}

static bool same_kernel(const rg_gpu_kernel *a, const rg_gpu_kernel *b) {
    return a->n_spec == b->n_spec && strcmp(a->program, b->program) == 0 &&
           memcmp(a->spec, b->spec, a->n_spec * sizeof a->spec[0]) == 0;
}

/* The kernel's entry, a new one without a pipeline if there was none; NULL: no memory. */
static rg_vk_pipeline *entry_of(rg_gpu *gpu, const rg_gpu_kernel *k, rg_status *st) {
    for (uint32_t i = 0; i < gpu->n_pipeline; i++) {
        if (same_kernel(&gpu->pipelines[i].kernel, k)) return &gpu->pipelines[i];
    }
    if (gpu->n_pipeline == gpu->pipeline_cap) {
        const uint32_t cap = gpu->pipeline_cap ? gpu->pipeline_cap * 2 : 64;
        rg_vk_pipeline *more = rg_realloc(gpu->pipelines, cap, sizeof *more, st);
        if (!more) return NULL;
        gpu->pipelines = more;
        gpu->pipeline_cap = cap;
    }
    rg_vk_pipeline *p = &gpu->pipelines[gpu->n_pipeline++];
    *p = (rg_vk_pipeline){.kernel = *k};
    return p;
}

VkPipeline rg_vk_pipeline_get(rg_gpu *gpu, const rg_gpu_kernel *k, rg_status *st) {
    rg_vk_pipeline *p = entry_of(gpu, k, st);
    if (!p || (!p->handle && build_pipeline(gpu, k, &p->handle, st) != RG_OK))
        return VK_NULL_HANDLE;
    return p->handle;
}

/* ---- many at once --------------------------------------------------------------------------- */

typedef struct build_job {
    rg_gpu *gpu;
    atomic_uint next; /* entry that nobody has taken yet */
} build_job;

/* Kernels take very different times: each thread takes the next one. */
static void build_some(void *arg, size_t begin, size_t end, int thread) {
    build_job *job = arg;
    rg_gpu *gpu = job->gpu;
    (void)begin;
    (void)end;
    (void)thread;
    for (;;) {
        const uint32_t i = atomic_fetch_add(&job->next, 1);
        if (i >= gpu->n_pipeline) return;
        rg_vk_pipeline *p = &gpu->pipelines[i];
        const size_t program = find_program(gpu, &p->kernel);
        if (p->handle || program == rg_gpu_program_count || !gpu->modules[program]) continue;
        VkPipeline made = VK_NULL_HANDLE;
        if (compile(gpu, &p->kernel, gpu->modules[program], &made) == VK_SUCCESS) p->handle = made;
    }
}

void rg_gpu_plan_begin(rg_gpu *gpu) {
    gpu->planning = true;
}

rg_code rg_gpu_plan_end(rg_gpu *gpu, rg_pool *pool, rg_status *st) {
    gpu->planning = false;
    for (uint32_t i = 0; i < gpu->n_pipeline; i++) {
        if (!gpu->pipelines[i].handle && !module_of(gpu, &gpu->pipelines[i].kernel, st))
            return RG_IO;
    }
    build_job job = {.gpu = gpu};
    rg_pool_run(pool, (size_t)rg_pool_threads(pool), 1, build_some, &job);
    return RG_OK;
}

/* ---- lists ---------------------------------------------------------------------------------- */

rg_code rg_vk_list_create(rg_gpu_list **out, rg_gpu *gpu, uint32_t family, rg_status *st) {
    *out = NULL;
    const rg_vk *vk = &gpu->instance.vk;
    rg_gpu_list *list = rg_alloc(1, sizeof *list, st);
    if (!list) return RG_NOMEM;
    list->gpu = gpu;
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = family};
    VkResult r = vk->CreateCommandPool(gpu->device, &pool, NULL, &list->pool);
    if (r == VK_SUCCESS) {
        const VkCommandBufferAllocateInfo info = {
            .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
            .commandPool = list->pool,
            .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            .commandBufferCount = 1};
        r = vk->AllocateCommandBuffers(gpu->device, &info, &list->buffer);
    }
    if (r != VK_SUCCESS) {
        rg_gpu_list_destroy(list);
        return rg_vk_fail(gpu, r, "command list", st);
    }
    *out = list;
    return RG_OK;
}

rg_code rg_gpu_list_create(rg_gpu_list **out, rg_gpu *gpu, rg_status *st) {
    return rg_vk_list_create(out, gpu, gpu->queues.family, st);
}

void rg_gpu_list_destroy(rg_gpu_list *list) {
    if (!list) return;
    const rg_vk *vk = &list->gpu->instance.vk;
    if (list->queries) vk->DestroyQueryPool(list->gpu->device, list->queries, NULL);
    if (list->pool) vk->DestroyCommandPool(list->gpu->device, list->pool, NULL);
    rg_free(list->times);
    rg_free(list->ticks);
    rg_free(list);
}

static rg_code open_stamps(rg_gpu_list *list) {
    if (list->queries) return RG_OK;
    const VkQueryPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                        .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                        .queryCount = STAMPS_MAX};
    if (!list->times) list->times = rg_alloc(STAMPS_MAX / 2, sizeof *list->times, &list->first);
    if (!list->ticks) list->ticks = rg_alloc(STAMPS_MAX, sizeof *list->ticks, &list->first);
    if (!list->times || !list->ticks) return RG_NOMEM;
    const VkResult r =
        list->gpu->instance.vk.CreateQueryPool(list->gpu->device, &info, NULL, &list->queries);
    if (r != VK_SUCCESS) return rg_vk_fail(list->gpu, r, "time stamps", &list->first);
    list->query_cap = STAMPS_MAX;
    return RG_OK;
}

/* Lists of one queue overlap unless told otherwise, and the host may have written since the list
 * was handed over. */
static void see_earlier(const rg_gpu_list *list) {
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask =
            VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT | VK_ACCESS_HOST_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                         VK_ACCESS_INDIRECT_COMMAND_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                         VK_ACCESS_TRANSFER_WRITE_BIT};
    const VkPipelineStageFlags work =
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    list->gpu->instance.vk.CmdPipelineBarrier(list->buffer, work | VK_PIPELINE_STAGE_HOST_BIT,
                                              work | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT, 0, 1,
                                              &memory, 0, NULL, 0, NULL);
}

void rg_gpu_list_begin(rg_gpu_list *list, bool stamps) {
    const rg_vk *vk = &list->gpu->instance.vk;
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    list->first = (rg_status){0};
    list->bound = VK_NULL_HANDLE;
    list->n_dispatch = list->n_barrier = 0;
    list->stamps =
        !list->transfer && stamps && list->gpu->info.stamp_ns > 0.0 && open_stamps(list) == RG_OK;
    VkResult r = vk->ResetCommandPool(list->gpu->device, list->pool, 0);
    if (r == VK_SUCCESS) r = vk->BeginCommandBuffer(list->buffer, &info);
    if (r != VK_SUCCESS) {
        rg_vk_fail(list->gpu, r, "recording", &list->first);
        return;
    }
    if (list->transfer) {
        rg_vk_transfer_begin(list, stamps);
        return;
    }
    if (list->stamps) vk->CmdResetQueryPool(list->buffer, list->queries, 0, list->query_cap);
    see_earlier(list);
}

static void stamp(rg_gpu_list *list, uint32_t query) {
    if (!list->stamps || query >= list->query_cap) return;
    list->gpu->instance.vk.CmdWriteTimestamp(list->buffer, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
                                             list->queries, query);
}

/* Binds and pushes; false when the list has failed. */
static bool prepare(rg_gpu_list *list, const rg_gpu_kernel *kernel, const void *push,
                    size_t push_bytes) {
    RG_ASSERT(push_bytes <= RG_GPU_PUSH_BYTES_MAX && push_bytes % 4 == 0);
    if (list->first.code != RG_OK) return false;
    const rg_vk *vk = &list->gpu->instance.vk;
    if (list->gpu->planning) {
        (void)entry_of(list->gpu, kernel, &list->first);
        list->moves = list->multiplies = 0;
        return false;
    }
    const VkPipeline p = rg_vk_pipeline_get(list->gpu, kernel, &list->first);
    if (!p) {
        if (list->first.code == RG_OK) list->first.code = RG_NOMEM;
        return false;
    }
    if (p != list->bound) vk->CmdBindPipeline(list->buffer, VK_PIPELINE_BIND_POINT_COMPUTE, p);
    list->bound = p;
    vk->CmdPushConstants(list->buffer, list->gpu->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                         (uint32_t)push_bytes, push);
    if (list->stamps && list->n_dispatch < list->query_cap / 2)
        list->times[list->n_dispatch] = (rg_gpu_time){.program = kernel->program,
                                                      .first = kernel->spec[0],
                                                      .bytes = list->moves,
                                                      .ops = list->multiplies};
    list->moves = list->multiplies = 0;
    stamp(list, 2 * list->n_dispatch);
    return true;
}

static void finish(rg_gpu_list *list) {
    stamp(list, 2 * list->n_dispatch + 1);
    list->n_dispatch++;
}

void rg_gpu_list_moves(rg_gpu_list *list, uint64_t bytes) {
    list->moves = bytes;
}

void rg_gpu_list_multiplies(rg_gpu_list *list, uint64_t ops) {
    list->multiplies = ops;
}

void rg_gpu_dispatch(rg_gpu_list *list, const rg_gpu_kernel *kernel, const void *push,
                     size_t push_bytes, rg_gpu_grid grid) {
    if (!grid.x || !grid.y || !grid.z || !prepare(list, kernel, push, push_bytes)) return;
    if (list->stamps && list->n_dispatch < list->query_cap / 2)
        list->times[list->n_dispatch].groups = grid.x;
    list->gpu->instance.vk.CmdDispatch(list->buffer, grid.x, grid.y, grid.z);
    finish(list);
}

void rg_gpu_dispatch_indirect(rg_gpu_list *list, const rg_gpu_kernel *kernel, const void *push,
                              size_t push_bytes, const rg_gpu_buffer *grid, size_t offset) {
    if (!prepare(list, kernel, push, push_bytes)) return;
    list->gpu->instance.vk.CmdDispatchIndirect(list->buffer, (VkBuffer)grid->handle, offset);
    finish(list);
}

void rg_gpu_barrier(rg_gpu_list *list) {
    if (list->first.code != RG_OK) return;
    const VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                         VK_ACCESS_INDIRECT_COMMAND_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT |
                         VK_ACCESS_TRANSFER_WRITE_BIT};
    const VkPipelineStageFlags work =
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    list->gpu->instance.vk.CmdPipelineBarrier(list->buffer, work,
                                              work | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT, 0, 1,
                                              &memory, 0, NULL, 0, NULL);
    list->n_barrier++;
}

void rg_gpu_copy(rg_gpu_list *list, const rg_gpu_buffer *dst, size_t dst_offset,
                 const rg_gpu_buffer *src, size_t src_offset, size_t bytes) {
    if (list->first.code != RG_OK || !bytes) return;
    const VkBufferCopy region = {.srcOffset = src_offset, .dstOffset = dst_offset, .size = bytes};
    list->gpu->instance.vk.CmdCopyBuffer(list->buffer, (VkBuffer)src->handle, (VkBuffer)dst->handle,
                                         1, &region);
}

void rg_gpu_fill(rg_gpu_list *list, const rg_gpu_buffer *b, size_t offset, size_t bytes,
                 uint32_t word) {
    if (list->first.code != RG_OK || !bytes) return;
    list->gpu->instance.vk.CmdFillBuffer(list->buffer, (VkBuffer)b->handle, offset, bytes, word);
}

/* Behind the last write: what the host may read once the list is done. */
static void show_host(const rg_gpu_list *list) {
    const VkMemoryBarrier memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                    .srcAccessMask =
                                        VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
                                    .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    list->gpu->instance.vk.CmdPipelineBarrier(
        list->buffer, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
        VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &memory, 0, NULL, 0, NULL);
}

rg_code rg_gpu_list_end(rg_gpu_list *list, rg_status *st) {
    if (list->first.code != RG_OK) {
        if (st && st->code == RG_OK) *st = list->first;
        return list->first.code;
    }
    if (list->transfer)
        rg_vk_transfer_end(list);
    else
        show_host(list);
    const VkResult r = list->gpu->instance.vk.EndCommandBuffer(list->buffer);
    return r == VK_SUCCESS ? RG_OK : rg_vk_fail(list->gpu, r, "recording", st);
}

const rg_gpu_info *rg_gpu_list_info(const rg_gpu_list *list) {
    return &list->gpu->info;
}

uint32_t rg_gpu_list_dispatches(const rg_gpu_list *list) {
    return list->n_dispatch;
}
uint32_t rg_gpu_list_barriers(const rg_gpu_list *list) {
    return list->n_barrier;
}

const rg_gpu_time *rg_gpu_list_times(rg_gpu_list *list, uint32_t *n) {
    *n = 0;
    if (!list->stamps) return NULL;
    const uint32_t cap = list->query_cap / 2;
    const uint32_t count = list->n_dispatch < cap ? list->n_dispatch : cap;
    const VkResult r = list->gpu->instance.vk.GetQueryPoolResults(
        list->gpu->device, list->queries, 0, 2 * count, 2 * count * sizeof list->ticks[0],
        list->ticks, sizeof list->ticks[0], VK_QUERY_RESULT_64_BIT);
    if (count == 0 || r != VK_SUCCESS) return NULL;
    uint64_t done = list->ticks[0]; /* dispatches overlap: each is charged with what it added */
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t end = list->ticks[2 * i + 1];
        list->times[i].ns =
            end > done ? (uint64_t)((double)(end - done) * list->gpu->info.stamp_ns) : 0;
        if (end > done) done = end;
    }
    *n = count;
    return list->times;
}
