# Has the product's libraries and the program count which lines run (gcov), for tests/tools/mutants
# --random: cmake -DCMAKE_PROJECT_spillway_INCLUDE=tests/tools/coverage.cmake. Test programs are
# compiled as ever.
function(spillway_count_lines)
  set(names module_headers program_headers base offload cpu_adam nvme_swap comm plan data model
      config engine capi face cuda_emulation)
  list(TRANSFORM names PREPEND spillway_)
  foreach(target IN LISTS names ITEMS spillway)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE --coverage -O1)
    endif()
  endforeach()
  target_link_options(spillway_base INTERFACE --coverage)
endfunction()
cmake_language(DEFER CALL spillway_count_lines)
