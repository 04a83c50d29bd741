# libaio as Libaio::aio; it comes with neither a pkg-config nor a CMake file.
find_path(Libaio_INCLUDE_DIR libaio.h)
find_library(Libaio_LIBRARY aio)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libaio REQUIRED_VARS Libaio_LIBRARY Libaio_INCLUDE_DIR)
if(Libaio_FOUND AND NOT TARGET Libaio::aio)
  add_library(Libaio::aio UNKNOWN IMPORTED)
  set_target_properties(Libaio::aio PROPERTIES
    IMPORTED_LOCATION ${Libaio_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${Libaio_INCLUDE_DIR})
endif()
