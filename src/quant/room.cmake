# The packers once per instruction level; the same bits on each (quant/pack/packer_parts.h).
file(GLOB rg_pack_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/quant/pack/*.c)

function(rg_pack_level level)
  add_library(rg_pack_${level} OBJECT ${rg_pack_sources})
  target_link_libraries(rg_pack_${level} PRIVATE rg_flags)
  target_include_directories(rg_pack_${level} PRIVATE
    ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_compile_definitions(rg_pack_${level} PRIVATE RG_LEVEL=${level})
  target_compile_options(rg_pack_${level} PRIVATE ${RG_STRICT} -O3 -fno-math-errno
    -fno-trapping-math ${ARGN})
  target_sources(rg_quant PRIVATE $<TARGET_OBJECTS:rg_pack_${level}>)
endfunction()

rg_pack_level(scalar)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  rg_pack_level(v3 -march=x86-64-v3)
  rg_pack_level(v4 -march=x86-64-v4 -mprefer-vector-width=512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  rg_pack_level(neon)
endif()

if(RG_TESTS)
  add_test(NAME quant_tables_generated
    COMMAND ${RG_PYTHON} ${CMAKE_SOURCE_DIR}/tools/gen_tables.py --check)
endif()
