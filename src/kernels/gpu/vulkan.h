/* Private face of the Vulkan driver: what its files share. */
#ifndef RG_GPU_VULKAN_H
#define RG_GPU_VULKAN_H

#define VK_NO_PROTOTYPES
#include <pthread.h>
#include <stdatomic.h>

#include <vulkan/vulkan.h>

#include "kernels/gpu/gpu.h"

/* Functions are looked up at run time: the program starts on machines without a loader. */
#define RG_VK_GLOBAL(X) X(CreateInstance) X(EnumerateInstanceLayerProperties)
// clang-format off
#define RG_VK_INSTANCE(X)                                                                          \
    X(DestroyInstance) X(EnumeratePhysicalDevices) X(GetPhysicalDeviceProperties2)                 \
    X(GetPhysicalDeviceMemoryProperties) X(GetPhysicalDeviceFeatures2)                             \
    X(GetPhysicalDeviceQueueFamilyProperties) X(CreateDevice) X(GetDeviceProcAddr)                 \
    X(EnumerateDeviceExtensionProperties)
#define RG_VK_DEVICE(X)                                                                            \
    X(DestroyDevice) X(GetDeviceQueue) X(DeviceWaitIdle) X(CreateBuffer) X(DestroyBuffer)          \
    X(GetBufferMemoryRequirements) X(AllocateMemory) X(FreeMemory) X(BindBufferMemory)             \
    X(MapMemory) X(GetBufferDeviceAddress) X(CreateShaderModule) X(DestroyShaderModule)            \
    X(CreatePipelineLayout) X(DestroyPipelineLayout) X(CreateComputePipelines)                     \
    X(DestroyPipeline) X(CreatePipelineCache) X(DestroyPipelineCache) X(GetPipelineCacheData)      \
    X(CreateCommandPool) X(DestroyCommandPool) X(ResetCommandPool) X(AllocateCommandBuffers)       \
    X(BeginCommandBuffer) X(EndCommandBuffer) X(CmdBindPipeline) X(CmdPushConstants)               \
    X(CmdDispatch) X(CmdDispatchIndirect) X(CmdPipelineBarrier) X(CmdCopyBuffer) X(CmdFillBuffer)  \
    X(CmdResetQueryPool) X(CmdWriteTimestamp) X(CreateQueryPool) X(DestroyQueryPool)               \
    X(ResetQueryPool) X(GetQueryPoolResults) X(CreateSemaphore) X(DestroySemaphore)                \
    X(QueueSubmit) X(WaitSemaphores) X(SignalSemaphore) X(GetSemaphoreCounterValue)
// clang-format on

typedef struct rg_vk {
#define RG_VK_MEMBER(name) PFN_vk##name name;
    RG_VK_GLOBAL(RG_VK_MEMBER)
    RG_VK_INSTANCE(RG_VK_MEMBER)
    RG_VK_DEVICE(RG_VK_MEMBER)
#undef RG_VK_MEMBER
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
} rg_vk;

/* The loader and an instance. */
typedef struct rg_vk_instance {
    void *library; /* of dlopen; NULL: there is no loader */
    VkInstance handle;
    rg_vk vk;
    bool validated;
    VkDebugUtilsMessengerEXT messenger;
    atomic_uint_fast64_t complaints;
    char first_complaint[512];
} rg_vk_instance;

/* A pipeline and what it was made of. */
typedef struct rg_vk_pipeline {
    rg_gpu_kernel kernel;
    VkPipeline handle;
} rg_vk_pipeline;

/* Where lists and transfers go. */
typedef struct rg_vk_queues {
    uint32_t family; /* of the queue that computes; UINT32_MAX: none does */
    uint32_t transfer_family, transfer_index;
    uint32_t stamp_bits, transfer_bits; /* of their time stamps; 0: they have none */
} rg_vk_queues;

struct rg_gpu {
    rg_vk_instance instance;
    VkPhysicalDevice physical;
    VkPhysicalDeviceMemoryProperties memory;
    rg_gpu_info info;
    VkDevice device;
    rg_vk_queues queues;
    VkQueue queue;
    VkQueue transfer_queue;     /* the same where there is no other */
    pthread_mutex_t queue_lock; /* submissions: the two may be one queue */
    bool has_queue_lock;
    bool can_import; /* memory of the host: VK_EXT_external_memory_host */
    VkPipelineLayout layout;
    VkPipelineCache cache;
    char *cache_path;
    rg_gpu_cache cache_found;
    VkShaderModule *modules; /* [rg_gpu_program_count], made on first use */
    rg_vk_pipeline *pipelines;
    uint32_t n_pipeline, pipeline_cap;
    bool planning; /* lists only note their kernels */
    VkSemaphore host_timeline, device_timeline;
    uint64_t host_value, device_value; /* last ones given out */
    VkSemaphore transfer_timeline;
    uint64_t transfer_value;   /* last one handed over: of the thread that does */
    uint64_t transfer_awaited; /* the largest that a submission waited for: the later ones, too */
    rg_gpu_list *staging_list; /* of rg_gpu_write and _read; made on first use */
    rg_gpu_buffer staging_up, staging_down;
    uint64_t bytes;
    atomic_bool lost;
};

struct rg_gpu_list {
    rg_gpu *gpu;
    VkCommandPool pool;
    VkCommandBuffer buffer;
    VkPipeline bound;
    uint32_t n_dispatch, n_barrier;
    rg_status first; /* failure while recording */
    bool stamps;
    VkQueryPool queries;
    uint32_t query_cap;
    rg_gpu_time *times;         /* [query_cap / 2] */
    uint64_t *ticks;            /* [query_cap] */
    uint64_t moves, multiplies; /* bytes and multiply-adds of the next dispatch */
    bool transfer;              /* goes to the queue of transfers */
};

/* An instance; library NULL and OK when there is no loader or no driver. */
rg_code rg_vk_instance_open(rg_vk_instance *out, bool validate, rg_status *st);
void rg_vk_instance_close(rg_vk_instance *i);
/* What the loader says of a device. */
void rg_vk_describe(const rg_vk_instance *i, VkPhysicalDevice device, rg_gpu_info *out);

bool rg_vk_has_extension(const rg_vk *vk, VkPhysicalDevice device, const char *name);

rg_vk_queues rg_vk_queues_of(const rg_vk *vk, VkPhysicalDevice device);
/* Whether transfers have a queue of their own. */
bool rg_vk_queues_apart(const rg_vk_queues *q);
/* A list's command pool and buffer for the family. */
rg_code rg_vk_list_create(rg_gpu_list **out, rg_gpu *gpu, uint32_t family, rg_status *st);
/* What stands at the begin and at the end of a list of transfers. */
void rg_vk_transfer_begin(rg_gpu_list *list, bool stamps);
void rg_vk_transfer_end(const rg_gpu_list *list);

rg_code rg_vk_fail(rg_gpu *gpu, VkResult r, const char *what, rg_status *st);
/* One batch to a queue, under the lock: both threads may come at once. */
VkResult rg_vk_submit(rg_gpu *gpu, VkQueue queue, uint32_t n, const VkSubmitInfo *submits);
rg_code rg_vk_wait(rg_gpu *gpu, VkSemaphore timeline, uint64_t value, uint64_t timeout_ns,
                   rg_status *st);
VkPipeline rg_vk_pipeline_get(rg_gpu *gpu, const rg_gpu_kernel *kernel, rg_status *st);
/* Opens the pipeline cache with what the file has, if that is whole and of this device; saves it.
 */
void rg_vk_cache_open(rg_gpu *gpu);
void rg_vk_cache_save(const rg_gpu *gpu);
void rg_vk_pipelines_close(rg_gpu *gpu);

#endif
