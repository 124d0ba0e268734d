set(RG_ROOM_TEST_LIBS rg_test_support) # gguf_writer
# jansson writes the reports of doctor; liburing is one of the ways it measures the drive.
pkg_check_modules(RG_FORGE_JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(RG_FORGE_CURL REQUIRED IMPORTED_TARGET libcurl>=7.85)
target_link_libraries(rg_forge PUBLIC PkgConfig::RG_FORGE_JANSSON PkgConfig::RG_FORGE_CURL
  ${RG_LIBURING})
# The bandwidth loop must not be what limits it.
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/forge/doctor_memory.c PROPERTIES
  COMPILE_OPTIONS -O3)
