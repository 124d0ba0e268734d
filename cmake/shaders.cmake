# GPU programs: every src/kernels/gpu/shaders/*.comp is compiled to SPIR-V, validated, and embedded.
# Target `metal` translates them for Apple devices. Without the compiler there is no GPU backend:
# RG_GPU is then OFF.
find_program(RG_GLSLANG glslangValidator)
find_program(RG_SPIRV_VAL spirv-val)
find_program(RG_SPIRV_OPT spirv-opt)
find_program(RG_SPIRV_CROSS spirv-cross)
find_path(RG_VULKAN_INCLUDE vulkan/vulkan.h PATHS $ENV{VULKAN_SDK}/include)
set(RG_GPU_DEFAULT OFF)
if(RG_GLSLANG AND RG_VULKAN_INCLUDE)
  set(RG_GPU_DEFAULT ON)
endif()
option(RG_GPU "build the Vulkan backend" ${RG_GPU_DEFAULT})

function(rg_gpu_programs target)
  file(GLOB programs CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/gpu/shaders/*.comp)
  file(GLOB pieces CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/gpu/shaders/*.glsl)
  list(SORT programs)
  set(dir ${CMAKE_BINARY_DIR}/shaders)
  file(MAKE_DIRECTORY ${dir})
  foreach(program ${programs})
    get_filename_component(name ${program} NAME_WE)
    set(check "")
    if(RG_SPIRV_VAL)
      set(check COMMAND ${RG_SPIRV_VAL} --target-env vulkan1.2 --scalar-block-layout
        ${dir}/${name}.spv)
    endif()
    add_custom_command(OUTPUT ${dir}/${name}.spv
      COMMAND ${RG_GLSLANG} -V --quiet --target-env vulkan1.2 -o ${dir}/${name}.spv ${program}
      ${check}
      DEPENDS ${program} ${pieces} VERBATIM)
    list(APPEND binaries ${dir}/${name}.spv)
    # Programs over product.glsl once more with one instruction for the product of four bytes; and,
    # without what other types need, for the usual types of weights (rg_type): drivers make better
    # code of a small program.
    file(STRINGS ${program} uses REGEX "product.glsl")
    if(uses)
      set(types "")
      if(RG_SPIRV_OPT)
        set(types 0 2 8 12 13 14 16 17 18 20 21 22 23 80 81 82 85 86) # from 64 on: interleaved
      endif()
      foreach(type any ${types})
        set(own ${name}_dot)
        set(define -DRG_DOT)
        set(shrink "")
        if(NOT type STREQUAL any)
          set(own ${name}_t${type}_dot)
          set(define -DRG_DOT -DRG_TYPE=${type}u)
          # All of it: calls that are left make a driver keep vectors in memory.
          set(shrink COMMAND ${RG_SPIRV_OPT} --target-env=vulkan1.2 -O ${dir}/${own}.spv
            -o ${dir}/${own}.spv)
        endif()
        string(REPLACE ${name}.spv ${own}.spv check_own "${check}")
        add_custom_command(OUTPUT ${dir}/${own}.spv
          COMMAND ${RG_GLSLANG} -V --quiet --target-env vulkan1.2 ${define} -o ${dir}/${own}.spv
            ${program}
          ${shrink}
          ${check_own}
          DEPENDS ${program} ${pieces} VERBATIM)
        list(APPEND binaries ${dir}/${own}.spv)
      endforeach()
    endif()
    file(STRINGS ${program} own REGEX "NV_cooperative_matrix") # of one vendor
    if(RG_SPIRV_CROSS AND NOT own)
      list(APPEND translated ${program})
      add_custom_command(OUTPUT ${dir}/${name}.metal
        COMMAND ${RG_SPIRV_CROSS} --msl --msl-version 20300 --output ${dir}/${name}.metal
          ${dir}/${name}.spv
        DEPENDS ${dir}/${name}.spv VERBATIM)
      list(APPEND metals ${dir}/${name}.metal)
    endif()
  endforeach()
  add_custom_command(OUTPUT ${dir}/programs.c
    COMMAND ${RG_PYTHON} ${CMAKE_SOURCE_DIR}/tools/embed_spirv.py ${dir}/programs.c ${binaries}
    DEPENDS ${binaries} ${CMAKE_SOURCE_DIR}/tools/embed_spirv.py VERBATIM)
  target_sources(${target} PRIVATE ${dir}/programs.c)
  if(metals)
    set(all "")
    if(RG_TESTS)
      set(all ALL)
      add_test(NAME metal_test COMMAND ${RG_PYTHON} ${CMAKE_SOURCE_DIR}/tests/metal_test.py ${dir}
        ${translated})
    endif()
    add_custom_target(metal ${all} DEPENDS ${metals})
  endif()
endfunction()
