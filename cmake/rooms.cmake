# One CMake target per room. rg_room(NAME DEPS rooms... LIBS libraries...) takes every
# src/NAME/*.c; x_test.c beside x.c becomes one cmocka executable and one ctest test.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
set(RG_LIBURING "")
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Darwin")
  pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)
  set(RG_LIBURING PkgConfig::LIBURING)
endif()
if(RG_TESTS)
  pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)
endif()
# The distribution's python first: it is the one that sees the distribution's numpy and jinja2.
find_program(RG_PYTHON NAMES python3 PATHS /usr/bin NO_DEFAULT_PATH)
if(NOT RG_PYTHON)
  find_program(RG_PYTHON NAMES python3 REQUIRED)
endif()

add_library(rg_flags INTERFACE)
target_compile_definitions(rg_flags INTERFACE _GNU_SOURCE)
target_compile_options(rg_flags INTERFACE
  -ffp-contract=off -fno-fast-math -fvisibility=hidden -fno-common -fno-omit-frame-pointer
  -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wvla -Wstrict-prototypes -Wmissing-prototypes
  -Wdouble-promotion -Wcast-qual -Wcast-align -Wformat=2 -Wnull-dereference
  -Wimplicit-fallthrough -Werror)
if(RG_SANITIZE)
  target_compile_options(rg_flags INTERFACE -fsanitize=${RG_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(rg_flags INTERFACE -fsanitize=${RG_SANITIZE})
endif()
target_link_libraries(rg_flags INTERFACE Threads::Threads m)
set(RG_STRICT -Wconversion -Wsign-conversion)

function(rg_room name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.c)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.c$")
  list(FILTER tests INCLUDE REGEX "_test\\.c$")
  if(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
    list(FILTER sources EXCLUDE REGEX "_linux\\.c$")
  else()
    list(FILTER sources EXCLUDE REGEX "_darwin\\.c$")
  endif()
  if(sources)
    add_library(rg_${name} STATIC ${sources})
    set(scope PUBLIC)
  else() # a room that nobody lives in yet
    add_library(rg_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(rg_${name} ${scope}
    ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(rg_${name} ${scope} rg_flags ${ARG_LIBS})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(rg_${name} ${scope} rg_${dep})
  endforeach()
  if(sources AND NOT name STREQUAL "kernels")
    target_compile_options(rg_${name} PRIVATE ${RG_STRICT})
  endif()
  if(EXISTS ${CMAKE_SOURCE_DIR}/src/${name}/room.cmake)
    include(${CMAKE_SOURCE_DIR}/src/${name}/room.cmake)
  endif()
  if(RG_TESTS)
    add_custom_target(tests_${name}) # builds the room's tests alone
    foreach(test ${tests})
      get_filename_component(test_name ${test} NAME_WE)
      rg_test(${test_name} SOURCES ${test} LIBS rg_${name} ${RG_ROOM_TEST_LIBS} LABELS ${name})
      add_dependencies(tests_${name} ${test_name})
    endforeach()
  endif()
endfunction()

# What every test runs with. A sanitizer must let an allocation fail as malloc does, and a report
# must fail the test. Kernels that a software device has compiled serve every test and preset: one
# costs it a tenth of a second, ten times that under a sanitizer.
set(RG_TEST_ENV
  "MESA_SHADER_CACHE_DIR=${CMAKE_SOURCE_DIR}/build/shaders"
  "ASAN_OPTIONS=allocator_may_return_null=1:detect_stack_use_after_return=1"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=allocator_may_return_null=1:halt_on_error=1:second_deadlock_stack=1")

# A test's cores share devices (support/gpu_kept.h). The linker of Darwin has no --wrap.
function(rg_test_keeps_gpu name)
  if(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
    return()
  endif()
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/support/gpu_kept.c)
  target_compile_definitions(${name} PRIVATE RG_TEST_GPU_KEPT)
  target_link_options(${name} PRIVATE -Wl,--wrap=rg_gpu_open,--wrap=rg_gpu_close)
endfunction()

# A cmocka executable. Exit 77 means skipped. Data lies under tests/data and ../shared. A room's
# tests carry its name as label.
function(rg_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LIBS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests) # support/
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} PkgConfig::CMOCKA)
  target_compile_definitions(${name} PRIVATE RG_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    RG_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600
    ENVIRONMENT "${RG_TEST_ENV}")
  # Vulkan drivers keep memory to the end, which the leak checker reports without a name that could
  # be excepted. Our own allocations are counted (rg_alloc_live_bytes).
  if(name MATCHES "^gpu_")
    string(REPLACE "ASAN_OPTIONS=" "ASAN_OPTIONS=detect_leaks=0:" env "${RG_TEST_ENV}")
    # A software device compiles its kernels anew for each set of switches, on the test's cores.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${env}" TIMEOUT 1800)
    if("rg_engine" IN_LIST ARG_LIBS OR "rg_api" IN_LIST ARG_LIBS)
      rg_test_keeps_gpu(${name})
    endif()
  endif()
  if(ARG_LABELS)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}")
  endif()
endfunction()

# The long form of a test, for `make soak` only: rg_soak(NAME COMMAND program arguments...).
function(rg_soak name)
  cmake_parse_arguments(ARG "" "" "COMMAND" ${ARGN})
  if(RG_SOAK)
    set(env "${RG_TEST_ENV}")
    if(name MATCHES "^gpu_") # as in rg_test
      string(REPLACE "ASAN_OPTIONS=" "ASAN_OPTIONS=detect_leaks=0:" env "${env}")
    endif()
    add_test(NAME soak_${name} COMMAND ${ARG_COMMAND})
    set_tests_properties(soak_${name} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 14400 LABELS soak
      ENVIRONMENT "${env};RG_SOAK=1")
  endif()
endfunction()
