if(RG_TESTS)
  add_test(NAME quant_tables_generated
    COMMAND ${RG_PYTHON} ${CMAKE_SOURCE_DIR}/tools/gen_tables.py --check)
endif()
