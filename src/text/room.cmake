# Tests of the room that read JSON, and the bridge to the templates' own interpreter.
if(RG_TESTS)
  pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
  rg_test(tokenizer_vectors_test
    SOURCES ${CMAKE_SOURCE_DIR}/tests/text/tokenizer_vectors_test.c
    LIBS rg_text PkgConfig::JANSSON LABELS text)
  add_executable(chat_render ${CMAKE_SOURCE_DIR}/tests/text/chat_render_main.c)
  target_link_libraries(chat_render PRIVATE rg_text)
  target_compile_options(chat_render PRIVATE ${RG_STRICT})
  add_test(NAME chat_oracle_test
    COMMAND ${RG_PYTHON} ${CMAKE_SOURCE_DIR}/tests/chat_oracle_test.py $<TARGET_FILE:chat_render>)
  set_tests_properties(chat_oracle_test PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 120 LABELS text)
endif()
