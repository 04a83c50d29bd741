# usage: cmake -DBUILD=folder -DCC=compiler -DCXX=compiler -DGENERATOR=name -DEXAMPLE=c|cpp
#              -P examples.cmake
# Installs component capi, and builds and runs the example program of docs/examples against it, as
# its readers do: once with find_package and once with pkg-config. Both train in memory and on disk.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH tests)
cmake_path(GET tests PARENT_PATH source)
set(example ${source}/docs/examples/${EXAMPLE})
set(work ${BUILD}/consumer_example_${EXAMPLE})
file(REMOVE_RECURSE ${work})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --component capi
                        --prefix ${work}/prefix
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE headers RELATIVE ${work}/prefix ${work}/prefix/*.h*)
file(GLOB_RECURSE archives ${work}/prefix/*.a)
if(NOT headers STREQUAL "include/spillway.h" OR archives)
  message(FATAL_ERROR "component capi installed ${headers} ${archives}")
endif()

# train(PROGRAM): trains in memory and with its state on disk; both runs print the same losses.
function(train program)
  foreach(place IN ITEMS memory disk)
    file(MAKE_DIRECTORY ${work}/${place})
    execute_process(COMMAND ${program} ${work}/${place} ${place} OUTPUT_VARIABLE output
                    COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCH "loss [0-9.]+ after 300 steps" ${place} "${output}")
    if(NOT ${place})
      message(FATAL_ERROR "the example printed \"${output}\"")
    endif()
    file(REMOVE_RECURSE ${work}/${place})
  endforeach()
  if(NOT memory STREQUAL disk)
    message(FATAL_ERROR "state in memory gave \"${memory}\", on disk \"${disk}\"")
  endif()
endfunction()

execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${example} -B ${work}/build -G ${GENERATOR}
          -DCMAKE_C_COMPILER=${CC} -DCMAKE_CXX_COMPILER=${CXX}
          -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_BUILD_TYPE=Release
          # Of third parties it needs none.
          -DCMAKE_DISABLE_FIND_PACKAGE_TBB=ON -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
          -DCMAKE_DISABLE_FIND_PACKAGE_oneDNN=ON -DCMAKE_DISABLE_FIND_PACKAGE_PkgConfig=ON
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work}/build OUTPUT_QUIET
                COMMAND_ERROR_IS_FATAL ANY)
train(${work}/build/train)

file(GLOB_RECURSE package ${work}/prefix/*/spillway.pc)
cmake_path(GET package PARENT_PATH packages)
set(ENV{PKG_CONFIG_PATH} ${packages})
execute_process(COMMAND pkg-config --cflags --libs "spillway >= 0.2" OUTPUT_VARIABLE flags
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
set(compile ${CC} -std=gnu11 -pthread ${example}/train.c)
if(EXAMPLE STREQUAL "cpp")
  set(compile ${CXX} -std=c++20 ${example}/train.cpp)
endif()
execute_process(COMMAND ${compile} -O2 -o ${work}/train ${flags} -lm COMMAND_ERROR_IS_FATAL ANY)
cmake_path(GET packages PARENT_PATH libraries)
set(ENV{LD_LIBRARY_PATH} ${libraries}:$ENV{LD_LIBRARY_PATH})
train(${work}/train)
