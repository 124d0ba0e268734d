# The page is built from web/ and committed; here its bytes become a C array.
set(page ${CMAKE_SOURCE_DIR}/web/dist/index.html)
set(page_c ${CMAKE_BINARY_DIR}/page_bytes.c)
add_custom_command(OUTPUT ${page_c}
  COMMAND ${RG_PYTHON} ${CMAKE_SOURCE_DIR}/tools/embed.py ${page} ${page_c} rg_page
  DEPENDS ${page} ${CMAKE_SOURCE_DIR}/tools/embed.py)
target_sources(rg_serve PRIVATE ${page_c})
