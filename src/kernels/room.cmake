# The reference sources once per instruction level (cpu/levels.h). Rounding-relevant flags are those
# of the whole build; -fno-math-errno and -fno-trapping-math change no result, they let loops with
# sqrt and selects become vector code.
file(GLOB rg_ref_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cpu/ref/*.c)

function(rg_kernel_level level id)
  add_library(rg_kernels_${level} OBJECT ${rg_ref_sources})
  target_link_libraries(rg_kernels_${level} PRIVATE rg_flags rg_quant)
  target_compile_definitions(rg_kernels_${level} PRIVATE RG_LEVEL=${level} RG_LEVEL_ID=${id})
  target_compile_options(rg_kernels_${level} PRIVATE -O3 -fno-math-errno -fno-trapping-math ${ARGN})
  target_sources(rg_kernels PRIVATE $<TARGET_OBJECTS:rg_kernels_${level}>)
endfunction()

# Own forms of a level in cpu/FOLDER/LEVEL_*.c; its product becomes rg_LEVEL_mul.
function(rg_kernel_forms level folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cpu/${folder}/${level}_*.c)
  target_compile_definitions(rg_kernels_${level} PRIVATE RG_LEVEL_MUL=rg_${level}_mul)
  add_library(rg_kernels_${level}_mul OBJECT ${sources})
  target_link_libraries(rg_kernels_${level}_mul PRIVATE rg_flags rg_quant)
  target_compile_options(rg_kernels_${level}_mul PRIVATE -O3 ${ARGN})
  # Unrolled vector code under all sanitizers takes minutes to compile: here addresses are enough.
  # Properties of the files, since the last of these flags on the line wins.
  if(RG_SANITIZE MATCHES "address")
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS -O1 -fno-sanitize=undefined)
  elseif(RG_SANITIZE)
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS -O1 -fno-sanitize=all)
  endif()
  target_sources(rg_kernels PRIVATE $<TARGET_OBJECTS:rg_kernels_${level}_mul>)
endfunction()

rg_kernel_level(scalar RG_CPU_SCALAR)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  rg_kernel_level(v3 RG_CPU_X86_V3 -march=x86-64-v3)
  rg_kernel_forms(v3 x86 -march=x86-64-v3)
  target_compile_definitions(rg_kernels_v3 PRIVATE RG_LEVEL_PEAK=rg_v3_int8_peak)
  set(rg_v4_flags -march=x86-64-v4 -mavx512vnni -mavx512vbmi -mavx512bitalg
    -mprefer-vector-width=512)
  rg_kernel_level(v4 RG_CPU_X86_V4 ${rg_v4_flags})
  rg_kernel_forms(v4 x86 ${rg_v4_flags})
  target_compile_definitions(rg_kernels_v4 PRIVATE RG_LEVEL_ATTENTION=rg_v4_attention
    RG_LEVEL_GDN=rg_v4_gdn_steps RG_LEVEL_PEAK=rg_v4_int8_peak
    RG_LEVEL_INDEX_SCORES=rg_v4_index_scores)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  rg_kernel_level(neon RG_CPU_NEON)
  rg_kernel_forms(neon arm)
  set(rg_arm ${CMAKE_SOURCE_DIR}/src/kernels/cpu/arm)
  set_source_files_properties(${rg_arm}/neon_dotprod.c PROPERTIES
    COMPILE_OPTIONS -march=armv8.2-a+dotprod)
  set_source_files_properties(${rg_arm}/neon_i8mm.c PROPERTIES
    COMPILE_OPTIONS -march=armv8.2-a+dotprod+i8mm)
endif()

# The GPU driver and its programs; without the compiler of the programs there are no devices.
include(shaders)
target_sources(rg_kernels PRIVATE ${CMAKE_SOURCE_DIR}/src/kernels/gpu/gpu_ops.c
  ${CMAKE_SOURCE_DIR}/src/kernels/gpu/gpu_measure.c
  ${CMAKE_SOURCE_DIR}/src/kernels/gpu/gpu_interleave.c
  ${CMAKE_SOURCE_DIR}/src/kernels/gpu/gpu_tiles.c)
if(RG_GPU)
  file(GLOB rg_gpu_driver CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/gpu/vulkan_*.c)
  target_sources(rg_kernels PRIVATE ${rg_gpu_driver})
  target_include_directories(rg_kernels PRIVATE ${RG_VULKAN_INCLUDE})
  target_link_libraries(rg_kernels PUBLIC ${CMAKE_DL_LIBS})
  rg_gpu_programs(rg_kernels)
else()
  target_sources(rg_kernels PRIVATE ${CMAKE_SOURCE_DIR}/src/kernels/gpu/gpu_none.c)
endif()
