# usage: cmake -DBUILD=folder -DCXX=compiler -DGENERATOR=name -P install_and_use.cmake
# The installed files must do without the source tree and the build directory: no path of either may
# appear in them.
cmake_minimum_required(VERSION 3.25)
set(work ${BUILD}/consumer)
file(REMOVE_RECURSE ${work})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH tests)
cmake_path(GET tests PARENT_PATH source)
file(GLOB_RECURSE package ${work}/prefix/*.cmake)
if(NOT package)
  message(FATAL_ERROR "no package files were installed below ${work}/prefix")
endif()
foreach(file IN LISTS package)
  file(READ ${file} text)
  string(FIND "${text}" "${source}/" found)
  if(NOT found EQUAL -1)
    message(FATAL_ERROR "${file} names the source tree ${source}")
  endif()
endforeach()

execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/project -B ${work}/build -G ${GENERATOR}
          -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${work}/prefix
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${work}/build/consumer OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output STREQUAL "834304 parameters in 6 blocks\n")
  message(FATAL_ERROR "the consumer printed \"${output}\"")
endif()
