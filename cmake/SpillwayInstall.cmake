# The installed package: find_package(spillway) and link spillway::engine.
include(CMakePackageConfigHelpers)
get_property(modules GLOBAL PROPERTY SPILLWAY_MODULES)
install(TARGETS ${modules} EXPORT spillwayTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY runtime offload cpu_adam nvme_swap comm
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/spillway
        FILES_MATCHING PATTERN "*.hpp" PATTERN "detail" EXCLUDE)
install(EXPORT spillwayTargets NAMESPACE spillway::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)
configure_package_config_file(cmake/spillwayConfig.cmake.in spillwayConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)
write_basic_package_version_file(spillwayConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES cmake/FindoneDNN.cmake cmake/FindLibaio.cmake
              ${PROJECT_BINARY_DIR}/spillwayConfig.cmake
              ${PROJECT_BINARY_DIR}/spillwayConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/spillway)
