# usage: cmake -DBUILD=folder -DCXX=compiler -DGENERATOR=name -DCOMPONENT=name -DPRINTS=text
#              -P one_component.cmake
# Installs one component and builds a project that uses it, where packages that only other
# components need cannot be found.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/spillwayComponents.cmake)
set(work ${BUILD}/consumer_${COMPONENT})
file(REMOVE_RECURSE ${work})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --component ${COMPONENT}
                        --prefix ${work}/prefix
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

file(GLOB_RECURSE archives RELATIVE ${work}/prefix ${work}/prefix/*.a)
list(TRANSFORM archives REPLACE ".*/libspillway_(.*)\\.a" "\\1")
list(SORT archives)
set(expected base ${COMPONENT})
list(SORT expected)
if(NOT archives STREQUAL expected)
  message(FATAL_ERROR "component ${COMPONENT} installed the modules ${archives}")
endif()

set(without)
foreach(package IN ITEMS TBB Libaio oneDNN OpenMP nlohmann_json)
  if(NOT package IN_LIST spillway_${COMPONENT}_packages)
    list(APPEND without -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
  endif()
endforeach()
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/components -B ${work}/build -G ${GENERATOR}
          -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${work}/prefix -DCOMPONENT=${COMPONENT}
          ${without}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${work}/build COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${work}/build/component WORKING_DIRECTORY ${work}
                OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
if(NOT output STREQUAL "${PRINTS}\n")
  message(FATAL_ERROR "the project with ${COMPONENT} printed \"${output}\"")
endif()
