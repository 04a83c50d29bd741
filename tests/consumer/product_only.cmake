# usage: cmake -DSOURCE=folder -DWORK=folder -DCXX=compiler -DGENERATOR=name -P product_only.cmake
# What tools/quickstart leaves is a build of the program alone: `cmake --install` must do with it.
# Files of no content stand for what such a build makes, as the compiler is not what is tested.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${WORK})
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
          -DSPILLWAY_BUILD_TESTS=OFF -DSPILLWAY_CUDA=OFF
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
include(${SOURCE}/cmake/spillwayComponents.cmake)
spillway_close(modules engine)  # of which the program consists
foreach(module IN LISTS modules)
  file(TOUCH ${WORK}/build/${spillway_${module}_folder}/libspillway_${module}.a)
endforeach()
file(TOUCH ${WORK}/build/spillway)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${WORK}/build --prefix ${WORK}/prefix
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
foreach(file IN ITEMS bin/spillway include/spillway/cpu_adam/adam.hpp)
  if(NOT EXISTS ${WORK}/prefix/${file})
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()

# The package offers what was built, and says what was not.
foreach(component IN ITEMS engine capi)
  file(WRITE ${WORK}/${component}/CMakeLists.txt "cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(spillway REQUIRED COMPONENTS ${component})
")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S ${WORK}/${component} -B ${WORK}/${component}/build -G ${GENERATOR}
            -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${WORK}/prefix
    OUTPUT_QUIET ERROR_VARIABLE errors RESULT_VARIABLE result_${component})
endforeach()
if(NOT result_engine EQUAL 0)
  message(FATAL_ERROR "the installed package does not offer the engine")
endif()
if(result_capi EQUAL 0 OR NOT errors MATCHES "component capi is not installed")
  message(FATAL_ERROR "a module that was not built was not refused by name: ${errors}")
endif()
# A component by itself is what its user builds against: its archive must be there.
execute_process(
  COMMAND ${CMAKE_COMMAND} --install ${WORK}/build --component capi --prefix ${WORK}/capi_alone
  OUTPUT_QUIET ERROR_VARIABLE errors RESULT_VARIABLE result)
if(result EQUAL 0 OR NOT errors MATCHES "capi is not built")
  message(FATAL_ERROR "a component that is not built was installed: ${errors}")
endif()
