# Compiles the product with SPILLWAY_PRODUCT_OPTIONS too, and its tests as ever, so that a compiler
# cache has their objects. CMAKE_PROJECT_spillway_INCLUDE names this file (tests/tools/mutants).
function(spillway_product_options)
  get_property(modules GLOBAL PROPERTY SPILLWAY_MODULE_TARGETS)
  set(others module_headers program_headers capi face descriptions bench cuda_emulation)
  list(TRANSFORM others PREPEND spillway_)
  foreach(target IN LISTS modules others ITEMS spillway)
    if(TARGET ${target})
      target_compile_options(${target} PRIVATE ${SPILLWAY_PRODUCT_OPTIONS})
    endif()
  endforeach()
  target_link_options(spillway_base INTERFACE ${SPILLWAY_PRODUCT_OPTIONS})
endfunction()
cmake_language(DEFER CALL spillway_product_options)
