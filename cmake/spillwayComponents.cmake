# What each module needs, said once: the build reads this file and so does the installed package.
# `_modules` are other components, `_packages` third parties as spillway_require names them. Each
# component comes behind those that it needs.
set(spillway_components base offload cpu_adam nvme_swap comm plan data model config engine capi)

foreach(component IN ITEMS base plan data model config engine capi)
  set(spillway_${component}_folder runtime/${component})
endforeach()
foreach(component IN ITEMS offload cpu_adam nvme_swap comm)
  set(spillway_${component}_folder ${component})
endforeach()

set(spillway_base_packages Threads fmt spdlog hwloc)
set(spillway_offload_modules base)
set(spillway_offload_packages Threads cuda)
set(spillway_cpu_adam_modules base)
set(spillway_cpu_adam_packages TBB cuda)
set(spillway_nvme_swap_modules base)
set(spillway_nvme_swap_packages liburing Libaio xxhash)
set(spillway_comm_modules base)
set(spillway_comm_packages Threads libsodium cuda)
set(spillway_plan_modules base)
set(spillway_data_modules base)
set(spillway_model_modules base offload)
set(spillway_model_packages OpenMP oneDNN cuda)
set(spillway_config_modules base cpu_adam nvme_swap plan data)
set(spillway_engine_modules base offload cpu_adam nvme_swap comm plan data model config)
# capi is a shared library with the others inside: its users need none of them.

# spillway_library(result component): the name of the component's library.
function(spillway_library result component)
  if(component STREQUAL "capi")
    set(${result} libspillway.so PARENT_SCOPE)
  else()
    set(${result} libspillway_${component}.a PARENT_SCOPE)
  endif()
endfunction()

# spillway_close(result component...): the components and all that they need, in an order in which
# each comes behind what it needs.
function(spillway_close result)
  set(needed ${ARGN})
  foreach(component IN LISTS ARGN)
    list(APPEND needed ${spillway_${component}_modules})  # which name what these need as well
  endforeach()
  set(closed ${spillway_components})
  foreach(component IN LISTS spillway_components)
    if(NOT component IN_LIST needed)
      list(REMOVE_ITEM closed ${component})
    endif()
  endforeach()
  set(${result} ${closed} PARENT_SCOPE)
endfunction()

# spillway_require(find package arguments...): one of the packages above, but for cuda, by
# find_package or find_dependency.
macro(spillway_require find package)
  if("${package}" STREQUAL "OpenMP")
    cmake_language(CALL ${find} OpenMP ${ARGN} COMPONENTS CXX)
  elseif("${package}" MATCHES "^(hwloc|liburing|libsodium|xxhash)$")
    cmake_language(CALL ${find} PkgConfig ${ARGN})
    string(REPLACE xxhash libxxhash spillway_module "${package}")
    pkg_check_modules(${package} REQUIRED IMPORTED_TARGET ${spillway_module})
  elseif(NOT "${package}" STREQUAL "cuda")
    cmake_language(CALL ${find} ${package} ${ARGN})
  endif()
endmacro()
