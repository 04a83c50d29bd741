# The installed package: find_package(spillway COMPONENTS engine) and link spillway::engine. Every
# module is a component; one that is installed by itself brings the modules that it needs.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)

# install(CODE) for one component alone: a whole installation has everything anyway.
function(spillway_install_step component code)
  install(CODE "if(CMAKE_INSTALL_COMPONENT)\n${code}\nendif()" COMPONENT ${component})
endfunction()

function(spillway_install_module name)
  set(headers ${CMAKE_INSTALL_INCLUDEDIR}/spillway)
  if(name STREQUAL "capi")  # whose users include <spillway.h>
    set(headers ${CMAKE_INSTALL_INCLUDEDIR})
  endif()
  # A whole installation takes the archives that were built: the program does without some modules.
  install(TARGETS spillway_${name} EXPORT spillway_${name}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${name} OPTIONAL
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${name} OPTIONAL
          FILE_SET HEADERS DESTINATION ${headers} COMPONENT ${name})
  spillway_install_step(${name} "if(NOT EXISTS \"$<TARGET_FILE:spillway_${name}>\")
  message(FATAL_ERROR \"${name} is not built: \"
          \"cmake --build ${PROJECT_BINARY_DIR} --target spillway_${name}\")
endif()")
  foreach(needed IN LISTS spillway_${name}_modules)
    spillway_install_step(${name} "execute_process(COMMAND \"\${CMAKE_COMMAND}\" --install
  \"${PROJECT_BINARY_DIR}\" --component ${needed} --prefix \"\${CMAKE_INSTALL_PREFIX}\"
  --config \"\${CMAKE_INSTALL_CONFIG_NAME}\" COMMAND_ERROR_IS_FATAL ANY)")
  endforeach()
  install(EXPORT spillway_${name} NAMESPACE spillway:: DESTINATION ${package} COMPONENT ${name})
endfunction()

foreach(component IN LISTS SPILLWAY_MODULES)
  spillway_install_module(${component})
endforeach()
if(SPILLWAY_CUDA_FOUND)
  install(TARGETS spillway_cuda_runtime spillway_cuda_libraries EXPORT spillway_cuda)
  install(EXPORT spillway_cuda NAMESPACE spillway:: DESTINATION ${package} COMPONENT base)
endif()
if(capi IN_LIST SPILLWAY_MODULES)
  install(FILES ${PROJECT_BINARY_DIR}/runtime/capi/spillway.pc
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT capi)
endif()
configure_package_config_file(cmake/spillwayConfig.cmake.in spillwayConfig.cmake
  INSTALL_DESTINATION ${package} PATH_VARS CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(spillwayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
foreach(component IN ITEMS base capi)  # capi does without base
  install(FILES cmake/FindoneDNN.cmake cmake/FindLibaio.cmake cmake/spillwayComponents.cmake
                ${PROJECT_BINARY_DIR}/spillwayConfig.cmake
                ${PROJECT_BINARY_DIR}/spillwayConfigVersion.cmake
          DESTINATION ${package} COMPONENT ${component})
endforeach()
