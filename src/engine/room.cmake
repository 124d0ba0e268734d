set(RG_ROOM_TEST_LIBS rg_test_support) # split_draft
