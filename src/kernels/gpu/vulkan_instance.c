/* The loader, an instance, and what it says of the devices. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernels/gpu/vulkan.h"

static void *open_library(void) {
    static const char *const names[] = {"libvulkan.so.1", "libvulkan.1.dylib", "libMoltenVK.dylib"};
    for (size_t i = 0; i < RG_ARRAY_LEN(names); i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

/* C has no cast from an object to a function pointer; POSIX has both in the same bits. */
static PFN_vkGetInstanceProcAddr loader_entry(void *library) {
    void *symbol = dlsym(library, "vkGetInstanceProcAddr");
    PFN_vkGetInstanceProcAddr entry = NULL;
    _Static_assert(sizeof symbol == sizeof entry, "pointers of one size");
    memcpy(&entry, &symbol, sizeof entry);
    return entry;
}

static bool has_layer(const rg_vk *vk, const char *name) {
    VkLayerProperties layers[64];
    uint32_t n = RG_ARRAY_LEN(layers);
    const VkResult r = vk->EnumerateInstanceLayerProperties(&n, layers);
    if (r != VK_SUCCESS && r != VK_INCOMPLETE) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(layers[i].layerName, name) == 0) return true;
    }
    return false;
}

/* A driver that is newer than the layer asks vkGetDeviceProcAddr for names of its own that the
 * layer takes for functions of an instance (NVIDIA 580: ...VideoEncodeQualityLevel...). We ask for
 * the functions of RG_VK_DEVICE alone: a complaint about any other name is not about us. */
static bool is_drivers_own(const char *message) {
    if (!strstr(message, "vkGetDeviceProcAddr(): pName")) return false;
#define RG_VK_IS_OURS(name)                                                                        \
    if (strstr(message, "vk" #name " ")) return false;
    RG_VK_DEVICE(RG_VK_IS_OURS)
#undef RG_VK_IS_OURS
    return true;
}

static VKAPI_ATTR VkBool32 VKAPI_CALL hear(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                           VkDebugUtilsMessageTypeFlagsEXT types,
                                           const VkDebugUtilsMessengerCallbackDataEXT *data,
                                           void *user) {
    rg_vk_instance *i = user;
    (void)types;
    if (!(severity & (VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT |
                      VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT))) {
        return VK_FALSE;
    }
    if (is_drivers_own(data->pMessage)) return VK_FALSE;
    if (atomic_fetch_add(&i->complaints, 1) == 0) {
        snprintf(i->first_complaint, sizeof i->first_complaint, "%s", data->pMessage);
    }
    return VK_FALSE;
}

static void load_instance(rg_vk_instance *i) {
    rg_vk *vk = &i->vk;
#define RG_VK_LOAD(name) vk->name = (PFN_vk##name)vk->GetInstanceProcAddr(i->handle, "vk" #name);
    RG_VK_INSTANCE(RG_VK_LOAD)
#undef RG_VK_LOAD
}

static rg_code create_instance(rg_vk_instance *i, bool validate, rg_status *st) {
    static const char *const layers[] = {"VK_LAYER_KHRONOS_validation"};
    static const char *const extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME};
    static const VkValidationFeatureEnableEXT enables[] = {
        VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
    const VkValidationFeaturesEXT features = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                              .enabledValidationFeatureCount = 1,
                                              .pEnabledValidationFeatures = enables};
    const VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                   .pApplicationName = "regolith",
                                   .apiVersion = VK_API_VERSION_1_2};
    i->validated = validate && has_layer(&i->vk, layers[0]);
    const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                       .pNext = i->validated ? &features : NULL,
                                       .pApplicationInfo = &app,
                                       .enabledLayerCount = i->validated ? 1 : 0,
                                       .ppEnabledLayerNames = layers,
                                       .enabledExtensionCount = i->validated ? 1 : 0,
                                       .ppEnabledExtensionNames = extensions};
    const VkResult r = i->vk.CreateInstance(&info, NULL, &i->handle);
    if (r == VK_ERROR_INCOMPATIBLE_DRIVER) return RG_OK; /* a loader without drivers */
    if (r != VK_SUCCESS) return rg_fail(st, RG_UNSUPPORTED, "no Vulkan instance: error %d", (int)r);
    load_instance(i);
    return RG_OK;
}

static void listen(rg_vk_instance *i) {
    const PFN_vkCreateDebugUtilsMessengerEXT create =
        (PFN_vkCreateDebugUtilsMessengerEXT)i->vk.GetInstanceProcAddr(
            i->handle, "vkCreateDebugUtilsMessengerEXT");
    const VkDebugUtilsMessengerCreateInfoEXT info = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
        .pfnUserCallback = hear,
        .pUserData = i};
    if (!create || create(i->handle, &info, NULL, &i->messenger) != VK_SUCCESS) {
        i->messenger = VK_NULL_HANDLE;
        i->validated = false;
    }
}

rg_code rg_vk_instance_open(rg_vk_instance *i, bool validate, rg_status *st) {
    *i = (rg_vk_instance){.library = open_library()};
    if (!i->library) return RG_OK;
    rg_vk *vk = &i->vk;
    vk->GetInstanceProcAddr = loader_entry(i->library);
    if (!vk->GetInstanceProcAddr) {
        rg_vk_instance_close(i);
        return RG_OK;
    }
#define RG_VK_LOAD(name) vk->name = (PFN_vk##name)vk->GetInstanceProcAddr(NULL, "vk" #name);
    RG_VK_GLOBAL(RG_VK_LOAD)
#undef RG_VK_LOAD
    const rg_code rc = create_instance(i, validate, st);
    if (rc != RG_OK || !i->handle) {
        rg_vk_instance_close(i);
        return rc;
    }
    if (i->validated) listen(i);
    return RG_OK;
}

void rg_vk_instance_close(rg_vk_instance *i) {
    if (i->messenger) {
        const PFN_vkDestroyDebugUtilsMessengerEXT destroy =
            (PFN_vkDestroyDebugUtilsMessengerEXT)i->vk.GetInstanceProcAddr(
                i->handle, "vkDestroyDebugUtilsMessengerEXT");
        if (destroy) destroy(i->handle, i->messenger, NULL);
    }
    if (i->handle) i->vk.DestroyInstance(i->handle, NULL);
    if (i->library) dlclose(i->library);
    i->messenger = VK_NULL_HANDLE;
    i->handle = NULL;
    i->library = NULL;
}

/* ---- devices -------------------------------------------------------------------------------- */

static const char *kind_of(VkPhysicalDeviceType type) {
    if (type == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU) return "discrete";
    if (type == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU) return "integrated";
    return type == VK_PHYSICAL_DEVICE_TYPE_CPU ? "software" : "other";
}

/* The first thing the kernels need that the device lacks; "" when it has all. */
static const char *missing(const rg_vk *vk, VkPhysicalDevice device, uint32_t api) {
    if (api < VK_API_VERSION_1_2) return "Vulkan 1.2";
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceVulkan11Features f11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f12};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                   .pNext = &f11};
    vk->GetPhysicalDeviceFeatures2(device, &f);
    if (!f12.bufferDeviceAddress) return "buffer device addresses";
    if (!f12.timelineSemaphore) return "timeline semaphores";
    if (!f12.scalarBlockLayout) return "scalar block layouts";
    if (!f12.storageBuffer8BitAccess || !f12.shaderInt8) return "8-bit integers";
    if (!f11.storageBuffer16BitAccess || !f.features.shaderInt16) return "16-bit integers";
    if (!f.features.shaderInt64) return "64-bit integers";
    return "";
}

#define EXTENSIONS_MAX 512u

bool rg_vk_has_extension(const rg_vk *vk, VkPhysicalDevice device, const char *name) {
    uint32_t n = EXTENSIONS_MAX;
    VkExtensionProperties *all = rg_alloc(n, sizeof *all, NULL);
    bool found = false;
    if (!all) return false;
    const VkResult r = vk->EnumerateDeviceExtensionProperties(device, NULL, &n, all);
    for (uint32_t i = 0; (r == VK_SUCCESS || r == VK_INCOMPLETE) && i < n && !found; i++)
        found = strcmp(all[i].extensionName, name) == 0;
    rg_free(all);
    return found;
}

static bool has_dot(const rg_vk *vk, VkPhysicalDevice device) {
    if (!rg_vk_has_extension(vk, device, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME))
        return false;
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                   .pNext = &dot};
    vk->GetPhysicalDeviceFeatures2(device, &f);
    return dot.shaderIntegerDotProduct;
}

#define SHAPES_MAX 256u

/* Products of 16 x 32 by 32 x 16 signed bytes into 32-bit sums, by subgroups of 32 lanes. */
static bool has_matrix(const rg_vk_instance *in, VkPhysicalDevice device, const rg_gpu_info *info) {
    const rg_vk *vk = &in->vk;
    const PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV shapes_of =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesNV)vk->GetInstanceProcAddr(
            in->handle, "vkGetPhysicalDeviceCooperativeMatrixPropertiesNV");
    if (!shapes_of || !info->dot || info->subgroup_size != 32 || info->shared_bytes < 48u << 10 ||
        !rg_vk_has_extension(vk, device, VK_NV_COOPERATIVE_MATRIX_EXTENSION_NAME) ||
        !rg_vk_has_extension(vk, device, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME)) {
        return false;
    }
    VkPhysicalDeviceSubgroupSizeControlFeaturesEXT whole = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES_EXT};
    VkPhysicalDeviceCooperativeMatrixFeaturesNV matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_NV, .pNext = &whole};
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .pNext = &matrix};
    VkPhysicalDeviceFeatures2 f = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                   .pNext = &f12};
    vk->GetPhysicalDeviceFeatures2(device, &f);
    if (!matrix.cooperativeMatrix || !whole.computeFullSubgroups || !f12.vulkanMemoryModel ||
        !f12.vulkanMemoryModelDeviceScope) {
        return false;
    }
    VkCooperativeMatrixPropertiesNV all[SHAPES_MAX];
    uint32_t n = SHAPES_MAX;
    for (uint32_t i = 0; i < n; i++) {
        all[i] = (VkCooperativeMatrixPropertiesNV){
            .sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_NV};
    }
    const VkResult r = shapes_of(device, &n, all);
    for (uint32_t i = 0; (r == VK_SUCCESS || r == VK_INCOMPLETE) && i < n; i++) {
        const VkCooperativeMatrixPropertiesNV *s = &all[i];
        if (s->MSize == 16 && s->NSize == 16 && s->KSize == 32 &&
            s->AType == VK_COMPONENT_TYPE_SINT8_NV && s->BType == VK_COMPONENT_TYPE_SINT8_NV &&
            s->CType == VK_COMPONENT_TYPE_SINT32_NV && s->DType == VK_COMPONENT_TYPE_SINT32_NV &&
            s->scope == VK_SCOPE_SUBGROUP_NV) {
            return true;
        }
    }
    return false;
}

static void describe_memory(const rg_vk *vk, VkPhysicalDevice device, rg_gpu_info *out) {
    VkPhysicalDeviceMemoryProperties m;
    vk->GetPhysicalDeviceMemoryProperties(device, &m);
    uint32_t largest = UINT32_MAX;
    for (uint32_t i = 0; i < m.memoryHeapCount; i++) {
        if (!(m.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)) continue;
        if (m.memoryHeaps[i].size <= out->device_bytes) continue;
        out->device_bytes = m.memoryHeaps[i].size;
        largest = i;
    }
    const VkMemoryPropertyFlags want =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    for (uint32_t i = 0; i < m.memoryTypeCount; i++) {
        if (m.memoryTypes[i].heapIndex == largest &&
            (m.memoryTypes[i].propertyFlags & want) == want)
            out->mappable = true;
    }
}

void rg_vk_describe(const rg_vk_instance *i, VkPhysicalDevice device, rg_gpu_info *out) {
    VkPhysicalDeviceVulkan11Properties p11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &p11};
    i->vk.GetPhysicalDeviceProperties2(device, &p);
    const VkPhysicalDeviceProperties *q = &p.properties;
    *out = (rg_gpu_info){.kind = kind_of(q->deviceType),
                         .vendor_id = q->vendorID,
                         .device_id = q->deviceID,
                         .driver_version = q->driverVersion,
                         .api_major = VK_API_VERSION_MAJOR(q->apiVersion),
                         .api_minor = VK_API_VERSION_MINOR(q->apiVersion),
                         .missing = missing(&i->vk, device, q->apiVersion),
                         .alloc_bytes = p11.maxMemoryAllocationSize,
                         .subgroup_size = p11.subgroupSize,
                         .shared_bytes = q->limits.maxComputeSharedMemorySize,
                         .group_threads = q->limits.maxComputeWorkGroupInvocations,
                         .stamp_ns = q->limits.timestampComputeAndGraphics
                                         ? (double)q->limits.timestampPeriod
                                         : 0.0};
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, q->deviceName);
    out->usable = out->missing[0] == 0;
    out->dot = has_dot(&i->vk, device);
    out->matrix = has_matrix(i, device, out);
    const rg_vk_queues queues = rg_vk_queues_of(&i->vk, device);
    out->transfer = rg_vk_queues_apart(&queues);
    describe_memory(&i->vk, device, out);
}

rg_code rg_gpu_enumerate(rg_gpu_info *out, uint32_t cap, uint32_t *n, rg_status *st) {
    rg_vk_instance i;
    *n = 0;
    RG_TRY(rg_vk_instance_open(&i, false, st));
    if (!i.library) return RG_OK;
    VkPhysicalDevice devices[RG_GPU_DEVICES_MAX];
    uint32_t count = cap < RG_GPU_DEVICES_MAX ? cap : RG_GPU_DEVICES_MAX;
    const VkResult r = i.vk.EnumeratePhysicalDevices(i.handle, &count, devices);
    if (r == VK_SUCCESS || r == VK_INCOMPLETE) {
        for (uint32_t k = 0; k < count; k++)
            rg_vk_describe(&i, devices[k], &out[k]);
        *n = count;
    }
    rg_vk_instance_close(&i);
    return RG_OK;
}
