# Precompiled headers: what most sources include is read once for all targets with the same flags.
# A source includes what it uses all the same, and clang-tidy reads each without (preset tidy).
# Those of the tests are in tests/CMakeLists.txt.
set(spillway_common_headers
    <algorithm> <array> <chrono> <cstdint> <cstring> <filesystem> <functional> <map> <memory>
    <optional> <set> <span> <string> <string_view> <utility> <vector> <fmt/format.h>)

# spillway_precompile(NAME [POSITION_INDEPENDENT]): a target whose precompiled headers others take
# with target_precompile_headers(TARGET REUSE_FROM NAME).
function(spillway_precompile name)
  cmake_parse_arguments(arg "POSITION_INDEPENDENT" "" "" ${ARGN})
  set(empty ${PROJECT_BINARY_DIR}/${name}.cpp)  # CMake wants a source
  file(CONFIGURE OUTPUT ${empty} CONTENT "// The headers are all there is.\n")
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${empty})
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ${arg_POSITION_INDEPENDENT})
  target_link_libraries(${name} PRIVATE fmt::fmt spillway_flags)
  target_precompile_headers(${name} PRIVATE ${spillway_common_headers})
endfunction()

spillway_precompile(spillway_module_headers POSITION_INDEPENDENT)
spillway_precompile(spillway_program_headers)
