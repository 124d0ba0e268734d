# Tests of the room that read JSON, and the bridge to the templates' own interpreter.
if(RG_TESTS)
  pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
  foreach(test tokenizer_vectors_test)
    rg_test(${test} SOURCES ${CMAKE_SOURCE_DIR}/tests/text/${test}.c
      LIBS rg_text PkgConfig::JANSSON)
  endforeach()
endif()
