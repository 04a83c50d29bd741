# spillway_module(NAME SOURCES ... HEADERS ... [PUBLIC targets ...] [PRIVATE targets ...]
#                 [BUILD_ONLY targets ...])
# One static library per module: target spillway_NAME, alias spillway::NAME, include paths from the
# repository root. HEADERS are those that the package installs. BUILD_ONLY targets consist of
# headers that none of these includes: users of the package do without them. Flags stay private to
# the build; the exported package carries none of them.
include(GNUInstallDirs)

# Warnings are errors with the compilers that tools/test builds with. Another one warns about other
# things, which must not stop somebody who only wants to use the program.
set(known_compiler OFF)
if((CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.") OR
   (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION MATCHES "^16\\."))
  set(known_compiler ON)
endif()
option(SPILLWAY_WERROR "Treat warnings as errors" ${known_compiler})

add_library(spillway_flags INTERFACE)
target_compile_features(spillway_flags INTERFACE cxx_std_20)
target_compile_options(spillway_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:
  -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor
  $<$<BOOL:${SPILLWAY_WERROR}>:-Werror>
  # What runtime/base/mutex.hpp annotates.
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
  # Exactness: the compiler must not fuse a multiply and an add that the source keeps apart.
  -ffp-contract=off -fno-math-errno
  # Reproducible: no path of the checkout, so that two checkouts give the same bytes.
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=
  # ccache must find precompiled headers again in another checkout.
  $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>>)
if(SPILLWAY_BUILD_FUZZERS)
  target_compile_options(spillway_flags INTERFACE -fsanitize=fuzzer-no-link
    -fsanitize-coverage-allowlist=${PROJECT_SOURCE_DIR}/tests/fuzz/coverage.list)
endif()
if(SPILLWAY_SANITIZE)
  target_compile_options(spillway_flags INTERFACE
    -fsanitize=${SPILLWAY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(spillway_flags INTERFACE -fsanitize=${SPILLWAY_SANITIZE})
endif()

# spillway_unity(TARGET): where CMAKE_UNITY_BUILD is on, the sources of a folder are compiled as
# one. Kernels and what a backend's absence leaves stay apart: each has its own flags, or its own
# place in the archive, which a program may fill with something else
# (tests/support/cuda_emulation).
function(spillway_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "kernels|_absent|cuda|nccl|host/|\\.cu$")
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "${target}_${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

function(spillway_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;HEADERS;PUBLIC;PRIVATE;BUILD_ONLY" ${ARGN})
  add_library(spillway_${name} STATIC ${arg_SOURCES})
  add_library(spillway::${name} ALIAS spillway_${name})
  set_target_properties(spillway_${name} PROPERTIES EXPORT_NAME ${name}
                                                    POSITION_INDEPENDENT_CODE ON)
  target_compile_features(spillway_${name} PUBLIC cxx_std_20)
  target_sources(spillway_${name} PUBLIC
    FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_HEADERS})
  target_link_libraries(spillway_${name} PUBLIC ${arg_PUBLIC}
    PRIVATE ${arg_PRIVATE} $<BUILD_INTERFACE:spillway_flags>)
  foreach(target IN LISTS arg_BUILD_ONLY)
    target_link_libraries(spillway_${name} PRIVATE $<BUILD_INTERFACE:${target}>)
  endforeach()
  if("OpenMP::OpenMP_CXX" IN_LIST arg_PRIVATE)  # which is another language to compilers
    target_precompile_headers(spillway_${name} PRIVATE ${spillway_common_headers})
  else()
    target_precompile_headers(spillway_${name} REUSE_FROM spillway_module_headers)
  endif()
  spillway_unity(spillway_${name})
  set_property(GLOBAL APPEND PROPERTY SPILLWAY_MODULE_TARGETS spillway_${name})
endfunction()
