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

rg_kernel_level(scalar RG_CPU_SCALAR)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  rg_kernel_level(v3 RG_CPU_X86_V3 -march=x86-64-v3)
  set(rg_v4_flags -march=x86-64-v4 -mavx512vnni -mavx512vbmi -mavx512bitalg
    -mprefer-vector-width=512)
  rg_kernel_level(v4 RG_CPU_X86_V4 ${rg_v4_flags})
  target_compile_definitions(rg_kernels_v4 PRIVATE RG_LEVEL_MUL=rg_v4_mul
    RG_LEVEL_ATTENTION=rg_v4_attention)
  file(GLOB rg_v4_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cpu/x86/v4_*.c)
  add_library(rg_kernels_v4_mul OBJECT ${rg_v4_sources})
  target_link_libraries(rg_kernels_v4_mul PRIVATE rg_flags rg_quant)
  target_compile_options(rg_kernels_v4_mul PRIVATE -O3 ${rg_v4_flags})
  # Unrolled vector code under all sanitizers takes minutes to compile: here addresses are enough.
  if(RG_SANITIZE MATCHES "address")
    target_compile_options(rg_kernels_v4_mul PRIVATE -O1 -fno-sanitize=undefined)
  elseif(RG_SANITIZE)
    target_compile_options(rg_kernels_v4_mul PRIVATE -O1 -fno-sanitize=all)
  endif()
  target_sources(rg_kernels PRIVATE $<TARGET_OBJECTS:rg_kernels_v4_mul>)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  rg_kernel_level(neon RG_CPU_NEON)
endif()
