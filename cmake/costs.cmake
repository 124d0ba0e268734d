# Seconds that the longest tests take on two cores. ctest starts with them, so that at the end no
# core waits for one that was begun last; it keeps figures of its own from run to run, but a fresh
# clone has none. Names that a build does not have are passed over.
set(RG_COSTS
  gpu_draft_test=150 gpu_arena_test=80 gpu_drafts_matrix_test=60 gpu_window_test=60
  gpu_mul_test=66 gpu_arena_cli=66 bench_test=62 gpu_joined_test=56 serve_test=53
  quantize_tool_test=52 gpu_test=40 gpu_demo=44 charter_stream=74 drafts=33 generate_draft_test=44
  gpu_shape_test=40 serve_prefix_test=41 serve_draft_test=40 arm_test=29 doctor_test=25
  golden_demo_q4=24 serve_load=23 fusion_test=20 tidy_test=18 pack_cli_test=18 cli_test=17
  gpu_timing_test=15 gpu_ops_test=13 tools_test=13 auto_vs_ref_bf16=12 auto_vs_ref_q4=12
  draft_sessions_test=12 tidy=11 traces=11 synth_test=10)

# Their threads hand work to each other thousands of times a second. Beside another test each time
# waits for the scheduler: generate_draft_test alone takes 8 seconds, beside another one 44,
# serve_test 10 and 53.
set(RG_TWO_PROCESSORS generate_draft_test draft_journal_test draft_sessions_test serve_test
  serve_draft_test serve_prefix_test serve_cancel serve_load)

# Of the tests of the directory that calls it.
function(rg_test_costs)
  get_property(tests DIRECTORY PROPERTY TESTS)
  foreach(entry ${RG_COSTS})
    string(REPLACE "=" ";" pair ${entry})
    list(GET pair 0 name)
    list(GET pair 1 seconds)
    if(name IN_LIST tests)
      set_property(TEST ${name} PROPERTY COST ${seconds})
    endif()
  endforeach()
  foreach(name ${RG_TWO_PROCESSORS})
    if(name IN_LIST tests)
      set_property(TEST ${name} PROPERTY PROCESSORS 2)
    endif()
  endforeach()
endfunction()
